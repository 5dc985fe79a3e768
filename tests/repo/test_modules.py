"""What holds for every module: a size one can read at a sitting, a first sentence, nothing left to do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

MAX_LINES = 500
"""A longer module says in its first comment or docstring why it is one file, and is listed below."""

MAX_TEST_LINES = 800
"""Tests are a list, which is easier to find one's way in."""

LONG_MODULES: frozenset[str] = frozenset()
"""Paths from the root of the checkout."""

WORDS = [begin + end for begin, end in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK"))]
"""Put together here, so that this file does not find itself."""


def test_long_modules_say_why(root: Path, modules: list[Path]) -> None:
    long = {}
    for path in modules:
        text = path.read_text()
        most = MAX_TEST_LINES if path.is_relative_to(root / "tests") else MAX_LINES
        if text.count("\n") > most:
            long[path.relative_to(root).as_posix()] = text
    assert long.keys() == LONG_MODULES
    for name, text in long.items():
        assert "one file" in first_words(text), f"{name} does not say why it is one file"


def first_words(text: str) -> str:
    """Return the docstring, or the comment that the module opens with."""
    comment = re.match(r"(?:#.*\n)*", text)
    return (comment.group() if comment else "") + (ast.get_docstring(ast.parse(text)) or "")


def test_every_module_opens_with_a_sentence(root: Path, product: list[Path]) -> None:
    silent = [
        path.relative_to(root).as_posix()
        for path in product
        if not first_line(path).endswith((".", "!", ":", "`"))
    ]
    assert not silent


def first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n\n")[0].rstrip()


PATTERNS = [
    *(f"{folder}/**/*.py" for folder in ("engine", "protocol", "fuzz", "tests", "docs")),
    *(f"engine/vidette/kernels/source/*.{suffix}" for suffix in ("cpp", "hpp")),
    "docs/**/*.md",
    "*.md",
    "*.toml",
    "Makefile",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_nothing_is_left_to_do(root: Path, pattern: str) -> None:
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sorted(root.glob(pattern))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if any(word in line for word in WORDS)
    ]
    assert not found


@pytest.mark.parametrize("package", ["engine/vidette", "protocol/vidette_protocol", "fuzz/vidette_fuzz"])
def test_packages_are_typed(root: Path, package: str) -> None:
    assert (root / package / "py.typed").is_file()
