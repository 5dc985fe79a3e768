"""A run of the protocol, told line by line, so that a broken rule can be understood without a debugger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vidette_protocol.ids import Vid
from vidette_protocol.invariants import violations
from vidette_protocol.lifecycle import Row
from vidette_protocol.world import Action, Bounds, Parts, World


class Counterexample(NamedTuple):
    """A run that breaks a rule.

    Args:
        actions: the run; `replay` walks it again.
        story: the same, one readable line for each action.
        rules: what it breaks, a sentence for each rule.
    """

    actions: tuple[Action, ...]
    story: tuple[str, ...]
    rules: tuple[str, ...]

    def __str__(self) -> str:
        """Return the story with numbered lines, and what it breaks."""
        lines = [f"{number}. {line}" for number, line in enumerate(self.story, start=1)]
        return "\n".join([*lines, *(f"broken: {rule}" for rule in self.rules)])


def replay(parts: Parts, bounds: Bounds, actions: Iterable[Action]) -> list[World]:
    """Return the worlds of a run, from the initial one to the last."""
    worlds = [World(parts, bounds)]
    for action in actions:
        worlds.append(worlds[-1].apply(action))
    return worlds


def counterexample(parts: Parts, bounds: Bounds, actions: Iterable[Action]) -> Counterexample:
    """Tell a run that ends in a broken rule."""
    actions = tuple(actions)
    worlds = replay(parts, bounds, actions)
    story = tuple(map(tell, worlds, actions, worlds[1:]))
    return Counterexample(actions, story, tuple(violations(worlds[-1])))


def tell(before: World, action: Action, after: World) -> str:
    """Return in a line what an action does to a world."""
    match action.name:
        case "submit":
            return f"a client submits {action.rid}, which is vid {next(reversed(after.callers))}"
        case "send":
            return f"the front sends the request of vid {action.vids[0]}"
        case "leave":
            posted = len(after.asks) + len(after.aborts) > len(before.asks) + len(before.aborts)
            return f"the caller of vid {action.vids[0]} leaves" + ("; an abort is sent" if posted else "")
        case "request arrives":
            return f"the request of vid {before.asks[0].vid} reaches the scheduler" + _says(before, after)
        case "abort arrives":
            return f"the abort of vid {before.asks[0].vid} reaches the scheduler" + _says(before, after)
        case "overtaking abort arrives":
            text = f"the abort of vid {before.aborts[0].vid} takes its own link to the scheduler"
            return text + _says(before, after)
        case "reject":
            return f"vid {action.vids[0]} cannot be served by the scheduler" + _says(before, after)
        case "launch":
            return f"a batch of {_vids(action.vids)} is launched"
        case "land":
            return f"the batch of {_vids(before.batch)} lands at the scheduler" + _says(before, after)
        case "row arrives":
            return f"{_row(before.rows[0])} reaches the detokenizer"
        case "text arrives":
            heard = _who_heard(before, after)
            who = f"the caller of {_vids(heard)} hears it" if heard else "nobody hears it"
            return f"{_row(before.texts[0])} reaches the front; {who}"
        case _:
            told = _who_heard(before, after)
            return "scheduler and detokenizer die" + (f"; told: {_vids(told)}" if told else "")


def _who_heard(before: World, after: World) -> list[Vid]:
    return [vid for vid, then in before.callers.items() if after.callers[vid] != then]


def _says(before: World, after: World) -> str:
    said = after.rows[len(before.rows) :]
    return f", which says {', '.join(map(_row, said))}" if said else ""


def _row(row: Row) -> str:
    if row.end is None:
        return f"token {row.offset} of vid {row.vid}"
    last = f", token {row.offset}" if row.tokens else ""
    return f"the end of vid {row.vid} ({row.end.value}{last})"


def _vids(vids: Iterable[Vid]) -> str:
    return ", ".join(f"vid {vid}" for vid in vids)
