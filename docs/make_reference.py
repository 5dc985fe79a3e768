"""Writes the generated parts of the reference pages anew: `make reference`.

Diagrams and tables are drawn from what the code runs on, so they cannot drift; a test compares them with the
pages.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
from msgspec import NODEFAULT, Struct, inspect

from vidette import metrics as engine_metrics
from vidette.cli._parser import commands_of, metavar_of, name_of, options_of
from vidette.cli.main import make_parser
from vidette_fuzz import tables
from vidette_fuzz.samples import LINKS, SAMPLES
from vidette_protocol.codec import Codec
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ext.layout import ExtCode
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle.control import CALL_TABLE, CallEvent, CallState
from vidette_protocol.lifecycle.credits import (
    BORROW_TABLE,
    CREDIT_TABLE,
    BorrowEvent,
    BorrowState,
    CreditEvent,
    CreditState,
)
from vidette_protocol.lifecycle.detokenizer import DetokenizerMachine
from vidette_protocol.lifecycle.front import FRONT_TABLE, FrontEvent, FrontState
from vidette_protocol.lifecycle.link import LINK_TABLE, LinkEvent, LinkState
from vidette_protocol.lifecycle.rows import End
from vidette_protocol.lifecycle.scheduler import SCHEDULER_TABLE, SchedulerEvent, SchedulerState
from vidette_protocol.messages.bulk import LINK_MESSAGES
from vidette_protocol.messages.catalogue import CATALOGUE, NOT_YET
from vidette_protocol.messages.tags import NEVER, RESERVED
from vidette_protocol.schema import reach, spell

DOCS = Path(__file__).parent

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)

HELP: Final = frozenset({"--help", "--help-all"})
"""Options that every command has, and which no page needs."""
EXAMPLES: Final = ("abort", "request", "tokens-one-each")
"""Samples whose bytes are shown."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table as Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- the life of a request ----------------------------------------------------------


def diagram(machine: Mapping[tuple[State, Event], State], begins: Mapping[State, str]) -> str:
    """Return a machine's table as a Mermaid diagram; the state named OVER is its end.

    Args:
        machine: (state, event) to the next state.
        begins: where it begins, and what brings it there.
    """
    labels: dict[tuple[str, str], list[str]] = {}
    for (state, event), after in machine.items():
        labels.setdefault((state.name, after.name), []).append(event.value)
    lines = [f"    [*] --> {first.name}: {begin}" for first, begin in begins.items()]
    for (source, target), events in labels.items():
        lines.append(f"    {source} --> {'[*]' if target == 'OVER' else target}: {', '.join(events)}")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def grid(machine: Mapping[tuple[State, Event], State], states: type[State], events: type[Event]) -> str:
    """Return a machine's table as Markdown, a row for each state; a dash is what cannot happen."""
    rows = []
    for state in states:
        if state.name != "OVER":
            cells = (machine.get((state, event)) for event in events)
            rows.append([state.name, *("-" if after is None else after.name for after in cells)])
    return table(["state", *(event.value for event in events)], rows)


class DetokenizerState(Enum):
    """Where one vid stands in the detokenizer, whose machine keeps those that are open, and no states."""

    ABSENT = "absent"
    OPEN = "open"
    OVER = "over"


class DetokenizerEvent(Enum):
    """What can come for one vid: offset, and whether it ends."""

    FIRST = "row at offset 0"
    NEXT = "row behind the last"
    ONLY = "ending row at offset 0"
    LAST = "ending row behind the last"


def detokenizer_table() -> dict[tuple[DetokenizerState, DetokenizerEvent], DetokenizerState]:
    """Return what the detokenizer's machine does, as found by trying it."""
    rows = {
        DetokenizerEvent.FIRST: (0, None),
        DetokenizerEvent.NEXT: (3, None),
        DetokenizerEvent.ONLY: (0, End.ABORT),
        DetokenizerEvent.LAST: (3, End.FINISH),
    }
    found = {}
    for state in (DetokenizerState.ABSENT, DetokenizerState.OPEN):
        for event, (offset, end) in rows.items():
            machine = DetokenizerMachine()
            if state is DetokenizerState.OPEN:
                machine.receive(Vid(1), 0, 3, None)
            try:
                machine.receive(Vid(1), offset, 1, end)
            except RemoteProtocolError:
                continue
            found[state, event] = DetokenizerState.OPEN if Vid(1) in machine else DetokenizerState.OVER
    return found


