"""The step loop over whole histories: the same tokens however it is computed, and nothing held at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.engine.scheduler.conftest import (
    EOS,
    NOT_A_NUMBER,
    VOCAB,
    Driver,
    FakeModel,
    Heard,
    foretell,
    mixed,
    request,
    toy_loop,
)

from vidette.scheduler.effects import Command
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    FinishReason,
    HeartbeatReq,
    TokenizedGenerateReqInput,
)

ABORT = FinishReason("abort", message="the caller ended the request")


# --- the same tokens, however it is computed -------------------------------------------------------

PROMPTS = st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=70)


@settings(max_examples=30, deadline=None)
@given(
    prompts=st.lists(st.tuples(PROMPTS, st.integers(1, 30)), min_size=1, max_size=5),
    step_tokens=st.integers(1, 100),
    data=st.data(),
)
def test_chunks_and_company_do_not_count(
    prompts: list[tuple[list[int], int]], step_tokens: int, data: st.DataObject
) -> None:
    """Whatever a step may compute, however many run, however large the pool: each answer is as by itself."""
    driver = Driver(
        num_blocks=data.draw(st.integers(7, 20)),
        step_tokens=step_tokens,
        max_running=data.draw(st.integers(1, min(step_tokens, 6))),
    )
    commands = [
        request(vid, prompt, max_new_tokens=new, ignore_eos=True) for vid, (prompt, new) in enumerate(prompts)
    ]
    driver.run(*commands)
    for command in commands:
        tokens, reason = foretell(command.token_ids, command.sampling_params)
        assert driver.heard.tokens[command.vid] == tokens
        assert driver.heard.ends[command.vid] == reason
    assert all(len(plan.token_ids) <= step_tokens for plan in driver.model.plans)
    driver.assert_nothing_is_held()


def toy_request(vid: int, rng: np.random.Generator) -> TokenizedGenerateReqInput:
    """Return one of many kinds of requests, by its vid."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9},
        {"temperature": 1.2, "top_k": 30},
        {"temperature": 1.0, "top_p": 0.8},
    ]
    return request(
        vid,
        rng.integers(32, 127, rng.integers(1, 60)).tolist(),
        max_new_tokens=int(rng.integers(1, 40)),
        ignore_eos=bool(vid % 2),
        sampling_seed=vid,
        **kinds[vid % 4],
    )


@pytest.mark.parametrize("seed", range(2))
def test_toy_texts_in_a_crowd_with_aborts_are_those_of_each_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    commands = [toy_request(vid, rng) for vid in range(40)]
    left = set(rng.choice(40, 12, replace=False).tolist())
    crowd = toy_loop(num_blocks=12, step_tokens=24, max_running=9)
    heard, waiting = Heard(), list(commands)
    busy = True
    while busy or waiting:
        count = rng.integers(0, 4)
        batch: list[Command] = [*waiting[:count]]
        del waiting[:count]
        alive = [vid for vid in heard.tokens if vid in left and vid not in heard.ends]
        batch += [AbortReq(vid=vid) for vid in alive if rng.random() < 0.3]
        effects = crowd.step(batch, 0.0)
        busy = effects.busy
        for message in effects.messages:
            assert isinstance(message, BatchTokenIDOutput)
            heard.hear(message)
    for command in commands:
        alone, text = toy_loop(num_blocks=512, step_tokens=256, max_running=1), Heard()
        effects = alone.step([command], 0.0)
        while True:
            for message in effects.messages:
                assert isinstance(message, BatchTokenIDOutput)
                text.hear(message)
            if not effects.busy:
                break
            effects = alone.step([], 0.0)
        made = heard.tokens[command.vid]
        assert made == text.tokens[command.vid][: len(made)]
        if heard.ends[command.vid] != ABORT:
            assert made == text.tokens[command.vid]
            assert heard.ends[command.vid] == text.ends[command.vid]
    assert any(reason == ABORT for reason in heard.ends.values())
    ledger = crowd.ledger()
    assert ledger.live == ledger.waiting == ledger.blocks_used == 0


