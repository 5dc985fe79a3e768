"""What is declared, what is pinned and what is used are the same things."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vidette
from vidette.kernels.build import SOURCE
from vidette.service.site import FILES

IMPORTED_BY_OTHERS = {
    "uvloop": "uvicorn runs on it",
}
"""Dependencies that we do not import ourselves."""


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, str]:
    """constraints.txt, as name to version."""
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", line) for line in lines), lines
    pins: dict[str, str] = {
        canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)
    }
    assert len(pins) == len(lines)
    return pins


def test_the_version_is_the_same_everywhere(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["version"] == vidette.__version__


def test_torch_is_pinned_to_the_release_that_is_tested(pins: dict[str, str]) -> None:
    assert pins["torch"] == "2.13.0"


def test_all_that_is_needed_is_pinned(pins: dict[str, str], pyproject: dict[str, Any]) -> None:
    """Follow what is declared through the installed distributions; each has to be there, as pinned."""
    installed = {canonicalize_name(found.metadata["Name"]): found for found in distributions()}
    project = pyproject["project"]
    roots = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
        *pyproject["dependency-groups"]["dev"],
    ]
    for name in sorted(closure(roots, installed)):
        assert name in pins, f"{name} is needed, but constraints.txt does not pin it: `make constraints`"
        version = installed[canonicalize_name(name)].version.partition("+")[0]
        assert version == pins[name], f"{name} {version} is installed, {pins[name]} is pinned"


def closure(lines: Iterable[str], installed: dict[Any, Any]) -> set[str]:
    found: set[str] = set()
    queue = [Requirement(line) for line in lines]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if name in found and not requirement.extras:
            continue
        found.add(name)
        queue += [
            further
            for further in map(Requirement, installed[name].requires or ())
            if not further.marker or any(further.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return found


def test_what_builds_the_package_is_pinned(pins: dict[str, str], pyproject: dict[str, Any]) -> None:
    """Pip, pinned as well, takes these into an environment of their own, held to the same pins."""
    for line in pyproject["build-system"]["requires"]:
        requirement = Requirement(line)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier
    assert {"pip", "editables"} <= pins.keys()  # hatchling asks for editables only once it builds an editable


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_has_all_of_the_packages_and_nothing_else(
    root: Path, built: Path, product: list[Path]
) -> None:
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(root).as_posix().partition("/")[2] for path in product}
    markers = {f"{package}/py.typed" for package in ("vidette", "vidette_protocol", "vidette_fuzz")}
    sources = {f"vidette/kernels/source/{path.name}" for path in SOURCE.iterdir()}
    page = {f"vidette/service/page/{name}" for name in FILES.values()}
    assert "vidette/kernels/source/kernels.cpp" in sources
    assert names == modules | markers | sources | page


def test_the_source_distribution_can_be_built_and_tested(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "Makefile"}
    assert names >= {"tests/conftest.py", "docs/index.md", "engine/vidette/api.py", ".ci/run"}
    assert names >= {f"engine/vidette/kernels/source/{path.name}" for path in SOURCE.iterdir()}
    assert not any("__pycache__" in name for name in names)


def test_declared_ranges_hold_what_is_pinned(pins: dict[str, str], pyproject: dict[str, Any]) -> None:
    for line in [*pyproject["project"]["dependencies"], *pyproject["dependency-groups"]["dev"]]:
        requirement = Requirement(line)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, line


def test_what_is_imported_is_declared_and_the_other_way_round(
    pyproject: dict[str, Any], product: list[Path]
) -> None:
    project = pyproject["project"]
    declared = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    optional = {canonicalize_name(Requirement(line).name) for line in extras}
    owners = packages_distributions()
    names = {name for path in product for name in imports_of(path)} - sys.stdlib_module_names
    # A namespace, such as that of opentelemetry, has several owners: one that is declared is enough.
    several = [{canonicalize_name(owner) for owner in owners.get(name, [name])} for name in names]
    imported = {owner for each in several if not each & optional for owner in each}
    imported -= {"vidette", "vidette-protocol", "vidette-fuzz"}
    assert imported == declared - IMPORTED_BY_OTHERS.keys()


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_every_dependency_has_its_reason(root: Path, pyproject: dict[str, Any]) -> None:
    """docs/reference/dependencies.md has a row for each, and for nothing else."""
    lines = [*pyproject["project"]["dependencies"], *pyproject["dependency-groups"]["dev"]]
    lines += pyproject["build-system"]["requires"]
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    page = (root / "docs/reference/dependencies.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)) == names


def test_fragments_are_of_a_known_kind(root: Path, pyproject: dict[str, Any]) -> None:
    kinds = {kind["directory"] for kind in pyproject["tool"]["towncrier"]["type"]}
    for path in (root / "docs/changes").iterdir():
        if path.name == "README.md":
            continue
        match = re.fullmatch(r"(?:\d+|\+[a-z0-9-]+)\.([a-z]+)(?:\.\d+)?\.md", path.name)
        assert match, f"{path.name} is not named NUMBER.KIND.md or +WORDS.KIND.md"
        assert match[1] in kinds, f"{path.name}: kinds are {sorted(kinds)}"
        text = path.read_text()
        assert text.strip(), f"{path.name} is empty"
        assert text.rstrip().endswith("."), f"{path.name} does not end in a sentence"


def test_the_changelog_can_be_built(root: Path) -> None:
    options = ["--draft", "--version", "0.0.0", "--date", "2000-01-01"]
    command = [sys.executable, "-m", "towncrier", "build", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "## 0.0.0 (2000-01-01)" in done.stdout
    marker = "<!-- towncrier release notes start -->"
    assert marker in (root / "CHANGELOG.md").read_text()
