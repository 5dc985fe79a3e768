"""A paused step loop takes no step, and does everything else; what it goes on with is undisturbed."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.scheduler.conftest import Driver, foretell, request

from vidette.scheduler.endings import DEADLINE_GRACE, EXPIRED, PAUSED
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    ContinueGenerationReqInput,
    ContinueGenerationReqOutput,
    FlushCacheReqInput,
    HeartbeatReq,
    PauseGenerationReqInput,
    PauseGenerationReqOutput,
    ShutdownReq,
    TokenizedGenerateReqInput,
)

pytestmark = pytest.mark.usefixtures("either_way")

Mode = Literal["abort", "retract", "in_place"]


def pause(mode: Mode = "in_place") -> PauseGenerationReqInput:
    return PauseGenerationReqInput(id=7, mode=mode)


GO_ON = ContinueGenerationReqInput(id=8)


def test_it_takes_no_step_and_says_so() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9))
    effects = driver.step(pause())
    assert effects.answers == (PauseGenerationReqOutput(id=7),)
    assert not effects.busy
    assert driver.heard.ledger.paused  # told at once, although there is no row
    computed = len(driver.model.plans)
    for _ in range(3):
        effects = driver.step(request(1000 + len(driver.model.plans) + driver.ledger.live))
        assert (effects.messages, effects.busy) == ([], False)
    assert len(driver.model.plans) == computed
    assert (driver.ledger.running, driver.ledger.waiting) == (1, 3)


def test_it_goes_on_where_it_was() -> None:
    driver = Driver()
    command = request(1, max_new_tokens=9)
    driver.step(command)
    driver.step(pause())
    driver.step(late := request(2, [9], max_new_tokens=3))
    effects = driver.step(GO_ON)
    assert effects.answers == (ContinueGenerationReqOutput(id=8),)
    assert effects.busy
    driver.run()
    for each in (command, late):
        assert driver.heard.tokens[each.vid] == foretell(each.token_ids, each.sampling_params)[0]
    assert not driver.heard.ledger.paused
    driver.assert_nothing_is_held()


def test_twice_is_once_and_says_so() -> None:
    driver = Driver()
    assert driver.step(GO_ON).answers == (
        ContinueGenerationReqOutput(id=8, message="generation was not paused"),
    )
    driver.step(pause())
    (answer,) = driver.step(pause()).answers
    assert (answer.success, answer.message) == (True, "generation was paused already")
    driver.step(GO_ON)
    driver.run(request(1))
    assert driver.end(1) == "length"


def test_abort_ends_all_that_live_as_an_error_of_their_own() -> None:
    driver = Driver(max_running=1)
    driver.step(request(1, max_new_tokens=9), request(2))
    effects = driver.step(pause("abort"))
    assert sorted(effects.over) == [1, 2]
    assert driver.heard.ends == {1: PAUSED, 2: PAUSED}
    assert len(driver.heard.tokens[1]) == 1
    assert (PAUSED.type, PAUSED.status_code) == ("error", 503)  # the front sent no abort
    assert driver.step(AbortReq(vid=1)).messages == []
    driver.assert_nothing_is_held()


def test_retract_frees_the_blocks_and_the_cache_can_be_emptied() -> None:
    driver = Driver()
    command = request(1, range(1, 40), max_new_tokens=9)
    driver.step(command)
    driver.step()
    (refused,) = (*driver.step(FlushCacheReqInput(id=1)).answers, *driver.step().answers)
    assert not refused.success
    driver.step(pause("retract"))
    assert (driver.ledger.blocks_used, driver.ledger.running, driver.ledger.waiting) == (0, 0, 1)
    assert driver.ledger.blocks_cached > 0
    (flushed,) = driver.step(FlushCacheReqInput(id=2)).answers
    assert flushed.success
    assert driver.ledger.blocks_cached == 0
    driver.assert_blocks_are_conserved()
    driver.step(GO_ON)
    driver.run()
    assert driver.heard.tokens[1] == foretell(command.token_ids, command.sampling_params)[0]


def test_in_place_the_cache_is_in_use() -> None:
    driver = Driver()
    driver.step(request(1, range(1, 40), max_new_tokens=9))
    driver.step(pause())
    (answer,) = driver.step(FlushCacheReqInput(id=1)).answers
    assert not answer.success


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_aborts_deadlines_and_heartbeats_go_on(mode: Mode) -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9), request(2, max_new_tokens=9, deadline_s=5.0))
    driver.step(pause(mode))
    assert driver.step(AbortReq(vid=1)).over == [1]
    effects = driver.step(HeartbeatReq(id=3))
    assert any(isinstance(message, HeartbeatReq) for message in effects.messages)
    assert effects.wake_at == 5.0 + DEADLINE_GRACE
    driver.now = 5.0 + DEADLINE_GRACE
    assert driver.step().over == [2]
    assert driver.heard.ends[2] == EXPIRED
    driver.assert_nothing_is_held()


def test_it_can_be_shut_down() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9))
    driver.step(pause())
    effects = driver.step(ShutdownReq())
    assert effects.stop
    assert driver.end(1) == "abort"


def test_nothing_but_a_change_is_told() -> None:
    driver = Driver()
    assert [type(message) for message in driver.step(pause()).messages] == [BatchTokenIDOutput]
    assert driver.step(pause()).messages == []


@given(st.lists(st.sampled_from(["pause", "retract", "go on", "step", "request"]), max_size=30))
def test_pauses_change_no_text(moves: list[str]) -> None:
    """Whenever it is paused, retracted and told to go on, every request has the text it has alone."""
    driver = Driver(num_blocks=16, step_tokens=8, max_running=3)
    sent: list[TokenizedGenerateReqInput] = []
    for move in moves:
        match move:
            case "pause":
                driver.step(pause())
            case "retract":
                driver.step(pause("retract"))
            case "go on":
                driver.step(GO_ON)
            case "step":
                driver.step()
            case _:
                sent.append(request(len(sent) + 1, range(1, 4 + 3 * len(sent) % 20), max_new_tokens=5))
                driver.step(sent[-1])
        driver.assert_blocks_are_conserved()
    driver.step(GO_ON)
    driver.run()
    for each in sent:
        assert driver.heard.tokens[each.vid] == foretell(each.token_ids, each.sampling_params)[0]
    driver.assert_nothing_is_held()
