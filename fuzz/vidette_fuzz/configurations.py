"""What is explored: a world for each part of the protocol, since one world with all of it has no depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from vidette_protocol.exploring import Explorable
from vidette_protocol.small_worlds.calls import CallBounds, CallParts, CallWorld
from vidette_protocol.small_worlds.credits import CreditBounds, CreditParts, CreditWorld
from vidette_protocol.small_worlds.handshake import HandshakeBounds, HandshakeParts, HandshakeWorld
from vidette_protocol.small_worlds.ring import RingBounds, RingParts, RingWorld
from vidette_protocol.world import Bounds, Parts, World

Maker = Callable[[], Explorable[Any]]


class Configuration(NamedTuple):
    """A part of the protocol, in three sizes.

    Args:
        name: for the command line.
        about: what is in it, in a sentence.
        short: makes a world that is explored to its end on every push.
        long: makes a world for long runs, which may not come to their end.
        large: makes a world for random walks.
    """

    name: str
    about: str
    short: Maker
    long: Maker
    large: Maker


def requests(bounds: Bounds, parts: Parts = Parts()) -> Maker:  # noqa: B008  immutable
    """Return what makes a world of requests."""
    return partial(World, parts, bounds)


def calls(bounds: CallBounds, parts: CallParts = CallParts()) -> Maker:  # noqa: B008  immutable
    """Return what makes a world of control calls."""
    return partial(CallWorld, parts, bounds)


def handshake(bounds: HandshakeBounds, parts: HandshakeParts = HandshakeParts()) -> Maker:  # noqa: B008  immutable
    """Return what makes a world of a link's two ends."""
    return partial(HandshakeWorld, parts, bounds)


def arena(bounds: CreditBounds, parts: CreditParts = CreditParts()) -> Maker:  # noqa: B008  immutable
    """Return what makes a world of an arena's two ends."""
    return partial(CreditWorld, parts, bounds)


def ring(bounds: RingBounds, parts: RingParts = RingParts()) -> Maker:  # noqa: B008  immutable
    """Return what makes a world of bounded links in a ring."""
    return partial(RingWorld, parts, bounds)


CORE: Final = Bounds(rids=2, uses=2, tokens=2, chunks=1, split_senders=True)
GROUPS: Final = Bounds(rids=2, uses=2, tokens=2, replace=True, group=2)
ALL: Final = Bounds(rids=2, uses=2, tokens=1, fronts=2, abort_all=True)
DEADLINES: Final = Bounds(rids=2, uses=2, tokens=2, deadlines=True)
DEATH: Final = Bounds(rids=1, uses=2, tokens=2, losses=1, resume=True)
RETRACTION: Final = Bounds(rids=1, uses=2, tokens=2, chunks=1, retractions=2)
TWO: Final = Bounds(rids=1, uses=2, tokens=1, fronts=2, replicas=2, split_senders=True, losses=1)
BEFORE: Final = Bounds(rids=1, uses=3, tokens=2)
AFTER: Final = Bounds(rids=1, uses=5, tokens=2, reuse_at_once=False)
CALLS: Final = CallBounds(calls=3, fronts=2, deaths=1, unsendable=1)
MISBEHAVING: Final = HandshakeBounds(messages=4, misbehaves=True, loads=True)
ARENA: Final = CreditBounds(arena=2, messages=((1, 1), (2,)), slices=True, deaths=1, producer_dies=True)
MANY_BUFFERS: Final = ((1, 1), (2,), (1,), (1, 2), (3,), (1, 1, 1), (6,), (2, 2), (1,), (1, 1))
RING: Final = RingBounds(callers=3, tokens=2)