# --- anything at any time --------------------------------------------------------------------------


def moody(context: Sequence[int]) -> int:
    """End or fail now and then, by the context."""
    value = sum((place + 7) * token for place, token in enumerate(context)) % 61
    if value == 0:
        return EOS
    return NOT_A_NUMBER if value == 1 else mixed(context)


class LoopMachine(RuleBasedStateMachine):
    """Any commands in any order: each request has one end and the right tokens, and all that is held is told.

    Beside the loop runs a naive model of who lives, in the order of arrival, and what each has made.
    """

    @initialize(
        num_blocks=st.integers(1, 7),
        step_tokens=st.integers(1, 30),
        max_running=st.integers(1, 4),
    )
    def make(self, num_blocks: int, step_tokens: int, max_running: int) -> None:
        self.max_running = min(max_running, step_tokens)
        self.driver = Driver(
            FakeModel(moody), num_blocks=num_blocks, step_tokens=step_tokens, max_running=self.max_running
        )
        self.step_tokens = step_tokens
        self.num_blocks = num_blocks
        self.stood = 0
        """How many waited after the last step."""
        self.issued = 0
        self.ahead: list[int] = []
        """Aborted before they were sent."""
        self.not_over: set[int] = set()
        self.pending: list[Command] = []
        self.live: dict[int, TokenizedGenerateReqInput] = {}
        self.over: set[int] = set()
        self.tombstones: set[int] = set()

    # --- what the front can do ---------------------------------------------------

    def issue(self) -> int:
        self.issued += 1
        self.not_over.add(self.issued)
        return self.issued

    @property
    def floor(self) -> int:
        return min(self.not_over, default=self.issued + 1)

    @rule(prompt=PROMPTS, new=st.integers(0, 40), ignore_eos=st.booleans())
    def send(self, prompt: list[int], new: int, ignore_eos: bool) -> None:
        vid = self.issue()
        self.pending.append(request(vid, prompt, floor=self.floor, max_new_tokens=new, ignore_eos=ignore_eos))

    @precondition(lambda self: self.issued)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        vid = data.draw(st.integers(max(1, self.issued - 8), self.issued))
        self.pending.append(AbortReq(vid=vid, floor=self.floor))

    @rule()
    def abort_ahead(self) -> None:
        vid = self.issue()
        self.ahead.append(vid)
        self.pending.append(AbortReq(vid=vid, floor=self.floor))

    @precondition(lambda self: self.ahead)
    @rule()
    def send_behind(self) -> None:
        self.pending.append(request(self.ahead.pop(0), floor=self.floor))

    @rule(number=st.integers(0, 9))
    def ask(self, number: int) -> None:
        self.pending.append(HeartbeatReq(id=number, floor=self.floor))

    @rule(launch=st.booleans(), times=st.integers(1, 5))
    def step(self, launch: bool, times: int) -> None:
        for _ in range(times):
            self.take_step(launch)

    # --- what has to come of it --------------------------------------------------

    def take_step(self, launch: bool) -> None:
        expected, questions = self.foretell_commands()
        computes = bool(launch and self.live and not expected and not questions)
        computed, made, over = len(self.driver.model.plans), self.made(), set(self.driver.heard.ends)
        retracted = self.driver.totals.retracted
        effects = self.driver.step(*self.pending, launch=launch)
        self.pending = []

        assert len(self.driver.model.plans) == computed + computes
        answers = effects.messages[len(effects.messages) - len(questions) :]
        assert answers == [
            HeartbeatReq(id=question.id, floor=question.floor, scheduler=self.driver.loop.ledger())
            for question in questions
        ]
        if computes:
            assert 1 <= len(self.driver.model.plans[-1].token_ids) <= self.step_tokens
            # Who was decoding has one token more, or has met its end by logits that are not finite; or it
            # has been retracted.
            stood = 0
            for vid in self.live:
                if made.get(vid):
                    failed = self.driver.end(vid) == "error"
                    stood += self.made()[vid] != made[vid] + (not failed)
            assert stood <= self.driver.totals.retracted - retracted + self.stood
            self.stood = self.driver.ledger.waiting
            expected = self.foretell_ends()
        else:
            assert self.made() == {**dict.fromkeys(expected, 0), **made}
        assert {vid: self.driver.heard.ends[vid] for vid in effects.over} == expected
        assert len(effects.over) == len(expected)
        assert set(self.driver.heard.ends) == over | set(expected)
        self.over.update(effects.over)
        for vid in effects.over:
            self.live.pop(vid, None)
            self.not_over.discard(vid)
        assert effects.busy == bool(self.live)
        self.check_ledger()

    def made(self) -> dict[int, int]:
        return {vid: len(tokens) for vid, tokens in self.driver.heard.tokens.items()}

    def foretell_commands(self) -> tuple[dict[int, FinishReason], list[HeartbeatReq]]:
        """Apply the pending commands to the naive model; return who ends by them, and what is asked."""
        ends: dict[int, FinishReason] = {}
        questions = []
        for command in self.pending:
            if isinstance(command, TokenizedGenerateReqInput | AbortReq | HeartbeatReq):
                self.tombstones = {vid for vid in self.tombstones if vid >= command.floor}
            match command:
                case TokenizedGenerateReqInput(vid=vid):
                    new = command.sampling_params.max_new_tokens
                    assert new is not None
                    total, most = len(command.token_ids) + new, self.driver.loop.max_total_tokens
                    if vid in self.tombstones:
                        self.tombstones.remove(vid)
                        ends[vid] = ABORT
                    elif new == 0:
                        ends[vid] = FinishReason("length", length=0)
                    elif total > most:
                        message = f"prompt and max_new_tokens are {total} tokens; at most {most} fit"
                        ends[vid] = FinishReason("error", message=message, status_code=400)
                    else:
                        self.live[vid] = command
                case AbortReq(vid=vid):
                    if self.live.pop(vid, None) is not None:
                        ends[vid] = ABORT
                    elif vid not in self.over and vid not in ends:
                        self.tombstones.add(vid)
                case HeartbeatReq():
                    questions.append(command)
        return ends, questions

    def foretell_ends(self) -> dict[int, FinishReason]:
        """Compare what lives with what the model's function says; return whose answer is complete."""
        ends = {}
        for vid, command in self.live.items():
            made = self.driver.heard.tokens.get(vid, [])
            tokens, reason = foretell(command.token_ids, command.sampling_params, moody)
            assert made == tokens[: len(made)]
            if vid in self.driver.heard.ends:
                assert made == tokens
                ends[vid] = reason
        return ends

    def check_ledger(self) -> None:
        ledger = self.driver.ledger
        assert ledger.live == len(self.live)
        assert ledger.tombstones == len(self.tombstones)
        running = ledger.live - ledger.waiting
        assert running <= self.max_running
        known = sorted(
            (len(command.token_ids) + self.made().get(vid, 0) for vid, command in self.live.items()),
            reverse=True,
        )
        assert ledger.blocks_used <= sum(-(-tokens // 16) for tokens in known[:running])
        assert ledger.blocks_used + ledger.blocks_cached <= self.num_blocks
        self.driver.assert_blocks_are_conserved()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.pending += [request(vid) for vid in self.ahead]
        for _ in range(3000):
            self.take_step(launch=True)
            if not self.live:
                break
        assert self.driver.ledger.live == self.driver.ledger.blocks_used == 0
        self.driver.assert_nothing_is_held(floor=self.issued + 1)


LoopMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLoop = LoopMachine.TestCase
