"""The step loop: every way a request can live and end, with nothing left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.engine.scheduler.conftest import (
    EOS,
    NOT_A_NUMBER,
    VOCAB,
    Driver,
    FakeModel,
    foretell,
    mixed,
    request,
    spans,
)

from vidette.models import BLOCK_SIZE, StepPlan, StepResult
from vidette.scheduler.effects import Command
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import Vid, make_vid
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    SamplingParams,
    SchedulerLedger,
    ShutdownReq,
)

ABORT = FinishReason("abort", message="the caller ended the request")


def ends_after(count: int) -> Any:
    """Return a model's function by which any context of so many tokens is followed by the end."""
    return lambda context: EOS if len(context) >= count else mixed(context)


# --- a life without trouble ------------------------------------------------------------------------


def test_a_request_is_computed_in_one_step_for_its_prompt_and_one_for_each_further_token() -> None:
    driver = Driver()
    command = request(1, [5, 6, 7], max_new_tokens=3)
    effects = driver.step(command)
    assert effects.busy
    assert driver.ledger == SchedulerLedger(live=1, running=1, blocks_used=1, steps=1)
    driver.run()
    tokens, reason = foretell([5, 6, 7], command.sampling_params)
    assert driver.heard.tokens == {1: tokens}
    assert driver.heard.ends == {1: reason}
    assert reason == FinishReason("length", length=3)
    assert [plan.token_ids.tolist() for plan in driver.model.plans] == [[5, 6, 7], [tokens[0]], [tokens[1]]]
    assert driver.ledger == SchedulerLedger(steps=3)


def test_the_step_that_ends_a_request_tells_of_it_and_has_freed_it() -> None:
    driver = Driver()
    effects = driver.step(request(1, max_new_tokens=1))
    (message,) = effects.messages
    assert isinstance(message, BatchTokenIDOutput)
    assert message.ledger == driver.loop.ledger()
    assert driver.ledger == SchedulerLedger(steps=1)
    assert effects.over == [1]
    assert not effects.busy
    assert driver.end(1) == "length"


def test_nothing_to_do_is_nothing_done() -> None:
    driver = Driver()
    for _ in range(3):
        effects = driver.step()
        assert (effects.messages, effects.over, effects.busy) == ([], [], False)
    assert driver.ledger == SchedulerLedger()
    assert driver.model.plans == []


