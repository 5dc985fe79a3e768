"""`Aborts`: ends requests from outside, one by its name or all, whoever reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from vidette.errors import RequestAborted
from vidette.front.drain import Drain
from vidette.front.route import Route
from vidette.front.totals import Totals
from vidette.transport.link import Link
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import FrontMachine
from vidette_protocol.messages import AbortReq, GenerateItem


class _Named(NamedTuple):
    """The answers that have one name: those of a group, or of one of its prompts."""

    group: Vid
    rids: tuple[Rid, ...]


class PostAbort(Protocol):
    """Tells the scheduler of one that has just been aborted."""

    def __call__(self, vid: Vid, route: Route | None, /, *, post: bool) -> None:
        """Do so if `post`, and count it."""


class Aborts:
    """Ends the requests of one front.

    Args:
        machine: of the front.
        routes: of what was sent.
        drain: tells those who wait for what was not sent.
        totals: counted in.
        link: returns that to the scheduler.
        post: tells the scheduler of one.
        done: called when some are over.
    """

    def __init__(
        self,
        machine: FrontMachine,
        routes: Mapping[Vid, Route],
        drain: Drain,
        totals: Totals,
        *,
        link: Callable[[], Link],
        post: PostAbort,
        done: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._drain = drain
        self._totals = totals
        self._link = link
        self._post = post
        self._done = done
        self._names: dict[str, _Named] = {}

    def name(self, rid: str | Sequence[str] | None, items: Sequence[GenerateItem], group: Vid) -> None:
        """Note the names of a group's answers, besides the rids they have.

        Args:
            rid: as it was given: one for all, or one for each prompt.
            items: the answers, prompt by prompt.
            group: the first vid of them.
        """
        given = [] if rid is None else [rid] if isinstance(rid, str) else rid
        each = len(items) // len(given) if given else 0
        for place, name in enumerate(given):
            rids = tuple(Rid(item.rid) for item in items[place * each : (place + 1) * each])
            if rids != (name,):
                self._names[name] = _Named(group, rids)

    def forget(self, group: Vid) -> None:
        """Forget the names of a group: its caller has left."""
        if self._names:
            gone = [name for name, named in self._names.items() if named.group == group]
            for name in gone:
                del self._names[name]

    def one(self, rid: str, why: str | None = None) -> int:
        """End the request of a rid, or all answers of a group that was given it, at once.

        It matches exactly. Whoever reads them gets RequestAborted.

        Returns:
            How many there were.
        """
        holder = self._machine.holder(Rid(rid))
        vids = [] if holder is None else [holder]
        named = self._names.get(rid)
        if named is not None:
            holders = filter(None, map(self._machine.holder, named.rids))
            vids += [vid for vid in holders if self._machine.group(vid) == named.group]
        for vid in vids:
            post = self._machine.abort(vid)
            route = self._routes.get(vid)
            self._post(vid, route, post=post)
            self._drain.tell([vid], self._routes, partial(RequestAborted, why=why, alone=True))
        if vids:
            self._done()
        return len(vids)

    def all(self, why: str | None = None) -> int:
        """End all requests at once, with RequestAborted for whoever reads them; return how many."""
        vids, up_to = self._machine.abort_all()
        for vid in up_to.values():
            self._link().post(AbortReq(vid=vid, floor=self._machine.floor, abort_all=True, abort_message=why))
        self._totals.aborted += self._drain.tell(vids, self._routes, partial(RequestAborted, why=why))
        self._done()
        return len(vids)
