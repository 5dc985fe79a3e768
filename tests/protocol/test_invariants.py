"""Each rule has a world that breaks it, made by hand; the mutants of `vidette_fuzz` break them in a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from vidette_protocol.ids import Rid, Vid
from vidette_protocol.invariants import violations
from vidette_protocol.lifecycle import End, FrontMachine, Move, Row, SchedulerMachine
from vidette_protocol.world import Action, Ask, Bounds, Parts, Stream, World

A, B = Vid(0), Vid(1)
R, S = Rid("r1"), Rid("r12")
HERE = Stream(A, R, A, replica=0)


class Credulous(FrontMachine):
    """Delivers every row to the caller of its vid."""

    def receive(self, vid: Vid, *_: object, **__: object) -> Vid | None:
        return vid


class Careless(FrontMachine):
    """Delivers every row to the caller of vid 1."""

    def receive(self, *_: object, **__: object) -> Vid | None:
        return B


class Greedy(FrontMachine):
    """Gives a group whatever slots it asks for, or keeps half of them."""

    def submit_group(self, rids: Sequence[Rid]) -> tuple[Vid, ...]:
        self._slots.clear()
        return super().submit_group(rids)


class Keeping(FrontMachine):
    """Refuses a group when it has taken the first slot."""

    def submit_group(self, rids: Sequence[Rid]) -> tuple[Vid, ...]:
        self.submit(rids[0])
        return super().submit_group(rids)


class Silent(FrontMachine):
    """Tells nobody of a death, and lets nothing go on."""

    def lost(self, *_: object) -> list[Vid]:
        return []

    def moved(self, *_: object) -> list[Move]:
        return []


class Panicking(FrontMachine):
    """Takes the death of one replica for that of all."""

    def lost(self, *_: object) -> list[Vid]:
        return super().lost()


def submitted(parts: Parts = Parts(), bounds: Bounds = Bounds()) -> World:  # noqa: B008  immutable
    """Return a world with one request on its way to the scheduler."""
    return World(parts, bounds).apply(Action("submit", rids=(R,))).apply(Action("send", (A,)))


def running() -> World:
    """Return a world whose one request has landed once; its first row has come all the way."""
    world = submitted().apply(Action("request arrives")).apply(Action("launch", (A,))).apply(Action("land"))
    return world.apply(Action("row arrives")).apply(Action("text arrives"))


def hears(row: Row, *, front: type[FrontMachine] = Credulous, stream: Stream = HERE) -> World:
    """Return a world in which a row has come to a caller who has heard something before."""
    world = submitted(Parts(front=front))
    world.streams[A] = stream
    world.streams[B] = Stream(B, S, B, replica=0)
    world.texts = {(0, 0): (row,)}
    return world.apply(Action("text arrives"))


def refused(front: type[FrontMachine]) -> World:
    """Return a world in which a group was submitted, one of whose slots is taken."""
    world = World(Parts(front=front), Bounds(group=2)).apply(Action("submit", rids=(R,)))
    return world.apply(Action("group is refused", rids=(S, R)))


def dead(front: type[FrontMachine], bounds: Bounds) -> World:
    """Return a world in which two requests were sent, and the replica of the first has died."""
    world = World(Parts(front=front), bounds)
    world = world.apply(Action("submit", rids=(R,))).apply(Action("submit", rids=(S,)))
    world = world.apply(Action("send", (A,))).apply(Action("send", (B,), replica=bounds.replicas - 1))
    return world.apply(Action("replica is lost")).apply(Action("loss is noticed"))


def two_ends() -> World:
    world = running()
    world.streams[A] = HERE._replace(ends=2)
    return world


def strange_blocks() -> World:
    world = World()
    world.replicas[0].holding = frozenset({A, B})
    return world


def orphan() -> World:
    world = running()
    world.fronts[0].receive(A, 1, 0, End.FINISH)
    return world


class Hasty(SchedulerMachine):
    """Launches whatever it is told to, and answers every abort at once."""

    def launch(self, vids: object) -> None:
        pass

    def abort(self, vid: Vid) -> Row | None:
        return Row(vid, 0, 0, End.ABORT)


def launched_after_abort() -> World:
    world = submitted(Parts(scheduler=Hasty))
    world.asks = {(0, 0): (Ask(A, abort=True, floor=A),)}
    return world.apply(Action("abort arrives")).apply(Action("launch", (A,)))


def open_text() -> World:
    world = World()
    world.replicas[0].detokenizer.receive(A, 0, 1, None)
    return world


def never_landing() -> World:
    world = World()
    world.replicas[0].scheduler.request(A)
    world.replicas[0].scheduler.launch([A])
    return world


def forgotten_tombstone() -> World:
    class Hoarding(SchedulerMachine):
        def pass_floor(self, floor: Vid) -> None:
            pass

    world = World(Parts(scheduler=Hoarding))
    world.replicas[0].scheduler.abort(A)
    return world


def waiting() -> World:
    world = submitted()
    world.asks = {}
    return world


def nobody_to_send() -> World:
    world = World().apply(Action("submit", rids=(R,)))
    world.streams[A] = world.streams[A]._replace(here=False)
    return world


def empty_group() -> World:
    class Hoarding(FrontMachine):
        def _leave_group(self, vid: Vid, group: Vid | None) -> None:
            pass

    world = World(Parts(front=Hoarding), Bounds(rids=1, group=1)).apply(Action("submit group", rids=(R,)))
    return world.apply(Action("leave", (A,)))


ALONE = Bounds(losses=1)
BROKEN: list[tuple[Callable[[], World], str]] = [
    (two_ends, "1: vid 0 has had 2 ends"),
    (
        lambda: hears(Row(A, 0, 1, None), stream=HERE._replace(ends=1)),
        "1: vid 0 hears something after its end",
    ),
    (
        lambda: hears(Row(A, 0, 1, None), stream=HERE._replace(here=False)),
        "2: vid 0 hears something after its scope has ended",
    ),
    (
        lambda: hears(Row(A, 0, 1, None), front=Careless),
        "3: the caller of vid 1 hears what belongs to vid 0",
    ),
    (
        lambda: hears(Row(A, 0, 0, End.ABORT)),
        "3: the caller of vid 0 hears of an abort that it never asked for",
    ),
    (lambda: refused(Greedy), "3: a group took a slot that another request holds"),
    (lambda: hears(Row(A, 1, 1, None)), "4: vid 0 has 0 tokens and hears of token 1"),
    (
        lambda: hears(Row(A, 0, 1, End.FINISH), stream=HERE._replace(heard=2)),
        "4: vid 0 has 2 tokens and hears of token 1",
    ),
    (strange_blocks, "5: blocks are held by vids [0, 1], which are not live"),
    (orphan, "5: the scheduler works for vids [0], which the front has let go of"),
    (launched_after_abort, "6: vid 0 was launched after its abort was applied"),
    (lambda: refused(Keeping), "7: a group that was refused has left something behind"),
    (waiting, "7: the front still holds 1 at quiescence"),
    (nobody_to_send, "7: the front still holds 1 at quiescence"),
    (open_text, "7: the detokenizer still holds 1 at quiescence"),
    (never_landing, "7: the scheduler still holds 1 at quiescence"),
    (strange_blocks, "7: the KV pool still holds 2 at quiescence"),
    (forgotten_tombstone, "7: the memory of overtaking aborts still holds 1 at quiescence"),
    (empty_group, "7: the table of groups still holds 1 at quiescence"),
    (waiting, "8: the caller of vid 0 waits, and nothing can happen any more"),
    (lambda: dead(Silent, ALONE), "9: the caller of vid 0 waits for a replica that is dead"),
    (
        lambda: dead(Silent, ALONE._replace(resume=True)),
        "9: the caller of vid 1 waits for a replica that is dead",
    ),
    (
        lambda: dead(Panicking, ALONE._replace(replicas=2)),
        "9: the caller of vid 1 is told of the death of another's replica",
    ),
]


@pytest.mark.parametrize(("make", "sentence"), BROKEN, ids=[sentence[:40] for _, sentence in BROKEN])
def test_each_rule_can_be_broken_and_says_so(make: Callable[[], World], sentence: str) -> None:
    assert sentence in violations(make())


def test_every_rule_that_is_about_a_world_is_among_them() -> None:
    assert {sentence[0] for _, sentence in BROKEN} == set("123456789")


@pytest.mark.parametrize(
    "make",
    [
        World,
        submitted,
        running,
        lambda: refused(FrontMachine),
        lambda: dead(FrontMachine, ALONE),
        lambda: dead(FrontMachine, ALONE._replace(replicas=2)),
        lambda: dead(FrontMachine, ALONE._replace(resume=True)),
    ],
)
def test_nothing_is_wrong_in_an_ordinary_world(make: Callable[[], World]) -> None:
    assert violations(make()) == []


def test_a_request_that_is_being_tokenised_is_no_leftover() -> None:
    """Nothing is in flight, but its sending is still to come."""
    world = World().apply(Action("submit", rids=(R,)))
    assert world.settled
    assert violations(world) == []


def test_a_tombstone_that_the_next_frame_will_clear_is_no_leftover() -> None:
    world = World(bounds=Bounds(remembered=0)).apply(Action("submit", rids=(R,))).apply(Action("send", (A,)))
    world = world.apply(Action("request arrives")).apply(Action("launch", (A,))).apply(Action("land", (A,)))
    world = world.apply(Action("leave", (A,))).apply(Action("abort arrives"))
    world = world.apply(Action("row arrives")).apply(Action("text arrives"))
    assert world.settled
    assert world.replicas[0].scheduler.tombstones == 1
    assert violations(world) == []


def test_a_tombstone_is_no_leftover_while_its_front_holds_something() -> None:
    world = World().apply(Action("submit", rids=(R,)))
    world.replicas[0].scheduler.abort(A)
    assert violations(world) == []
