"""`AbortReq(abort_all=True)`: all of one front up to one vid, and nothing else; and what an abort says."""

from __future__ import annotations

import pytest
from tests.engine.scheduler.conftest import Driver, request

from vidette_protocol.ids import make_vid
from vidette_protocol.messages import AbortReq, FinishReason, SchedulerLedger

pytestmark = pytest.mark.usefixtures("either_way")

DEFAULT = FinishReason("abort", message="the caller ended the request")
UPDATE = FinishReason("abort", message="the weights change")


def of_front(front: int, *counts: int) -> list[int]:
    return [make_vid(front, count) for count in counts]


def test_all_up_to_a_vid_are_ended_and_later_ones_are_not() -> None:
    driver = Driver(max_running=2)
    vids = of_front(0, 1, 2, 3, 4)
    driver.step(*(request(vid) for vid in vids))  # two run, two wait
    effects = driver.step(AbortReq(vid=vids[2], abort_all=True))
    assert sorted(effects.over) == vids[:3]
    assert driver.heard.ends == dict.fromkeys(vids[:3], DEFAULT)
    driver.run()
    assert driver.end(vids[3]) == "length"
    driver.assert_nothing_is_held()


def test_those_of_other_fronts_live_on() -> None:
    driver = Driver()
    ours, lower, higher = of_front(2, 1, 2), of_front(1, 1), of_front(3, 1)
    driver.step(*(request(vid) for vid in (*ours, *lower, *higher)))
    driver.step(AbortReq(vid=make_vid(2, 9), abort_all=True))
    assert driver.heard.ends.keys() == set(ours)
    driver.run()
    assert {driver.end(vid) for vid in (*lower, *higher)} == {"length"}


def test_the_vid_itself_need_not_live_and_leaves_no_tombstone() -> None:
    driver = Driver()
    driver.step(request(3))
    driver.step(AbortReq(vid=7, abort_all=True))
    assert driver.heard.ends == {3: DEFAULT}
    assert driver.ledger.tombstones == 0
    driver.run(request(7))  # submitted before, but late
    assert driver.end(7) == "length"


def test_where_nothing_lives_it_is_not_even_told() -> None:
    driver = Driver()
    effects = driver.step(AbortReq(vid=7, abort_all=True))
    assert (effects.messages, effects.over, effects.busy) == ([], [], False)
    assert driver.ledger == SchedulerLedger()


@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize(("message", "reason"), [(None, DEFAULT), ("the weights change", UPDATE)])
def test_the_end_says_what_the_abort_said(every: bool, message: str | None, reason: FinishReason) -> None:
    driver = Driver()
    driver.step(request(1))
    driver.step(AbortReq(vid=1, abort_all=every, abort_message=message))
    assert driver.heard.ends == {1: reason}
    driver.assert_nothing_is_held()


def test_its_floor_passes_with_it() -> None:
    driver = Driver()
    driver.step(AbortReq(vid=2))
    assert driver.ledger.tombstones == 1
    driver.step(AbortReq(vid=9, floor=5, abort_all=True))
    assert driver.ledger.tombstones == 0
