"""A model that computes while the host goes on: the same is said, a batch later, and nothing looks before."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine.scheduler.conftest import EOS, TABLE, VOCAB, Driver, FakeModel, mixed, request, spans

from vidette.models.interface import StepPlan, StepResult
from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette_fuzz.overlapping import Overlapping
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    ClearHiCacheReqInput,
    CloseSessionReqInput,
    ContinueGenerationReqInput,
    FlushCacheReqInput,
    FreezeGCReq,
    HeartbeatReq,
    OpenSessionReqInput,
    PauseGenerationReqInput,
    SchedulerLedger,
    SessionParams,
    ShutdownReq,
)


def overlapping(**options: Any) -> Driver:
    return Driver(overlaps=True, **options)


# --- where a step is cut ---------------------------------------------------------------------------


def test_what_a_step_launches_is_told_by_the_next_one() -> None:
    driver = overlapping()
    effects = driver.step(request(1, max_new_tokens=2))
    assert (effects.messages, effects.busy, effects.in_flight) == ([], True, True)
    assert driver.ledger.steps == 1
    effects = driver.step()
    assert (len(driver.heard.tokens[1]), effects.busy, effects.in_flight) == (1, True, True)
    assert driver.ledger.steps == 2
    effects = driver.step()
    assert (len(driver.heard.tokens[1]), effects.over) == (2, [1])
    assert not effects.busy
    assert not effects.in_flight
    assert driver.ledger.steps == 2
    driver.assert_nothing_is_held()


def test_nothing_is_looked_at_before_it_is_computed() -> None:
    driver = overlapping()
    driver.step(request(1))
    with pytest.raises(RuntimeError, match="its result is looked at while a batch is in flight"):
        driver.loop.step((), 0.0)


def test_an_abort_is_answered_when_the_batch_in_flight_has_landed_and_before_the_next_is_launched() -> None:
    driver = overlapping()
    driver.step(request(1, max_new_tokens=9), request(2, max_new_tokens=9))
    effects = driver.step(AbortReq(vid=1))
    assert effects.over == [1]
    assert {vid: len(made) for vid, made in driver.heard.tokens.items()} == {1: 1, 2: 1}
    assert effects.busy
    assert not effects.in_flight
    assert driver.ledger.steps == 1
    assert driver.ledger.blocks_used == 1
    driver.run()
    assert driver.end(2) == "length"


def test_what_was_made_does_not_keep_the_next_batch_back() -> None:
    driver = overlapping()
    driver.step(request(1, max_new_tokens=9))
    for step in range(2, 6):
        assert driver.step().in_flight
        assert driver.ledger.steps == step


def test_without_leave_to_launch_what_is_in_flight_lands() -> None:
    driver = overlapping()
    driver.step(request(1, max_new_tokens=9))
    effects = driver.step(launch=False)
    assert len(driver.heard.tokens[1]) == 1
    assert effects.busy
    assert not effects.in_flight
    assert not driver.step(launch=False).messages
    driver.run()
    assert driver.end(1) == "length"


def test_a_pause_comes_behind_the_batch_in_flight() -> None:
    driver = overlapping()
    driver.step(request(1, max_new_tokens=3))
    effects = driver.step(PauseGenerationReqInput(id=1, mode="retract"))
    assert len(driver.heard.tokens[1]) == 1
    assert (effects.busy, effects.in_flight, driver.ledger.blocks_used) == (False, False, 0)
    driver.run(ContinueGenerationReqInput(id=2))
    assert driver.end(1) == "length"


def test_a_flush_is_done_when_nothing_lives_and_before_what_comes_then() -> None:
    driver = overlapping()
    driver.step(request(1, max_new_tokens=2))
    assert driver.step(FlushCacheReqInput(id=3, timeout_s=60.0)).answers == ()
    effects = driver.step(request(2))
    assert [answer.id for answer in effects.answers] == [3]
    assert (driver.end(1), effects.in_flight) == ("length", True)


def test_a_deadline_ends_a_request_behind_all_that_it_made() -> None:
    driver = overlapping()
    driver.step(request(1, max_new_tokens=9, deadline_s=5.0))
    driver.step()
    driver.now = 100.0
    driver.step()
    assert len(driver.heard.tokens[1]) == 2
    assert driver.end(1) is not None
    driver.assert_nothing_is_held()


def test_a_shutdown_lands_what_is_in_flight_and_is_the_last() -> None:
    driver = overlapping()
    driver.step(request(1, max_new_tokens=9))
    effects = driver.step(ShutdownReq(), FreezeGCReq(id=3))
    assert len(driver.heard.tokens[1]) == 1
    assert driver.end(1) == "abort"
    assert effects.stop
    assert isinstance(effects.messages[-1], ShutdownReq)
    assert (effects.busy, effects.in_flight, effects.freeze_gc) == (False, False, ())
    assert driver.ledger.live == driver.ledger.blocks_used == 0


def test_a_model_that_fails_later_is_no_business_of_the_loop() -> None:
    class Failing(FakeModel):
        def forward(self, plan: Any) -> StepResult:  # noqa: ARG002
            raise MemoryError("the device is gone")

    driver = overlapping(model=Failing())
    driver.step(request(1))
    with pytest.raises(MemoryError, match="the device is gone"):
        driver.step()


def test_a_launch_that_fails_takes_nothing_with_it_that_has_landed() -> None:
    class Full(Overlapping):
        launched = 0

        def forward(self, plan: StepPlan) -> StepResult:
            self.launched += 1
            if self.launched == 2:
                raise MemoryError("the device is full")
            return super().forward(plan)

    driver = overlapping()
    driver.device = Full(FakeModel())
    sizes = LoopOptions(num_blocks=64, step_tokens=256, max_running=16)
    driver.loop = StepLoop(driver.device, sizes, table=TABLE)
    driver.step(request(1, max_new_tokens=1), request(2, max_new_tokens=9))
    effects = driver.step()
    assert driver.end(1) == "length"
    assert len(driver.heard.tokens[2]) == 1
    assert (effects.over, effects.in_flight) == ([1], True)
    for go_on in (driver.loop.wait, driver.step):
        with pytest.raises(MemoryError, match="the device is full"):
            go_on()


def test_what_is_asked_beside_the_last_batch_is_judged_when_it_has_landed() -> None:
    driver = overlapping()
    driver.step(request(1, max_new_tokens=2))
    assert driver.step(FlushCacheReqInput(id=2, timeout_s=0.0)).answers == ()
    (answer,) = driver.step().answers
    assert answer.success


def test_a_session_does_not_end_while_its_request_waits_for_a_batch() -> None:
    driver = overlapping()
    driver.step(OpenSessionReqInput(id=1, session_id="s", timeout=10.0))
    driver.now = 9.5
    driver.step(request(1, max_new_tokens=50))
    driver.now = 10.5  # the batch took so long; what comes now was sent before
    ours = request(2, max_new_tokens=2, session_params=SessionParams(id="s"))
    driver.step(msgspec.structs.replace(ours, rid="2"))
    for _ in range(4):
        driver.step()
    assert driver.end(2) == "length"


def test_a_request_whose_logits_are_not_finite_ends_alone() -> None:
    driver = overlapping(model=FakeModel(lambda context: -1 if context[0] == 9 else mixed(context)))
    driver.run(request(1, [9, 2]), request(2, [3, 2]))
    assert (driver.end(1), driver.end(2)) == ("error", "length")
    driver.assert_nothing_is_held()


def test_a_step_takes_from_its_launch_until_the_next_one() -> None:
    driver = overlapping()
    for now in (1.0, 3.0, 7.0):
        driver.now = now
        driver.step(*([request(1, max_new_tokens=9)] if now == 1.0 else []))
    assert driver.ledger.step_s == 4.0


# --- the same is said ------------------------------------------------------------------------------

PROMPTS = st.one_of(
    st.integers(1, 60).map(lambda length: [1 + place % 7 for place in range(length)]),
    st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=40),
)
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 5, "frequency_penalty": 1.5},
    {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2},
    {"stream_interval": 3, "stop": ["A", "BC"]},
    {"priority": 3},
    {"routing_key": "tenant"},
    {"deadline_s": 4.0},
    {"max_new_tokens": 0},
]


MODES: tuple[Literal["abort", "retract", "in_place"], ...] = ("abort", "retract", "in_place")


class Moment(NamedTuple):
    """A step that both loops take."""

    commands: tuple[Command, ...]
    launch: bool
    now: float


class Said:
    """All that a loop has said, each kind of it in its order."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        self.over: list[object] = []
        self.answers: list[object] = []
        self.events: list[object] = []
        self.questions: list[object] = []
        self.ledgers: list[SchedulerLedger | None] = []

    def hear(self, effects: Effects) -> None:
        for message in effects.messages:
            match message:
                case BatchTokenIDOutput():
                    self.rows += message.rows()
                case HeartbeatReq(scheduler=ledger):
                    self.ledgers.append(ledger)
                case _:
                    self.questions.append(message)
        self.over += effects.over
        self.answers += effects.answers
        self.events += effects.events
        self.questions += [*effects.freeze_gc, *effects.profile]


