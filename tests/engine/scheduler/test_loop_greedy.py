"""Greedy requests want no logits, which shows neither in their texts nor in those of others."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.scheduler.conftest import (
    Driver,
    FakeModel,
    RandomModel,
    logits_of,
    request,
)

from vidette_protocol.messages import TokenizedGenerateReqInput

PLAIN: Final[list[dict[str, Any]]] = [
    {},
    {"temperature": 1.0, "top_k": 1},
    {"min_new_tokens": 3, "ignore_eos": True},
]
"""What leaves nothing to choose."""
OTHERS: Final[list[dict[str, Any]]] = [
    {"temperature": 1.0, "sampling_seed": 3},
    {"temperature": 1.0, "sampling_seed": 4, "top_p": 0.8},
    {"repetition_penalty": 1.5},
    {"logit_bias": {7: 5.0}},
    {"return_logprob": True, "top_logprobs_num": 2},
    {"return_logprob": True, "logprob_start_len": 0},
]
"""What needs logits."""


def ask(vid: int, options: dict[str, Any]) -> TokenizedGenerateReqInput:
    return request(vid, [5, 6, 7, 5, 6, 7, 5 + vid % 3], **{"max_new_tokens": 12, **options})


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(st.sampled_from([*PLAIN, *OTHERS, {"min_new_tokens": 4}]), min_size=1, max_size=8),
    drafts=st.sampled_from([0, 3]),
    step_tokens=st.sampled_from([9, 20, 100]),
)
def test_mixed_as_alone(kinds: list[dict[str, Any]], drafts: int, step_tokens: int) -> None:
    """Whatever is computed together, each says what it says alone, without drafts."""
    driver = Driver(RandomModel(), max_running=8, step_tokens=step_tokens, draft_tokens=drafts)
    driver.run(*(ask(vid, options) for vid, options in enumerate(kinds)))
    for vid, options in enumerate(kinds):
        alone = Driver(RandomModel())
        alone.run(ask(vid, options))
        assert driver.heard.tokens[vid] == alone.heard.tokens[vid]
        assert driver.heard.ends[vid] == alone.heard.ends[vid]
    driver.assert_nothing_is_held()


@pytest.mark.parametrize("options", PLAIN, ids=str)
def test_the_best_token_is_that_of_the_logits(options: dict[str, Any]) -> None:
    driver = Driver(RandomModel())
    command = ask(1, options)
    driver.run(command)
    context = command.token_ids.tolist()
    for token in driver.heard.tokens[1]:
        assert token == logits_of(context).argmax()
        context.append(token)
    assert not any(len(plan.logit_tokens) for plan in driver.model.plans)


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_what_needs_logits_has_them_and_nobody_else(options: dict[str, Any]) -> None:
    driver = Driver(RandomModel())
    driver.step(ask(1, options), ask(2, {}))
    driver.step()
    (plan,) = driver.model.plans[1:]
    assert plan.logit_tokens.tolist() == [0]
    assert plan.best_tokens.tolist() == [1]


def test_until_it_may_end_its_end_is_masked() -> None:
    driver = Driver()
    driver.run(ask(1, {"min_new_tokens": 3, "max_new_tokens": 5}))
    assert [len(plan.logit_tokens) for plan in driver.model.plans] == [1, 1, 1, 0, 0]
    assert [len(plan.best_tokens) for plan in driver.model.plans] == [0, 0, 0, 1, 1]


def test_drafts_are_judged_by_best_tokens() -> None:
    driver = Driver(FakeModel(lambda context: 1 + len(context) % 3), draft_tokens=4)
    driver.run(request(1, [1, 2, 3, 1, 2, 3], max_new_tokens=30, ignore_eos=True))
    assert driver.heard.tokens[1] == [1 + place % 3 for place in range(6, 36)]
    assert max(len(plan.best_tokens) for plan in driver.model.plans) == 5
    assert not any(len(plan.logit_tokens) for plan in driver.model.plans)
