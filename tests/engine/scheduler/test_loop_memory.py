"""The step loop and its pool: what is shared, what is taken away, and that no text shows it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.scheduler.conftest import (
    NOT_A_NUMBER,
    VOCAB,
    Driver,
    FakeModel,
    foretell,
    mixed,
    request,
)

from vidette.models.interface import BLOCK_SIZE
from vidette.scheduler.effects import Command
from vidette.scheduler.queue import MAX_PRIORITY
from vidette_protocol.ids import Vid
from vidette_protocol.messages import AbortReq, FinishReason, Served, ShutdownReq

PREFIX = [1 + place % (VOCAB - 1) for place in range(160)]


def test_a_pool_too_small_for_the_load_is_enough_for_every_text() -> None:
    driver = Driver(num_blocks=8, step_tokens=64)
    commands = [request(vid, [vid + 1] * 10, max_new_tokens=80, ignore_eos=True) for vid in range(6)]
    driver.run(*commands)
    for command in commands:
        tokens, reason = foretell(command.token_ids, command.sampling_params)
        assert driver.heard.tokens[command.vid] == tokens
        assert driver.heard.ends[command.vid] == reason
    assert driver.totals.retracted
    driver.assert_blocks_are_conserved()
    driver.assert_nothing_is_held()


def test_whoever_shares_a_prefix_that_is_being_computed_waits_for_it() -> None:
    driver = Driver(num_blocks=64, step_tokens=32, max_running=32)
    commands = [request(vid, [*PREFIX, vid + 1], max_new_tokens=3, ignore_eos=True) for vid in range(32)]
    driver.run(*commands)
    for command in commands:
        assert driver.heard.tokens[command.vid] == foretell(command.token_ids, command.sampling_params)[0]
    # Once the prefix, and of each the one token behind it.
    assert driver.totals.prompt_tokens == len(PREFIX) + len(commands)
    assert driver.totals.cached_tokens == len(PREFIX) * (len(commands) - 1)
    driver.assert_nothing_is_held()


def test_what_was_computed_is_found_by_whoever_begins_alike() -> None:
    driver = Driver(num_blocks=64)
    first = request(1, PREFIX, max_new_tokens=40, ignore_eos=True)
    driver.run(first)
    made = driver.heard.tokens[1]
    # The whole conversation, as the next turn has it: all but the last block of it is there.
    driver.run(request(2, [*PREFIX, *made, 3], max_new_tokens=1))
    assert driver.totals.cached_tokens == (len(PREFIX) + 39) // BLOCK_SIZE * BLOCK_SIZE


def test_of_those_that_come_at_once_one_computes_what_they_share() -> None:
    driver = Driver(num_blocks=64, step_tokens=256)
    driver.run(*(request(vid, [*PREFIX, vid + 1], max_new_tokens=2) for vid in range(5)))
    assert driver.totals.prompt_tokens == len(PREFIX) + 5


@pytest.mark.parametrize("other", [{"cache_salt": "b"}, {"extra_key": "a"}, {"cache_salt": ""}, {}], ids=str)
def test_no_namespace_finds_what_another_has(other: dict[str, Any]) -> None:
    driver = Driver()
    driver.run(request(1, PREFIX, max_new_tokens=1, cache_salt="a"))
    driver.run(request(2, PREFIX, max_new_tokens=1, **other))
    assert driver.totals.cached_tokens == 0
    driver.run(request(3, PREFIX, max_new_tokens=1, cache_salt="a"))
    assert driver.totals.cached_tokens == len(PREFIX) - BLOCK_SIZE  # the last token is computed


def test_a_request_says_how_it_was_served() -> None:
    driver = Driver(num_blocks=64, max_running=1, preempt_gap=1)
    driver.run(request(1, PREFIX, max_new_tokens=1))
    driver.step(request(2, PREFIX, max_new_tokens=30, ignore_eos=True), request(3, [8], max_new_tokens=2))
    driver.now = 7.0
    driver.run(request(4, [9], max_new_tokens=1, priority=9))
    found = len(PREFIX) - BLOCK_SIZE
    assert driver.heard.served[2] == [Served(found), Served(found, retractions=1)]
    assert driver.heard.served[3] == [Served(queue_s=7.0)]
    assert 1 not in driver.heard.served


def test_one_that_asks_for_it_is_told_with_its_first_and_its_last_row_when_it_was_begun() -> None:
    driver = Driver()
    driver.now = 5.0
    driver.run(
        request(1, max_new_tokens=9, timed=True),
        request(2, max_new_tokens=9),
        request(3, [1, 2], max_new_tokens=9, timed=True, resumed=[4, 5]),
        request(4, max_new_tokens=1, timed=True),
    )
    told = Served(begun_at=5.0)
    assert driver.heard.served == {1: [told, told], 3: [told, told], 4: [told]}


def test_what_an_aborted_request_has_computed_stays_until_it_is_needed() -> None:
    driver = Driver(num_blocks=12)
    driver.step(request(1, PREFIX, max_new_tokens=9))
    driver.step(AbortReq(vid=1))
    assert driver.ledger.blocks_used == 0
    assert driver.ledger.blocks_cached == len(PREFIX) // BLOCK_SIZE
    driver.run(request(2, [7] * 150, max_new_tokens=5, ignore_eos=True))
    assert (
        driver.heard.tokens[2]
        == foretell([7] * 150, request(2, [1], max_new_tokens=5, ignore_eos=True).sampling_params)[0]
    )
    driver.assert_blocks_are_conserved()


def test_what_was_evicted_comes_back_from_the_second_tier() -> None:
    driver = Driver(num_blocks=12, host_blocks=20)
    driver.run(request(1, PREFIX, max_new_tokens=1))
    driver.run(request(2, [7] * 150, max_new_tokens=5, ignore_eos=True))  # takes nearly all of the pool
    computed = driver.totals.prompt_tokens
    command = request(3, [*PREFIX, 9], max_new_tokens=5, ignore_eos=True)
    driver.run(command)
    assert driver.heard.tokens[3] == foretell(command.token_ids, command.sampling_params)[0]
    assert driver.totals.prompt_tokens - computed == 1
    driver.assert_blocks_are_conserved()


def test_the_cache_is_emptied_but_for_what_runs() -> None:
    driver = Driver(num_blocks=64)
    driver.run(request(1, PREFIX, max_new_tokens=1))
    command = request(2, PREFIX[:50], max_new_tokens=9, ignore_eos=True)
    driver.step(command)
    held = driver.ledger.blocks_used
    assert driver.loop.clear_cache() == len(PREFIX) // BLOCK_SIZE - 50 // BLOCK_SIZE
    assert (driver.ledger.blocks_used, driver.ledger.blocks_cached) == (held, 0)
    driver.run()
    assert (
        driver.heard.tokens[2]
        == foretell(PREFIX[:50], request(2, [1], max_new_tokens=9, ignore_eos=True).sampling_params)[0]
    )


def test_a_higher_priority_takes_the_place_of_a_lower_one() -> None:
    driver = Driver(max_running=1, preempt_gap=1)
    driver.step(request(1, [5], max_new_tokens=20, ignore_eos=True))
    driver.run(request(2, [6], max_new_tokens=3, ignore_eos=True, priority=5))
    assert list(driver.heard.ends) == [2, 1]
    assert driver.totals.retracted == 1
    for vid, prompt, new in ((1, [5], 20), (2, [6], 3)):
        params = request(vid, prompt, max_new_tokens=new, ignore_eos=True).sampling_params
        assert driver.heard.tokens[vid] == foretell(prompt, params)[0]


@pytest.mark.parametrize(("gap", "first"), [(2 * MAX_PRIORITY, 2), (2 * MAX_PRIORITY + 1, 1)])
def test_no_priority_counts_for_more_than_the_highest(gap: int, first: int) -> None:
    driver = Driver(max_running=1, preempt_gap=gap)
    driver.step(request(1, [5], max_new_tokens=20, ignore_eos=True, priority=-(2**31)))
    driver.run(request(2, [6], max_new_tokens=3, ignore_eos=True, priority=2**31 - 1))
    assert next(iter(driver.heard.ends)) == first


def test_a_priority_holds_no_memory_once_its_request_has_ended() -> None:
    driver = Driver(num_blocks=16)
    for vid, priority in enumerate((9, 9, 0, 0)):
        driver.run(request(vid, [5 + vid] * 97, max_new_tokens=1, priority=priority))
    driver.run(request(4, [7] * 97, max_new_tokens=1))
    assert driver.totals.cached_tokens == 96


def test_who_waits_too_long_is_told_so() -> None:
    driver = Driver(max_running=1, queue_timeout=5.0)
    effects = driver.step(request(1, max_new_tokens=50, ignore_eos=True), request(2, max_new_tokens=1))
    assert effects.wake_at == 5.0
    driver.now = 5.0
    driver.step()
    assert driver.heard.ends[2].err_type == "waiting_timeout"
    assert driver.heard.ends[2].status_code == 503
    driver.run()
    assert driver.end(1) == "length"
    driver.assert_nothing_is_held()


def test_who_runs_too_long_is_told_so_also_while_it_is_retracted() -> None:
    driver = Driver(max_running=1, running_timeout=5.0, preempt_gap=1)
    driver.step(request(1, max_new_tokens=50, ignore_eos=True))
    driver.step(request(2, max_new_tokens=9, ignore_eos=True, priority=3))
    driver.step()  # one goes, then the other comes
    assert driver.ledger.waiting == 1
    driver.now = 5.0
    driver.step()
    assert driver.heard.ends[1].err_type == "running_timeout"
    driver.run()
    driver.assert_nothing_is_held()


def test_a_stop_string_ends_a_request_where_it_matched() -> None:
    driver = Driver(FakeModel(lambda context: 1 + len(context) % 20))
    driver.run(request(1, [1], max_new_tokens=30, stop=["FG"]))  # makes "BCDEFG": token 2 is "B"
    assert driver.heard.ends[1] == FinishReason("stop", matched="FG")
    assert driver.heard.tokens[1] == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("command", [AbortReq(vid=1), AbortReq(vid=1, abort_all=True), ShutdownReq(), None])
@pytest.mark.parametrize("retracted", [False, True])
def test_who_is_ended_from_outside_has_said_all_that_it_made(
    command: Command | None, retracted: bool
) -> None:
    driver = Driver(max_running=1, preempt_gap=1)
    asked: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2}
    driver.step(
        request(1, max_new_tokens=50, ignore_eos=True, stream_interval=20, deadline_s=1.0, floor=1, **asked)
    )
    for _ in range(6):
        driver.step()
    if retracted:
        driver.step(request(2, max_new_tokens=9, ignore_eos=True, priority=3, floor=1))
        driver.step()
        assert driver.ledger.waiting == 1
    output = {**driver.loop._running, **driver.loop._waiting}[Vid(1)].output.tolist()
    assert len(driver.heard.tokens[1]) == 1 < len(output)
    if command is None:
        driver.now = 1000.0
    driver.step(*([] if command is None else [command]))
    assert driver.end(1) is not None
    assert driver.heard.tokens[1] == output
    if not isinstance(command, ShutdownReq):
        driver.run()
    driver.assert_nothing_is_held()


def test_tokens_come_in_intervals_the_first_at_once() -> None:
    driver = Driver()
    counts = []
    driver.step(request(1, max_new_tokens=8, ignore_eos=True, stream_interval=3))
    while driver.end(1) is None:
        counts.append(len(driver.heard.tokens.get(1, ())))
        driver.step()
    assert counts == [1, 1, 1, 4, 4, 4, 7]
    assert len(driver.heard.tokens[1]) == 8


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.integers(0, 150), min_size=1, max_size=8),
    new=st.integers(1, 60),
    num_blocks=st.integers(14, 24),
    host_blocks=st.sampled_from([0, 0, 5, 40]),
    step_tokens=st.integers(8, 80),
    drafts=st.sampled_from([0, 4]),
    policy=st.sampled_from(["fcfs", "lpm", "lof"]),
)
def test_neither_the_cache_nor_retraction_nor_drafts_show(
    prompts: list[int],
    new: int,
    num_blocks: int,
    host_blocks: int,
    step_tokens: int,
    drafts: int,
    policy: str,
) -> None:
    """Whatever is shared, taken away or guessed: each answer is as by itself, and no block is lost."""
    driver = Driver(
        num_blocks=num_blocks,
        host_blocks=host_blocks,
        step_tokens=step_tokens,
        max_running=8,
        draft_tokens=drafts,
        policy=policy,
    )
    commands = [
        request(vid, [*PREFIX[:length], 1 + vid % 3], max_new_tokens=new, ignore_eos=True)
        for vid, length in enumerate(prompts)
    ]
    driver.run(*commands)
    for command in commands:
        assert driver.heard.tokens[command.vid] == foretell(command.token_ids, command.sampling_params)[0]
    driver.assert_blocks_are_conserved()
    driver.assert_nothing_is_held()


@pytest.mark.parametrize("drafts", [0, 4])
def test_what_a_faulty_model_computed_is_found_by_nobody(drafts: int) -> None:
    faulty = [True]
    driver = Driver(
        FakeModel(lambda context: NOT_A_NUMBER if faulty[0] and len(context) > 160 else mixed(context)),
        step_tokens=64,
        draft_tokens=drafts,
    )
    driver.run(request(1, [*PREFIX, 5], max_new_tokens=4))
    assert driver.end(1) == "error"
    assert driver.ledger.blocks_cached == 0
    driver.assert_blocks_are_conserved()
    faulty[0] = False
    command = request(2, [*PREFIX, 5], max_new_tokens=4, ignore_eos=True)
    driver.run(command)
    assert driver.heard.tokens[2] == foretell(command.token_ids, command.sampling_params)[0]


def test_a_fault_behind_drafts_ends_that_request_alone() -> None:
    # It repeats itself, so drafts are made, until what it says is nonsense.
    driver = Driver(
        FakeModel(lambda context: NOT_A_NUMBER if len(context) == 30 else 1 + len(context) % 3),
        draft_tokens=4,
    )
    other = request(2, [7] * 40, max_new_tokens=20, ignore_eos=True)
    driver.run(request(1, [1, 2, 3, 1, 2, 3], max_new_tokens=60, ignore_eos=True), other)
    assert driver.end(1) == "error"
    assert len(driver.heard.tokens[1]) == 24
    assert driver.end(2) == "length"
    driver.assert_blocks_are_conserved()


def test_namespaces_that_begin_alike_do_not_wait_for_each_other() -> None:
    driver = Driver(step_tokens=256)
    driver.step(
        request(1, PREFIX[:64], cache_salt="a", max_new_tokens=3),
        request(2, PREFIX[:64], cache_salt="b", max_new_tokens=3),
        request(3, PREFIX[:64], cache_salt="a", max_new_tokens=3),
    )
    assert driver.ledger.waiting == 1  # the third waits for the first, and the second for nobody