def lifecycle() -> dict[str, str]:
    """Return the parts of the page on the life of a request."""
    detokenizer = detokenizer_table()
    return {
        "front diagram": diagram(FRONT_TABLE, {FrontState.NEW: "submit"}),
        "front table": grid(FRONT_TABLE, FrontState, FrontEvent),
        "scheduler diagram": diagram(SCHEDULER_TABLE, {SchedulerState.WAITING: "request"}),
        "scheduler table": grid(SCHEDULER_TABLE, SchedulerState, SchedulerEvent),
        "detokenizer diagram": diagram(detokenizer, {DetokenizerState.ABSENT: "vid"}),
        "detokenizer table": grid(detokenizer, DetokenizerState, DetokenizerEvent),
        "call diagram": diagram(CALL_TABLE, {CallState.WAITING: "ask"}),
        "call table": grid(CALL_TABLE, CallState, CallEvent),
        "link diagram": diagram(LINK_TABLE, {LinkState.OPENING: "open", LinkState.STARTING: "start"}),
        "link table": grid(LINK_TABLE, LinkState, LinkEvent),
        "producer diagram": diagram(CREDIT_TABLE, {CreditState.TAKEN: "take"}),
        "producer table": grid(CREDIT_TABLE, CreditState, CreditEvent),
        "consumer diagram": diagram(BORROW_TABLE, {BorrowState.VIEWED: "borrow"}),
        "consumer table": grid(BORROW_TABLE, BorrowState, BorrowEvent),
    }


def design() -> dict[str, str]:
    """Return the parts of the essay."""
    parts = lifecycle()
    return {name: parts[name] for name in ("front diagram", "scheduler diagram", "detokenizer diagram")}


# --- the protocol -------------------------------------------------------------------


def links() -> str:
    """Return what travels on each link."""
    rows = [[way, ", ".join(cls.__name__ for cls in classes)] for way, classes in LINKS.items()]
    rows.append(["both ways, on links with bulk", ", ".join(cls.__name__ for cls in LINK_MESSAGES)])
    rows.append(["specified, not sent yet", ", ".join(cls.__name__ for cls in NOT_YET)])
    return table(["from, to", "messages"], rows)


def extensions() -> str:
    """Return the numbers of the extensions."""
    codes = {name: code for name, code in ExtCode.__dict__.items() if name.isupper()}
    return table(["number", "what"], ([str(code), f"`{name}`"] for name, code in codes.items()))


def examples() -> str:
    """Return some frames, byte by byte."""
    codec = Codec(sends=CATALOGUE, receives=CATALOGUE)
    parts = []
    for name in EXAMPLES:
        message = SAMPLES[name]
        frame = codec.encode(message)
        shown = "\n".join(frame[start : start + 16].hex(" ") for start in range(0, len(frame), 16))
        parts.append(f"`{type(message).__name__}`, {len(frame)} bytes:\n\n```\n{shown}\n```")
    return "\n\n".join(parts)


def reserved() -> str:
    """Return the tags that are kept for what does not exist yet."""
    rows = [[str(tag), f"`{name}`"] for tag, name in RESERVED.items()]
    return table(["tag", "kept for"], rows)


def never() -> str:
    """Return the messages of SGLang's that will not exist here."""
    return table(["there", "why not here"], ([f"`{name}`", why] for name, why in NEVER.items()))


def protocol() -> dict[str, str]:
    """Return the parts of the page on the protocol."""
    return {"links": links(), "extensions": extensions(), "examples": examples()}


# --- messages -----------------------------------------------------------------------


def messages() -> dict[str, str]:
    """Return the parts of the page on messages."""
    classes = sorted((*CATALOGUE, *LINK_MESSAGES), key=lambda cls: int(cls.__struct_config__.tag or 0))
    return {
        "messages": "\n\n".join(f"### {cls.__struct_config__.tag}: {describe(cls)}" for cls in classes),
        "structs": "\n\n".join(f"### {describe(cls)}" for cls in reach(classes) if cls not in classes),
        "reserved": reserved(),
        "never": never(),
    }


