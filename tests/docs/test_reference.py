"""What the reference pages say is what the code does."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from vidette import EngineConfig
from vidette.models import KNOWN_MODELS
from vidette.models.quants import TensorType
from vidette.service import ServiceLimits
from vidette_protocol import Limits

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMITS = ROOT / "docs/reference/limits.md"
MODELS = ROOT / "docs/reference/models.md"

NO_LIMITS = {
    *("capture", "cuda_graphs", "device", "draft_corpus", "dtype", "front_id", "kv_events", "model"),
    *("log_format", "profile_dir"),
    *("preempt_gap", "schedule_policy", "supervision", "threads", "topology", "watchdog"),
}
"""Options of an engine that bound nothing."""


def shown(name: str, value: object) -> str:
    """Return a default as the page writes it."""
    if value is None:
        return "none"
    if "bytes" in name.lower():
        assert isinstance(value, int)
        unit, size = ("MiB", 1 << 20) if value % (1 << 20) == 0 else ("KiB", 1 << 10)
        return f"{value // size} {unit}"
    return f"{value:g} s" if isinstance(value, float) or name.endswith("_SECONDS") else str(value)


def rows(section: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and file of each row of a section of the limits page."""
    text = LIMITS.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \| `([^`]+)` \|$", text, re.MULTILINE)
    assert len(found) == text.count("\n| `"), f"a row of {section!r} has not four columns"
    yield from found


def defaults(section: str) -> dict[str, str]:
    return {name: default for name, default, _ in rows(section)}


def test_limits_of_the_protocol() -> None:
    assert defaults("Of the protocol") == {k: shown(k, v) for k, v in Limits()._asdict().items()}


def test_limits_of_an_engine() -> None:
    config = msgspec.structs.asdict(EngineConfig())
    assert defaults("Of an engine") == {k: shown(k, v) for k, v in config.items() if k not in NO_LIMITS}


def test_limits_of_the_service() -> None:
    limits = msgspec.structs.asdict(ServiceLimits())
    assert defaults("Of the HTTP service") == {k: shown(k, v) for k, v in limits.items()}


def test_limits_inside() -> None:
    for name, default, file in rows("Inside"):
        assert shown(name, constant(ROOT / file, name)) == default, name


def constant(path: Path, name: str) -> float:
    """Return a number that a module defines at its top, without importing it."""
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            value = getattr(node, "value", None)
            assert isinstance(value, ast.expr)
            number: float = eval(compile(ast.Expression(value), str(path), "eval"), {"__builtins__": {}})
            return number
    raise LookupError(f"{path} defines no {name}")


@pytest.mark.parametrize("section", ["Of the protocol", "Of an engine", "Of the HTTP service", "Inside"])
def test_limits_are_decided_where_the_page_says(section: str) -> None:
    for name, _, file in rows(section):
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), f"{file} does not mention {name}"


@pytest.mark.parametrize(
    "name",
    [
        "reference/lifecycle.md",
        "design.md",
        "protocol.md",
        "reference/messages.md",
        "reference/metrics.md",
        "reference/mutants.md",
    ],
)
def test_pages_are_drawn_from_what_the_code_runs_on(name: str) -> None:
    made = runpy.run_path(str(ROOT / "docs/make_reference.py"))
    assert name in made["PAGES"]
    page = (ROOT / "docs" / name).read_text()
    assert page == made["fill"](name, page), "run `make reference`"


def test_models_that_can_be_pulled() -> None:
    table = re.findall(
        r"^\| `(.+)` \| (\S+\.gguf) \| (\d+) \| (?:yes|no) \| (.+) \|$", MODELS.read_text(), re.MULTILINE
    )
    assert {name: (file, int(size), terms) for name, file, size, terms in table} == {
        name: (model.file_name, model.size, model.terms) for name, model in KNOWN_MODELS.items()
    }


def test_formats_of_tensors_that_can_be_read() -> None:
    (formats,) = re.findall(r"^- Tensors: (.+)\.$", MODELS.read_text(), re.MULTILINE)
    assert sorted(formats.split(", ")) == sorted(known.name for known in TensorType)


def test_the_tour_has_the_layers_in_their_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    tour = " ".join((ROOT / "docs/tour.md").read_text().split())
    assert " > ".join(layers).replace(" |", ",").replace(" :", ",") in tour


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("https://"):
            path, _, _ = target.partition("#")
            assert (page.parent / path).exists(), f"{page.name} links to {target}"


def test_every_page_can_be_reached() -> None:
    reached: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop().resolve()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            links = re.findall(r"\]\(([^)\s:]+)\)", page.read_text())
            queue += [page.parent / link.partition("#")[0] for link in links]
    fragments = {page for page in PAGES if page.parent.name == "changes" and page.name != "README.md"}
    assert set(PAGES) - fragments <= reached
