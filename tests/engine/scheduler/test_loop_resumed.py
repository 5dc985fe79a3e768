"""Requests that another scheduler had begun: said again from the beginning, and gone on with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.scheduler.conftest import VOCAB, Driver, Heard, request, toy_loop

from vidette.scheduler.endings import ABORTED, EXPIRED
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    FinishReason,
    TokenizedGenerateReqInput,
    TokenRow,
)

# Hot and with a seed of its own, so that every token depends on the seed and on its place in the output.
HOT: dict[str, Any] = {"temperature": 1.5, "sampling_seed": 11, "max_new_tokens": 24}


def run_toy(*commands: TokenizedGenerateReqInput, step_tokens: int = 64) -> Heard:
    """Run requests on a step loop of their own with the toy model; return what was said of them."""
    loop = toy_loop(num_blocks=64, step_tokens=step_tokens, max_running=8)
    heard = Heard()
    effects = loop.step(commands, 0.0)
    while True:
        for message in effects.messages:
            assert isinstance(message, BatchTokenIDOutput)
            heard.hear(message)
        if not effects.busy:
            break
        effects = loop.step((), 0.0)
    assert loop.ledger().live == loop.ledger().blocks_used == 0
    return heard


@settings(deadline=None, max_examples=40)
@given(
    cut=st.integers(0, 23),
    prompt=st.lists(st.integers(0, 255), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
    ignore_eos=st.booleans(),
    step_tokens=st.sampled_from([8, 64]),
)
def test_wherever_it_was_cut_its_tokens_are_those_of_a_run_without_a_cut(
    cut: int, prompt: list[int], seed: int, ignore_eos: bool, step_tokens: int
) -> None:
    """Sampled by seed and place: what was made before and what is made now are one undisturbed answer."""
    params = {**HOT, "sampling_seed": seed, "ignore_eos": ignore_eos}
    whole = run_toy(request(1, prompt, **params))
    made = whole.tokens[1][: min(cut, len(whole.tokens[1]) - 1)]  # what has ended is not resumed
    resumed = run_toy(request(2, prompt, resumed=made, **params), step_tokens=step_tokens)
    assert resumed.tokens[2] == whole.tokens[1]
    assert resumed.ends[2] == whole.ends[1]


def test_the_first_row_says_again_what_was_made() -> None:
    driver = Driver()
    effects = driver.step(request(1, resumed=[3, 4, 5], max_new_tokens=5))
    (message,) = effects.messages
    assert isinstance(message, BatchTokenIDOutput)
    assert list(message.rows()) == [TokenRow(1, 0, (3, 4, 5), None)]
    assert effects.busy
    assert driver.model.plans == []  # it is said at once, and computed from the next step on
    driver.run()
    assert len(driver.heard.tokens[1]) == 5
    assert driver.heard.ends == {1: FinishReason("length", length=5)}
    assert driver.model.plans[0].token_ids.tolist() == [5, 6, 7, 3, 4, 5]  # prompt and output are one prefill
    assert len(driver.model.plans) == 2
    driver.assert_nothing_is_held()


def test_the_most_tokens_count_all_of_them() -> None:
    driver = Driver()
    driver.run(request(1, resumed=[1] * 7, max_new_tokens=8))
    assert len(driver.heard.tokens[1]) == 8
    assert len(driver.model.plans) == 1


@pytest.mark.parametrize("made", [4, 5])
def test_one_that_has_all_its_tokens_ends_at_once(made: int) -> None:
    driver = Driver()
    effects = driver.step(request(1, resumed=[9] * made, max_new_tokens=4))
    assert effects.over == [1]
    assert not effects.busy
    assert driver.heard.tokens == {1: [9] * made}
    assert driver.heard.ends == {1: FinishReason("length", length=4)}
    assert driver.model.plans == []
    driver.assert_nothing_is_held()


def test_nothing_made_is_a_request_like_any_other() -> None:
    driver, other = Driver(), Driver()
    driver.run(request(1, resumed=[]))
    other.run(request(1))
    assert driver.heard.tokens == other.heard.tokens
    assert driver.ledger == other.ledger


def test_one_that_was_aborted_before_it_came_says_nothing_but_its_end() -> None:
    driver = Driver()
    driver.step(AbortReq(vid=1))
    assert driver.step(request(1, resumed=[3, 4])).over == [1]
    assert driver.heard.tokens == {1: []}
    assert driver.heard.ends == {1: ABORTED}
    assert driver.model.plans == []
    driver.assert_nothing_is_held()


def test_an_abort_right_behind_it_ends_it_behind_what_it_has_said() -> None:
    driver = Driver()
    driver.step(request(1, resumed=[3, 4], max_new_tokens=9), AbortReq(vid=1))
    assert driver.heard.tokens == {1: [3, 4]}
    assert driver.heard.ends == {1: ABORTED}
    driver.assert_nothing_is_held()


def test_one_that_does_not_fit_fails_behind_what_it_has_said() -> None:
    driver = Driver(num_blocks=1)
    driver.step(request(1, resumed=[3, 4], max_new_tokens=14))
    assert driver.heard.tokens == {1: [3, 4]}
    assert driver.heard.ends[1].message == "prompt and max_new_tokens are 17 tokens; at most 16 fit"


def test_it_has_a_deadline_as_any_other() -> None:
    driver = Driver()
    driver.step(request(1, resumed=[3, 4], max_new_tokens=9, deadline_s=1.0))
    driver.now = 2.0
    driver.step()
    assert driver.heard.tokens == {1: [3, 4]}
    assert driver.heard.ends == {1: EXPIRED}


@pytest.mark.parametrize("ids", [[VOCAB], [1, -1]])
def test_output_ids_that_do_not_exist_are_a_fault_of_the_front(ids: list[int]) -> None:
    driver = Driver()
    message = f"^vid 1 has output ids from {min(ids)} to {max(ids)}; .*{VOCAB - 1}$"
    with pytest.raises(RemoteProtocolError, match=message):
        driver.step(request(1, resumed=ids))
