"""Writes the generated parts of docs/reference/mutants.md anew: `make reference`.

Each mutant is hunted for it, so the page says what the explorer finds; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path

from vidette_fuzz.tables import parts

PAGE = Path(__file__).parent / "reference" / "mutants.md"


def fill(page: str) -> str:
    """Return the page with every part in its place.

    Raises:
        ValueError: the page has no place for a part.
    """
    for name, text in parts().items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"
        before, begun, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not begun or not ended:
            raise ValueError(f"{PAGE.name} has no place for the {name}: {begin.strip()} and {end.strip()}")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
