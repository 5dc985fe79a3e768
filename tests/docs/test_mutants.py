"""What the page about mutants says is what the explorer finds."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_what_is_found() -> None:
    page = (ROOT / "docs/reference/mutants.md").read_text()
    assert page == runpy.run_path(str(ROOT / "docs/make_mutants.py"))["fill"](page), "run `make reference`"
