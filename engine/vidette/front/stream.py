"""What a caller holds of a request: `Stream`, fed by the router, read by the caller; or a `Group` of them."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Self

import anyio
import anyio.lowlevel
from msgspec import Struct

from vidette.errors import Error, RequestError, UsageError
from vidette.front.logprobs import Logprobs, LogprobsAsked, TokenLogprob
from vidette.front.observer import EndedBy, Watch, both
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import PendingDelta
from vidette_protocol.lifecycle.rows import unheard
from vidette_protocol.messages import FinishReason, Served, SpeculativeMetrics, StrRow


class Delta(Struct, frozen=True):
    """What a request has added since its caller last looked.

    Args:
        text: new characters; may be empty, as a token need not complete one.
        token_ids: new output tokens.
        finish_reason: set on the last delta.
        logprobs: of each of these tokens, if the request asked for log probabilities.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] = ()


class Completion(Struct, frozen=True):
    """A request from its beginning to its end.

    Args:
        rid: the caller's name for it.
        text: all of the output.
        token_ids: all output tokens, a final end-of-sequence token included.
        finish_reason: how it ended.
        prompt_tokens: length of the prompt.
        resumed: how often it went on after the death of a process.
        cached_tokens: tokens of the prompt that were found in the prefix cache.
        logprobs: of each output token, if the request asked for log probabilities.
        prompt_logprobs: of the tokens of the prompt from `logprob_start_len` on; None: it did not ask.
    """

    rid: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    resumed: int = 0
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def completion_tokens(self) -> int:
        """Length of the output in tokens."""
        return len(self.token_ids)


