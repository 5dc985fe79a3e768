"""What a world is made of: how large it is, what can happen, what is in flight, what callers have heard."""

from __future__ import annotations

from typing import NamedTuple

from vidette_protocol.ids import Rid, Vid, label


class Bounds(NamedTuple):
    """How large a world is, and what can happen in it.

    Args:
        rids: slots that the clients of a front may use.
        uses: requests submitted in all.
        tokens: most output tokens of a request.
        fronts: how many.
        replicas: schedulers, each with a detokenizer.
        reuse_at_once: whether a rid is used again before its abort is acknowledged.
        replace: whether a request may take the rid of one that lives.
        group: how many requests may be submitted together, by one caller; 0: none.
        abort_all: whether all requests of a front may be aborted at once.
        split_senders: whether aborts travel by a link of their own, so that one may overtake its request.
        chunks: how often a request lands before its first token (its prefill is chunked).
        several: most tokens that a request lands with at once.
        deadlines: whether deadlines may pass at the scheduler.
        retractions: how often a request may be retracted, in all.
        losses: how often a replica dies, in all, and another takes its place.
        resume: whether what a replica had goes on elsewhere when it dies; else its callers are told.
        remembered: how many ended vids a scheduler remembers; few, so that some are forgotten.
    """

    rids: int = 2
    uses: int = 3
    tokens: int = 2
    fronts: int = 1
    replicas: int = 1
    reuse_at_once: bool = True
    replace: bool = False
    group: int = 0
    abort_all: bool = False
    split_senders: bool = False
    chunks: int = 0
    several: int = 1
    deadlines: bool = False
    retractions: int = 0
    losses: int = 0
    resume: bool = False
    remembered: int = 1


class Action(NamedTuple):
    """Something that can happen: a name, what it happens to, and where.

    `counts` are numbers of its kind: of a landing, with how many tokens each of the batch lands; none if that
    is one each, or none for a chunk of a prefill.
    """

    name: str
    vids: tuple[Vid, ...] = ()
    rids: tuple[Rid, ...] = ()
    front: int = 0
    replica: int = 0
    counts: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return it in a few words."""
        vids = (f"#{label(vid)}" for vid in self.vids)
        return " ".join([self.name, *self.rids, *vids, *map(str, self.counts)])


class Ask(NamedTuple):
    """A request or an abort on its way to a scheduler; `every` says: of all up to that vid."""

    vid: Vid
    abort: bool
    floor: Vid
    resumed: int = 0
    every: bool = False


class Stream(NamedTuple):
    """What a caller has heard of one request.

    Args:
        vid: which carries it now; another one after a move.
        rid: its slot.
        scope: whose block it is opened in: the first vid of the group, or its own.
        here: whether the caller is still in that block.
        heard: tokens heard.
        ends: ends heard.
        replica: where the vid was sent; None if it was not.
    """

    vid: Vid
    rid: Rid
    scope: Vid
    here: bool = True
    heard: int = 0
    ends: int = 0
    replica: int | None = None


Between = tuple[int, int]
"""A front and a replica: the two ends of a link."""
Queue = dict[Between, tuple[Ask, ...]]
