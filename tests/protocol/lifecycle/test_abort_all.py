"""All requests of a front at once: who is told, what is posted where, and what that is about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.ids import Rid, Vid, front_of, make_vid
from vidette_protocol.lifecycle import AbortedAll, End, FrontMachine, FrontState, How, SchedulerMachine

RIDS = [Rid(name) for name in "abcdef"]


def test_those_that_were_not_sent_are_over_and_the_others_close() -> None:
    machine = FrontMachine()
    vids = [machine.submit(rid) for rid in RIDS]
    for vid in vids[1:]:
        machine.send(vid)
    machine.receive(vids[2], 0, 1, None)
    machine.abort(vids[3])
    machine.receive(vids[5], 0, 1, End.FINISH)
    aborted = machine.abort_all()
    assert aborted == AbortedAll((vids[0], vids[1], vids[2], vids[4]), {0: vids[4]})
    assert machine.how(vids[0]) is How.UNSENT
    states = [FrontState.OVER, *[FrontState.CLOSING] * 4, FrontState.OVER]
    assert [machine.state(vid) for vid in vids] == states
    assert all(machine.holder(rid) is None for rid in RIDS)
    assert machine.abort_all() == AbortedAll((), {})


def test_each_replica_is_told_of_the_last_that_it_was_sent() -> None:
    machine = FrontMachine(front_id=2)
    vids = [machine.submit(rid) for rid in RIDS]
    for vid, replica in zip(vids[:-1], (1, 0, 1, 1, 0), strict=True):
        machine.send(vid, replica)
    assert machine.abort_all().up_to == {1: vids[3], 0: vids[4]}


def test_a_group_ends_with_it() -> None:
    machine = FrontMachine()
    vids = machine.submit_group(RIDS[:3])
    machine.send(vids[1])
    assert machine.abort_all() == AbortedAll(vids, {0: vids[1]})
    assert machine.abort_group(vids[0]) == []
    machine.receive(vids[1], 0, 0, End.ABORT)
    assert machine.key().groups == ()


@given(st.data())
def test_it_is_as_if_each_caller_had_left(data: st.DataObject) -> None:
    """Contract: the front is left in the state that aborting each vid by itself leaves it in."""
    machine = FrontMachine()
    for rid in RIDS:
        vid = machine.submit(rid)
        for _ in range(data.draw(st.integers(0, 3))):
            match machine.state(vid):
                case FrontState.NEW:
                    machine.send(vid)
                case FrontState.SENT | FrontState.LIVE:
                    count = machine.key().live[-1][1].offset
                    machine.receive(vid, count, 1, data.draw(st.sampled_from([None, End.FINISH])))
                case _:
                    break
    each = machine.copy()
    posted = [vid for vid in map(Vid, range(len(RIDS))) if each.abort(vid)]
    aborted = machine.abort_all()
    assert machine.key() == each.key()
    assert set(posted) <= set(aborted.told)
    assert aborted.up_to == ({0: max(posted)} if posted else {})


@given(
    st.lists(st.builds(make_vid, st.integers(0, 2), st.integers(0, 9)), unique=True),
    st.builds(make_vid, st.integers(0, 2), st.integers(0, 9)),
)
def test_it_is_about_the_vids_of_one_front_up_to_one(live: list[Vid], last: Vid) -> None:
    """Contract: the live vids of the front that issued `last` that are not above it, in their order."""
    machine = SchedulerMachine()
    for vid in live:
        machine.request(vid)
    found = machine.vids_up_to(last)
    assert found == [vid for vid in live if vid in found]
    assert all((vid in found) is (front_of(vid) == front_of(last) and vid <= last) for vid in live)
