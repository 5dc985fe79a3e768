"""FreezeGCReq in the step loop: what is asked for goes out as it came, and its time passes by itself."""

from __future__ import annotations

from tests.engine.scheduler.conftest import Driver, request

from vidette_protocol.messages import AbortReq, FreezeGCReq


def test_what_is_asked_for_goes_out_and_does_not_wait_for_a_batch() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9))
    questions = (FreezeGCReq(id=1), FreezeGCReq(id=2, unfreeze=True))
    effects = driver.step(*questions)
    assert effects.freeze_gc == questions
    assert effects.messages == []
    assert len(driver.model.plans) == 1
    assert effects.wake_at is None
    assert not effects.unfreeze_gc
    assert driver.step().freeze_gc == ()


def test_a_freeze_for_a_while_ends_by_itself_once() -> None:
    driver = Driver()
    effects = driver.loop.step([FreezeGCReq(id=1, duration_s=10.0)], 100.0)
    assert (effects.wake_at, effects.unfreeze_gc) == (110.0, False)
    effects = driver.loop.step([], 109.9)
    assert (effects.wake_at, effects.unfreeze_gc) == (110.0, False)
    effects = driver.loop.step([], 110.0)
    assert (effects.wake_at, effects.unfreeze_gc) == (None, True)
    assert not driver.loop.step([], 111.0).unfreeze_gc


def test_it_wakes_for_whatever_is_due_first() -> None:
    loop = Driver().loop
    loop.step([request(1, deadline_s=5.0)], 0.0)
    wake_at = loop.step([FreezeGCReq(id=1, duration_s=2.0)], 0.0).wake_at
    assert wake_at == 2.0
    later = loop.step([], 2.0).wake_at
    assert later is not None
    assert later > 5.0
    assert loop.step([AbortReq(vid=1)], 3.0).wake_at is None
