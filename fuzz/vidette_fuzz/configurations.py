"""What is explored: a world for each part of the protocol, since one world with all of it has no depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vidette_fuzz.stepping.bounds import LoopBounds
from vidette_protocol.exploring import Explorable
from vidette_protocol.small_worlds.calls import CallBounds, CallParts, CallWorld
from vidette_protocol.small_worlds.credits import CreditBounds, CreditParts, CreditWorld
from vidette_protocol.small_worlds.handshake import HandshakeBounds, HandshakeParts, HandshakeWorld
from vidette_protocol.small_worlds.ring import RingBounds, RingParts, RingWorld
from vidette_protocol.world import Bounds, Parts, World

if TYPE_CHECKING:
    from vidette_fuzz.stepping.loop import LoopParts

Maker = Callable[[], Explorable[Any]]


class Configuration(NamedTuple):
    """A part of the protocol, in three sizes.

    Args:
        name: for the command line.
        about: what is in it, in a sentence.
        short: makes a world that is explored to its end on every push.
        long: makes a world for long runs, which may not come to their end.
        large: makes a world for random walks.
        heavy: whether its worlds take some 20 KiB each, and have cycles.
    """

    name: str
    about: str
    short: Maker
    long: Maker
    large: Maker
    heavy: bool = False


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


def stepping(loop_bounds: LoopBounds, bounds: Bounds, parts: LoopParts | None = None) -> Maker:
    """Return what makes a world of requests whose scheduler is the engine's step loop."""
    return partial(_step, loop_bounds, bounds, parts)


def _step(loop_bounds: LoopBounds, bounds: Bounds, parts: LoopParts | None) -> Explorable[Any]:
    # Whoever explores another world need not load an engine.
    from vidette_fuzz.stepping.loop import ExploredLoop, LoopParts  # noqa: PLC0415
    from vidette_fuzz.stepping.overlapped import OverlappedLoop, OverlappedWorld  # noqa: PLC0415
    from vidette_fuzz.stepping.world import LoopWorld  # noqa: PLC0415

    loop, world = (OverlappedLoop, OverlappedWorld) if loop_bounds.overlaps else (ExploredLoop, LoopWorld)
    return world(LoopParts(loop) if parts is None else parts, loop_bounds, bounds)