@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (15, 1), (16, 1), (16, 16), (17, 15), (1, 31), (33, 30)])
def test_the_blocks_of_the_prompt_are_taken_at_once_and_others_as_it_grows(prompt: int, new: int) -> None:
    driver = Driver(num_blocks=4)
    command = request(1, range(1, prompt + 1), max_new_tokens=new)
    driver.step(command)
    if new > 1:
        assert driver.ledger.blocks_used == -(-prompt // BLOCK_SIZE)
    driver.run()
    tokens, _ = foretell(range(1, prompt + 1), command.sampling_params)
    assert driver.heard.tokens == {1: tokens}
    driver.assert_nothing_is_held()


# --- how it ends by itself -------------------------------------------------------------------------


def test_the_end_token_ends_it() -> None:
    driver = Driver(FakeModel(ends_after(5)))
    driver.run(request(1, [1, 2, 3], max_new_tokens=10))
    assert driver.heard.tokens[1][-1] == EOS
    assert len(driver.heard.tokens[1]) == 3
    assert driver.heard.ends == {1: FinishReason("stop", matched=EOS)}
    driver.assert_nothing_is_held()


def test_the_end_token_may_be_the_first() -> None:
    driver = Driver(FakeModel(ends_after(0)))
    driver.run(request(1, max_new_tokens=10))
    assert driver.heard.tokens == {1: [EOS]}
    assert driver.heard.ends == {1: FinishReason("stop", matched=EOS)}


def test_the_end_token_can_be_ignored() -> None:
    driver = Driver(FakeModel(ends_after(0)))
    driver.run(request(1, max_new_tokens=10, ignore_eos=True))
    assert driver.heard.tokens == {1: [EOS] * 10}
    assert driver.heard.ends == {1: FinishReason("length", length=10)}


def test_an_end_token_made_last_is_reported_as_length() -> None:
    driver = Driver(FakeModel(ends_after(5)))
    driver.run(request(1, [1, 2, 3], max_new_tokens=3))
    assert driver.heard.tokens[1][-1] == EOS
    assert driver.heard.ends == {1: FinishReason("length", length=3)}


def test_no_token_wanted_is_no_step_taken() -> None:
    driver = Driver()
    effects = driver.step(request(1, max_new_tokens=0))
    assert effects.over == [1]
    assert driver.heard.tokens == {1: []}
    assert driver.heard.ends == {1: FinishReason("length", length=0)}
    assert driver.model.plans == []
    driver.assert_nothing_is_held()


def test_one_token_wanted_is_one_step_taken() -> None:
    driver = Driver()
    driver.run(request(1, max_new_tokens=1))
    assert driver.heard.tokens == {1: [mixed([5, 6, 7])]}
    assert len(driver.model.plans) == 1


@pytest.mark.parametrize(
    ("prompt", "new", "num_blocks", "context_len", "most"),
    [(30, 3, 2, 1000, 32), (33, 0, 2, 1000, None), (32, 1, 2, 1000, 32), (90, 11, 64, 100, 100)],
)
def test_one_that_never_fits_is_refused_alone(
    prompt: int, new: int, num_blocks: int, context_len: int, most: int | None
) -> None:
    driver = Driver(FakeModel(context_len=context_len), num_blocks=num_blocks)
    driver.run(request(1, max_new_tokens=2), request(2, [3] * prompt, max_new_tokens=new), request(3))
    if most is None:  # nothing to compute always fits
        assert driver.end(2) == "length"
    else:
        assert driver.loop.max_total_tokens == most
        message = f"prompt and max_new_tokens are {prompt + new} tokens; at most {most} fit"
        assert driver.heard.ends[2] == FinishReason("error", message=message, status_code=400)
    assert driver.end(1) == driver.end(3) == "length"
    driver.assert_nothing_is_held()


def test_one_that_just_fits_has_the_whole_pool() -> None:
    driver = Driver(num_blocks=2)
    driver.step(request(1, [3] * 20, max_new_tokens=12))
    assert driver.ledger.blocks_used == 2
    driver.run()
    assert driver.end(1) == "length"


def test_a_size_that_nobody_has_costs_nothing() -> None:
    driver = Driver()
    driver.run(request(1, max_new_tokens=1 << 60))
    assert driver.end(1) == "error"


def test_logits_that_are_not_finite_end_their_request_alone() -> None:
    def poisoned(context: Sequence[int]) -> int:
        return NOT_A_NUMBER if context[0] == 13 and len(context) == 5 else mixed(context)

    driver = Driver(FakeModel(poisoned))
    commands = [request(vid, [first, 2, 3], max_new_tokens=6) for vid, first in ((1, 1), (2, 13), (3, 4))]
    driver.run(*commands)
    message = "the model's logits are not finite"
    assert driver.heard.ends[2] == FinishReason("error", message=message)
    assert len(driver.heard.tokens[2]) == 2  # what was made before stays
    for command in (commands[0], commands[2]):
        tokens, reason = foretell(command.token_ids, command.sampling_params)
        assert driver.heard.tokens[command.vid] == tokens
        assert driver.heard.ends[command.vid] == reason
    driver.assert_nothing_is_held()


def test_a_model_that_fails_is_no_business_of_the_loop() -> None:
    class Broken(FakeModel):
        def forward(self, plan: StepPlan) -> StepResult:  # noqa: ARG002
            raise FloatingPointError("the device is on fire")

    driver = Driver(Broken())
    with pytest.raises(FloatingPointError, match="on fire"):
        driver.step(request(1))


# --- aborts ----------------------------------------------------------------------------------------


def test_an_abort_right_behind_its_request_computes_nothing() -> None:
    driver = Driver()
    effects = driver.step(request(1), AbortReq(vid=1))
    assert effects.over == [1]
    assert driver.heard.ends == {1: ABORT}
    assert driver.model.plans == []
    driver.assert_nothing_is_held()


def test_an_abort_while_waiting_leaves_the_queue_in_order() -> None:
    driver = Driver(max_running=1)
    driver.step(*(request(vid, max_new_tokens=2) for vid in (1, 2, 3)))
    assert driver.ledger.waiting == 2
    driver.step(AbortReq(vid=2))
    assert driver.heard.ends == {2: ABORT}
    assert driver.heard.tokens[2] == []
    assert driver.ledger == SchedulerLedger(live=2, waiting=1, running=1, blocks_used=1, steps=1)
    driver.run()
    assert list(driver.heard.ends) == [2, 1, 3]
    driver.assert_nothing_is_held()


def test_an_abort_in_the_middle_of_a_prefill() -> None:
    driver = Driver(step_tokens=4, max_running=4)
    driver.step(request(1, range(1, 21)))
    driver.step()
    assert driver.model.plans[-1].context_lens.tolist() == [8]
    driver.step(AbortReq(vid=1))
    assert driver.heard.ends == {1: ABORT}
    assert driver.heard.tokens == {1: []}
    assert len(driver.model.plans) == 2
    driver.assert_nothing_is_held()


def test_an_abort_while_decoding_keeps_what_was_made() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9), request(2, [8], max_new_tokens=9))
    driver.step()
    effects = driver.step(AbortReq(vid=1))
    assert effects.over == [1]
    assert len(driver.heard.tokens[1]) == 2
    assert driver.heard.ends == {1: ABORT}
    assert driver.ledger == SchedulerLedger(live=1, running=1, blocks_used=1, steps=2)
    driver.run()
    assert driver.heard.tokens[2] == foretell([8], SamplingParams(max_new_tokens=9))[0]
    driver.assert_nothing_is_held()


