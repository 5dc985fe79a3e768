"""`Tracing`: an OpenTelemetry span for each request, and one below it for each stage that it went through.

What is in a span is what the front sees of a request, and the times that scheduler and detokenizer tell of
one that asks for them: all processes of a machine have the same monotonic clock. Nothing is in it of a prompt
or an output. Whether a request is traced is decided once, by the tracer's sampler; one that is not costs what
it takes to ask that, and one that is costs the front a call for each delta, and the other processes nothing.

A span ends exactly once, in the `finally` of the request's block, whatever ends that.

Needs `opentelemetry-api`: `pip install vidette[otel]`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

import anyio
from opentelemetry.trace import Span, StatusCode, Tracer, set_span_in_context

from vidette._arguments import OperationName
from vidette.errors import (
    EngineBroken,
    EngineClosed,
    Error,
    Overloaded,
    RequestAborted,
    RequestError,
    UsageError,
)
from vidette.front.manager import TokenizerManager
from vidette.front.observer import EndedBy
from vidette.front.stream import Group, Stream
from vidette_protocol.messages import GenerateReqInput, SamplingParams, Served, SpeculativeMetrics

T = TypeVar("T")

SPOKEN: Final = (EngineBroken, EngineClosed, Overloaded, RequestAborted)
"""Errors whose sentences have nothing of what a request says."""
MOST_TOLD: Final = 32
"""Answers to one request whose stages and events are told, the first of them; of the others only what all
have together. A span takes some 30 µs, in which the loop does nothing else, and queues of spans are short."""
CANCELLED: Final = "cancelled"
"""The `error.type` of a request whose caller was cancelled: it went away, or its time was over."""


class Tracing:
    """Opens requests as a front does, each with a span whose parent is the span that is current then.

    Args:
        manager: the front.
        tracer: makes the spans.
        clock: seconds, by the machine's monotonic clock.
        operation: what the requests are.
    """

    def __init__(
        self,
        manager: TokenizerManager,
        tracer: Tracer,
        clock: Callable[[], float] = time.monotonic,
        *,
        operation: OperationName = "text_completion",
    ) -> None:
        self._operation: OperationName = operation
        self._tracer = tracer
        self._manager = manager
        self._clock = clock

    def generate(
        self, request: GenerateReqInput, *, replace: bool = False, deadline_s: float | None = None
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a request for one answer, as `TokenizerManager.generate` does."""

        def enter(timed: bool) -> AbstractAsyncContextManager[Stream]:
            return self._manager.generate(request, replace=replace, deadline_s=deadline_s, timed=timed)

        return self._traced(request, enter, lambda stream: (stream,))

    def generate_group(
        self, request: GenerateReqInput, *, deadline_s: float | None = None
    ) -> AbstractAsyncContextManager[Group]:
        """Open a request for several answers, as `TokenizerManager.generate_group` does; it has one span."""

        def enter(timed: bool) -> AbstractAsyncContextManager[Group]:
            return self._manager.generate_group(request, deadline_s=deadline_s, timed=timed)

        return self._traced(request, enter, lambda group: group.streams)

    @asynccontextmanager
    async def _traced(
        self,
        request: GenerateReqInput,
        enter: Callable[[bool], AbstractAsyncContextManager[T]],
        streams_of: Callable[[T], Sequence[Stream]],
    ) -> AsyncGenerator[T]:
        if not request.log_metrics:  # such as a probe
            async with enter(False) as opened:
                yield opened
            return
        trace = _Trace(self._tracer, self._operation, self._manager.info.name, self._clock)
        error: BaseException | None = None
        try:
            async with enter(trace.on) as opened:
                if trace.on:
                    trace.follow(request, streams_of(opened))
                yield opened
        except BaseException as raised:
            error = raised
            raise
        finally:
            trace.end(error)
            error = None  # it holds this frame, and all that the request held would wait for the collector


class Stage(NamedTuple):
    """A part of a request's life, by the monotonic clock."""

    name: str
    start: float
    end: float


