"""Each process imports what it needs of a model, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vidette.models import ModelSource, load_model, load_token_table, load_tokenizer, read_info

HEAVY = {"torch", "tokenizers", "jinja2", "transformers", "gguf"}


def _imported_by(code: str) -> set[str]:
    """Run code in a fresh interpreter and return which of the heavy packages it has imported."""
    script = f"import sys\n{code}\nprint(' '.join(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return HEAVY & set(done.stdout.split())


@pytest.mark.parametrize("name", ["toy", "tiny"])
@pytest.mark.parametrize(
    ("function", "allowed"),
    [("read_info", set()), ("load_token_table", set()), ("load_tokenizer", {"tokenizers", "jinja2"})],
)
def test_no_process_imports_more_than_it_needs(
    name: str, function: str, allowed: set[str], tiny_llama_path: Path
) -> None:
    source = "toy" if name == "toy" else str(tiny_llama_path)
    imported = _imported_by(f"from vidette.models import *\n{function}(resolve({source!r}))")
    assert imported == (set() if name == "toy" else allowed)


def test_a_folder_is_read_without_torch(tiny_model: Callable[[str], Any], tmp_path: Path) -> None:
    tiny_model("gemma3").save_pretrained(tmp_path)
    code = (
        "from vidette.models import *\nfrom vidette.models.load import read_decoder\n"
        f"source = resolve({str(tmp_path)!r})\n"
        "info = read_info(source)\nassert info == read_decoder(source.path, source.name)[2]\n"
        "assert info.architecture == 'gemma3'"
    )
    assert _imported_by(code) == set()


def test_the_map_of_the_package_imports_nothing_heavy() -> None:
    assert _imported_by("import vidette.models") == set()


def test_the_parts_of_a_model_agree(tiny_llama_path: Path) -> None:
    source = ModelSource("some-name", tiny_llama_path)
    info = read_info(source)
    assert info.name == "some-name"
    assert info.architecture == "llama"
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 8 * 2
    assert info.eos_token_ids == {258}
    # Heads of 8 values are for torch, which keeps keys and values as float32.
    assert load_model(source).info == info._replace(kv_bytes_per_token=2 * info.kv_bytes_per_token)
    assert len(load_token_table(source).token_bytes) == info.vocab_size == 260
    assert load_tokenizer(source).encode("th").tolist() == [256]