CORE: Final = Bounds(rids=2, uses=2, tokens=2, chunks=1, split_senders=True)
GROUPS: Final = Bounds(rids=2, uses=2, tokens=2, replace=True, group=2)
ALL: Final = Bounds(rids=2, uses=2, tokens=1, fronts=2, abort_all=True)
DEADLINES: Final = Bounds(rids=2, uses=2, tokens=2, deadlines=True)
DEATH: Final = Bounds(rids=1, uses=2, tokens=2, losses=1, resume=True)
RETRACTION: Final = Bounds(rids=1, uses=2, tokens=2, chunks=1, several=2, retractions=2)
TWO: Final = Bounds(rids=1, uses=2, tokens=1, fronts=2, replicas=2, split_senders=True, losses=1)
BEFORE: Final = Bounds(rids=1, uses=3, tokens=2)
AFTER: Final = Bounds(rids=1, uses=5, tokens=2, reuse_at_once=False)
CALLS: Final = CallBounds(calls=3, fronts=2, deaths=1, unsendable=1)
MISBEHAVING: Final = HandshakeBounds(messages=4, misbehaves=True, loads=True)
ARENA: Final = CreditBounds(arena=2, messages=((1, 1), (2,)), slices=True, deaths=1, producer_dies=True)
MANY_BUFFERS: Final = ((1, 1), (2,), (1,), (1, 2), (3,), (1, 1, 1), (6,), (2, 2), (1,), (1, 1))
RING: Final = RingBounds(callers=3, tokens=2)
PREFIX: Final = LoopBounds(blocks=8, prompt=17, chunk=12, flushes=True)
SHARED: Final = Bounds(rids=2, uses=2, tokens=1, retractions=1)
DRAFTS: Final = LoopBounds(blocks=8, prompt=15, drafts=2)
DRAFTED: Final = Bounds(rids=1, uses=1, tokens=5, retractions=1)
SESSION: Final = LoopBounds(session=True)
STREAMING: Final = SESSION._replace(streaming=True, closes=True, waits=1)
TURNS: Final = Bounds(rids=2, uses=2, tokens=1)
ONE_BY_ONE: Final = Bounds(rids=1, uses=2, tokens=1, losses=1)
OVERLAPPED: Final = LoopBounds(overlaps=True)
ALOFT: Final = Bounds(rids=1, uses=2, tokens=2, losses=1)
PAUSED: Final = OVERLAPPED._replace(prompt=17, chunk=12, flushes=True, pauses=1)
STANDING_STILL: Final = Bounds(rids=1, uses=1, tokens=2)

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
        "requests land with several tokens, give their blocks up, and go on behind what they have said",
        requests(RETRACTION),
        requests(RETRACTION._replace(rids=2, uses=3, tokens=3, several=3)),
        requests(RETRACTION._replace(rids=3, uses=9, tokens=4, retractions=6)),
    ),
    Configuration(
        "prefix",
        "a step loop whose requests share a prefix, which is locked, evicted, computed twice and found again",
        stepping(PREFIX, SHARED),
        stepping(PREFIX._replace(blocks=5, prompts=2), SHARED._replace(uses=3, tokens=2, retractions=2)),
        stepping(
            PREFIX._replace(blocks=5, prompts=2), SHARED._replace(rids=3, uses=9, tokens=3, retractions=4)
        ),
        heavy=True,
    ),
    Configuration(
        "speculation",
        "a step loop that guesses: drafts are right or not, the end comes anywhere in what was accepted",
        stepping(DRAFTS, DRAFTED),
        stepping(DRAFTS._replace(interval=2), DRAFTED._replace(rids=2, uses=2, retractions=2)),
        stepping(
            DRAFTS._replace(drafts=3, interval=2), DRAFTED._replace(rids=2, uses=6, tokens=8, retractions=4)
        ),
        heavy=True,
    ),
    Configuration(
        "sessions",
        "a step loop whose requests are turns of a session, behind others or in their place, also in flight",
        stepping(SESSION, TURNS),
        stepping(SESSION._replace(closes=True), TURNS._replace(uses=3)),
        stepping(SESSION._replace(closes=True, waits=1), TURNS._replace(rids=3, uses=8, tokens=2)),
        heavy=True,
    ),
    Configuration(
        "streaming sessions",
        "turns one by one; the session is closed under one, or times out, or its process dies",
        stepping(STREAMING, ONE_BY_ONE),
        stepping(STREAMING, ONE_BY_ONE._replace(rids=2, uses=3)),
        stepping(STREAMING, ONE_BY_ONE._replace(rids=2, uses=8, tokens=2)),
        heavy=True,
    ),
    Configuration(
        "overlapped",
        "a step loop whose batch lands while all else goes on; a launch fails, or the process dies meanwhile",
        stepping(OVERLAPPED, ALOFT),
        stepping(OVERLAPPED._replace(prompt=17, chunk=12, flushes=True), ALOFT._replace(rids=2, uses=3)),
        stepping(
            PAUSED._replace(blocks=24, prompts=2, pauses=3),
            ALOFT._replace(rids=3, uses=9, tokens=3, losses=2),
        ),
        heavy=True,
    ),
    Configuration(
        "overlapped pauses",
        "generation is paused in each way while a batch is in flight, and goes on; prefills in chunks",
        stepping(PAUSED, STANDING_STILL),
        stepping(PAUSED._replace(pauses=2), STANDING_STILL._replace(rids=2, uses=2, losses=1)),
        stepping(PAUSED._replace(blocks=16, pauses=4), STANDING_STILL._replace(rids=3, uses=6, tokens=4)),
        heavy=True,
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
