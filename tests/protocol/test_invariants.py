"""Each rule has a world that breaks it, made by hand; the mutants of `vidette_fuzz` break them in a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vidette_protocol.ids import Rid, Vid
from vidette_protocol.invariants import violations
from vidette_protocol.lifecycle import End, FrontMachine, Row, SchedulerMachine
from vidette_protocol.world import Action, Ask, Bounds, Heard, Parts, World

A, B = Vid(0), Vid(1)
R = Rid("r0")


class Credulous(FrontMachine):
    """Delivers every row to the caller of its vid."""

    def receive(self, vid: Vid, *_: object, **__: object) -> Vid | None:
        return vid


class Careless(FrontMachine):
    """Delivers every row to the caller of vid 1."""

    def receive(self, *_: object, **__: object) -> Vid | None:
        return B


class Hasty(SchedulerMachine):
    """Ends what lands, whatever its state; launches whatever it is told to."""

    def launch(self, vids: object) -> None:
        pass

    def land(self, vid: Vid, *_: object, **__: object) -> Row | None:
        return Row(vid, 0, 0, End.FINISH)

    def abort(self, vid: Vid) -> Row | None:
        return Row(vid, 0, 0, End.ABORT)


def submitted(parts: Parts = Parts()) -> World:  # noqa: B008  immutable
    """Return a world with one request on its way to the scheduler."""
    return World(parts).apply(Action("submit", rid=R)).apply(Action("send", (A,)))


def running() -> World:
    """Return a world whose one request has landed once; its first row has come all the way."""
    world = submitted().apply(Action("request arrives")).apply(Action("launch", (A,))).apply(Action("land"))
    return world.apply(Action("row arrives")).apply(Action("text arrives"))


def hears(row: Row, *, front: type[FrontMachine] = Credulous, heard: Heard = Heard(R)) -> World:  # noqa: B008
    """Return a world in which a row has come to a caller who has heard something before."""
    world = submitted(Parts(front=front))
    world.callers[A] = heard
    world.callers[B] = Heard(Rid("r1"))
    world.texts = (row,)
    return world.apply(Action("text arrives"))


def two_ends() -> World:
    world = running()
    world.callers[A] = Heard(R, ends=2)
    return world


def strange_blocks() -> World:
    world = World()
    world.holding = frozenset({A, B})
    return world


def orphan() -> World:
    world = running()
    world.front.receive(A, 1, 0, End.FINISH)
    return world


def freed_twice() -> World:
    world = submitted(Parts(scheduler=Hasty))
    world.batch = (A,)
    return world.apply(Action("land"))


def freed_on_the_device() -> World:
    world = submitted(Parts(scheduler=Hasty))
    world.asks = (Ask(A, abort=True, floor=A),)
    return world.apply(Action("launch", (A,))).apply(Action("abort arrives"))


def launched_after_abort() -> World:
    world = submitted(Parts(scheduler=Hasty))
    world.asks = (Ask(A, abort=True, floor=A),)
    return world.apply(Action("abort arrives")).apply(Action("launch", (A,)))


def open_text() -> World:
    world = World()
    world.detokenizer.receive(A, 0, 1, None)
    return world


def never_landing() -> World:
    world = World()
    world.scheduler.request(A)
    world.scheduler.launch([A])
    return world


def forgotten_tombstone() -> World:
    class Hoarding(SchedulerMachine):
        def pass_floor(self, floor: Vid) -> None:
            pass

    world = World(Parts(scheduler=Hoarding))
    world.scheduler.abort(A)
    return world


def waiting() -> World:
    world = submitted()
    world.asks = ()
    return world


BROKEN: list[tuple[Callable[[], World], str]] = [
    (two_ends, "1: vid 0 has had 2 ends"),
    (lambda: hears(Row(A, 0, 1, None), heard=Heard(R, ends=1)), "1: vid 0 hears something after its end"),
    (
        lambda: hears(Row(A, 0, 1, None), heard=Heard(R, here=False)),
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
    (lambda: hears(Row(A, 1, 1, None)), "4: vid 0 has 0 tokens and hears of token 1"),
    (
        lambda: hears(Row(A, 0, 1, None), heard=Heard(R, tokens=1)),
        "4: vid 0 has 1 tokens and hears of token 0",
    ),
    (strange_blocks, "5: blocks are held by vids [0, 1], which are not live"),
    (orphan, "5: the scheduler works for vids [0], which the front has let go of"),
    (freed_twice, "5: blocks of vid 0 were freed twice"),
    (freed_on_the_device, "6: blocks of vid 0 were freed while it is in a batch on the device"),
    (launched_after_abort, "6: vid 0 was launched after its abort was applied"),
    (waiting, "7: the front still holds 1 at quiescence"),
    (open_text, "7: the detokenizer still holds 1 at quiescence"),
    (never_landing, "7: the scheduler still holds 1 at quiescence"),
    (strange_blocks, "7: the KV pool still holds 2 at quiescence"),
    (forgotten_tombstone, "7: the memory of overtaking aborts still holds 1 at quiescence"),
    (waiting, "8: the caller of vid 0 waits, and nothing can happen any more"),
]


@pytest.mark.parametrize(("make", "sentence"), BROKEN, ids=[sentence[:40] for _, sentence in BROKEN])
def test_each_rule_can_be_broken_and_says_so(make: Callable[[], World], sentence: str) -> None:
    assert sentence in violations(make())


def test_every_rule_that_is_about_a_world_is_among_them() -> None:
    assert {sentence[0] for _, sentence in BROKEN} == set("12345678")


@pytest.mark.parametrize("make", [World, submitted, running])
def test_nothing_is_wrong_in_an_ordinary_world(make: Callable[[], World]) -> None:
    assert violations(make()) == []


def test_a_request_that_is_being_tokenised_is_no_leftover() -> None:
    """Nothing is in flight, but its sending is still to come."""
    world = World().apply(Action("submit", rid=R))
    assert world.settled
    assert violations(world) == []


def test_a_tombstone_that_the_next_frame_will_clear_is_no_leftover() -> None:
    world = World(bounds=Bounds(remembered=0)).apply(Action("submit", rid=R)).apply(Action("send", (A,)))
    world = world.apply(Action("request arrives")).apply(Action("launch", (A,))).apply(Action("land", (A,)))
    world = world.apply(Action("leave", (A,))).apply(Action("abort arrives"))
    world = world.apply(Action("row arrives")).apply(Action("text arrives"))
    assert world.settled
    assert world.scheduler.tombstones == 1
    assert violations(world) == []
