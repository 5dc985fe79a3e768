"""What can happen next in a world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING, Final

from vidette_protocol.ids import Rid, Vid, front_of
from vidette_protocol.lifecycle import FrontState, SchedulerMachine, SchedulerState
from vidette_protocol.world.bounds import Action, Bounds, Stream

if TYPE_CHECKING:
    from vidette_protocol.world.replica import Replica
    from vidette_protocol.world.whole import World


def singles(world: World) -> Iterator[Action]:
    """Yield what can happen next but for launches and landings, whose choices grow as 2**n."""
    yield from _submits(world)
    yield from _callers(world)
    for (front, number), asks in world.asks.items():
        name = "abort arrives" if asks[0].abort else "request arrives"
        yield Action(name, front=front, replica=number)
    for front, number in world.aborts:
        yield Action("overtaking abort arrives", front=front, replica=number)
    for number, replica in enumerate(world.replicas):
        yield from _schedules(world, number, replica.scheduler)
        if replica.rows:
            yield Action("row arrives", replica=number)
    for front, number in world.texts:
        yield Action("text arrives", front=front, replica=number)
    for front, number in sorted(world.cut):
        yield Action("loss is noticed", front=front, replica=number)
    if world.losses < world.bounds.losses and not world.cut:
        for number in range(world.touched):
            yield Action("replica is lost", replica=number)


def batches(world: World) -> Iterator[Action]:
    """Yield every launch and every landing."""
    for number, replica in enumerate(world.replicas):
        if replica.batch and world.bounds.several > 1:
            yield from _landings(replica, number, world.bounds)
        elif replica.batch:
            must, may = replica.may_end(world.bounds.tokens)
            for ends in _subsets(may):
                yield Action("land", (*must, *ends), replica=number)
        else:
            for batch in _subsets(replica.launchable):
                if batch:
                    yield Action("launch", batch, replica=number)


def _landings(replica: Replica, number: int, bounds: Bounds) -> Iterator[Action]:
    for way in product(*replica.may_land(bounds.tokens, bounds.several)):
        ends = tuple(vid for vid, (_, end) in zip(replica.batch, way, strict=True) if end)
        yield Action("land", ends, replica=number, counts=tuple(made for made, _ in way))


def draining(world: World) -> Iterator[Action]:
    """Yield what happens without new work, and without anybody's choice."""
    for action in singles(world):
        if action.name in BY_ITSELF:
            yield action
    for number, replica in enumerate(world.replicas):
        if replica.batch:
            yield Action("land", replica.batch, replica=number)
        elif replica.launchable:
            yield Action("launch", tuple(replica.launchable), replica=number)


def _submits(world: World) -> Iterator[Action]:
    bounds = world.bounds
    left = bounds.uses - len(world.streams)
    if not left:
        return
    for number, front in enumerate(world.fronts):
        known = _known(world, number)
        held = [rid for rid in known if front.holder(rid) is not None]
        free = [rid for rid in known if rid not in held] if bounds.reuse_at_once else []
        # Slots of which the front knows nothing are alike: as many as are needed stand for all of them.
        unknown = [rid for rid in map(rid_of, range(bounds.rids)) if rid not in known]
        for rid in (*free, *unknown[:1]):
            yield Action("submit", rids=(rid,), front=number)
        if bounds.replace:
            for rid in held:
                yield Action("replace", rids=(rid,), front=number)
        if bounds.group:
            yield from _groups(number, (*free, *unknown), held, bounds.group, left)
        if number + 1 < bounds.fronts and not any(front_of(first) == number for first in world.streams):
            return  # fronts of which nothing was asked are alike


def _groups(front: int, free: tuple[Rid, ...], held: list[Rid], size: int, left: int) -> Iterator[Action]:
    if len(free) >= size and left >= size:
        yield Action("submit group", rids=free[:size], front=front)
    if held and len(mixed := (*free[: size - 1], *held)) >= size:
        yield Action("group is refused", rids=mixed[:size], front=front)


def _known(world: World, front: int) -> list[Rid]:
    """Return the slots of which a front knows something: of all requests that are not over there."""
    rids = {
        stream.rid
        for stream in world.streams.values()
        if front_of(stream.vid) == front and world.front_state(stream.vid) is not FrontState.OVER
    }
    return sorted(rids)


def _callers(world: World) -> Iterator[Action]:
    scopes: dict[Vid, None] = {}
    for stream in world.streams.values():
        if not stream.here:
            continue
        scopes[stream.scope] = None
        if world.front_state(stream.vid) is FrontState.NEW:
            # Replicas that were sent nothing are alike.
            for number in range(min(world.touched + 1, len(world.replicas))):
                yield Action("send", (stream.vid,), replica=number)
    for scope in scopes:
        yield Action("leave", (scope,))
    if world.bounds.abort_all:
        for number in range(world.bounds.fronts):
            if any(_waits(stream, number) for stream in world.streams.values()):
                yield Action("abort all", front=number)


def _waits(stream: Stream, front: int) -> bool:
    return stream.here and not stream.ends and front_of(stream.vid) == front


def _schedules(world: World, number: int, scheduler: SchedulerMachine) -> Iterator[Action]:
    bounds = world.bounds
    for vid in scheduler.vids():
        state = scheduler.state(vid)
        if state is SchedulerState.WAITING:
            yield Action("reject", (vid,), replica=number)
        if bounds.deadlines:
            yield Action("expire", (vid,), replica=number)
        if state is SchedulerState.RUNNING and world.retractions < bounds.retractions:
            yield Action("retract", (vid,), replica=number)


def rid_of(number: int) -> Rid:
    """Return the name of a slot: each is the beginning of the next, so that matching by prefix shows."""
    return _RIDS[number]


_RIDS: Final = [Rid("r" + "123456789"[:length]) for length in range(1, 10)]


def _subsets(vids: Sequence[Vid]) -> Iterator[tuple[Vid, ...]]:
    for size in range(len(vids) + 1):
        yield from combinations(vids, size)


BY_ITSELF: Final = frozenset(
    {
        "send",
        "request arrives",
        "abort arrives",
        "overtaking abort arrives",
        "row arrives",
        "text arrives",
        "loss is noticed",
    }
)
"""What happens without anybody's choice, besides launches and landings."""
NAMES: Final = BY_ITSELF | {
    "submit",
    "replace",
    "submit group",
    "group is refused",
    "leave",
    "abort all",
    "launch",
    "land",
    "reject",
    "expire",
    "retract",
    "replica is lost",
}
"""What can happen at all."""
