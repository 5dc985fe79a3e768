"""What an action does to a world, in a line, so that a broken rule can be understood without a debugger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vidette_protocol.ids import Vid, front_of, label
from vidette_protocol.lifecycle import Row
from vidette_protocol.world.bounds import Action, Queue

if TYPE_CHECKING:
    from vidette_protocol.world.whole import World


def tell(before: World, action: Action, after: World) -> str:
    """Return in a line what an action does to a world."""
    vids, rids = _vids(action.vids), ", ".join(action.rids)
    between = (action.front, action.replica)
    front = "the front" if len(before.fronts) == 1 else f"front {action.front}"
    many = len(before.replicas) > 1
    scheduler = f"scheduler {action.replica}" if many else "the scheduler"
    match action.name:
        case "submit" | "submit group":
            new = list(after.streams)[len(before.streams) :]
            which = ", which is" if action.name == "submit" else " together, which are"
            return f"a client submits {rids}{which} {_vids(new)}"
        case "replace":
            new = list(after.streams)[len(before.streams) :]
            told = _vids(_who_heard(before, after)) or "nobody"
            text = f"a client submits {rids} in place of what has it, which is {_vids(new)}; told: {told}"
            return text + _posted(before, after)
        case "group is refused":
            return f"a client submits {rids} together, of which one lives; the group is refused"
        case "send":
            number = front_of(action.vids[0])
            asked = after.asks.get((number, action.replica))
            resumed = asked[-1].resumed if asked else 0
            front = "the front" if len(before.fronts) == 1 else f"front {number}"
            text = f"{front} sends the request of {vids}" + (f" to {scheduler}" if many else "")
            return text + (f", with the {resumed} tokens that its caller has heard" if resumed else "")
        case "leave":
            left = [stream.vid for stream in before.streams.values() if stream.scope == action.vids[0]]
            return f"the caller of {_vids(left)} leaves" + _posted(before, after)
        case "abort all":
            told = _vids(_who_heard(before, after))
            return f"all requests of {front} are aborted; told: {told}" + _posted(before, after)
        case "request arrives" | "abort arrives":
            ask = before.asks[between][0]
            what = "abort" if ask.abort else "request"
            whose = f"of all up to vid {label(ask.vid)}" if ask.every else f"of vid {label(ask.vid)}"
            text = f"the {what} {whose} reaches {scheduler}"
            return text + _says(before, action, after)
        case "overtaking abort arrives":
            text = (
                f"the abort of vid {label(before.aborts[between][0].vid)} takes its own link to {scheduler}"
            )
            return text + _says(before, action, after)
        case "reject":
            return f"{vids} cannot be served by {scheduler}" + _says(before, action, after)
        case "expire":
            return f"the deadline of {vids} passes at {scheduler}" + _says(before, action, after)
        case "retract":
            return f"{vids} has to give its blocks up at {scheduler}" + _says(before, action, after)
        case "launch":
            return f"a batch of {vids} is launched" + (f" at {scheduler}" if many else "")
        case "land":
            batch = _vids(before.replicas[action.replica].batch)
            return f"the batch of {batch} lands at {scheduler}" + _says(before, action, after)
        case "row arrives":
            row = before.replicas[action.replica].rows[0]
            return f"{_row(row)} {_reach(row)} the detokenizer"
        case "text arrives":
            heard = _who_heard(before, after)
            who = f"the caller of {_vids(heard)} hears it" if heard else "nobody hears it"
            row = before.texts[between][0]
            return f"{_row(row)} {_reach(row)} {front}; {who}"
        case "replica is lost":
            return f"{scheduler} and its detokenizer die"
        case _:
            heard = _who_heard(before, after)
            text = f"{front} finds out that {scheduler} has died"
            moved = [
                f"{_vids([then.vid])} goes on as {_vids([now.vid])}"
                for then, now in zip(before.streams.values(), after.streams.values(), strict=True)
                if then.vid != now.vid
            ]
            return "; ".join([text, *moved, *([f"told: {_vids(heard)}"] if heard else [])])


def _who_heard(before: World, after: World) -> list[Vid]:
    return [
        stream.vid
        for first, stream in before.streams.items()
        if (stream.heard, stream.ends) != (after.streams[first].heard, after.streams[first].ends)
    ]


def _posted(before: World, after: World) -> str:
    count = sum(map(_size, (after.asks, after.aborts))) - sum(map(_size, (before.asks, before.aborts)))
    if not count:
        return ""
    return "; an abort is sent" if count == 1 else f"; {count} aborts are sent"


def _size(queue: Queue) -> int:
    return sum(map(len, queue.values()))


def _says(before: World, action: Action, after: World) -> str:
    said = after.replicas[action.replica].rows[len(before.replicas[action.replica].rows) :]
    return f", which says {', '.join(map(_row, said))}" if said else ""


def _reach(row: Row) -> str:
    return "reach" if row.tokens > 1 and row.end is None else "reaches"


def _row(row: Row) -> str:
    vid = label(row.vid)
    tokens = (
        f"token {row.offset}" if row.tokens == 1 else f"tokens {row.offset} to {row.offset + row.tokens - 1}"
    )
    if row.end is None:
        return f"{tokens} of vid {vid}"
    return f"the end of vid {vid} ({row.end.value}{f', {tokens}' if row.tokens else ''})"


def _vids(vids: Iterable[Vid]) -> str:
    return ", ".join(f"vid {label(vid)}" for vid in vids)
