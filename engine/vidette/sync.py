"""The engine for programs without an event loop: the same calls, blocking.

An event loop runs in a thread of its own for as long as the engine is open; every call is a visit to it.

```
with vidette.sync.open_engine() as engine:
    with engine.generate("Once upon a time") as stream:
        for delta in stream:
            print(delta.text, end="")
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from anyio.from_thread import BlockingPortal, start_blocking_portal

from vidette import api
from vidette.api import Statistics
from vidette.front.stream import Completion, Delta
from vidette.front.stream import Stream as AsyncStream
from vidette.models import ModelInfo
from vidette_protocol.messages import GenerateReqInput, SamplingParams


class Stream:
    """The output of one request, as it comes; see `vidette.Stream`."""

    def __init__(self, stream: AsyncStream, portal: BlockingPortal) -> None:
        self._stream = stream
        self._portal = portal

    @property
    def rid(self) -> str:
        """The caller's name for the request."""
        return self._stream.rid

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self._stream.prompt_tokens

    @property
    def text(self) -> str:
        """The text taken so far."""
        return self._stream.text

    def __iter__(self) -> Iterator[Delta]:
        """Yield what comes, until the end.

        Raises:
            RequestError, EngineBroken, EngineClosed: as the asynchronous stream.
        """
        while True:
            delta = self._portal.call(self._next)
            if delta is None:
                return
            yield delta

    def read(self) -> Completion:
        """Wait for the end, and return all of it, whatever was taken before."""
        return self._portal.call(self._stream.read)

    async def _next(self) -> Delta | None:
        # StopAsyncIteration cannot cross the portal: it would arrive as a RuntimeError.
        return await anext(self._stream, None)


class Engine:
    """A running engine; made by `open_engine()`. Safe to use from several threads."""

    def __init__(self, engine: api.Engine, portal: BlockingPortal) -> None:
        self._engine = engine
        self._portal = portal

    @property
    def info(self) -> ModelInfo:
        """The model: name, vocabulary, context."""
        return self._engine.info

    @contextmanager
    def generate(
        self,
        prompt: str | Sequence[int] | GenerateReqInput,
        *,
        sampling_params: SamplingParams | Mapping[str, object] | None = None,
        rid: str | None = None,
    ) -> Iterator[Stream]:
        """Generate text; the request lives exactly as long as the block. See `vidette.Engine.generate`."""
        opened = self._engine.generate(prompt, sampling_params=sampling_params, rid=rid)
        with self._portal.wrap_async_context_manager(opened) as stream:
            yield Stream(stream, self._portal)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's template. See `vidette.Engine.render_chat`."""
        return self._portal.call(self._engine.render_chat, messages)

    def statistics(self) -> Statistics:
        """Return a picture of what is held and what was done."""
        return self._portal.call(self._engine.statistics)

    def heartbeat(self) -> Statistics:
        """Ask round the ring and return a picture as of now."""
        return self._portal.call(self._engine.heartbeat)

    def wait_quiet(self) -> None:
        """Wait until no request is held anywhere."""
        self._portal.call(self._engine.wait_quiet)


@contextmanager
def open_engine(
    model: str | None = None, *, backend: Literal["asyncio", "trio"] = "asyncio", **options: Any
) -> Iterator[Engine]:
    """Open an engine; leaving the block ends all that it started.

    Args:
        model: a known name, "toy", or the path of a GGUF file; default smollm2-135m-instruct.
        backend: the event loop library of the thread that it runs in.
        options: the other fields of EngineConfig.

    Raises:
        UsageError, ModelError, EngineBroken: as `vidette.open_engine`.
    """
    with (
        start_blocking_portal(backend) as portal,
        portal.wrap_async_context_manager(api.open_engine(model, **options)) as engine,
    ):
        yield Engine(engine, portal)
