"""Spans of requests: one for each, ended once whatever ends it, with the stages that it went through."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections.abc import Mapping
from typing import Literal, NamedTuple

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import StatusCode, Tracer
from tests.engine.front.conftest import ABORTED, STOP, Front, ask

import vidette
from vidette import EngineBroken, GenerateReqInput, RequestError, SamplingParams, UsageError, sync
from vidette._tracing import MOST_TOLD, Tracing
from vidette_protocol.messages import (
    BatchTokenizedGenerateReqInput,
    FinishReason,
    Served,
    StrRow,
    TokenizedGenerateReqInput,
)

SECRET = "a prompt nobody else reads"


class Counting(SimpleSpanProcessor):
    """Exports, and counts what is begun."""

    begun = 0
    told: Mapping[str, object] = {}
    """With what the first was begun."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        super().on_start(span, parent_context)
        self.begun += 1
        self.told = self.told or dict(span.attributes or {})


class Spans(NamedTuple):
    tracer: Tracer
    exporter: InMemorySpanExporter
    counting: Counting

    @property
    def all(self) -> list[ReadableSpan]:
        """What has ended; checks that all has that was begun, and that nothing ended twice."""
        spans = list(self.exporter.get_finished_spans())
        ids = {span.context.span_id for span in spans if span.context is not None}
        assert len(spans) == len(ids) == self.counting.begun
        return spans

    @property
    def requests(self) -> list[ReadableSpan]:
        return [span for span in self.all if span.name.startswith(("text_completion ", "chat "))]

    @property
    def request(self) -> ReadableSpan:
        (span,) = self.requests
        return span

    def stages(self) -> dict[str, tuple[float, float]]:
        """Return when each stage of the one request began and ended, in seconds since it did."""
        root = self.request
        assert root.context is not None
        below = [span for span in self.all if span.parent and span.parent.span_id == root.context.span_id]
        return {span.name: (after(root, span.start_time), after(root, span.end_time)) for span in below}


def after(root: ReadableSpan, when: int | None) -> float:
    assert when is not None
    assert root.start_time is not None
    return round((when - root.start_time) / 1e9, 3)


def spans_of(sampler: Sampler = ALWAYS_ON) -> Spans:
    exporter = InMemorySpanExporter()
    counting = Counting(exporter)
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(counting)
    return Spans(provider.get_tracer("test"), exporter, counting)


@pytest.fixture
def spans() -> Spans:
    return spans_of()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def status(span: ReadableSpan) -> tuple[StatusCode, object]:
    assert span.attributes is not None
    return span.status.status_code, span.attributes.get("error.type")


def sent(front: Front) -> list[TokenizedGenerateReqInput]:
    """Return the requests that were sent."""
    found: list[TokenizedGenerateReqInput] = []
    for message in front.sent():
        if isinstance(message, TokenizedGenerateReqInput):
            found.append(message)
        elif isinstance(message, BatchTokenizedGenerateReqInput):
            found += message.reqs
    return found


# --- what is in a span ---------------------------------------------------------------------------------


async def test_stages_are_at_the_times_that_the_processes_tell(spans: Spans) -> None:
    async with Front.serving() as front:
        clock = Clock()
        tracing = Tracing(front.manager, spans.tracer, clock)
        async with tracing.generate(ask(SECRET, temperature=0.5, top_k=3)) as stream:
            assert sent(front)[0].timed
            clock.now = 104.0
            front.say(
                StrRow(
                    stream.vid, 0, (1,), None, "a", served=Served(2, queue_s=1.0, begun_at=102, made_at=103)
                )
            )
            await front.heard()
            clock.now = 106.0
            front.say(StrRow(stream.vid, 1, (2, 3), None, "b"))
            await front.heard()
            clock.now = 109.0
            served = Served(2, 0, 1, 1.0, begun_at=102, made_at=108)
            front.say(StrRow(stream.vid, 3, (4,), STOP, "c", served=served))
            await stream.read()
            clock.now = 110.0
    assert spans.stages() == {
        "tokenise": (0, 0),
        "queue": (1, 2),
        "prefill": (2, 3),
        "decode": (3, 8),
        "detokenise": (8, 9),
    }
    span = spans.request
    assert after(span, span.end_time) == 10
    assert [(event.name, after(span, event.timestamp)) for event in span.events] == [("first token", 4)]
    assert status(span) == (StatusCode.UNSET, None)
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vidette",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.model": "fake",
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": False,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.id": stream.rid,
        "gen_ai.server.time_to_first_token": 4.0,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.input_tokens": len(SECRET),
        "gen_ai.usage.output_tokens": 4,
        "vidette.retractions": 1,
    }


