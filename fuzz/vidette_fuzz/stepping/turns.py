"""`Book`: one session as a list of turns, each with its whole prompt, as it has to be; no tree, no counts.

It is told what the scheduler is told, in the same order, and says of each turn that comes what has to become
of it. A turn is in flight, said, or gone. One that was said can still be dropped by an abort that is late,
until another names it: then it is *settled*.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from vidette_protocol.ids import Vid

Prompt = tuple[int, ...]


class Asked(NamedTuple):
    """A turn as it is asked for.

    Args:
        own: tokens it adds.
        behind: the turn it names; None: none.
        replace: whether it replaces what goes on behind that.
    """

    own: Prompt
    behind: Vid | None = None
    replace: bool = False


class Turn(NamedTuple):
    """A turn that was taken.

    Args:
        prompt: its whole prompt.
        base: what it goes on behind.
        drops: what is not to be named any more while it counts.
        output: what it said.
        live: whether it is in flight.
        settled: whether it cannot be dropped any more.
    """

    prompt: Prompt
    base: Vid | None
    drops: frozenset[Vid] = frozenset()
    output: Prompt = ()
    live: bool = True
    settled: bool = False


class Book:
    """The truth about one session.

    Args:
        streaming: whether it takes one turn at a time, each behind the last.
        opened: whether there is one; a process that took the place of another has none.
    """

    __slots__ = ("closing", "opened", "streaming", "turns")

    def __init__(self, *, streaming: bool, opened: bool = True) -> None:
        self.streaming = streaming
        self.opened = opened
        self.closing = False
        self.turns: dict[Vid, Turn] = {}
        """Those in flight, and those that were said; who is gone is not there."""

    def copy(self) -> Self:
        """Return an independent book in the same state."""
        twin = type(self)(streaming=self.streaming, opened=self.opened)
        twin.closing = self.closing
        twin.turns = self.turns.copy()
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture."""
        return self.opened, self.closing, tuple(self.turns.items())

    @property
    def live(self) -> list[Vid]:
        """Turns in flight."""
        return [vid for vid, turn in self.turns.items() if turn.live]

    @property
    def blocked(self) -> frozenset[Vid]:
        """Turns that cannot be named, since another replaces them."""
        return frozenset().union(*(turn.drops for turn in self.turns.values()))

    def expect(self, asked: Asked) -> Prompt | None:
        """Return what the whole prompt of a turn has to be; None: it has to be refused."""
        if not self.opened or self.closing:
            return None
        if self.streaming:
            if self.live:
                return None
            last = self._last()
            return asked.own if last is None else self._whole(last) + asked.own
        if asked.behind is None:
            return asked.own
        base = self.turns.get(asked.behind)
        if base is None or asked.behind in self.blocked or (base.live and not asked.replace):
            return None
        return (base.prompt if base.live else self._whole(asked.behind)) + asked.own

    def begin(self, vid: Vid, asked: Asked, prompt: Prompt) -> list[Vid]:
        """Take a turn; return those that it ends."""
        base = self._last() if self.streaming else asked.behind
        named = None if base is None else self.turns[base]
        ends: list[Vid] = []
        drops: frozenset[Vid] = frozenset()
        if named is not None and named.live:
            ends, drops, base = [base] if base is not None else [], named.drops, named.base
        elif asked.replace:
            after = [each for each in self.turns if base is None or self._follows(each, base)]
            ends = [each for each in after if self.turns[each].live]
            drops = frozenset(after).difference(ends)
        for each in [*self.turns] if self.streaming else [asked.behind]:
            turn = None if each is None else self.turns.get(each)
            if each is not None and turn is not None and not turn.live:
                self.turns[each] = turn._replace(settled=True)
        for each in ends:
            del self.turns[each]
        self.turns[vid] = Turn(prompt, base, drops)
        return ends

    def end(self, vid: Vid, *, well: bool, output: Prompt) -> None:
        """Note that a turn in flight is over."""
        turn = self.turns.get(vid)
        if turn is None or not turn.live:
            return
        if well:
            self.turns[vid] = turn._replace(live=False, output=output)
        else:
            del self.turns[vid]
        if self.closing and not self.live:
            self._close()

    def abort(self, vid: Vid) -> None:
        """Note that an abort comes, which may be late."""
        turn = self.turns.get(vid)
        if turn is not None and not turn.live and not turn.settled:
            del self.turns[vid]

    def close(self) -> None:
        """Close the session, or have it closed with the last of its turns in flight."""
        if self.opened:
            self.closing = True
            if not self.live:
                self._close()

    def wait(self) -> None:
        """Let the time pass after which a session ends, unless a turn is in flight."""
        if not self.live and not self.closing:
            self._close()

    def _close(self) -> None:
        self.opened = False
        self.turns.clear()

    def _last(self) -> Vid | None:
        return next(reversed(self.turns), None)

    def _whole(self, vid: Vid) -> Prompt:
        return self.turns[vid].prompt + self.turns[vid].output

    def _follows(self, vid: Vid, root: Vid) -> bool:
        step = self.turns[vid].base
        while step is not None and step != root:
            step = self.turns[step].base if step in self.turns else None
        return step is not None


NAME: Final = "s"
"""Of the session."""
