"""The import rules hold, and each of them notices when it is broken."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOTS = ("engine", "protocol", "fuzz")

TAMPERED = {
    "protocol": ("vidette_protocol.ids", "time"),
    "pure": ("vidette.scheduler.blocks", "torch"),
    "compute": ("vidette.models.decoder", "anyio"),
    "kernels": ("vidette.kernels.library", "vidette.scheduler.loop"),
    "thread": ("vidette.scheduler.compute", "trio"),
    "torch": ("vidette.front.stream", "vidette.scheduler.policy"),
    "service": ("vidette.service", "vidette.front.manager"),
    "kit": ("vidette.api", "vidette_fuzz.stories"),
    "bench": ("vidette.sync", "vidette.bench.baselines"),
    "hypothesis": ("vidette.cli", "hypothesis"),
    "layers": ("vidette.errors", "vidette.config"),
}
"""For each contract an import that it must notice: (module, what it imports)."""


def lint_imports(sources: Path, config: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(sources / root) for root in ROOTS)
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()"]
    return subprocess.run(
        [*command, str(config), "--no-cache", "--no-logo"],
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_import_rules_hold(root: Path) -> None:
    done = lint_imports(root, root / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_import_rule_can_be_broken(root: Path, tmp_path: Path, pyproject: dict[str, Any]) -> None:
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    assert list(TAMPERED) == [contract["id"] for contract in contracts]
    for name in ROOTS:
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "engine/vidette/stray.py").touch()
    for module, imported in TAMPERED.values():
        file = find_module(tmp_path, module)
        file.write_text(file.read_text() + f"\nimport {imported}\n")

    done = lint_imports(tmp_path, root / "pyproject.toml")

    assert done.returncode == 1, done.stdout + done.stderr
    for contract in contracts:
        assert f"{contract['name']} BROKEN" in done.stdout, done.stdout
        module, imported = TAMPERED[contract["id"]]
        assert f"{module} -> {imported} " in done.stdout, done.stdout
    assert "vidette.stray" in done.stdout, "a module that has no layer is not noticed"


def find_module(sources: Path, module: str) -> Path:
    name = module.replace(".", "/")
    found = (sources / root / file for root in ROOTS for file in (f"{name}.py", f"{name}/__init__.py"))
    return next(path for path in found if path.exists())


PURE = {
    *(
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "itertools",
        "math",
    ),
    *("operator", "re", "struct", "sys", "types", "typing"),
    *("msgspec", "vidette_protocol"),
}
"""All that the protocol may import: what it does not import needs no rule."""

EDGE = {"ndarrays.py": {"numpy"}, "tensors.py": {"torch"}}
"""And what these modules may import besides, inside functions."""

BRIDGE = {"pydantic.py": {"pydantic", "pydantic_core"}}
"""And what these import besides, which no other module of the package imports."""


def test_the_protocol_imports_nothing_but_what_is_pure(root: Path) -> None:
    for path in (root / "protocol").rglob("*.py"):
        tree = ast.parse(path.read_text())
        bridge = BRIDGE.get(path.name, set())
        assert imported(tree.body) <= PURE | bridge, path
        assert imported(ast.walk(tree)) <= PURE | bridge | EDGE.get(path.name, set()), path
        if not bridge:
            assert not any("vidette_protocol.pydantic" in ast.unparse(node) for node in imports(tree)), path


def imports(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names