async def test_what_a_request_is_to_its_trace_is_said_by_its_caller(spans: Spans) -> None:
    group = GenerateReqInput(text="x", sampling_params=SamplingParams(n=2, max_new_tokens=2))
    async with vidette.open_engine("toy", tracer=spans.tracer) as engine:
        async with engine.generate("x", sampling_params={"max_new_tokens": 2}, operation="chat") as stream:
            await stream.read()
        async with engine.generate_group(group, operation="chat") as answers:
            await answers.read()
        async with engine.generate_group(group) as answers:
            await answers.read()
        for generate in (engine.generate, engine.generate_group):
            with pytest.raises(
                UsageError, match="operation is 'talk'; it must be one of text_completion, chat"
            ):
                generate(group, operation="talk")  # type: ignore[arg-type]
    assert [span.name for span in spans.requests] == ["chat toy", "chat toy", "text_completion toy"]
    names = [dict(span.attributes or {})["gen_ai.operation.name"] for span in spans.requests]
    assert names == ["chat", "chat", "text_completion"]


async def test_a_sampler_is_told_what_it_may_ask_for(spans: Spans) -> None:
    """What the conventions want to be known when a span is begun."""
    async with Front.serving() as front:
        async with Tracing(front.manager, spans.tracer, operation="chat").generate(ask()):
            pass
    assert spans.counting.told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vidette",
        "gen_ai.request.model": "fake",
    }


async def test_a_group_has_one_span_and_stages_for_each_answer(spans: Spans) -> None:
    params = SamplingParams(n=2, max_new_tokens=5)
    async with Front.serving() as front:
        clock = Clock()
        tracing = Tracing(front.manager, spans.tracer, clock)
        async with tracing.generate_group(GenerateReqInput(text="ab", sampling_params=params)) as group:
            assert [request.timed for request in sent(front)] == [True, True]
            clock.now = 103.0
            for stream in group.streams:
                served = Served(begun_at=101, made_at=102)
                front.say(StrRow(stream.vid, 0, (1,), STOP, "a", served=served))
            await group.read()
    span = spans.request
    assert span.attributes is not None
    assert span.attributes["gen_ai.request.choice.count"] == 2
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert span.attributes["gen_ai.usage.output_tokens"] == 2
    indexes = [dict(stage.attributes or {}) for stage in spans.all if stage.name == "prefill"]
    assert indexes == [{"vidette.answer.index": 0}, {"vidette.answer.index": 1}]
    assert [dict(event.attributes or {}) for event in span.events] == indexes


async def test_of_many_answers_the_first_are_told(spans: Spans) -> None:
    """All of them would be thousands of spans, made without a pause."""
    params = SamplingParams(n=MOST_TOLD + 5, max_new_tokens=5)
    async with Front.serving() as front:
        tracing = Tracing(front.manager, spans.tracer)
        async with tracing.generate_group(GenerateReqInput(text="ab", sampling_params=params)) as group:
            now = time.monotonic()
            for stream in group.streams:
                front.say(StrRow(stream.vid, 0, (1,), STOP, "a", served=Served(begun_at=now, made_at=now)))
            await group.read()
    stages = [stage for stage in spans.all if stage.name == "prefill"]
    assert len(stages) == len(spans.request.events) == MOST_TOLD
    assert dict(spans.request.attributes or {})["gen_ai.usage.output_tokens"] == MOST_TOLD + 5


