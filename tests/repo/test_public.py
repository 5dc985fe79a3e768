"""The public names are real and documented, and every package says what is where."""

from __future__ import annotations

import ast
import inspect
import types
from pathlib import Path

import pytest

import vidette
import vidette.models
import vidette.sync
import vidette.testing
import vidette_protocol
import vidette_protocol.lifecycle
import vidette_protocol.messages

PACKAGES = [
    vidette,
    vidette.models,
    vidette.testing,
    vidette_protocol,
    vidette_protocol.lifecycle,
    vidette_protocol.messages,
]


def exported(package: types.ModuleType) -> list[str]:
    """Return the names that a package re-exports, as `X as X`."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text())
    names = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname == alias.name, f"{alias.name} is imported, but not as itself"
                names.append(alias.name)
    return names


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_public_names_are_real_and_documented(package: types.ModuleType) -> None:
    names = exported(package)
    assert names
    assert sorted(names) == sorted(set(names))
    for name in names:
        value = vars(package)[name]
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{package.__name__}.{name} has no docstring"
            assert first_sentence(value.__doc__).endswith((".", ":", "!", "`")), f"{name}: {value.__doc__!r}"


def first_sentence(docstring: str) -> str:
    return docstring.strip().partition("\n\n")[0]


def test_errors_are_all_public() -> None:
    """Whatever the engine raises can be caught by a name of `vidette`."""
    classes = [value for value in vars(vidette.errors).values() if inspect.isclass(value)]
    raised = {cls.__name__ for cls in classes if issubclass(cls, vidette.Error)}
    assert raised <= set(exported(vidette))


@pytest.mark.parametrize("package", ["engine/vidette", "protocol/vidette_protocol", "fuzz/vidette_fuzz"])
def test_the_map_of_each_package_is_complete(root: Path, package: str) -> None:
    """A package opens with a map, or, where that says more, with a theory; half a map misleads."""
    missing = []
    for init in sorted((root / package).rglob("__init__.py")):
        header = ast.get_docstring(ast.parse(init.read_text())) or ""
        parts = {path.stem for path in init.parent.glob("*.py")}
        parts |= {path.parent.name for path in init.parent.glob("*/__init__.py")}
        public = {part for part in parts if not part.startswith("_")}
        named = {part for part in public if f"`{part}`" in header}
        if named or init.parent == root / package:
            missing += [f"{init.parent.relative_to(root)}: {part}" for part in sorted(public - named)]
    assert not missing
