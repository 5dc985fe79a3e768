"""The step loop and time: how long the queue has stood, and how long a step takes, by the caller's clock."""

from __future__ import annotations

import pytest
from tests.engine.scheduler.conftest import Driver, request

from vidette_protocol.messages import AbortReq, HeartbeatReq

pytestmark = pytest.mark.usefixtures("either_way")


def test_the_age_of_a_queue_is_that_of_its_oldest() -> None:
    driver = Driver(max_running=1)
    driver.now = 100.0
    driver.step(request(1, max_new_tokens=9))
    driver.now = 101.0
    driver.step(request(2), request(3))
    driver.now = 103.0
    driver.step(request(4))
    assert (driver.ledger.waiting, driver.ledger.queue_age_s) == (3, 2.0)
    driver.now = 104.0
    driver.step(AbortReq(vid=2), AbortReq(vid=3))
    assert (driver.ledger.waiting, driver.ledger.queue_age_s) == (1, 1.0)
    driver.step(AbortReq(vid=4))
    assert driver.ledger.queue_age_s == 0.0


def test_a_step_takes_until_the_next_one() -> None:
    driver = Driver()
    driver.now = 50.0
    driver.step(request(1, max_new_tokens=9))
    assert driver.ledger.step_s == 0.0  # it is not over
    driver.now = 50.5
    driver.step()
    assert driver.ledger.step_s == 0.5
    driver.now = 50.75
    driver.step(HeartbeatReq(id=1))
    assert driver.ledger.step_s == 0.25
    driver.now = 51.0  # which nothing was computed before
    driver.step()
    assert driver.ledger.step_s == 0.25


def test_time_in_which_nothing_lives_is_no_step() -> None:
    driver = Driver()
    driver.run(request(1, max_new_tokens=2))
    driver.now = 3600.0
    driver.step(request(2, max_new_tokens=2))
    assert (driver.ledger.step_s, driver.ledger.queue_age_s) == (0.0, 0.0)
    driver.now = 3601.0
    driver.step(AbortReq(vid=2))
    assert driver.ledger.step_s == 0.0
    driver.assert_nothing_is_held()