_ALL: Final = (
    Configuration(
        "core",
        "requests, aborts that may overtake them, prefills in chunks, rejection",
        requests(CORE._replace(tokens=1)),
        requests(CORE._replace(uses=3)),
        requests(CORE._replace(rids=3, uses=12, tokens=4)),
    ),
    Configuration(
        "replace and groups",
        "a request takes the rid of one that lives; several live and are aborted together, all or none",
        requests(GROUPS),
        requests(GROUPS._replace(uses=3)),
        requests(GROUPS._replace(rids=4, uses=12, tokens=3)),
    ),
    Configuration(
        "abort all",
        "all requests of a front are aborted at once, those included that were not sent yet; no other's are",
        requests(ALL),
        requests(ALL._replace(uses=3, group=2, losses=1, resume=True)),
        requests(ALL._replace(rids=3, uses=12, tokens=3, replicas=2, group=2, losses=2, resume=True)),
    ),
    Configuration(
        "deadlines",
        "deadlines pass at the scheduler, before, while and after their callers leave",
        requests(DEADLINES),
        requests(DEADLINES._replace(uses=3, split_senders=True)),
        requests(DEADLINES._replace(rids=3, uses=12, tokens=3, split_senders=True)),
    ),
    Configuration(
        "process death and resume",
        "a replica dies, and what callers wait for goes on elsewhere; each hears each token once",
        requests(DEATH),
        requests(DEATH._replace(rids=2, uses=3, losses=2, group=2)),
        requests(DEATH._replace(rids=3, uses=9, tokens=4, losses=3, replicas=2, group=2, replace=True)),
    ),
    Configuration(
        "retraction",
        "requests give their blocks up, are prefilled again and go on behind what they have said",
        requests(RETRACTION),
        requests(RETRACTION._replace(rids=2, uses=3, tokens=3)),
        requests(RETRACTION._replace(rids=3, uses=9, tokens=4, retractions=6)),
    ),
    Configuration(
        "two schedulers and two fronts",
        "fronts and replicas that know nothing of each other; a death is told to those who wait for it",
        requests(TWO),
        requests(TWO._replace(rids=2, uses=3, tokens=2)),
        requests(TWO._replace(rids=3, uses=9, tokens=3, losses=2)),
    ),
    Configuration(
        "reuse before acknowledgement",
        "a rid is used again as soon as its caller has left",
        requests(BEFORE),
        requests(BEFORE._replace(uses=4)),
        requests(BEFORE._replace(rids=2, uses=12, tokens=4)),
    ),
    Configuration(
        "reuse after acknowledgement",
        "a rid is used again when its abort is acknowledged",
        requests(AFTER),
        requests(AFTER._replace(rids=2, uses=4)),
        requests(AFTER._replace(rids=2, uses=12, tokens=4)),
    ),
    Configuration(
        "control calls",
        "callers ask, also in vain, and leave; replicas answer in any order and die; each hears one thing",
        calls(CALLS),
        calls(CALLS._replace(calls=4, replicas=2, kinds=2, deaths=2)),
        calls(CallBounds(calls=10, fronts=2, replicas=2, kinds=2, deaths=2, unsendable=2)),
    ),
    Configuration(
        "handshake",
        "two ends open a link at once; one loads, or fails, or speaks out of turn; either closes any time",
        handshake(MISBEHAVING),
        handshake(MISBEHAVING._replace(messages=6)),
        handshake(MISBEHAVING._replace(messages=12)),
    ),
    Configuration(
        "arena credits",
        "messages take extents all or none, views die in any order, messages are dropped, either end dies",
        arena(ARENA),
        arena(ARENA._replace(arena=3, messages=((1, 1), (2,), (1,)))),
        arena(CreditBounds(arena=5, messages=MANY_BUFFERS, slices=True, deaths=2)),
    ),
    Configuration(
        "slow consumers",
        "bounded links in a ring, whose front never stops reading, and callers that read when they please",
        ring(RING),
        ring(RING._replace(callers=4, tokens=3)),
        ring(RING._replace(callers=8, tokens=6, room=2, high_water=3)),
    ),
)

CONFIGURATIONS: Final[Mapping[str, Configuration]] = MappingProxyType({each.name: each for each in _ALL})
"""Every configuration by name."""