async def test_one_that_goes_on_elsewhere_has_the_stages_of_the_last_process(spans: Spans) -> None:
    async with Front.serving() as front:
        clock = Clock()
        tracing = Tracing(front.manager, spans.tracer, clock)
        async with tracing.generate(ask()) as stream:
            clock.now = 103.0
            served = Served(begun_at=101, made_at=102)
            front.say(StrRow(stream.vid, 0, (104,), None, "h", served=served))
            await front.heard()
            clock.now = 105.0
            front.manager.lose(lambda: EngineBroken("it died"))
            front.attach()
            front.say(StrRow(stream.vid, 0, (104,), None, "h"))
            clock.now = 109.0
            front.say(
                StrRow(stream.vid, 1, (105,), None, "i", served=Served(queue_s=1, begun_at=107, made_at=108))
            )
            await front.heard()
            served = Served(queue_s=1, begun_at=107, made_at=109)
            front.say(StrRow(stream.vid, 2, (0,), STOP, "", served=served))
            await stream.read()
    stages = spans.stages()
    assert (stages["queue"], stages["prefill"], stages["decode"]) == ((6, 7), (7, 8), (8, 9))
    assert [(event.name, after(spans.request, event.timestamp)) for event in spans.request.events] == [
        ("first token", 3),
        ("resumed", 5),
    ]
    assert dict(spans.request.events[1].attributes or {}) == {
        "vidette.resumed": 1,
        "gen_ai.usage.output_tokens": 1,
    }
    assert spans.request.attributes is not None
    assert spans.request.attributes["vidette.resumed"] == 1
    assert spans.request.attributes["gen_ai.usage.output_tokens"] == 3


async def test_one_that_ends_before_another_process_has_begun_it_has_no_stages(spans: Spans) -> None:
    """Those of the process that died would seem to last until the end."""
    async with Front.serving() as front:
        clock = Clock()
        async with Tracing(front.manager, spans.tracer, clock).generate(ask()) as stream:
            clock.now = 103.0
            served = Served(begun_at=101, made_at=102)
            front.say(StrRow(stream.vid, 0, (104,), None, "h", served=served))
            await front.heard()
            clock.now = 105.0
            front.manager.lose(lambda: EngineBroken("it died"))
            clock.now = 109.0
    assert spans.stages() == {"tokenise": (0, 0)}
    assert [event.name for event in spans.request.events] == ["first token", "resumed"]


async def test_times_that_cannot_be_are_no_stage(spans: Spans) -> None:
    async with Front.serving() as front:
        tracing = Tracing(front.manager, spans.tracer, Clock())
        for begun, made in ((float("nan"), 1.0), (float("inf"), 2.0), (1.0, 1e300), (-1.0, -2.0)):
            async with tracing.generate(ask()) as stream:
                served = Served(queue_s=float("-inf"), begun_at=begun, made_at=made)
                front.say(StrRow(stream.vid, 0, (1,), STOP, "a", served=served))
                await stream.read()
    assert len(spans.requests) == 4
    assert {span.name for span in spans.all} == {"text_completion fake", "tokenise"}


async def test_what_is_not_sampled_is_not_timed_either() -> None:
    spans = spans_of(ALWAYS_OFF)
    async with Front.serving() as front:
        async with Tracing(front.manager, spans.tracer).generate(ask()) as stream:
            assert not sent(front)[0].timed
            front.say(StrRow(stream.vid, 0, (1,), STOP, "a"))
            await stream.read()
    assert spans.all == []


async def test_a_probe_is_not_traced(spans: Spans) -> None:
    async with vidette.open_engine("toy", tracer=spans.tracer) as engine:
        await engine.probe()
    assert spans.all == []


async def test_metrics_go_on(spans: Spans) -> None:
    async with Front.serving() as front:
        front.manager.observer.start()
        async with Tracing(front.manager, spans.tracer).generate(ask()) as stream:
            front.say(StrRow(stream.vid, 0, (1,), STOP, "a"))
            await stream.read()
        assert front.manager.observer.ended["stop"] == 1
    assert len(spans.requests) == 1


# --- how a span ends -----------------------------------------------------------------------------------


async def test_a_caller_who_leaves_is_no_error(spans: Spans) -> None:
    async with Front.serving() as front:
        async with Tracing(front.manager, spans.tracer).generate(ask()):
            pass
    assert status(spans.request) == (StatusCode.UNSET, None)
    assert spans.request.attributes is not None
    assert spans.request.attributes["gen_ai.response.finish_reasons"] == ("abort",)


