"""The step loop and time: a deadline that has passed ends its request, a little later, wherever it is."""

from __future__ import annotations

import math
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.scheduler.conftest import Driver, foretell, request

from vidette.scheduler.endings import DEADLINE_GRACE, EXPIRED
from vidette_protocol.messages import AbortReq, FinishReason, HeartbeatReq, SchedulerLedger, ShutdownReq

SOON = 5.0
DUE = SOON + DEADLINE_GRACE


def just_before(when: float) -> float:
    return math.nextafter(when, 0)


def test_a_running_one_ends_and_keeps_what_it_has_made() -> None:
    driver = Driver()
    command = request(1, max_new_tokens=9, deadline_s=SOON)
    driver.step(command, request(2, [8], max_new_tokens=9))
    driver.step()
    driver.now = DUE
    computed = len(driver.model.plans)
    effects = driver.step()
    assert effects.over == [1]
    assert driver.heard.ends == {1: EXPIRED}
    assert driver.heard.tokens[1] == foretell([5, 6, 7], command.sampling_params)[0][:2]
    assert len(driver.model.plans) == computed  # told at once, as the end by an abort is
    assert driver.ledger == SchedulerLedger(live=1, running=1, blocks_used=1, steps=2, step_s=DUE)
    driver.run()
    assert driver.end(2) == "length"
    driver.assert_nothing_is_held()


def test_what_it_ends_with_is_an_error_of_its_own() -> None:
    assert (EXPIRED.type, EXPIRED.status_code, EXPIRED.err_type) == ("error", 504, "deadline_exceeded")


def test_a_waiting_one_ends_and_the_queue_stays_in_order() -> None:
    driver = Driver(max_running=1)
    driver.step(*(request(vid, max_new_tokens=2, deadline_s=SOON if vid == 2 else None) for vid in (1, 2, 3)))
    driver.now = DUE
    assert driver.step().over == [2]
    assert driver.heard.tokens[2] == []
    driver.run()
    assert list(driver.heard.ends) == [2, 1, 3]
    assert driver.end(3) == "length"
    driver.assert_nothing_is_held()


def test_one_in_the_middle_of_its_prefill_ends() -> None:
    driver = Driver(step_tokens=4, max_running=4)
    driver.step(request(1, range(1, 21), deadline_s=SOON))
    driver.step()
    driver.now = DUE
    driver.step()
    assert driver.heard.ends == {1: EXPIRED}
    assert driver.heard.tokens == {1: []}
    assert len(driver.model.plans) == 2
    driver.assert_nothing_is_held()


@pytest.mark.parametrize("seconds", [0.0, 0.25, SOON])
def test_never_before_its_time(seconds: float) -> None:
    driver = Driver(max_running=1)
    driver.now = 100.0
    driver.step(request(1, max_new_tokens=50), request(2, deadline_s=seconds))
    due = 100.0 + seconds + DEADLINE_GRACE
    for now in (100.0, 100.0 + seconds, just_before(due)):
        driver.now = now
        assert driver.step(launch=False).wake_at == due
        assert driver.heard.ends == {}
    driver.now = due
    assert driver.step(launch=False).over == [2]
    assert driver.heard.ends == {2: EXPIRED}


def test_it_counts_from_when_it_came() -> None:
    driver = Driver()
    driver.now = 1000.0
    effects = driver.step(request(1, max_new_tokens=9, deadline_s=SOON))
    assert effects.wake_at == 1000.0 + DUE


def test_the_next_deadline_is_when_to_wake() -> None:
    driver = Driver(max_running=1)
    assert driver.step().wake_at is None
    assert driver.step(request(1, max_new_tokens=90)).wake_at is None
    assert driver.step(request(2, deadline_s=9.0)).wake_at == 9.0 + DEADLINE_GRACE
    assert driver.step(request(3, deadline_s=SOON)).wake_at == DUE
    assert driver.step(AbortReq(vid=3)).wake_at == 9.0 + DEADLINE_GRACE
    assert driver.step(AbortReq(vid=2)).wake_at is None


@pytest.mark.parametrize(
    ("prompt", "new"), [([5], 1), ([5], 0), ([5], 5000)], ids=["finished", "empty", "too long"]
)
def test_what_has_ended_wakes_nobody(prompt: list[int], new: int) -> None:
    driver = Driver()
    driver.run(request(1, prompt, max_new_tokens=new, deadline_s=SOON))
    ends = dict(driver.heard.ends)
    driver.now = DUE
    effects = driver.step()
    assert (effects.messages, effects.over, effects.wake_at) == ([], [], None)
    assert driver.heard.ends == ends


