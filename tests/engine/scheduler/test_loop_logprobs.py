"""The step loop and log probabilities: one for each token, whatever the batch, the chunks and the pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine.scheduler.conftest import VOCAB, Driver, RandomModel, logits_of, request

from vidette.scheduler import logprobs
from vidette.scheduler.effects import Command
from vidette_protocol.messages import BatchTokenIDOutput, TokenizedGenerateReqInput, TokenLogprobs
from vidette_protocol.messages.columns import pack_i32, view_f32, view_i32

PREFIX = [1 + place % (VOCAB - 1) for place in range(64)]


class Reports:
    """What was said of each vid: tokens, and log probabilities of prompt and output."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.tokens: dict[int, list[int]] = {}
        self.output: dict[int, list[float]] = {}
        self.tops: dict[int, list[int]] = {}
        self.prompt: dict[int, list[float]] = {}
        self.prompts_said: dict[int, int] = {}

    def run(self, *commands: Command) -> None:
        """Take steps until nothing is left to do."""
        effects = self.driver.loop.step(commands, 0.0)
        self._hear(effects.messages)
        while effects.busy:
            effects = self.driver.loop.step([], 0.0)
            self._hear(effects.messages)

    def _hear(self, messages: Any) -> None:
        for message in messages:
            assert isinstance(message, BatchTokenIDOutput)
            assert message.check_columns() is None
            for row in message.rows():
                self.tokens.setdefault(row.vid, []).extend(row.token_ids)
                if row.logprobs is not None:
                    self._note(row.vid, row.logprobs)

    def _note(self, vid: int, told: TokenLogprobs) -> None:
        if told.output_token_logprobs_val is not None:
            self.output.setdefault(vid, []).extend(view_f32(told.output_token_logprobs_val))
        if told.output_top_logprobs_idx is not None:
            self.tops.setdefault(vid, []).extend(view_i32(told.output_top_logprobs_idx))
        if told.input_token_logprobs_val is not None:
            self.prompt.setdefault(vid, []).extend(view_f32(told.input_token_logprobs_val))
            self.prompts_said[vid] = self.prompts_said.get(vid, 0) + 1


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log probabilities, in plain arithmetic."""
    shifted = logits.astype(np.float64) - logits.max()
    probabilities: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return probabilities


def expected_prompt(prompt: list[int], start: int) -> list[float]:
    """Return the log probability of each token of a prompt from a position on; NaN for the first of all."""
    return [
        log_softmax(logits_of(prompt[:place]))[prompt[place]] if place else float("nan")
        for place in range(start, len(prompt))
    ]


def expected_output(command: TokenizedGenerateReqInput, made: list[int]) -> list[float]:
    """Return the log probability of each greedy token."""
    prompt = command.token_ids.tolist()
    return [log_softmax(logits_of([*prompt, *made[:place]]))[token] for place, token in enumerate(made)]


def test_much_is_said_before_the_interval_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "ROW_BYTES", 5 * 24)
    driver = Driver(RandomModel())
    driver.loop.step(
        [
            request(
                1,
                max_new_tokens=12,
                ignore_eos=True,
                stream_interval=12,
                return_logprob=True,
                top_logprobs_num=2,
            ),
            request(2, max_new_tokens=12, ignore_eos=True, stream_interval=12),
        ],
        0.0,
    )
    said: dict[int, list[int]] = {1: [], 2: []}
    for _ in range(11):
        for message in driver.loop.step([], 0.0).messages:
            assert isinstance(message, BatchTokenIDOutput)
            for row in message.rows():
                said[row.vid].append(len(row.token_ids))
    assert said == {1: [5, 5, 1], 2: [11]}


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(-1, 60)), min_size=1, max_size=6),
    num_blocks=st.integers(8, 20),
    step_tokens=st.integers(6, 60),
    interval=st.sampled_from([None, 3]),
    drafts=st.sampled_from([0, 3]),
)
def test_each_token_has_its_own_and_each_once(
    lengths: list[tuple[int, int]], num_blocks: int, step_tokens: int, interval: int | None, drafts: int
) -> None:
    """Whatever is chunked, shared, retracted, guessed or said at once: every token has its own."""
    driver = Driver(
        RandomModel(), num_blocks=num_blocks, step_tokens=step_tokens, max_running=6, draft_tokens=drafts
    )
    commands = [
        request(
            vid,
            [*PREFIX[:length], 1 + vid],
            max_new_tokens=40,
            ignore_eos=True,
            stream_interval=interval,
            return_logprob=True,
            logprob_start_len=min(start, length),
            top_logprobs_num=2,
        )
        for vid, (length, start) in enumerate(lengths)
    ]
    heard = Reports(driver)
    heard.run(*commands)
    for command in commands:
        vid, start = command.vid, command.logprob_start_len
        made = heard.tokens[vid]
        assert len(made) == 40
        assert heard.output[vid] == pytest.approx(expected_output(command, made), abs=1e-4)
        assert heard.tops[vid][::2] == made  # greedy: the first of the two is the token itself
        if start >= 0:
            expected = expected_prompt(command.token_ids.tolist(), start)
            assert heard.prompt[vid] == pytest.approx(expected, abs=1e-4, nan_ok=True)
            assert heard.prompts_said[vid] == 1
        else:
            assert vid not in heard.prompt
    driver.assert_blocks_are_conserved()


def test_a_prompt_is_scored_without_an_output() -> None:
    driver = Driver(RandomModel(), step_tokens=16)
    heard = Reports(driver)
    heard.run(request(1, PREFIX, max_new_tokens=0, return_logprob=True, logprob_start_len=0))
    assert heard.prompt[1] == pytest.approx(expected_prompt(PREFIX, 0), abs=1e-4, nan_ok=True)
    assert heard.tokens[1] == []


def test_tokens_that_are_asked_for_are_reported_at_each_place() -> None:
    driver = Driver(RandomModel())
    (message,) = driver.step(
        request(1, [3, 4], max_new_tokens=1, return_logprob=True, token_ids_logprob=pack_i32([7, 9]))
    ).messages
    assert isinstance(message, BatchTokenIDOutput)
    (row,) = message.rows()
    assert row.logprobs is not None
    assert row.logprobs.output_token_ids_logprobs_val is not None
    expected = log_softmax(logits_of([3, 4]))[[7, 9]]
    assert list(view_f32(row.logprobs.output_token_ids_logprobs_val)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"logprob_start_len": 9}, "logprob_start_len"),
        ({"token_ids_logprob": pack_i32([99])}, "token_ids_logprob"),
    ],
    ids=["start", "ids"],
)
def test_what_cannot_be_had_ends_that_request_alone(options: dict[str, Any], word: str) -> None:
    driver = Driver()
    driver.run(request(1, return_logprob=True, **options), request(2))
    assert driver.end(1) == "error"
    assert word in (driver.heard.ends[1].message or "")
    assert driver.end(2) == "length"
