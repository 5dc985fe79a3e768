"""What `vidette top` shows: a pure function from two pictures of an engine to the lines of a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from vidette import Activity, Statistics
from vidette.front.living import LiveRequest

Style = Literal["plain", "title", "head", "alarm"]
BAR_CELLS: Final = 24
UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"


class Line(NamedTuple):
    """A line, and how it is shown where there are colours."""

    text: str
    style: Style = "plain"


class _Column(NamedTuple):
    head: str
    cells: int
    right: bool = True


_PROCESSES: Final = (
    _Column("PROCESS", 16, right=False),
    _Column("PID", 8),
    _Column("STATE", 10, right=False),
    _Column("CPU", 6),
    _Column("MEMORY", 9),
    _Column("STARTED AGAIN", 13),
)
_REQUESTS: Final = (
    _Column("REQUEST", 26, right=False),
    _Column("STATE", 10, right=False),
    _Column("AGE", 7),
    _Column("PROMPT", 7),
    _Column("OUTPUT", 7),
    _Column("TOK/S", 7),
    _Column("CACHED", 7),
    _Column("UNREAD", 7),
    _Column("HELD BY", 40, right=False),
)


def view(now: Activity, before: Activity | None, width: int, height: int, *, title: str = "") -> list[Line]:
    """Return the lines to show: at most `height`, each at most `width` cells wide, whatever they are about.

    Args:
        now: the latest picture.
        before: the one before, from which rates follow; None: there is none.
        width: cells of a line.
        height: lines.
        title: what is watched.
    """
    rates = _Rates(now, before)
    lines = [
        *_summary(now, rates, title),
        Line(""),
        Line(_row(_PROCESSES, [column.head for column in _PROCESSES]), "head"),
        *(Line(_row(_PROCESSES, cells)) for cells in _processes(now, rates)),
        Line(""),
        Line(_row(_REQUESTS, [column.head for column in _REQUESTS]), "head"),
    ]
    room = max(0, height - len(lines))
    requests = [Line(_row(_REQUESTS, cells)) for cells in _requests(now, rates)]
    hidden = now.more
    if len(requests) > room or hidden:
        kept = requests[: max(0, room - 1)]
        hidden += len(requests) - len(kept)
        requests = [*kept, Line(f"... and {hidden} more")]
    lines += requests or [Line("(no request lives)")]
    return [Line(fit(line.text, width), line.style) for line in lines[: max(0, height)]]


def clean(text: str) -> str:
    """Return a text in which nothing steers a terminal or hides from who reads it."""
    return "".join(sign if sign.isprintable() else UNPRINTABLE for sign in text)


def cells_of(text: str) -> int:
    """Return how many cells a clean text takes at most."""
    return sum(_cells(sign) for sign in text)


def fit(text: str, width: int) -> str:
    """Return a text cleaned, and cut if it takes more than so many cells."""
    text = clean(text)
    if cells_of(text) <= width:
        return text
    kept, left = [], width - 1
    for sign in text:
        left -= _cells(sign)
        if left < 0:
            break
        kept.append(sign)
    return "".join([*kept, "…"][: width or 0]) if width > 0 else ""


def _cells(sign: str) -> int:
    # What is ambiguous is narrow in the terminals that are in use; what combines counts as well, to be safe.
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


class _Rates:
    """How fast counters rise between two pictures; None where that cannot be said."""

    def __init__(self, now: Activity, before: Activity | None) -> None:
        self._seconds = 0.0 if before is None else now.clock_s - before.clock_s
        self._then = None if before is None else before.statistics
        processes = () if before is None else before.processes
        self._cpu = {(each.role, each.pid): each.cpu_s for each in processes}
        requests = () if before is None else before.requests
        self._output = {each.vid: each.output_tokens for each in requests}

    def rate(self, now: float, before: float | None) -> float | None:
        """Return the rise in a second."""
        if before is None or self._seconds <= 0 or now < before:  # less than before: it has started again
            return None
        return (now - before) / self._seconds

    def steps(self, now: Statistics) -> float | None:
        """Return steps in a second."""
        return self.rate(now.steps, None if self._then is None else self._then.steps)

    def output(self, now: Statistics) -> float | None:
        """Return output tokens in a second."""
        then = None if self._then is None else self._then.scheduler.output_tokens
        return self.rate(now.scheduler.output_tokens, then)

    def prompt(self, now: Statistics) -> float | None:
        """Return tokens of prompts computed in a second."""
        then = None if self._then is None else self._then.scheduler.prompt_tokens
        return self.rate(now.scheduler.prompt_tokens, then)

    def cpu(self, role: str, pid: int, now: float) -> float | None:
        """Return seconds of CPU time in a second."""
        return self.rate(now, self._cpu.get((role, pid)))

    def of_request(self, request: LiveRequest) -> float | None:
        """Return its output tokens in a second."""
        return self.rate(request.output_tokens, self._output.get(request.vid))


def _summary(now: Activity, rates: _Rates, title: str) -> Iterator[Line]:
    seen = now.statistics
    health, totals, held = seen.health, seen.totals, seen.ledgers
    state = "ready" if health.ready else f"not ready: {health.reason or 'no reason is given'}"
    yield Line(f"vidette top  {title}  {state}", "title" if health.ready else "alarm")
    yield Line(
        f"requests  {held.front} live, {seen.running} of {seen.max_running} computed, {seen.waiting} waiting"
        f"; {totals.finished} finished, {totals.aborted} left, {totals.failed} failed"
    )
    yield Line(
        f"tokens    {_per_second(rates.output(seen))} made, {_per_second(rates.prompt(seen))} of prompts; "
        f"{seen.cache_hit_rate:.0%} of prompts cached"
    )
    memory = f", {_size(held.blocks * now.block_bytes)}" if now.block_bytes else ""
    yield Line(
        f"cache     {_bar(seen.usage)} {seen.usage:4.0%}: {held.blocks} of {seen.blocks_total} blocks{memory}"
        f"; {seen.blocks_cached} kept, {seen.blocks_host} in the second tier"
    )
    yield Line(
        f"steps     {_per_second(rates.steps(seen))}, the last took {health.step_s * 1000:.1f} ms; "
        f"oldest in the queue {_age(health.queue_age_s)}; started again {seen.restarts} times"
    )


def _processes(now: Activity, rates: _Rates) -> Iterator[list[str]]:
    for each in now.processes:
        cpu = rates.cpu(each.role, each.pid, each.cpu_s)
        share = "-" if cpu is None else f"{cpu:.0%}"
        yield [each.role, str(each.pid), each.state, share, _size(each.rss_bytes), str(each.incarnation)]


def _requests(now: Activity, rates: _Rates) -> Iterator[list[str]]:
    """Yield the cells of each request: groups with their answers below them, all in the order of age."""
    groups: dict[str, list[LiveRequest]] = {}
    for request in now.requests:
        groups.setdefault(request.group or request.vid, []).append(request)
    for members in groups.values():
        for place, request in enumerate(members):
            last = place == len(members) - 1
            branch = "" if request.group is None else "└ " if last and place else "├ " if place else "┌ "
            yield _request(request, branch, rates.of_request(request))


def _request(request: LiveRequest, branch: str, rate: float | None) -> list[str]:
    held_by = ["front", request.scheduler, request.detokenizer]
    return [
        branch + request.rid,
        request.state,
        _age(request.age_s),
        "-" if request.prompt_tokens is None else str(request.prompt_tokens),
        str(request.output_tokens),
        "-" if rate is None else f"{rate:.1f}",
        str(request.cached_tokens),
        str(request.unread_tokens),
        " > ".join(role for role in held_by if role),
    ]


def _row(columns: Sequence[_Column], cells: Sequence[str]) -> str:
    parts = []
    for column, cell in zip(columns, cells, strict=True):
        text = fit(cell, column.cells)
        space = " " * (column.cells - cells_of(text))
        parts.append(space + text if column.right else text + space)
    return " ".join(parts).rstrip()


def _bar(share: float) -> str:
    full = round(min(1.0, max(0.0, share)) * BAR_CELLS)
    return f"[{'#' * full}{'.' * (BAR_CELLS - full)}]"


def _per_second(rate: float | None) -> str:
    return "-/s" if rate is None else f"{rate:.0f}/s"


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours < 48 else f"{hours // 24}d{hours % 24:02}"


def _size(count: float) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
