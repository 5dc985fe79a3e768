from __future__ import annotations

from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import DetokenizerMachine, End, Row, SchedulerMachine
from vidette_protocol.world import Replica

A, B = Vid(0), Vid(1)


def replica(*, chunks: int = 0, live: tuple[Vid, ...] = (A,)) -> Replica:
    """Return a replica with requests that wait."""
    made = Replica(SchedulerMachine(remembered=1), DetokenizerMachine(), chunks)
    for vid in live:
        made.ask(vid, abort=False, resumed=0)
    return made


def test_blocks_are_held_from_the_first_launch_to_the_end() -> None:
    one = replica()
    assert one.holding == frozenset()
    one.launch((A,))
    one.land(())
    assert one.holding == {A}
    one.launch((A,))
    one.land((A,))
    assert one.holding == frozenset()
    assert one.rows == (Row(A, 0, 1, None), Row(A, 1, 1, End.FINISH))
    assert one.faults == ()


def test_what_is_on_the_device_ends_when_it_lands_or_may() -> None:
    one = replica(live=(A, B))
    assert one.launchable == [A, B]
    one.launch((A,))
    assert one.launchable == []
    assert one.may_end(2) == ([], [A])
    assert one.may_end(1) == ([A], [])
    one.ask(A, abort=True, resumed=0)
    assert one.may_end(1) == ([], [])


def test_several_tokens_may_land_at_once() -> None:
    one = replica(live=(A, B), chunks=1)
    one.launch((A, B))
    assert one.may_land(4, 2) == [[(0, False), (0, True)]] * 2
    one.land(())
    one.launch((A, B))
    one.ask(B, abort=True, resumed=0)
    assert one.may_land(4, 2) == [[(1, False), (2, False), (1, True), (2, True)], [(0, False)]]
    one.land((), (2, 0))
    assert list(one.rows) == [Row(A, 0, 2, None), Row(B, 0, 0, End.ABORT)]
    one.launch((A,))
    assert one.may_land(3, 2) == [[(1, True)]]
    assert one.may_land(4, 2) == [[(1, False), (1, True), (2, True)]]
    one.land((A,), (2,))
    assert list(one.rows[2:]) == [Row(A, 2, 2, End.FINISH)]


def test_a_chunk_of_a_prefill_makes_no_token() -> None:
    one = replica(chunks=2)
    for _ in range(2):
        one.launch((A,))
        assert one.may_end(1) == ([], [A])
        one.land(())
    assert not one.rows
    one.launch((A,))
    assert one.may_end(1) == ([A], [])
    one.land((A,))
    assert one.rows == (Row(A, 0, 1, End.FINISH),)
    assert one.prefilled == {}


def test_what_is_retracted_is_prefilled_again() -> None:
    one = replica(chunks=1)
    one.launch((A,))
    one.land(())
    one.retract(A)
    assert (one.holding, one.prefilled) == (frozenset(), {})
    assert one.launchable == [A]
    one.launch((A,))
    one.land(())
    assert one.rows == ()


def test_what_is_resumed_says_what_it_said_elsewhere() -> None:
    one = replica(live=())
    one.ask(A, abort=False, resumed=2)
    assert one.pass_row() == Row(A, 0, 2, None)
    assert A in one.detokenizer
    one.launch((A,))
    assert one.may_end(3) == ([A], [])


def test_rows_reach_the_detokenizer_in_order() -> None:
    one = replica(live=(A, B))
    one.reject(B)
    one.reject(A)
    assert [one.pass_row().vid, one.pass_row().vid] == [B, A]
    assert one.rows == ()
    assert one.settled


def test_what_expires_ends() -> None:
    one = replica()
    one.expire(A)
    assert one.rows == (Row(A, 0, 0, End.FINISH),)


def test_a_copy_is_independent() -> None:
    one = replica(live=(A, B), chunks=1)
    one.launch((A,))
    twin = one.copy()
    assert one.key(frozenset()) == twin.key(frozenset())
    one.land(())
    one.ask(B, abort=True, resumed=0)
    assert one.key(frozenset()) != twin.key(frozenset())
    assert (twin.batch, twin.rows, twin.aborted, twin.prefilled) == ((A,), (), frozenset(), {})
    twin.land(())
    assert twin.prefilled == {A: 1}


def test_a_picture_leaves_out_what_is_forgotten_but_not_that_there_was_something() -> None:
    one, other = replica(live=(A,)), replica(live=(B,))
    for each, vid in ((one, A), (other, B)):
        each.ask(vid, abort=True, resumed=0)
        each.rows = ()
    assert one.key(frozenset()) != other.key(frozenset())
    assert one.key({A}) == other.key({B})
    assert one.key({A}) != replica(live=()).key({A})


def test_whatever_may_come_is_mentioned() -> None:
    one = replica(live=(A,))
    assert set(one.mentioned()) == {A}
    one.ask(B, abort=True, resumed=0)  # a tombstone
    assert set(one.mentioned()) == {A, B}
    one.launch((A,))
    one.land((A,))
    assert set(one.mentioned()) == {A, B}  # its end is on the way
    one.rows = (Row(A, 0, 1, None),)
    one.pass_row()
    assert set(one.mentioned()) == {A, B}  # the detokenizer has it
    one.detokenizer = DetokenizerMachine()
    assert set(one.mentioned()) == {B}


# --- rules that are broken here -------------------------------------------------------------------------


class Hasty(SchedulerMachine):
    """Ends what lands, whatever its state; launches and retracts whatever it is told to."""

    def launch(self, vids: object) -> None:
        pass

    def land(self, vid: Vid, *_: object, **__: object) -> Row | None:
        return Row(vid, 0, 0, End.FINISH)

    def abort(self, vid: Vid) -> Row | None:
        return Row(vid, 0, 0, End.ABORT)

    def retract(self, vid: Vid) -> None:
        pass


def hasty() -> Replica:
    return Replica(Hasty(), DetokenizerMachine(), 0)


def test_what_is_launched_after_its_abort_is_seen() -> None:
    one = hasty()
    one.ask(A, abort=True, resumed=0)
    one.launch((A,))
    assert one.faults == ("6: vid 0 was launched after its abort was applied",)


def test_what_is_freed_on_the_device_is_seen() -> None:
    one = hasty()
    one.launch((A,))
    one.ask(A, abort=True, resumed=0)
    assert one.faults == ("6: blocks of vid 0 were freed while it is in a batch on the device",)
    one = hasty()
    one.launch((A,))
    one.retract(A)
    assert one.faults == ("6: blocks of vid 0 were freed while it is in a batch on the device",)


def test_what_is_freed_twice_is_seen() -> None:
    one = hasty()
    one.batch = (A,)
    one.land(())
    assert one.faults == ("5: blocks of vid 0 were freed twice",)
