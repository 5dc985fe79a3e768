"""`Drain`: whether a front takes anything new, and what is told to whom it could not wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import anyio

from vidette.errors import EngineDraining, Error, RequestReplaced
from vidette.front.route import Route
from vidette_protocol.ids import Vid


class Drain:
    """Whether a front is being emptied, and why requests are over that were not sent yet."""

    def __init__(self) -> None:
        self._until: float | None = None
        self._why: dict[Vid, Callable[[str], Error]] = {}

    @property
    def begun(self) -> bool:
        """Whether nothing new is taken any more."""
        return self._until is not None

    def begin(self, seconds: float) -> None:
        """Take nothing new from now on; what lives has so many seconds."""
        until = anyio.current_time() + seconds
        self._until = until if self._until is None else min(self._until, until)

    def check(self) -> None:
        """Check that something new is taken.

        Raises:
            EngineDraining: it is not.
        """
        if self._until is not None:
            raise EngineDraining(
                "the engine is being closed and takes no more requests",
                retry_after=max(1.0, self._until - anyio.current_time()),
            )

    def tell(self, vids: Iterable[Vid], routes: Mapping[Vid, Route], error: Callable[[str], Error]) -> int:
        """Tell the callers of requests that these were aborted from outside.

        Args:
            vids: which.
            routes: of what was sent.
            error: makes what they get, of the rid.

        Returns:
            How many are told at once; the others were not sent yet, and hear of it when they would be.
        """
        told = 0
        for vid in vids:
            route = routes.get(vid)
            if route is None:
                self._why[vid] = error
            else:
                told += 1
                route.stream.fail(partial(error, route.stream.rid), "abort")
        return told

    def why_over(self, vid: Vid, rid: str) -> Error:
        """Return why a request is over that was not sent."""
        return self._why[vid](rid) if vid in self._why else RequestReplaced(rid)

    def forget(self, vid: Vid) -> None:
        """Note that the caller of a request has left."""
        self._why.pop(vid, None)

    def __len__(self) -> int:
        """Return how many have still to hear that their requests are over."""
        return len(self._why)