async def test_one_that_is_cancelled_while_it_waits_or_is_tokenised(spans: Spans) -> None:
    async with Front.serving() as front:
        tracing = Tracing(front.manager, spans.tracer)
        with anyio.move_on_after(0):
            async with tracing.generate(ask()):
                pass
        with anyio.CancelScope() as scope:
            async with tracing.generate(ask()) as stream:
                scope.cancel()
                await stream.read()
    assert [status(span) for span in spans.requests] == [(StatusCode.ERROR, "cancelled")] * 2


async def test_what_is_refused_says_why_and_not_what_was_asked(spans: Spans) -> None:
    async with Front.serving(max_requests=1) as front:
        tracing = Tracing(front.manager, spans.tracer)
        with pytest.raises(UsageError):
            async with tracing.generate(ask(SECRET, stop=[SECRET] * 1000)):
                pass
        async with tracing.generate(ask()):
            with pytest.raises(vidette.Overloaded):
                async with tracing.generate(ask()):
                    pass
    refused, overloaded, _ = spans.requests
    assert status(refused) == (StatusCode.ERROR, "UsageError")
    assert status(overloaded) == (StatusCode.ERROR, "Overloaded")
    assert overloaded.status.description
    assert SECRET not in refused.to_json()


async def test_errors_of_the_engine_and_of_the_caller(spans: Spans) -> None:
    async with Front.serving() as front:
        tracing = Tracing(front.manager, spans.tracer)
        with pytest.raises(RequestError):
            async with tracing.generate(ask()) as stream:
                reason = FinishReason("error", message=SECRET, err_type="waiting_timeout")
                front.say(StrRow(stream.vid, 0, (), reason, ""))
                await stream.read()
        with pytest.raises(ZeroDivisionError):
            async with tracing.generate(ask()):
                raise ZeroDivisionError(SECRET)
        with pytest.raises(ZeroDivisionError):
            async with tracing.generate(ask()) as stream:
                front.say(StrRow(stream.vid, 0, (0,), STOP, ""))
                await stream.read()
                raise ZeroDivisionError(SECRET)
        with pytest.raises(vidette.RequestAborted):
            async with tracing.generate(ask()) as stream:
                front.manager.aborts.all("all of them")
                await stream.read()
        with pytest.raises(EngineBroken):
            async with tracing.generate(ask()) as stream:
                front.manager.end(lambda: EngineBroken("the scheduler died"))
                await stream.read()
    failed, raised, complete, aborted, broken = spans.requests
    assert status(failed) == (StatusCode.ERROR, "RequestError")
    assert failed.attributes is not None
    assert failed.attributes["vidette.error.code"] == "waiting_timeout"
    assert status(raised) == (StatusCode.ERROR, "ZeroDivisionError")
    assert status(complete) == (StatusCode.UNSET, None), "the request itself had ended well"
    assert status(aborted) == (StatusCode.ERROR, "RequestAborted")
    assert status(broken) == (StatusCode.ERROR, "EngineBroken")
    assert broken.status.description == "the scheduler died"
    assert not any(SECRET in span.to_json() for span in spans.all)


async def test_a_refusal_leaves_nothing_to_the_collector(spans: Spans) -> None:
    """A front may have it frozen for hours, and refuse whatever comes meanwhile."""
    raised: list[weakref.ref[UsageError]] = []
    async with Front.serving() as front:
        gc.collect()
        gc.disable()
        try:
            try:
                async with Tracing(front.manager, spans.tracer).generate(ask("")):
                    pass
            except UsageError as error:
                raised.append(weakref.ref(error))
            assert raised[0]() is None
        finally:
            gc.enable()
    assert status(spans.request) == (StatusCode.ERROR, "UsageError")


End = Literal["stop", "error", "leave", "raise", "cancel", "abort", "refuse", "replace", "lose"]
ENDS: list[End] = ["stop", "error", "leave", "raise", "cancel", "abort", "refuse", "replace", "lose"]


