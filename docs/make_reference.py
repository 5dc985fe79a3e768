"""Writes the generated parts of docs/reference/lifecycle.md anew: `make reference`.

Diagrams and tables are drawn from the transition tables that the machines run on, so they cannot drift; a
test compares them with the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from vidette_protocol.lifecycle.front import FRONT_TABLE, FrontEvent, FrontState
from vidette_protocol.lifecycle.scheduler import SCHEDULER_TABLE, SchedulerEvent, SchedulerState

PAGE = Path(__file__).parent / "reference" / "lifecycle.md"

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def diagram(table: Mapping[tuple[State, Event], State], *, first: State, begin: str) -> str:
    """Return a table as a Mermaid diagram; the state named OVER is its end.

    Args:
        table: (state, event) to the next state.
        first: where a vid begins.
        begin: what brings it there.
    """
    labels: dict[tuple[str, str], list[str]] = {}
    for (state, event), after in table.items():
        labels.setdefault((state.name, after.name), []).append(event.value)
    lines = [f"    [*] --> {first.name}: {begin}"]
    for (source, target), events in labels.items():
        lines.append(f"    {source} --> {'[*]' if target == 'OVER' else target}: {', '.join(events)}")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def grid(table: Mapping[tuple[State, Event], State], states: type[State], events: type[Event]) -> str:
    """Return a table as Markdown, a row for each state; a dash is what cannot happen."""
    rows = [["state", *(event.value for event in events)], ["---"] * (1 + len(events))]
    for state in states:
        if state.name != "OVER":
            cells = (table.get((state, event)) for event in events)
            rows.append([state.name, *("-" if after is None else after.name for after in cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def parts() -> dict[str, str]:
    """Return what belongs between the markers of the page, by the name in the marker."""
    return {
        "front diagram": diagram(FRONT_TABLE, first=FrontState.NEW, begin="submit"),
        "front table": grid(FRONT_TABLE, FrontState, FrontEvent),
        "scheduler diagram": diagram(SCHEDULER_TABLE, first=SchedulerState.WAITING, begin="request"),
        "scheduler table": grid(SCHEDULER_TABLE, SchedulerState, SchedulerEvent),
    }


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