def test_an_abort_is_answered_at_once_and_the_others_compute_with_the_next_step() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9), request(2, max_new_tokens=9))
    computed = len(driver.model.plans)
    effects = driver.step(AbortReq(vid=1))
    assert len(driver.model.plans) == computed
    assert effects.busy
    driver.step()
    assert len(driver.model.plans) == computed + 1
    assert len(driver.model.plans[-1].context_lens) == 1


@pytest.mark.parametrize("params", [{"max_new_tokens": 1}, {"max_new_tokens": 0}, {"max_new_tokens": 5000}])
def test_an_abort_after_the_end_is_silent_and_leaves_nothing(params: dict[str, Any]) -> None:
    driver = Driver()
    driver.run(request(1, **params))
    ends = dict(driver.heard.ends)
    effects = driver.step(AbortReq(vid=1))
    assert (effects.messages, effects.over, effects.busy) == ([], [], False)
    assert driver.heard.ends == ends
    assert driver.ledger == SchedulerLedger(steps=driver.ledger.steps)


def test_an_abort_of_an_unknown_vid_does_not_delay_the_others() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9))
    driver.step(AbortReq(vid=99))
    assert len(driver.model.plans) == 2
    assert driver.ledger.tombstones == 1  # its request may be on its way
    driver.run()
    assert driver.end(1) == "length"
    assert 99 not in driver.heard.ends


def test_an_abort_that_overtakes_its_request_ends_it_when_it_comes() -> None:
    driver = Driver()
    driver.step(AbortReq(vid=1))
    effects = driver.step(request(1))
    assert effects.over == [1]
    assert driver.heard.ends == {1: ABORT}
    assert driver.model.plans == []
    assert driver.ledger == SchedulerLedger()