def describe(cls: type[Struct]) -> str:
    """Return a struct's name, what it is for, and its fields in their order."""
    said = (cls.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ")
    rows = []
    for number, field in enumerate(msgspec.structs.fields(cls), 1):
        rows.append(
            [str(number), f"`{field.encode_name}`", spell(inspect.type_info(field.type)), default(field)]
        )
    layout = "array" if cls.__struct_config__.array_like else "map"
    tagged = f", tag `{cls.__struct_config__.tag}`" if isinstance(cls.__struct_config__.tag, str) else ""
    if not rows:
        return f"{cls.__name__}\n\n{said}\n\nNo fields."
    return f"{cls.__name__}\n\n{said} ({layout}{tagged})\n\n{table(['', 'field', 'type', 'default'], rows)}"


def default(field: msgspec.structs.FieldInfo) -> str:
    """Return the default of a field; a dash if it has to be there."""
    if field.default_factory is not NODEFAULT:
        return "empty"
    if field.default is NODEFAULT:
        return "-"
    if isinstance(field.default, memoryview):
        return "empty"
    if isinstance(field.default, Struct):
        return "its defaults"
    return "nil" if field.default is None else f"`{msgspec.json.encode(field.default).decode()}`"


# --- metrics ------------------------------------------------------------------------


def metrics() -> dict[str, str]:
    """Return the parts of the page on metrics."""
    rows = []
    for family in engine_metrics.FAMILIES:
        kind = {"Distribution": "histogram"}.get(type(family).__name__, type(family).__name__.lower())
        end = "_total" if isinstance(family, engine_metrics.Counter) else ""
        ours, *theirs = (f"`{name}{end}`" for name in engine_metrics.names(family))
        rows.append([ours, kind, family.text, ", ".join(theirs) or "-"])
    return {"metrics": table(["name", "kind", "what", "the same there"], rows)}


# --- commands -----------------------------------------------------------------------


def cli() -> dict[str, str]:
    """Return the parts of the page on commands."""
    return {"commands": "\n\n".join(describe_commands(make_parser()))}


def describe_commands(parser: ArgumentParser) -> Iterator[str]:
    """Yield a section for each command that has none below it, and what is said of the others."""
    for _, text, command in commands_of(parser):
        level = "#" * len(command.prog.split())
        yield f"{level} {command.prog}\n\n{text[:1].upper()}{text[1:]}."
        options = [action for _, action in options_of(command) if not HELP & {*action.option_strings}]
        rows = [[f"`{spelled(action)}`", escaped(action.help or "")] for action in options]
        if rows:
            yield table(["option", "what"], rows)
        yield from describe_commands(command)


def spelled(action: Action) -> str:
    """Return how an option or an argument is written."""
    words = [name_of(action), metavar_of(action)] if action.option_strings else [metavar_of(action)]
    return escaped(" ".join(words).strip())


def escaped(text: str) -> str:
    """Return a text in one line of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


# --- pages --------------------------------------------------------------------------

PAGES: Final[Mapping[str, Callable[[], dict[str, str]]]] = MappingProxyType(
    {
        "reference/cli.md": cli,
        "reference/lifecycle.md": lifecycle,
        "design.md": design,
        "protocol.md": protocol,
        "reference/messages.md": messages,
        "reference/metrics.md": metrics,
        "reference/mutants.md": tables.parts,
    }
)
"""What makes the parts of each page, by the page."""


def fill(name: str, page: str) -> str:
    """Return a page with every part in its place.

    Args:
        name: of the page; a key of PAGES.
        page: its text.

    Raises:
        ValueError: the page has no place for a part.
    """
    for part, text in PAGES[name]().items():
        begin, end = f"<!-- begin: {part} -->\n", f"<!-- end: {part} -->\n"
        before, begun, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not begun or not ended:
            raise ValueError(f"{name} has no place for the {part}: {begin.strip()} and {end.strip()}")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(fill(name, (DOCS / name).read_text()))
