"""Fixtures of the tests that look at the repository itself."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("engine/vidette", "protocol/vidette_protocol", "fuzz/vidette_fuzz")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pyproject(root: Path) -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def product(root: Path) -> list[Path]:
    """Every module that is installed."""
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


@pytest.fixture(scope="session")
def modules(root: Path, product: list[Path]) -> list[Path]:
    """Every module of the repository."""
    return [*product, *sorted((root / "tests").rglob("*.py")), *sorted((root / "docs").rglob("*.py"))]
