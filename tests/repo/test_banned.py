"""What came off a wire is never turned into code: no pickle, no eval, no lookup by a name from elsewhere.

Ruff bans the imports as well, and a `noqa` would silence it; nothing silences this.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

MODULES = {
    *("_pickle", "cloudpickle", "copyreg", "dill", "joblib", "marshal", "pickle", "shelve"),
    *("code", "codeop", "imp", "importlib", "pkgutil", "runpy"),
    *("asyncio", "atexit", "multiprocessing"),
}
"""Modules that nothing may import."""

HARMLESS = frozenset({"importlib.metadata", "importlib.resources"})
"""Parts of them that import nothing by name."""

CALLS = frozenset({"eval", "exec", "compile", "__import__", "globals", "vars"})
"""Built-ins that nothing may call."""

BY_NAME = frozenset({"getattr", "setattr", "delattr", "hasattr"})
"""Built-ins that may be called with a literal name only."""

METHODS = frozenset({"torch.load", "torch.save", "torch.jit.load", "numpy.load", "np.load"})
"""Functions of others that unpickle."""

ALLOWED = {
    "engine/vidette/bench/baselines.py: import pickle": "the baseline to beat; it unpickles only its own",
    "protocol/vidette_protocol/codec.py: allow_pickle=": "hands on what the given codec was made with",
    "protocol/vidette_protocol/plain.py: getattr of a name that is no literal": "of a dataclass's own fields",
    "engine/vidette/cli/_options.py: getattr of a name that is no literal": "of a tuple above",
    "engine/vidette/config.py: getattr of a name that is no literal": "of a tuple one line above",
    "engine/vidette/service/fields.py: getattr of a name that is no literal": "of a table of ours",
    "engine/vidette/service/_uvicorn.py: import asyncio": "uvicorn is an asyncio server; this file starts it",
}
"""What is found and may stay, with the reason."""


def findings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"import {a.name}" for a in names if forbidden(a.name))
            case ast.ImportFrom(module=str(module), level=0) if forbidden(module):
                yield f"import {module}"
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield f"{name}()"
            case ast.Call(func=ast.Name(id=name), args=[_, key, *_]) if name in BY_NAME:
                if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                    yield f"{name} of a name that is no literal"
            case ast.Attribute() if ast.unparse(node) in METHODS:
                yield ast.unparse(node)
            case ast.keyword(arg="allow_pickle" | "weights_only"):
                yield f"{node.arg}="


def forbidden(module: str) -> bool:
    return module.partition(".")[0] in MODULES and module not in HARMLESS


def test_nothing_turns_data_into_code(root: Path, product: list[Path]) -> None:
    found = {
        f"{path.relative_to(root).as_posix()}: {what}"
        for path in product
        for what in findings(ast.parse(path.read_text()))
    }
    assert found - ALLOWED.keys() == set()


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import multiprocessing.shared_memory",
        "def f():\n    import importlib",
        "eval(text)",
        "exec(text)",
        "getattr(module, name)",
        "getattr(torch, header['dtype'])",
        "setattr(self, key, value)",
        "globals()[name]",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "import asyncio",
    ],
)
def test_it_is_found(code: str) -> None:
    assert list(findings(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["model.eval()", "getattr(x, 'name', None)", "re.compile(p)", "import importlib.metadata"]
)
def test_what_is_harmless_is_not(code: str) -> None:
    assert not list(findings(ast.parse(code)))