class Stream:
    """The output of one request, as it comes; iterate over it, or `await stream.read()` it to its end.

    A caller who is slow finds what has come meanwhile merged into one delta: nothing is dropped, and
    nothing queues. Use it from one task.

    Attributes:
        rid: the caller's name for the request.
        vid: its key from submit on; another one each time it goes on after the death of a process.
        prompt_tokens: length of the prompt.
        resumed: how often that was.
        served: how it was served: what was cached, how often it was retracted, how long it waited.
        spec: how speculation went; None: there was none, or it has not ended.
        logprobs_asked: which log probabilities it asked for; None: for none.
    """

    def __init__(
        self, rid: str, vid: Vid, prompt_tokens: int, logprobs_asked: LogprobsAsked | None = None
    ) -> None:
        self.rid = rid
        self.vid = vid
        self.prompt_tokens = prompt_tokens
        self.logprobs_asked = logprobs_asked
        self.resumed = 0
        self.served = Served()
        self.spec: SpeculativeMetrics | None = None
        self._logprobs: Logprobs | None = None
        self._pending = PendingDelta[FinishReason]()
        self._reason: FinishReason | None = None
        self._failure: Callable[[], Error] | None = None
        self._news = False
        """Whether there is something to take: rows, or an error in their place."""
        self._untold = False
        """Whether who waits has yet to be told of it."""
        self._bell = anyio.Semaphore(0)  # waited for again and again, which an event cannot be
        self._waiting = False
        self._rung = False
        self._taken_text = bytearray()  # packed, as what waits is: streams may be many, and long
        self._taken_ids = array("i")
        self._ended = False
        self._listener: Callable[[], None] | None = None
        self._timing: Watch | None = None
        self._said_ids = 0
        self._said_chars = 0

    # --- the caller's side -------------------------------------------------------

    def __aiter__(self) -> Self:
        """Return itself; a stream is read once."""
        return self

    async def __anext__(self) -> Delta:
        """Wait for the next delta.

        Raises:
            StopAsyncIteration: the last delta has been returned.
            RequestError: this request failed inside the engine.
            EngineBroken: a process of the engine ended.
            EngineClosed: the engine was closed meanwhile.
            UsageError: the request's block was left meanwhile.
            anyio.BusyResourceError: another task waits for the next delta.
        """
        if self._ended:
            await anyio.lowlevel.checkpoint()
            self._check_failed()
            raise StopAsyncIteration
        if self._waiting and self._failure is None:  # also if there is news: it is that task's
            raise anyio.BusyResourceError("reading from")
        self._waiting = True
        try:
            if self._news:
                await anyio.lowlevel.checkpoint()
            while not self._news:
                self._rung = False
                await self._bell.acquire()
        finally:
            self._waiting = False
        taken = self._pending.take()
        self._news = self._failure is not None
        if taken is None:  # what is new is its failure
            self._ended = True
            assert self._failure is not None
            raise self._failure()
        text, token_ids, end = taken
        logprobs = () if self._logprobs is None else self._logprobs.output(token_ids, len(self._taken_ids))
        self._taken_text += text.encode("utf-8", "surrogatepass")
        self._taken_ids.extend(token_ids)
        if end is not None:
            self._ended = True
            self._check_failed()
        return Delta(text, token_ids, end, logprobs)

    async def read(self) -> Completion:
        """Wait for the end, and return all of it, whatever was taken before.

        Raises:
            RequestError, EngineBroken, EngineClosed: as `__anext__`.
        """
        async for _ in self:
            pass
        return self.completion()

    def completion(self) -> Completion:
        """Return all of the output, once the last delta was taken.

        Raises:
            RuntimeError: it was not.
        """
        if not self._ended or self._reason is None:
            raise RuntimeError("the stream has not been read to its end")
        return Completion(
            rid=self.rid,
            text=self.text,
            token_ids=self.token_ids,
            finish_reason=self._reason,
            prompt_tokens=self.prompt_tokens,
            resumed=self.resumed,
            cached_tokens=self.served.cached_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of the output tokens taken so far, if the request asked for log probabilities."""
        return () if self._logprobs is None else self._logprobs.output(self.token_ids, 0)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Those of the prompt, which come with the first token; None: the request did not ask for them."""
        return None if self._logprobs is None else self._logprobs.prompt

    @property
    def text(self) -> str:
        """The text taken so far."""
        return self._taken_text.decode("utf-8", "surrogatepass")

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The output tokens taken so far."""
        return tuple(self._taken_ids.tolist())

    @property
    def completion_tokens(self) -> int:
        """Length of the output taken so far in tokens."""
        return len(self._taken_ids)

    def _check_failed(self) -> None:
        if self._failure is not None:
            raise self._failure()
        if self._reason is not None and self._reason.type == "error":
            raise RequestError(
                f"request {self.rid!r} failed: {self._reason.message}",
                status=self._reason.status_code,
                code=self._reason.err_type,
            )

    @property
    def ready(self) -> bool:
        """Whether the next delta, or what ends the stream, can be taken without waiting."""
        return self._news and not self._ended

    @property
    def done(self) -> bool:
        """Whether the last delta, or the error in its place, was taken."""
        return self._ended

    # --- the router's side -------------------------------------------------------

    def deliver(self, row: StrRow) -> None:
        """Merge a row into the pending delta; synchronous, never blocks. `waking` tells who waits.

        Of a request that goes on elsewhere, what was said before is said again, and left out here. Text by
        its length: what comes of so many tokens is a function of them, so the beginning is the same.
        """
        text, token_ids = row.text, row.token_ids
        if row.served is not None:
            self.served = row.served
        if row.spec is not None:
            self.spec = row.spec
        if self.resumed:
            fresh = unheard(self._said_ids, row.offset, len(token_ids))
            text, token_ids = text[self._said_chars :], token_ids[len(token_ids) - fresh :]
            self._said_chars -= min(self._said_chars, len(row.text))
        if row.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = Logprobs()
            self._logprobs.add(row.logprobs, len(token_ids))
        reason = row.reason
        self._pending.deliver(text, token_ids, reason)
        if token_ids or text or reason is not None:
            self._news = self._untold = True
        self._reason = reason
        if self._timing is not None:
            if token_ids:
                self._timing.take(len(token_ids), self.prompt_tokens)
            if reason is not None:
                self._timing.finish(reason.type, self.prompt_tokens, self.served, self.spec)

    def move(self, vid: Vid) -> None:
        """Note that the request goes on under another vid, from its beginning."""
        self.vid = vid
        self.resumed += 1
        if self._timing is not None:
            self._timing.move()
        # What was to be said again, and was not yet, is part of what was heard.
        waiting = self._pending.peek()
        self._said_ids = self.heard_tokens
        self._said_chars = len(self.text) + (0 if waiting is None else len(waiting.text))

    @property
    def heard_ids(self) -> tuple[int, ...]:
        """The output tokens that have come so far, taken or not."""
        waiting = self._pending.peek()
        return self.token_ids + (() if waiting is None else waiting.token_ids)

    @property
    def heard_tokens(self) -> int:
        """How many these are."""
        return len(self._taken_ids) + self._pending.tokens

    def fail(self, failure: Callable[[], Error], how: EndedBy = "error") -> None:
        """End the stream with an error, made anew for whoever waits; a stream that has its end keeps it."""
        if self._reason is None:
            self._failure = failure
            self._news = self._untold = True
            if self._timing is not None:
                self._timing.finish(how, self.prompt_tokens, self.served, self.spec)
        self.wake()

    def leave(self) -> None:
        """End the stream because its block is left; another task may wait for it still."""
        self.fail(_left, "abort")

    def watch(self, timing: Watch | None) -> None:
        """Have what comes from now on observed, if there is something that does, by this one as well."""
        self._timing = both(self._timing, timing)

    def listen(self, listener: Callable[[], None]) -> None:
        """Have something called whenever there is news; it replaces what was called before."""
        self._listener = listener

    def wake(self) -> None:
        """Tell whoever waits that there is news, once; of rows, `waking` does."""
        if not self._untold:
            return
        self._untold = False
        if self._waiting and not self._rung:
            self._rung = True
            self._bell.release()
        if self._listener is not None:
            self._listener()


@asynccontextmanager
async def waking() -> AsyncGenerator[list[Stream]]:
    """Wake the streams to which rows are delivered in the block, a turn of the event loop behind it.

    Also if the block fails, or that turn is cancelled. On asyncio, a task that was cancelled while it ran is
    told so a turn later. What woke it before that would reach it all the same.
    """
    told: list[Stream] = []
    try:
        yield told
        await anyio.lowlevel.checkpoint()
    finally:
        for stream in told:
            stream.wake()


class Group:
    """The answers to a request for several, each a stream of its own; one that fails leaves the others alone.

    Attributes:
        streams: prompt after prompt, the `n` answers to one prompt together.
        n: answers to each prompt.
        single: whether one answer was asked for, to one prompt that was no list.
    """

    def __init__(self, streams: tuple[Stream, ...], *, n: int, single: bool) -> None:
        self.streams = streams
        self.n = n
        self.single = single
        self._news = anyio.Event()
        for stream in streams:
            stream.listen(self._note)

    async def read(self) -> list[Completion]:
        """Wait for the end of all of them, and return them in their order.

        Raises:
            RequestError: one failed inside the engine; to hear of the others, read the streams one by one.
            EngineBroken, EngineClosed: as `Stream.read`.
        """
        return [await stream.read() for stream in self.streams]

    async def wait_ready(self) -> tuple[int, ...]:
        """Wait until some have something to take; return their places. None: all were read to their ends."""
        await anyio.lowlevel.checkpoint()
        while True:
            if self._news.is_set():
                self._news = anyio.Event()
            ready = tuple(place for place, stream in enumerate(self.streams) if stream.ready)
            if ready or all(stream.done for stream in self.streams):
                return ready
            await self._news.wait()

    def _note(self) -> None:
        self._news.set()


def _left() -> Error:
    return UsageError(
        "the block of this request was left, and the request with it; read it inside of its block"
    )
