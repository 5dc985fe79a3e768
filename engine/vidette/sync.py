"""The engine for programs without an event loop: the same calls, blocking.

An event loop runs in a thread of its own for as long as the engine is open; every call is a visit to it. A
call that is interrupted, by Ctrl-C for one, is cancelled there as well.

```
with vidette.sync.open_engine() as engine:
    with engine.generate("Once upon a time") as stream:
        for delta in stream:
            print(delta.text, end="")
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self

from vidette import api
from vidette._activity import MOST_LISTED, Activity
from vidette._arguments import OperationName
from vidette._loop import Loop, open_portal
from vidette._operations import PauseMode
from vidette._statistics import Statistics
from vidette.config import EngineConfig
from vidette.detokenizer.incremental import IncrementalText
from vidette.errors import EngineBroken
from vidette.front.calls import GcReport
from vidette.front.kv_events import KVEventStream as AsyncKVEventStream
from vidette.front.logprobs import LogprobsAsked, TokenLogprob
from vidette.front.stream import Completion, Delta
from vidette.front.stream import Group as AsyncGroup
from vidette.front.stream import Stream as AsyncStream
from vidette.models import ModelInfo
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    ControlOutput,
    ControlReq,
    GenerateReqInput,
    KVEventBatch,
    SamplingParams,
    Served,
    SpeculativeMetrics,
)


class Stream:
    """The output of one request, as it comes; see `vidette.Stream`."""

    def __init__(self, stream: AsyncStream, loop: Loop) -> None:
        self._stream = stream
        self._loop = loop

    @property
    def rid(self) -> str:
        """The caller's name for the request."""
        return self._stream.rid

    @property
    def vid(self) -> Vid:
        """Its key from submit on; another one each time it goes on after the death of a process."""
        return self._stream.vid

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self._stream.prompt_tokens

    @property
    def resumed(self) -> int:
        """How often it went on after the death of a process."""
        return self._stream.resumed

    @property
    def served(self) -> Served:
        """How it was served: what was cached, how often it was retracted, how long it waited."""
        return self._stream.served

    @property
    def spec(self) -> SpeculativeMetrics | None:
        """How speculation went; None: there was none, or it has not ended."""
        return self._stream.spec

    @property
    def logprobs_asked(self) -> LogprobsAsked | None:
        """Which log probabilities it asked for; None: for none."""
        return self._stream.logprobs_asked

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of the output tokens taken so far, if the request asked for log probabilities."""
        return self._stream.logprobs

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Those of the prompt. See `vidette.Stream.prompt_logprobs`."""
        return self._stream.prompt_logprobs

    @property
    def text(self) -> str:
        """The text taken so far."""
        return self._stream.text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The output tokens taken so far."""
        return self._stream.token_ids

    @property
    def completion_tokens(self) -> int:
        """Length of the output taken so far in tokens."""
        return self._stream.completion_tokens

    @property
    def ready(self) -> bool:
        """Whether the next delta, or what ends the stream, can be taken without waiting."""
        return self._stream.ready

    @property
    def done(self) -> bool:
        """Whether the last delta, or the error in its place, was taken."""
        return self._stream.done

    def __iter__(self) -> Iterator[Delta]:
        """Yield what comes, until the end.

        Raises:
            RequestError, EngineBroken, EngineClosed, UsageError: as the asynchronous stream.
        """
        # StopAsyncIteration cannot leave the loop: it would arrive as a RuntimeError. So None says it.
        while (delta := self._loop.call(self._next)) is not None:
            yield delta

    def read(self) -> Completion:
        """Wait for the end, and return all of it, whatever was taken before."""
        return self._loop.call(self._stream.read)

    def completion(self) -> Completion:
        """Return all of the output, once the last delta was taken. See `vidette.Stream.completion`."""
        return self._stream.completion()

    async def _next(self) -> Delta | None:
        return await anext(self._stream, None)


class Group:
    """The answers to a request for several, each a stream of its own; see `vidette.Group`."""

    def __init__(self, group: AsyncGroup, loop: Loop) -> None:
        self._group = group
        self._loop = loop
        self.streams = tuple(Stream(stream, loop) for stream in group.streams)

    @property
    def n(self) -> int:
        """Answers to each prompt."""
        return self._group.n

    @property
    def single(self) -> bool:
        """Whether one answer was asked for, to one prompt that was no list."""
        return self._group.single

    def read(self) -> list[Completion]:
        """Wait for the end of all of them, and return them in their order. See `vidette.Group.read`."""
        return self._loop.call(self._group.read)

    def wait_ready(self) -> tuple[int, ...]:
        """Wait until some have something to take; return their places. None: all were read to their ends."""
        return self._loop.call(self._group.wait_ready)


class KVEventStream:
    """Changes of the prefix cache, as they come; see `vidette.KVEventStream`."""

    def __init__(self, stream: AsyncKVEventStream, loop: Loop) -> None:
        self._stream = stream
        self._loop = loop

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> KVEventBatch:
        """Wait for the next batch.

        Raises:
            EngineBroken, EngineClosed, UsageError: as the asynchronous stream.
        """
        return self._loop.call(self._stream.__anext__)


class Engine:
    """A running engine; made by `open_engine()`. Safe to use from several threads."""

    def __init__(self, engine: api.Engine, loop: Loop) -> None:
        self._engine = engine
        self._loop = loop

    @property
    def info(self) -> ModelInfo:
        """The model: name, vocabulary, context."""
        return self._engine.info

    @property
    def max_total_tokens(self) -> int:
        """Most tokens of prompt and output together that one request may have."""
        return self._engine.max_total_tokens

    @property
    def config(self) -> EngineConfig:
        """What the engine was made with."""
        return self._engine.config

    @property
    def draining(self) -> bool:
        """Whether `drain()` was called: nothing new is taken, and what lives may end."""
        return self._engine.draining

    @contextmanager
    def generate(
        self,
        prompt: str | Sequence[int] | GenerateReqInput,
        *,
        sampling_params: SamplingParams | Mapping[str, object] | None = None,
        rid: str | None = None,
        on_duplicate: Literal["refuse", "replace"] = "refuse",
        deadline_s: float | None = None,
        operation: OperationName = "text_completion",
    ) -> Iterator[Stream]:
        """Generate text; the request lives exactly as long as the block. See `vidette.Engine.generate`."""
        request = self._engine.generate(
            prompt,
            sampling_params=sampling_params,
            rid=rid,
            on_duplicate=on_duplicate,
            deadline_s=deadline_s,
            operation=operation,
        )
        with self._loop.inside(request) as stream:
            yield Stream(stream, self._loop)

    @contextmanager
    def generate_group(
        self,
        request: GenerateReqInput,
        *,
        deadline_s: float | None = None,
        operation: OperationName = "text_completion",
    ) -> Iterator[Group]:
        """Generate several answers, which live as long as the block. See `vidette.Engine.generate_group`."""
        asked = self._engine.generate_group(request, deadline_s=deadline_s, operation=operation)
        with self._loop.inside(asked) as group:
            yield Group(group, self._loop)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for. See `vidette.Engine.token_bytes`."""
        return self._engine.token_bytes(token_id)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text. See `vidette.Engine.tokenize`."""
        return self._loop.call(self._engine.tokenize, text)

    def detokenize(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text that tokens make. See `vidette.Engine.detokenize`."""
        return self._engine.detokenize(token_ids, skip_special_tokens=skip_special_tokens)

    def new_text(self, *, begins: bool = True, skip_special_tokens: bool = True) -> IncrementalText:
        """Return what makes text of tokens as they come. See `vidette.Engine.new_text`."""
        return self._engine.new_text(begins=begins, skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's template. See `vidette.Engine.render_chat`."""
        return self._loop.call(self._engine.render_chat, messages)

    def statistics(self) -> Statistics:
        """Return a picture of what is held and what was done."""
        return self._loop.call(self._statistics)

    async def _statistics(self) -> Statistics:
        return self._engine.statistics()

    def activity(self, most: int = MOST_LISTED) -> Activity:
        """Return what the engine is doing, request by request. See `vidette.Engine.activity`."""
        return self._loop.call(self._activity, most)

    async def _activity(self, most: int) -> Activity:
        return self._engine.activity(most)

    def metrics(self) -> str:
        """Return what Prometheus scrapes, in its text format. See `vidette.Engine.metrics`."""
        return self._loop.call(self._metrics)

    async def _metrics(self) -> str:
        return self._engine.metrics()

    @contextmanager
    def kv_events(self) -> Iterator[KVEventStream]:
        """Open a stream of what is stored in the prefix cache and removed. See `vidette.Engine.kv_events`."""
        with self._loop.inside(self._engine.kv_events()) as stream:
            yield KVEventStream(stream, self._loop)

    def heartbeat(self) -> Statistics:
        """Ask round the ring and return a picture as of now."""
        return self._loop.call(self._engine.heartbeat)

    def probe(self) -> None:
        """Have one token made, as for any request. See `vidette.Engine.probe`."""
        self._loop.call(self._engine.probe)

    def freeze_gc(self, duration_s: float | None = None) -> GcReport:
        """Collect garbage once and leave what lives out of collections. See `vidette.Engine.freeze_gc`."""
        return self._loop.call(self._engine.freeze_gc, duration_s)

    def unfreeze_gc(self) -> GcReport:
        """Let what was left out be collected again. See `vidette.Engine.unfreeze_gc`."""
        return self._loop.call(self._engine.unfreeze_gc)

    def abort(self, rid: str, why: str | None = None) -> int:
        """End the request of a rid, of whatever thread; return how many. See `vidette.Engine.abort`."""
        return self._loop.call(self._abort, rid, why)

    async def _abort(self, rid: str, why: str | None) -> int:
        return self._engine.abort(rid, why)

    def abort_all(self, why: str | None = None) -> int:
        """End all requests at once, of all threads; return how many. See `vidette.Engine.abort_all`."""
        return self._loop.call(self._abort_all, why)

    async def _abort_all(self, why: str | None) -> int:
        return self._engine.abort_all(why)

    def drain(self, seconds: float) -> int:
        """Take nothing new, and wait for what lives, but so long at most. See `vidette.Engine.drain`."""
        return self._loop.call(self._engine.drain, seconds)

    def control(self, request: ControlReq) -> ControlOutput:
        """Send a control message to the scheduler; return its answer. See `vidette.Engine.control`."""
        return self._loop.call(self._engine.control, request)

    def pause_generation(
        self, mode: PauseMode = "abort", *, deadline_s: float | None = None
    ) -> ControlOutput:
        """Have no step taken until generation goes on. See `vidette.Engine.pause_generation`."""
        return self._loop.call(partial(self._engine.pause_generation, mode, deadline_s=deadline_s))

    def continue_generation(
        self, *, empty_cache: bool = True, deadline_s: float | None = None
    ) -> ControlOutput:
        """Have steps taken again. See `vidette.Engine.continue_generation`."""
        return self._loop.call(
            partial(self._engine.continue_generation, empty_cache=empty_cache, deadline_s=deadline_s)
        )

    def open_session(
        self,
        session_id: str | None = None,
        *,
        streaming: bool = False,
        timeout: float | None = None,
        capacity_of_str_len: int = 0,
    ) -> str:
        """Open a session; return its id. See `vidette.Engine.open_session`."""
        return self._loop.call(
            partial(
                self._engine.open_session,
                session_id,
                streaming=streaming,
                timeout=timeout,
                capacity_of_str_len=capacity_of_str_len,
            )
        )

    def close_session(self, session_id: str) -> None:
        """Close a session. See `vidette.Engine.close_session`."""
        self._loop.call(self._engine.close_session, session_id)

    def wait_quiet(self) -> None:
        """Wait until no request is held anywhere."""
        self._loop.call(self._engine.wait_quiet)

    def wait_turning(self) -> None:
        """Wait until scheduler and detokenizer run. See `vidette.Engine.wait_turning`."""
        self._loop.call(self._engine.wait_turning)

    def wait_broken(self) -> EngineBroken:
        """Wait until a process of the engine ends before its time. See `vidette.Engine.wait_broken`."""
        return self._loop.call(self._engine.wait_broken)


@contextmanager
def open_engine(
    model: str | EngineConfig | None = None,
    *,
    backend: Literal["asyncio", "trio"] = "asyncio",
    **options: Any,
) -> Iterator[Engine]:
    """Open an engine; leaving the block ends all that it started.

    Args:
        model: a known name, "toy", or the path of a GGUF file; default smollm2-135m-instruct. Or a whole
            configuration.
        backend: the event loop library of the thread that it runs in.
        options: the other fields of EngineConfig, and `tracer`.

    Raises:
        UsageError, ModelError, EngineBroken: as `vidette.open_engine`.
    """
    with (
        open_portal(backend) as portal,
        # Opened and closed by one task, as the task group in it demands.
        portal.wrap_async_context_manager(api.open_engine(model, **options)) as engine,
    ):
        yield Engine(engine, Loop(portal))