def test_one_that_was_aborted_before_it_came_has_no_deadline() -> None:
    driver = Driver()
    driver.step(AbortReq(vid=1))
    assert driver.step(request(1, deadline_s=SOON)).wake_at is None
    driver.now = DUE
    assert driver.step().messages == []
    assert driver.end(1) == "abort"


def test_an_abort_that_comes_with_the_deadline_is_the_end() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9, deadline_s=SOON))
    driver.now = DUE
    assert driver.step(AbortReq(vid=1)).over == [1]
    assert driver.end(1) == "abort"


def test_an_abort_behind_the_deadline_is_silent() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9, deadline_s=SOON))
    driver.now = DUE
    driver.step()
    effects = driver.step(AbortReq(vid=1))
    assert (effects.messages, effects.over) == ([], [])
    driver.assert_nothing_is_held()


def test_one_that_comes_late_is_ended_in_the_step_that_takes_it_only_if_it_is_due() -> None:
    """Its time counts from its arrival, so even a deadline of nothing leaves the grace."""
    driver = Driver()
    driver.now = 50.0
    driver.step(request(1, max_new_tokens=9, deadline_s=0.0))
    assert driver.heard.ends == {}
    driver.now = 50.0 + DEADLINE_GRACE
    driver.step()
    assert driver.heard.ends == {1: EXPIRED}


def test_many_that_are_due_at_once_end_in_one_message_the_earliest_first() -> None:
    driver = Driver(max_running=2)
    driver.step(*(request(vid, max_new_tokens=90, deadline_s=SOON - vid / 10) for vid in range(10)))
    driver.now = DUE
    effects = driver.step(HeartbeatReq(id=1))
    assert effects.over == list(range(9, -1, -1))
    _, answer = effects.messages
    assert answer == HeartbeatReq(id=1, scheduler=driver.loop.ledger())
    assert driver.ledger == SchedulerLedger(steps=1)
    driver.assert_nothing_is_held()


def test_the_blocks_of_one_that_expires_are_there_for_the_next_step() -> None:
    driver = Driver(num_blocks=2)
    driver.step(request(1, [1] * 20, max_new_tokens=12, deadline_s=SOON), request(2, [2] * 20))
    driver.now = DUE
    driver.step()
    assert driver.ledger.blocks_used == 0
    driver.run()
    assert driver.end(2) == "length"


def test_one_expires_while_nothing_may_be_launched() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9, deadline_s=SOON))
    driver.now = DUE
    assert driver.step(launch=False).over == [1]


def test_a_shutdown_ends_those_with_deadlines_as_all_others() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9, deadline_s=SOON))
    driver.now = DUE
    effects = driver.step(ShutdownReq())
    assert (effects.over, effects.wake_at, effects.stop) == ([1], None, True)
    assert driver.end(1) == "abort"


@given(
    deadlines=st.lists(st.one_of(st.none(), st.integers(0, 12).map(lambda n: n / 4)), min_size=1, max_size=8),
    ticks=st.lists(st.integers(0, 3).map(lambda n: n / 8), max_size=20),
)
def test_none_lives_past_its_deadline_and_none_is_ended_before(
    deadlines: list[float | None], ticks: list[float]
) -> None:
    """Whenever steps are taken: who is past the grace has ended in that step, who is not has not expired."""
    driver = Driver(max_running=2, num_blocks=8)
    effects = driver.step(
        *(request(vid, max_new_tokens=6, deadline_s=deadline) for vid, deadline in enumerate(deadlines))
    )
    ended_at: dict[int, float] = {}
    for tick in ticks:
        driver.now += tick
        effects = driver.step()
        for vid, deadline in enumerate(deadlines):
            if vid in driver.heard.ends and vid not in ended_at:
                ended_at[vid] = driver.now
            if deadline is None:
                continue
            due = deadline + DEADLINE_GRACE
            assert driver.now < due or vid in driver.heard.ends
            if driver.heard.ends.get(vid) == EXPIRED:
                assert ended_at[vid] >= due
        left = [d for vid, d in enumerate(deadlines) if d is not None and vid not in driver.heard.ends]
        assert effects.wake_at == min((d + DEADLINE_GRACE for d in left), default=None)
    driver.run()
    assert all(
        reason == EXPIRED or reason == FinishReason("length", length=6)
        for reason in driver.heard.ends.values()
    )
    driver.assert_nothing_is_held()


def test_time_that_goes_by_without_deadlines_changes_nothing() -> None:
    driver = Driver()
    command = request(1, max_new_tokens=5)
    driver.step(command)
    for _ in count():
        driver.now += 1e9
        if not driver.step().busy:
            break
    assert driver.heard.tokens[1] == foretell([5, 6, 7], command.sampling_params)[0]