@st.composite
def histories(draw: st.DrawFn) -> list[Moment]:
    """Draw what comes to a loop, and when it may launch."""
    moments: list[Moment] = []
    now, vid, named = 0.0, 0, 0
    for _ in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0.0, 0.0, 2.0]))
        commands: list[Command] = []
        for what in draw(st.lists(st.sampled_from("rrrrrtahpcfsozz"), max_size=3)):
            named += 1
            match what:
                case "r" | "t":
                    vid += 1
                    options = {"max_new_tokens": draw(st.integers(1, 20)), **draw(st.sampled_from(KINDS))}
                    if what == "t":
                        behind = str(draw(st.integers(1, vid))) if draw(st.booleans()) else None
                        options["session_params"] = SessionParams(id="s", rid=behind)
                    resumed = [3, 4] if draw(st.integers(0, 9)) == 0 else None
                    made = request(vid, draw(PROMPTS), sampling_seed=vid, resumed=resumed, **options)
                    commands.append(msgspec.structs.replace(made, rid=str(vid)))
                case "a":
                    last = draw(st.integers(1, vid + 1))
                    commands.append(AbortReq(vid=last, abort_all=draw(st.integers(0, 4)) == 0))
                case "h":
                    commands.append(HeartbeatReq(id=named))
                case "p":
                    mode = draw(st.sampled_from(MODES))
                    commands.append(PauseGenerationReqInput(id=named, mode=mode))
                case "c":
                    commands.append(ContinueGenerationReqInput(id=named))
                case "f":
                    timeout = draw(st.sampled_from([0.0, 3.0, 100.0]))
                    commands.append(FlushCacheReqInput(id=named, timeout_s=timeout))
                case "s":
                    lasts = draw(st.sampled_from([None, 1.0, 3.0]))
                    commands.append(OpenSessionReqInput(id=named, session_id="s", timeout=lasts))
                case "o":
                    commands.append(CloseSessionReqInput(id=named, session_id="s"))
                case _:
                    commands.append(ClearHiCacheReqInput(id=named))
        moments.append(Moment(tuple(commands), draw(st.integers(0, 4)) > 0, now))
        for _ in range(draw(st.integers(0, 4))):
            now += draw(st.sampled_from([0.0, 0.1, 2.0]))
            moments.append(Moment((), draw(st.integers(0, 4)) > 0, now))
    return moments


