"""Sessions in the step loop: what is computed of them, what is kept, and what else is asked of the loop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.engine.scheduler.conftest import Driver, FakeModel, foretell, mixed, request

from vidette.models import BLOCK_SIZE
from vidette.scheduler import endings
from vidette_protocol.messages import (
    AbortReq,
    AddExternalCorpusReqInput,
    AddExternalCorpusReqOutput,
    ClearHiCacheReqInput,
    ClearHiCacheReqOutput,
    CloseSessionReqInput,
    CloseSessionReqOutput,
    ControlOutput,
    FinishReason,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    ListExternalCorporaReqInput,
    ListExternalCorporaReqOutput,
    OpenSessionReqInput,
    OpenSessionReqOutput,
    RemoveExternalCorpusReqInput,
    RemoveExternalCorpusReqOutput,
    SessionParams,
    ShutdownReq,
    TokenizedGenerateReqInput,
)
from vidette_protocol.messages.columns import pack_i32


def opened(**options: Any) -> Driver:
    """Return a step loop in which session "s" is open."""
    driver = Driver(**options)
    effects = driver.step(OpenSessionReqInput(id=7, session_id="s"))
    assert effects.answers == (OpenSessionReqOutput(id=7, session_id="s"),)
    return driver


def turn(
    vid: int, rid: str, prompt: list[int], behind: str | None = None, **options: Any
) -> TokenizedGenerateReqInput:
    """Return a request of session "s"."""
    params = {name: options.pop(name) for name in SessionParams.__struct_fields__ if name in options}
    made = request(
        vid, prompt, session_params=SessionParams(**{"id": "s", "rid": behind, **params}), **options
    )
    return msgspec.structs.replace(made, rid=rid)


def say(driver: Driver, *commands: TokenizedGenerateReqInput) -> list[int]:
    """Have requests come to their ends; return what the last one said."""
    driver.run(*commands)
    return driver.heard.tokens[commands[-1].vid]


def answers(driver: Driver, *commands: Any, now: float | None = None) -> list[ControlOutput]:
    """Return what a step answers to the front itself."""
    driver.now = driver.now if now is None else now
    return list(driver.step(*commands).answers)


# --- turns -----------------------------------------------------------------------------------------------


def test_a_turn_says_what_a_request_for_the_whole_conversation_would() -> None:
    driver = opened()
    said = say(driver, turn(1, "a", [1, 2]))
    assert said == foretell([1, 2], request(1).sampling_params)[0]
    again = say(driver, turn(2, "b", [3], "a"))
    assert again == foretell([1, 2, *said, 3], request(2).sampling_params)[0]
    other = say(driver, turn(3, "c", [4], "a", drop_previous_output=True))
    assert other == foretell([1, 2, 4], request(3).sampling_params)[0]
    assert driver.ledger.sessions == 1


def test_what_was_computed_is_not_computed_again() -> None:
    driver = opened()
    say(driver, turn(1, "a", list(range(1, 41)), max_new_tokens=9))
    before = driver.totals
    say(driver, turn(2, "b", [3, 4, 5], "a"))
    assert driver.totals.cached_tokens - before.cached_tokens == 48 == 3 * BLOCK_SIZE
    assert driver.totals.prompt_tokens - before.prompt_tokens == 40 + 9 + 3 - 48


def test_no_session_needs_its_keys_and_values() -> None:
    driver = opened(num_blocks=8)
    said = say(driver, turn(1, "a", list(range(1, 41))))
    say(driver, request(2, [9] * 100, max_new_tokens=20))  # takes all the blocks there are
    driver.loop.clear_cache()
    assert driver.ledger.blocks_cached == 0
    again = say(driver, turn(3, "b", [3], "a"))
    assert again == foretell([*range(1, 41), *said, 3], request(3).sampling_params)[0]


def test_turns_that_are_retracted_go_on_as_if_nothing_had_been() -> None:
    driver = opened(num_blocks=6)
    said = say(driver, turn(1, "a", [1, 2, 3]))
    turns = [turn(vid, f"b{vid}", [vid] * 9, "a", max_new_tokens=40) for vid in (2, 3, 4)]
    driver.run(*turns)
    assert driver.totals.retracted
    for vid in (2, 3, 4):
        whole = [1, 2, 3, *said, *[vid] * 9]
        assert driver.heard.tokens[vid] == foretell(whole, turns[0].sampling_params)[0]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_at_any_time_leaves_the_session_as_it_was(steps: int) -> None:
    driver = opened(max_running=1)
    said = say(driver, turn(1, "a", [1, 2]))
    driver.step(turn(2, "b", [3], "a", max_new_tokens=50))
    for _ in range(steps):
        driver.step()
    driver.step(AbortReq(vid=2))
    assert driver.end(2) == "abort"
    driver.run(turn(3, "c", [4], "b"))
    assert driver.heard.ends[3].status_code == 400
    assert say(driver, turn(4, "b", [5], "a")) == foretell([1, 2, *said, 5], request(4).sampling_params)[0]


def test_a_turn_aborted_in_the_queue_is_not_in_flight() -> None:
    driver = Driver(max_running=1)
    driver.step(OpenSessionReqInput(id=0, session_id="s", streaming=True))
    driver.step(request(1, max_new_tokens=50))
    driver.step(turn(2, "a", [3]))
    driver.step(AbortReq(vid=2))
    driver.step(AbortReq(vid=1))
    said = say(driver, turn(3, "a", [4]))
    assert said == foretell([4], request(3).sampling_params)[0]


def test_an_abort_that_crosses_the_end_drops_what_was_said() -> None:
    driver = opened()
    said = say(driver, turn(1, "a", [1, 2]))
    say(driver, turn(2, "b", [3], "a"))
    driver.step(AbortReq(vid=2))
    assert driver.end(2) == "length"
    driver.run(turn(3, "c", [4], "b"))
    assert driver.end(3) == "error"
    assert say(driver, turn(4, "d", [5], "a")) == foretell([1, 2, *said, 5], request(4).sampling_params)[0]


def test_an_abort_before_its_turn_leaves_no_turn() -> None:
    driver = opened()
    driver.step(AbortReq(vid=1))
    driver.step(turn(1, "a", [1]))
    assert driver.end(1) == "abort"
    driver.step(CloseSessionReqInput(id=0, session_id="s"))
    assert driver.ledger.sessions == 0


def test_a_turn_that_fails_counts_for_nothing() -> None:
    driver = opened(model=FakeModel(lambda context: -1 if len(context) == 5 else mixed(context)))
    driver.run(turn(1, "a", [1, 2], max_new_tokens=9))
    assert driver.end(1) == "error"
    driver.run(turn(2, "b", [1], "a"))
    assert driver.heard.ends[2].message == (
        "session 's' has no request 'a': it never was, it did not come to its own end, or it was replaced"
    )


def test_a_turn_whose_deadline_passes_counts_for_nothing() -> None:
    driver = opened()
    driver.step(turn(1, "a", [1], max_new_tokens=900, deadline_s=5))
    driver.now = 10
    driver.step()
    assert driver.end(1) == "error"
    driver.run(turn(2, "b", [1], "a"))
    assert driver.end(2) == "error"


def test_a_turn_that_takes_the_place_of_others_ends_them() -> None:
    driver = opened()
    driver.step(turn(1, "a", [1, 2], max_new_tokens=900))
    driver.step(turn(2, "b", [3], "a", replace=True))
    assert driver.heard.ends[1] == endings.REPLACED
    assert endings.REPLACED.type == "error"  # the front has not aborted it
    driver.run()
    assert driver.heard.tokens[2] == foretell([1, 2, 3], request(2).sampling_params)[0]


def test_a_turn_that_cannot_be_served_ends_nobody() -> None:
    driver = opened()
    driver.step(turn(1, "a", [1, 2], max_new_tokens=900))
    driver.step(turn(2, "b", [3], "a", replace=True, custom_logit_processor="x"))
    assert driver.end(2) == "error"
    assert driver.end(1) is None


def test_a_prompt_whose_log_probabilities_alone_are_wanted_is_a_turn() -> None:
    driver = opened()
    driver.run(turn(1, "a", [1, 2], max_new_tokens=0))
    assert driver.end(1) == "length"
    assert say(driver, turn(2, "b", [3], "a")) == foretell([1, 2, 3], request(2).sampling_params)[0]


# --- sessions ----------------------------------------------------------------------------------------------


def test_opening_and_closing_is_answered_at_once_and_before_anything_is_computed() -> None:
    driver = opened()
    driver.step(request(1, max_new_tokens=900))
    plans = len(driver.model.plans)
    assert answers(driver, OpenSessionReqInput(id=8, session_id="s")) == [
        OpenSessionReqOutput(id=8, success=False, message="session 's' is open")
    ]
    assert answers(driver, CloseSessionReqInput(id=9, session_id="s")) == [CloseSessionReqOutput(id=9)]
    assert len(driver.model.plans) == plans
    assert answers(driver) == []


def test_closing_waits_for_the_request_in_flight() -> None:
    driver = opened()
    driver.step(turn(1, "a", [1], max_new_tokens=5))
    assert answers(driver, CloseSessionReqInput(id=9, session_id="s"))[0].success
    assert driver.ledger.sessions == 1
    driver.run(turn(2, "b", [2]))
    assert driver.heard.ends[2] == FinishReason(
        "error", message="session 's' is being closed", status_code=400
    )
    assert driver.end(1) == "length"
    assert driver.ledger.sessions == 0


def test_an_idle_session_ends_by_itself() -> None:
    driver = Driver()
    driver.step(OpenSessionReqInput(id=0, session_id="s", timeout=30))
    effects = driver.step()
    assert effects.wake_at == 30
    driver.now = 20
    effects = driver.step(turn(1, "a", [1], max_new_tokens=2))
    driver.now = 100
    effects = driver.step()
    assert driver.end(1) == "length"
    assert (effects.wake_at, driver.ledger.sessions) == (130, 1)
    driver.now = 130
    effects = driver.step()
    assert (effects.wake_at, driver.ledger.sessions) == (None, 0)


# --- flushing the cache ------------------------------------------------------------------------------------


def test_a_cache_that_nobody_uses_is_flushed_at_once() -> None:
    driver = Driver()
    driver.run(request(1, range(1, 40)))
    assert driver.ledger.blocks_cached == 2
    assert answers(driver, FlushCacheReqInput(id=3)) == [
        FlushCacheReqOutput(id=3, message="2 blocks became free")
    ]
    assert driver.ledger.blocks_cached == 0


@pytest.mark.parametrize("timeout_s", [None, 0.0])
def test_a_flush_that_does_not_wait_fails_while_something_lives(timeout_s: float | None) -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=900))
    (answer,) = answers(driver, FlushCacheReqInput(id=3, timeout_s=timeout_s))
    assert (answer.id, answer.success) == (3, False)
    assert answer.message == "1 requests live: the cache is not emptied before they are over"


def test_a_flush_waits_until_nothing_lives() -> None:
    driver = Driver()
    driver.step(request(1, range(1, 40), max_new_tokens=3))
    assert answers(driver, FlushCacheReqInput(id=3, timeout_s=60)) == []
    (answer,) = answers(driver)
    assert (answer.id, answer.success) == (3, True)
    assert driver.end(1) == "length"
    assert driver.ledger.blocks_cached == 0


def test_a_flush_waits_no_longer_than_it_was_told() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=900))
    effects = driver.step(FlushCacheReqInput(id=3, timeout_s=60))
    assert (effects.answers, effects.wake_at) == ((), 60)
    (answer,) = answers(driver, now=60)
    assert (answer.id, answer.success) == (3, False)
    assert driver.step().wake_at is None


def test_a_shutdown_answers_nothing_more() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=900))
    driver.step(FlushCacheReqInput(id=3, timeout_s=60))
    effects = driver.step(ShutdownReq())
    assert effects.stop
    assert effects.answers == ()


def test_the_second_tier_is_emptied_where_there_is_one() -> None:
    (refused,) = answers(Driver(), ClearHiCacheReqInput(id=1))
    assert not refused.success
    assert "host_kv_tokens" in refused.message
    driver = Driver(num_blocks=12, host_blocks=20)
    driver.run(request(1, range(1, 49)))
    driver.run(request(2, [7] * 170, max_new_tokens=2, ignore_eos=True))
    evicted = driver.loop._cache.host_cached
    assert evicted
    message = f"{evicted} blocks were dropped"
    assert answers(driver, ClearHiCacheReqInput(id=2)) == [ClearHiCacheReqOutput(id=2, message=message)]
    driver.assert_blocks_are_conserved()


def test_corpora_come_and_go_and_are_drafted_from() -> None:
    driver = Driver(draft_tokens=4)
    command = request(1, [5, 6], max_new_tokens=12, ignore_eos=True)
    made, _ = foretell([5, 6], command.sampling_params)
    chunk = pack_i32([5, 6, *made])
    assert answers(driver, AddExternalCorpusReqInput(id=1, corpus_id="it", token_chunks=[chunk])) == [
        AddExternalCorpusReqOutput(id=1, loaded_token_count=14)
    ]
    assert answers(driver, ListExternalCorporaReqInput(id=2)) == [
        ListExternalCorporaReqOutput(id=2, corpus_token_counts={"it": 14})
    ]
    before = driver.ledger.steps
    driver.run(command)
    assert driver.heard.tokens[1] == made
    assert driver.ledger.steps - before < 8  # one for each token without
    assert answers(driver, RemoveExternalCorpusReqInput(id=3, corpus_id="it")) == [
        RemoveExternalCorpusReqOutput(id=3)
    ]
    (refused,) = answers(driver, RemoveExternalCorpusReqInput(id=4, corpus_id="it"))
    assert refused.message == "there is no corpus 'it'"