class _Answer:
    """Watches one answer.

    Args:
        trace: of its request.
        stream: of it.
        which: tells it from the other answers to the request, if there are any.
        told: whether its stages and events are.
    """

    __slots__ = (
        "_moved",
        "_stream",
        "_told",
        "_trace",
        "ended",
        "first",
        "how",
        "made_at",
        "served",
        "tokens",
        "which",
    )

    def __init__(self, trace: _Trace, stream: Stream, which: Mapping[str, int], *, told: bool) -> None:
        self._trace = trace
        self._stream = stream
        self._told = told
        self.which = which
        self.first = self.made_at = self.ended = self._moved = 0.0
        """When its first text was here, when its first token was made, when it ended, when the last process
        died over it; 0: not yet."""
        self.tokens = 0
        self.how: EndedBy | None = None
        self.served = Served()

    def take(self, tokens: int, prompt_tokens: int) -> None:
        """Note that tokens have come."""
        del prompt_tokens
        self.tokens += tokens
        if not self.first:
            self.first = self._note("first token")
        if not self.made_at:
            self.made_at = self._stream.served.made_at

    def finish(
        self, how: EndedBy, prompt_tokens: int, served: Served, spec: SpeculativeMetrics | None
    ) -> None:
        """Note that it is over; of several ends the first counts."""
        del prompt_tokens, spec
        if self.how is None:
            self.how, self.served = how, served
            self.ended = self._trace.now()

    def move(self) -> None:
        """Note that a process has died over it, and how far it was: the stages are those of the last."""
        so_far = {"vidette.resumed": self.resumed, "gen_ai.usage.output_tokens": self.tokens}
        self._moved = self._note("resumed", so_far)
        self.made_at = 0.0

    def _note(self, event: str, said: Mapping[str, int] = MappingProxyType({})) -> float:
        if not self._told:
            return self._trace.now()
        return self._trace.note(event, {**self.which, **said})

    @property
    def done(self) -> bool:
        """Whether it came to its own end."""
        return self.how in ("stop", "length")

    def stages(self) -> Iterator[Stage]:
        """Yield the stages that it went through, as far as they are known."""
        served, last = self.served, self.served.made_at
        if not self._told or served.begun_at <= self._moved:  # what is known is of a process that died
            return
        yield Stage("queue", served.begun_at - served.queue_s, served.begun_at)
        first = self.made_at or last  # without a token if only its prompt was asked for
        if not first:
            return
        yield Stage("prefill", served.begun_at, first)
        if not self.done:
            yield Stage("decode", first, self.ended)
            return
        yield Stage("decode", first, last)
        yield Stage("detokenise", last, self.ended)

    @property
    def prompt_tokens(self) -> int:
        """Length of its prompt."""
        return self._stream.prompt_tokens

    @property
    def resumed(self) -> int:
        """How often it went on in another process."""
        return self._stream.resumed