@given(
    st.lists(st.sampled_from(ENDS), max_size=10),
    st.booleans(),
    st.sampled_from(["asyncio", "trio"]),
    st.randoms(),
)
@settings(max_examples=20)
def test_as_many_spans_end_as_begin(
    ends: list[End], breaks: bool, backend: str, chance: random.Random
) -> None:
    """Whatever ends requests that live at once, each has one span, which has ended when its block is left."""
    spans = spans_of()

    async def one(front: Front, tracing: Tracing, end: End, number: int) -> None:
        rid = f"r{number}"
        request = ask("", rid=rid) if end == "refuse" else ask(rid=rid)
        try:
            with anyio.CancelScope() as scope:
                async with tracing.generate(request) as stream:
                    for _ in range(chance.randrange(3)):
                        await anyio.lowlevel.checkpoint()
                    match end:
                        case "stop" | "error":
                            reason = STOP if end == "stop" else FinishReason("error", message="no")
                            front.say(StrRow(stream.vid, 0, (1,), reason, "a"))
                            await stream.read()
                        case "raise":
                            raise ZeroDivisionError
                        case "cancel":
                            scope.cancel()
                            await stream.read()
                        case "abort":
                            front.manager.aborts.one(rid, None)
                            await stream.read()
                        case "replace":
                            async with tracing.generate(ask(rid=rid), replace=True):
                                await stream.read()
                        case "lose":
                            front.manager.lose(lambda: EngineBroken("it died"))
                            front.attach()
        except (vidette.Error, ZeroDivisionError):
            pass

    async def all_at_once() -> None:
        async with Front.serving() as front:
            tracing = Tracing(front.manager, spans.tracer)
            async with anyio.create_task_group() as tasks:
                for number, end in enumerate(ends):
                    tasks.start_soon(one, front, tracing, end, number)
                if breaks:
                    front.manager.end(lambda: EngineBroken("it broke"))
                for _ in range(30):  # those that are read still are ended by the cancellation
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()

    anyio.run(all_at_once, backend=backend)
    assert len(spans.requests) >= len(ends)


# --- the library ---------------------------------------------------------------------------------------


async def test_the_span_around_is_the_parent(spans: Spans) -> None:
    async with vidette.open_engine("toy", tracer=spans.tracer) as engine:
        assert engine.tracer is spans.tracer
        with spans.tracer.start_as_current_span("mine") as mine:
            async with engine.generate(SECRET, sampling_params={"max_new_tokens": 4}) as stream:
                await stream.read()
    request = spans.request
    assert request.parent == mine.get_span_context()
    stages = spans.stages()
    assert list(stages) == ["tokenise", "queue", "prefill", "decode", "detokenise"]
    times = [time for stage in stages.values() for time in stage]
    assert times == sorted(times), "one after the other"
    assert times[0] >= 0
    assert times[-1] <= after(request, request.end_time)
    assert not any(SECRET in span.to_json() for span in spans.all)


def test_so_it_is_for_a_program_without_an_event_loop(spans: Spans) -> None:
    with sync.open_engine("toy", tracer=spans.tracer) as engine:
        with spans.tracer.start_as_current_span("mine") as mine:
            with engine.generate("x", sampling_params={"max_new_tokens": 2}) as stream:
                stream.read()
    assert spans.request.parent == mine.get_span_context()


async def test_what_is_no_tracer_is_refused() -> None:
    with pytest.raises(UsageError, match="must be a tracer of OpenTelemetry"):
        async with vidette.open_engine("toy", tracer=TracerProvider(shutdown_on_exit=False)):  # type: ignore[arg-type]
            pass


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, spans: Spans) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.trace", None)
    with pytest.raises(UsageError, match=r"pip install vidette\[otel\]"):
        async with vidette.open_engine("toy", tracer=spans.tracer):
            pass


def test_the_end_of_an_abort_comes_round(spans: Spans) -> None:
    """An acknowledgement that comes after the block was left changes nothing."""

    async def main() -> None:
        async with Front.serving() as front:
            async with Tracing(front.manager, spans.tracer).generate(ask()) as stream:
                pass
            front.say(StrRow(stream.vid, 0, (), ABORTED, ""))
            await front.heard()

    anyio.run(main)
    assert len(spans.requests) == 1