def test_two_aborts_are_one_end() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9))
    driver.step(AbortReq(vid=1), AbortReq(vid=1))
    driver.step(AbortReq(vid=1))
    assert driver.heard.ends == {1: ABORT}
    driver.assert_nothing_is_held()


def test_the_blocks_of_an_abort_are_there_for_the_next_step() -> None:
    driver = Driver(num_blocks=2)
    driver.step(request(1, [1] * 20, max_new_tokens=12), request(2, [2] * 20, max_new_tokens=2))
    assert driver.ledger == SchedulerLedger(live=2, waiting=1, running=1, blocks_used=2, steps=1)
    driver.step(AbortReq(vid=1))
    assert driver.ledger.blocks_used == 0
    driver.step()
    assert driver.ledger == SchedulerLedger(live=1, running=1, blocks_used=2, steps=2)
    assert driver.heard.tokens[2] == foretell([2] * 20, SamplingParams(max_new_tokens=1))[0]


@pytest.mark.parametrize(
    "command",
    [request(9, floor=5), AbortReq(vid=4, floor=5), HeartbeatReq(id=1, floor=5)],
    ids=lambda command: type(command).__name__,
)
def test_whatever_carries_a_floor_buries_what_is_below_it(command: Command) -> None:
    driver = Driver()
    other_front = make_vid(1, 0)
    driver.step(AbortReq(vid=2), AbortReq(vid=4), AbortReq(vid=5), AbortReq(vid=other_front))
    assert driver.ledger.tombstones == 4
    driver.step(command)
    left = 3 if isinstance(command, AbortReq) else 2  # that of 4 itself was renewed
    assert driver.ledger.tombstones == left


# --- one after the other ---------------------------------------------------------------------------


def test_a_vid_that_lives_cannot_come_again() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9))
    with pytest.raises(RemoteProtocolError, match=r"^vid 1 was sent twice$"):
        driver.step(request(1))


def test_a_vid_that_is_over_cannot_come_again() -> None:
    driver = Driver()
    driver.run(request(1, max_new_tokens=1))
    with pytest.raises(RemoteProtocolError, match=r"^vid 1 was sent twice$"):
        driver.step(request(1))


@pytest.mark.parametrize("ids", [[VOCAB], [1, -1], [3, 10**6, 3]])
def test_token_ids_that_do_not_exist_are_a_fault_of_the_front(ids: list[int]) -> None:
    driver = Driver()
    message = f"^vid 1 has token ids from {min(ids)} to {max(ids)}; .*{VOCAB - 1}$"
    with pytest.raises(RemoteProtocolError, match=message):
        driver.step(request(1, ids))


def test_requests_start_in_the_order_of_their_arrival() -> None:
    driver = Driver(num_blocks=4, max_running=2)
    sizes = [30, 5, 60, 5, 5, 30]
    driver.run(*(request(vid, [1 + vid] * size, max_new_tokens=3) for vid, size in enumerate(sizes)))
    starts = [
        int(plan.token_ids[start]) - 1
        for plan in driver.model.plans
        for start, _ in spans(plan)
        if plan.positions[start] == 0
    ]
    assert starts == [0, 1, 2, 3, 4, 5]
    assert all(len(plan.context_lens) <= 2 for plan in driver.model.plans)
    driver.assert_nothing_is_held()


def test_who_decodes_advances_while_a_long_prompt_is_computed() -> None:
    driver = Driver(step_tokens=8, max_running=8)
    driver.step(request(1, [1], max_new_tokens=20), request(2, [2], max_new_tokens=20))
    driver.step(request(3, [3] * 50, max_new_tokens=2))
    for made in range(2, 10):
        assert [len(driver.heard.tokens[vid]) for vid in (1, 2)] == [made, made]
        assert len(driver.model.plans[-1].token_ids) == 8
        driver.step()
    driver.run()
    assert driver.heard.tokens[3] == foretell([3] * 50, SamplingParams(max_new_tokens=2))[0]


