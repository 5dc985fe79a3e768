"""Decoders in Hugging Face folders: their logits are those of transformers, whatever way they are stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.models.families import FAMILIES, VOCAB_SIZE, largest_difference

from vidette.errors import ModelError
from vidette.models import StepPlan
from vidette.models.decoder import Decoder
from vidette.models.folder import TensorFolder, read_folder_decoder, read_folder_info
from vidette.models.quants import TensorType

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def saved(
    tiny_model: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a function that gives the folder of a family, not to be changed."""
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            tiny_model(name).save_pretrained(folders[name])
        return folders[name]

    return get


@pytest.fixture
def copied(saved: Callable[[str], Path], tmp_path: Path) -> Path:
    """The folder of a Llama whose JSON files may be changed."""
    for path in saved("llama").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def load(path: Path) -> Decoder:
    return Decoder(*read_folder_decoder(path, "tiny"))


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(
    name: str,
    tiny_model: Callable[[str], Any],
    saved: Callable[[str], Path],
    make_plan: Callable[..., StepPlan],
) -> None:
    model = load(saved(name))
    assert model.info.architecture == FAMILIES[name].model_type.removesuffix("_text")
    assert largest_difference(model, tiny_model(name), make_plan) < 2e-4


@pytest.mark.parametrize(("dtype", "stored"), [("bfloat16", TensorType.BF16), ("float16", TensorType.F16)])
def test_half_the_bytes(
    dtype: str, stored: TensorType, tmp_path: Path, make_plan: Callable[..., StepPlan]
) -> None:
    from tests.engine.models.families import make_model

    half = make_model("gemma3").to({"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype])
    half.save_pretrained(tmp_path)
    # The very weights that were stored, in float32; what is no weight was never rounded.
    reference = type(half).from_pretrained(tmp_path, dtype=torch.float32).eval()
    _, weights, _ = read_folder_decoder(tmp_path, "half")
    assert weights.layers[2].down.type is stored
    assert not weights.layers[2].down.data.flags.owndata
    assert largest_difference(load(tmp_path), reference, make_plan) < 2e-4


def test_several_files(
    tiny_model: Callable[[str], Any], tmp_path: Path, make_plan: Callable[..., StepPlan]
) -> None:
    tiny_model("qwen3").save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert largest_difference(load(tmp_path), tiny_model("qwen3"), make_plan) < 2e-4
    index = tmp_path / "model.safetensors.index.json"
    parts = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": parts | {"lm_head.weight": "../other.safetensors"}}))
    with pytest.raises(ModelError, match=r"'../other.safetensors' is not the name of a file beside it"):
        load(tmp_path)
    first = tmp_path / min(parts.values())
    (tmp_path / "again.safetensors").write_bytes(first.read_bytes())
    index.write_text(json.dumps({"weight_map": parts | {"more": "again.safetensors"}}))
    with pytest.raises(ModelError, match="is in two files"):
        load(tmp_path)
    first.unlink()
    index.write_text(json.dumps({"weight_map": parts}))
    with pytest.raises(ModelError, match=f"cannot read the model file {first}"):
        load(tmp_path)


def test_a_gemma_of_parts_that_is_text_alone(
    tiny_model: Callable[[str], Any],
    saved: Callable[[str], Path],
    tmp_path: Path,
    make_plan: Callable[..., StepPlan],
) -> None:
    from safetensors.torch import save_file

    text = json.loads((saved("gemma3") / "config.json").read_text())
    config = {"model_type": "gemma3", "eos_token_id": [1, 7], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        name.replace("model.", "language_model.model."): tensor
        for name, tensor in tiny_model("gemma3").state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path)
    assert model.info.eos_token_ids == {1, 7}
    assert largest_difference(model, tiny_model("gemma3"), make_plan) < 2e-4
    (tmp_path / "config.json").write_text(json.dumps(config | {"vision_config": {"depth": 2}}))
    with pytest.raises(ModelError, match="models that see images are not supported"):
        load(tmp_path)


def test_an_info_takes_the_json_files_alone(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    info = read_folder_info(copied, "some-name", bos_token_id=5)
    assert (info.name, info.architecture, info.bos_token_id) == ("some-name", "llama", 5)
    assert (info.vocab_size, info.context_len) == (VOCAB_SIZE, 256)
    assert info.kv_bytes_per_token == 2 * 3 * 2 * 10 * 2
    with pytest.raises(ModelError, match=r"has neither model.safetensors nor model.safetensors.index.json"):
        load(copied)


def test_which_tokens_end_an_answer(copied: Path) -> None:
    config, generation = copied / "config.json", copied / "generation_config.json"
    change(config, eos_token_id=[3, 4])
    change(generation, eos_token_id=9)
    assert read_folder_info(copied, "tiny").eos_token_ids == {9}
    change(generation, eos_token_id=[9, 2])
    assert read_folder_info(copied, "tiny").eos_token_ids == {9, 2}
    change(generation, eos_token_id=None)
    assert read_folder_info(copied, "tiny").eos_token_ids == {3, 4}
    generation.unlink()
    assert read_folder_info(copied, "tiny").eos_token_ids == {3, 4}
    change(config, eos_token_id=None)
    assert read_folder_info(copied, "tiny").eos_token_ids == frozenset()
    for wrong in (VOCAB_SIZE, -1, [0, 10**30]):
        change(config, eos_token_id=wrong)
        with pytest.raises(ModelError, match="outside the vocabulary of 260 tokens"):
            read_folder_info(copied, "tiny")
    change(config, eos_token_id="</s>")
    with pytest.raises(ModelError, match=r"eos_token_id is .* not an integer"):
        read_folder_info(copied, "tiny")


def test_tensors_that_nobody_reads(saved: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(saved("qwen2") / "model.safetensors")
    tensors["lm_head.weight"] = np.zeros((2, 2), np.float32)  # tied: the embedding is the head
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(5, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((saved("qwen2") / "config.json").read_bytes())
    _, weights, _ = read_folder_decoder(tmp_path, "tiny")
    assert weights.head is None


_WRONG: dict[str, tuple[dict[str, tuple[int, ...] | None], str]] = {
    "missing": ({"model.layers.1.mlp.up_proj.weight": None}, "no tensor 'model.layers.1.mlp.up_proj.weight'"),
    "shape": ({"model.norm.weight": (47,)}, r"'model.norm.weight' has shape \(47,\) instead of \(48,\)"),
    "left over": (
        {"model.layers.0.self_attn.o_proj.bias": (48,)},
        "'model.layers.0.self_attn.o_proj.bias' belongs to no llama model that we compute",
    ),
    "no embedding": ({"model.embed_tokens.weight": None}, "0 tensors with a name that ends in"),
    "two embeddings": ({"vision.embed_tokens.weight": (2, 2)}, "2 tensors with a name that ends in"),
    "no head": ({"lm_head.weight": None}, "no tensor 'lm_head.weight'"),
}


@pytest.mark.parametrize("case", _WRONG)
def test_tensors_that_do_not_fit_are_refused_by_name(case: str, copied: Path) -> None:
    from safetensors.numpy import load_file, save_file

    changes, fault = _WRONG[case]
    tensors = load_file(copied / "model.safetensors")
    for name, shape in changes.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.zeros(shape, np.float32)
    save_file(tensors, copied / "model.safetensors")
    with pytest.raises(ModelError, match=fault) as caught:
        load(copied)
    assert str(copied) in str(caught.value)


def test_a_tensor_that_is_not_there(copied: Path) -> None:
    with pytest.raises(ModelError, match="there is no tensor 'other'"):
        TensorFolder(copied).raw("other")
