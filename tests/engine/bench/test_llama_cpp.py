"""llama.cpp's benchmark, by a program that says what it would."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vidette.bench.llama_cpp import PROGRAM, LlamaBench, Speeds, find_program
from vidette.errors import UsageError

ANSWERS = """
import json, sys
words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2]))
print("llama_model_loader: loaded {}")
sizes = {"pp": given["-npp"], "tg": given["-ntg"], "pl": given["-npl"], "c": given["-c"], "t": given["-t"]}
numbers = {name: int(text) for name, text in sizes.items()}
print(json.dumps(numbers | {"n_kv": 1, "speed_pp": 200.5, "speed_tg": numbers["c"] + numbers["t"] / 10}))
"""


def program(folder: Path, code: str) -> LlamaBench:
    path = folder / PROGRAM
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return LlamaBench(find_program(folder), folder / "model.gguf", threads=2)


def test_it_is_told_the_sizes_and_says_the_speeds(tmp_path: Path) -> None:
    bench = program(tmp_path, ANSWERS)
    assert bench.measure(prompt=128, new=64, streams=1) == Speeds(200.5, 256.2)
    # Of each stream 257 tokens, which take the room of 512.
    assert bench.measure(prompt=256, new=1, streams=32) == Speeds(200.5, 32 * 512 + 0.2)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('no such model')", "ended with 1: no such model"),
        ("print('{\"pp\": 1}')", "ended with 0: "),
        ('print(\'{"pp": 1, "tg": 1, "pl": 1, "speed_pp": 1, "speed_tg": 1}\')', "ended with 0"),
    ],
)
def test_what_goes_wrong_is_said(code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        program(tmp_path, code).measure(prompt=128, new=32, streams=8)


def test_what_cannot_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"no {PROGRAM} in"):
        find_program(tmp_path)
    bench = program(tmp_path, "")
    (tmp_path / PROGRAM).chmod(0o644)
    with pytest.raises(UsageError, match="denied"):
        bench.measure(prompt=1, new=1, streams=1)