def test_without_leave_to_launch_nothing_is_computed_but_aborts_are() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9))
    for _ in range(3):
        effects = driver.step(launch=False)
        assert effects.busy
        assert effects.messages == []
    driver.step(request(2), AbortReq(vid=1), launch=False)
    assert driver.heard.ends == {1: ABORT}
    assert driver.ledger == SchedulerLedger(live=1, waiting=1, steps=1)
    assert len(driver.model.plans) == 1
    driver.run()
    assert driver.end(2) == "length"


@pytest.mark.parametrize(("max_running", "step_tokens"), [(0, 4), (5, 4), (-1, 4)])
def test_more_requests_than_tokens_in_a_step_make_no_sense(max_running: int, step_tokens: int) -> None:
    message = rf"^max_running is {max_running}; it must be from 1 to step_tokens \({step_tokens}\)$"
    with pytest.raises(ValueError, match=message):
        Driver(max_running=max_running, step_tokens=step_tokens)


# --- questions -------------------------------------------------------------------------------------


def test_a_heartbeat_is_answered_with_what_is_held_then() -> None:
    driver = Driver(max_running=1)
    driver.step(request(1, max_new_tokens=9), request(2, max_new_tokens=9), AbortReq(vid=77))
    effects = driver.step(HeartbeatReq(id=5, floor=1))
    held = driver.loop.ledger()
    assert driver.ledger == SchedulerLedger(
        live=2, waiting=1, running=1, tombstones=1, blocks_used=1, steps=1
    )
    assert effects.messages == [HeartbeatReq(id=5, floor=1, scheduler=held)]
    assert effects.busy
    assert len(driver.model.plans) == 1  # it is answered at once
    assert not effects.stop
    assert not effects.freeze_gc


def test_answers_come_behind_the_ends_of_their_step_in_the_order_of_the_questions() -> None:
    driver = Driver()
    driver.step(request(1, max_new_tokens=9))
    effects = driver.step(HeartbeatReq(id=1), FreezeGCReq(id=2), AbortReq(vid=1), HeartbeatReq(id=3))
    rows, *answers = effects.messages
    assert isinstance(rows, BatchTokenIDOutput)
    assert driver.ledger == SchedulerLedger(steps=1)
    empty = driver.loop.ledger()
    assert answers == [HeartbeatReq(id=1, scheduler=empty), HeartbeatReq(id=3, scheduler=empty)]
    assert effects.freeze_gc == (FreezeGCReq(id=2),)  # whoever drives the loop fills in what came of it
    assert not effects.stop


def test_a_shutdown_ends_whatever_lives_and_is_the_last_word() -> None:
    driver = Driver(max_running=1, step_tokens=4)
    driver.step(request(1, [1] * 9), request(2), AbortReq(vid=3))
    effects = driver.step(request(4), HeartbeatReq(id=1), FreezeGCReq(id=2), ShutdownReq())
    assert effects.freeze_gc == ()
    assert driver.heard.ends == {1: ABORT, 2: ABORT, 4: ABORT}
    assert effects.over == [1, 2, 4]
    assert [type(message) for message in effects.messages] == [BatchTokenIDOutput, HeartbeatReq, ShutdownReq]
    assert effects.stop
    assert not effects.busy
    assert driver.ledger == SchedulerLedger(tombstones=1, steps=1)


def test_a_shutdown_of_an_idle_loop_is_answered() -> None:
    effects = Driver().step(ShutdownReq())
    assert effects.messages == [ShutdownReq()]
    assert effects.stop


def test_vids_of_several_fronts_are_told_apart() -> None:
    driver = Driver()
    one, other = make_vid(0, 1), make_vid(1, 1)
    driver.run(request(one, [1]), request(other, [2]))
    assert driver.heard.tokens == {
        Vid(one): foretell([1], SamplingParams(max_new_tokens=4))[0],
        Vid(other): foretell([2], SamplingParams(max_new_tokens=4))[0],
    }