class _Trace:
    """The span of one request.

    Args:
        tracer: makes it, and those of its stages.
        operation: what the request is.
        model: name of the model.
        clock: seconds, by the machine's monotonic clock.

    Attributes:
        on: whether it is recorded.
    """

    def __init__(
        self, tracer: Tracer, operation: OperationName, model: str, clock: Callable[[], float]
    ) -> None:
        self.now = clock
        self._tracer = tracer
        self._began = clock()
        self._epoch_ns = time.time_ns() - int(self._began * 1e9)
        self._span: Span = tracer.start_span(
            f"{operation} {model}",
            attributes={  # what a sampler may ask for
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "vidette",
                "gen_ai.request.model": model,
            },
            start_time=self._ns(self._began),
        )
        self.on = self._span.is_recording()
        self._opened = 0.0
        self._answers: list[_Answer] = []

    def follow(self, request: GenerateReqInput, streams: Sequence[Stream]) -> None:
        """Watch the answers of a request that was sent just now."""
        self._opened = self.now()
        self._span.set_attributes(_asked(request))
        self._span.set_attribute("gen_ai.response.id", streams[0].rid)
        for index, stream in enumerate(streams):
            which = {"vidette.answer.index": index} if len(streams) > 1 else {}
            answer = _Answer(self, stream, which, told=index < MOST_TOLD)
            self._answers.append(answer)
            stream.watch(answer)

    def note(self, event: str, said: Mapping[str, int]) -> float:
        """Note that something happens, and what there is to say of it; return when."""
        now = self.now()
        self._span.add_event(event, said, timestamp=self._ns(now))
        return now

    def end(self, error: BaseException | None) -> None:
        """End the span, and with it its stages; synchronous, and once.

        Args:
            error: what ended the request's block; None: nothing that was raised.
        """
        if not self.on:
            self._span.end()
            return
        now = self.now()
        if self._opened:
            self._end_stage(Stage("tokenise", self._began, self._opened), now, {})
            self._tell_answers()
            for answer in self._answers:
                for stage in answer.stages():
                    self._end_stage(stage, now, answer.which)
        self._tell_error(error)
        self._span.end(self._ns(now))

    def _tell_answers(self) -> None:
        answers = self._answers
        span = self._span
        span.set_attribute("gen_ai.usage.input_tokens", sum(answer.prompt_tokens for answer in answers))
        span.set_attribute("gen_ai.usage.output_tokens", sum(answer.tokens for answer in answers))
        span.set_attribute(
            "gen_ai.usage.cache_read.input_tokens", sum(answer.served.cached_tokens for answer in answers)
        )
        span.set_attribute("gen_ai.response.finish_reasons", [answer.how or "error" for answer in answers])
        if firsts := [answer.first for answer in answers if answer.first]:
            span.set_attribute("gen_ai.server.time_to_first_token", min(firsts) - self._began)
        if retractions := sum(answer.served.retractions for answer in answers):
            span.set_attribute("vidette.retractions", retractions)
        if resumed := sum(answer.resumed for answer in answers):
            span.set_attribute("vidette.resumed", resumed)

    def _tell_error(self, error: BaseException | None) -> None:
        """Say what went wrong, unless all answers came to their ends before it."""
        if self._answers and all(answer.done for answer in self._answers):
            return
        why = None
        if error is None:
            if not any(answer.how == "error" for answer in self._answers):
                return  # its caller left it, and not because something was wrong
            kind = "RequestError"
        elif isinstance(error, anyio.get_cancelled_exc_class()):
            kind, why = CANCELLED, "its caller was cancelled"
        else:
            kind = type(error).__qualname__
            why = str(error) if isinstance(error, SPOKEN) else None
        if isinstance(error, Error) and (code := _code_of(error)) is not None:
            self._span.set_attribute("vidette.error.code", code)
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR, why)

    def _end_stage(self, stage: Stage, now: float, said: Mapping[str, int]) -> None:
        """Make the span of a stage that is over; none of times that cannot be."""
        name, start, end = stage
        if not self._began <= start <= end <= now:
            return
        span = self._tracer.start_span(
            name,
            context=set_span_in_context(self._span),
            start_time=self._ns(start),
            attributes=said,
        )
        span.end(self._ns(end))

    def _ns(self, when: float) -> int:
        """Return a time in nanoseconds since 1970."""
        return self._epoch_ns + int(when * 1e9)


def _asked(request: GenerateReqInput) -> dict[str, str | int | float | bool]:
    """Return what a request asks for, in the words of the conventions; nothing that it says."""
    params = request.sampling_params
    asked: dict[str, str | int | float | bool] = {"gen_ai.request.stream": request.stream}
    if isinstance(params, SamplingParams):
        values = {
            "choice.count": params.n if params.n != 1 else None,
            "frequency_penalty": params.frequency_penalty or None,
            "max_tokens": params.max_new_tokens,
            "presence_penalty": params.presence_penalty or None,
            "seed": params.sampling_seed,
            "temperature": params.temperature,
            "top_k": params.top_k if params.top_k > 0 else None,
            "top_p": params.top_p,
        }
        asked |= {f"gen_ai.request.{name}": value for name, value in values.items() if value is not None}
    return asked


def _code_of(error: Error) -> str | None:
    """Return the reason of an error for programs, if it has one."""
    return error.code if isinstance(error, UsageError | RequestError) else None