def moody(context: Any) -> int:
    value = sum((place + 7) * token for place, token in enumerate(context)) % 61
    return EOS if value == 0 else -1 if value == 1 else mixed(context)


@settings(max_examples=40, deadline=None)
@given(
    history=histories(),
    rules=st.fixed_dictionaries(
        {
            "num_blocks": st.integers(5, 12),
            "step_tokens": st.integers(6, 40),
            "max_running": st.integers(1, 6),
            "host_blocks": st.sampled_from([0, 6]),
            "draft_tokens": st.sampled_from([0, 4]),
            "preempt_gap": st.sampled_from([None, 1]),
            "queue_timeout": st.sampled_from([None, 3.0]),
            "running_timeout": st.sampled_from([None, 3.0]),
            "kv_events": st.just(value=True),
        }
    ),
)
@example(
    history=[
        Moment(
            (
                request(1, [1, 2, 3], sampling_seed=1, max_new_tokens=1),
                FlushCacheReqInput(id=2, timeout_s=0.0),
            ),
            launch=True,
            now=0.0,
        )
    ],
    rules={"num_blocks": 12, "step_tokens": 40, "max_running": 6, "kv_events": True},
)
def test_what_is_said_does_not_depend_on_where_a_step_is_cut(
    history: list[Moment], rules: dict[str, Any]
) -> None:
    """Whatever comes, what a loop says of requests, blocks, sessions and itself is the same either way."""
    plain, cut = Driver(FakeModel(moody), **rules), overlapping(model=FakeModel(moody), **rules)
    heard = Said(), Said()
    end = Moment((ContinueGenerationReqInput(id=0),), launch=True, now=history[-1].now)
    busy = True
    for number, moment in enumerate([*history, end, *[Moment((), launch=True, now=end.now)] * 500]):
        if number > len(history) and not busy:
            break
        busy = False
        for driver, said in zip((plain, cut), heard, strict=True):
            driver.now = moment.now
            effects = driver.step(*moment.commands, launch=moment.launch)
            said.hear(effects)
            busy = busy or effects.busy
            driver.assert_blocks_are_conserved()
        assert cut.loop._machine.tombstones == plain.loop._machine.tombstones
    assert not busy
    for kind in ("rows", "over", "answers", "events", "questions", "ledgers"):
        assert getattr(heard[1], kind) == getattr(heard[0], kind), kind
    assert cut.loop.ledger() == plain.loop.ledger()
    assert [spans(plan) for plan in cut.model.plans] == [spans(plan) for plan in plain.model.plans]
