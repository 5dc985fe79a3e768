"""The library: `open_engine()` and `Engine`. No HTTP in here."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import sniffio

from vidette._arguments import (
    OperationName,
    check_deadline,
    check_operation,
    probe_request,
    to_config,
    to_request,
)
from vidette._custom import Custom, Handlers, check_custom
from vidette._groups import Body, bare
from vidette._opening import check_tracer, load, traced
from vidette._operations import Operations
from vidette._picture import picture_of
from vidette._ring import import_roles, start_inline, start_processes
from vidette._statistics import Statistics
from vidette._supervisor import Own, Supervisor
from vidette.config import EngineConfig
from vidette.detokenizer.incremental import IncrementalText, new_text
from vidette.errors import EngineBroken, UsageError
from vidette.front import support
from vidette.front.kv_events import KVEventStream
from vidette.front.manager import TokenizerManager
from vidette.front.offload import ThreadOffload
from vidette.front.sessions import close_session, open_session
from vidette.front.stream import Group, Stream
from vidette.models import ModelInfo, TokenTable, resolve
from vidette_protocol.codec import Codec
from vidette_protocol.messages import (
    ControlOutput,
    ControlReq,
    GenerateReqInput,
    SamplingParams,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from vidette.metrics import Metrics

TOKENISING_THREADS = 2
"""How many prompts of one engine are tokenised at once."""
UNSUPPORTED: Final = support.REFUSED
"""Fields of GenerateReqInput that are not supported yet, each with the values that ask for nothing."""
UNSUPPORTED_SAMPLING: Final = support.SAMPLING_REFUSED
"""Fields of SamplingParams that are not supported yet, likewise."""


class Engine(Operations):
    """A running engine; made by `open_engine()`."""

    def __init__(
        self,
        manager: TokenizerManager,
        supervisor: Supervisor,
        table: TokenTable,
        tracer: Tracer | None = None,
    ) -> None:
        self.tracer = tracer
        """What makes a span for each request; None: nothing does."""
        self._manager = manager
        self._requests = traced(manager, tracer)
        self._supervisor = supervisor
        self._metrics: Metrics | None = None
        self._table = table

    @property
    def info(self) -> ModelInfo:
        """The model: name, vocabulary, context."""
        return self._manager.info

    @property
    def max_total_tokens(self) -> int:
        """Most tokens of prompt and output together that one request may have."""
        return self._manager.ready.max_total_tokens

    @property
    def draining(self) -> bool:
        """Whether `drain()` was called: nothing new is taken, and what lives may end."""
        return self._manager.drain.begun

    def generate(
        self,
        prompt: str | Sequence[int] | GenerateReqInput,
        *,
        sampling_params: SamplingParams | Mapping[str, object] | None = None,
        rid: str | None = None,
        on_duplicate: Literal["refuse", "replace"] = "refuse",
        deadline_s: float | None = None,
        operation: OperationName = "text_completion",
    ) -> AbstractAsyncContextManager[Stream]:
        """Generate text; the request lives exactly as long as the block.

        ```
        async with engine.generate("Once upon a time", sampling_params={"max_new_tokens": 32}) as stream:
            async for delta in stream:
                print(delta.text, end="")
        ```

        Args:
            prompt: a text, token ids, or a whole request (then nothing else is given).
            sampling_params: how to sample; the names and defaults of SamplingParams.
            rid: a name for the request; None makes one. It can be used again as soon as the block is left.
            on_duplicate: what to do while a request with this rid lives: "refuse" this one, or "replace" that
                one, whose caller gets RequestReplaced.
            deadline_s: seconds from when it is sent, after which the scheduler ends it by itself, as an
                error, even if this loop is stuck. A scope of your own, such as `anyio.fail_after`, ends it as
                well, as soon as this loop turns.
            operation: what its span says that it is: "chat" if the prompt is a conversation.

        Raises (on entering):
            UsageError: the request cannot be served as it is.
            DuplicateRequest: the rid is in use.
            Overloaded: too many requests live.
            EngineDraining: the engine is being closed.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        if on_duplicate not in ("refuse", "replace"):
            raise UsageError(
                f"on_duplicate is {on_duplicate!r}; it must be 'refuse' or 'replace'", param="on_duplicate"
            )
        check_deadline(deadline_s)
        request = to_request(prompt, sampling_params, rid)
        replace = on_duplicate == "replace"
        requests = self._requests[check_operation(operation)]
        return requests.generate(request, replace=replace, deadline_s=deadline_s)

    def generate_group(
        self,
        request: GenerateReqInput,
        *,
        deadline_s: float | None = None,
        operation: OperationName = "text_completion",
    ) -> AbstractAsyncContextManager[Group]:
        """Generate several answers: to several prompts, or `n` to each; they live as long as the block.

        They are taken in all or none, and leaving the block ends all that are left.

        ```
        request = GenerateReqInput(text=["one", "two"], sampling_params=SamplingParams(n=2))
        async with engine.generate_group(request) as group:
            for completion in await group.read():
                print(completion.text)
        ```

        Args:
            request: lists where there are several; see GenerateReqInput.
            deadline_s: as for `generate`, for each of them.
            operation: as for `generate`; they have one span.

        Raises (on entering):
            UsageError, DuplicateRequest, Overloaded, EngineBroken, EngineClosed: as `generate`.
        """
        check_deadline(deadline_s)
        return self._requests[check_operation(operation)].generate_group(request, deadline_s=deadline_s)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; those of several tokens may make up one character.

        Raises:
            UsageError: there is no such token.
        """
        if not 0 <= token_id < self.info.vocab_size:
            raise UsageError(
                f"token_id is {token_id}; it must be below {self.info.vocab_size}", param="token_id"
            )
        known = self._table.token_bytes
        return known[token_id] if token_id < len(known) else b""  # models may have more rows than tokens

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, as `generate()` makes a prompt of it.

        Raises:
            UsageError: it is too long to be tokenised.
            Overloaded: too many requests live, texts included that are being tokenised.
            PromptTimeout: it took too long.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        return await self._manager.tokenise(text)

    def detokenize(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text that tokens make, from its beginning; an unfinished character is U+FFFD.

        Raises:
            UsageError: there is no such token.
        """
        ids = list(token_ids)
        for token_id in ids:
            self.token_bytes(token_id)  # it refuses what is none
        return self.new_text(skip_special_tokens=skip_special_tokens).push(ids, last=True)

    def new_text(self, *, begins: bool = True, skip_special_tokens: bool = True) -> IncrementalText:
        """Return what makes text of tokens as they come; a Stream has its own.

        Args:
            begins: whether a text begins with them, and does not go on.
            skip_special_tokens: leave special tokens out of it.
        """
        return new_text(self._table, begins=begins, skip_special_tokens=skip_special_tokens)

    async def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's template: a prompt for `generate()`.

        Args:
            messages: each with "role" and "content".

        Raises:
            ChatTemplateError: the conversation does not fit the template.
        """
        return await self._manager.render_chat(messages)

    def statistics(self) -> Statistics:
        """Return a picture of what is held and what was done."""
        return picture_of(self._manager, self._supervisor)

    def metrics(self) -> str:
        """Return what Prometheus scrapes, in its text format; the names are those of `vidette.metrics`.

        Requests are observed from the first call on, so call it once when the engine is open. Each engine
        has a registry of its own, which has nothing to do with the global one of `prometheus_client`.

        Raises:
            UsageError: `prometheus_client` is not installed.
        """
        if self._metrics is None:
            try:
                from vidette.metrics import Metrics  # noqa: PLC0415  only whoever asks for them needs it
            except ImportError as error:
                raise UsageError(
                    "metrics need the package prometheus_client: pip install vidette[metrics]"
                ) from error
            self._metrics = Metrics(self.info.name, self.statistics, self._manager.observer)
        return self._metrics.render()

    def kv_events(self) -> AbstractAsyncContextManager[KVEventStream]:
        """Open a stream of what is stored in the prefix cache and removed, for whoever routes.

        The hashes are those of `vidette_protocol.messages.kv`. The first batch begins with `AllBlocksCleared`
        and has all that is cached; so has one after the reader was too slow, or after a restart.

        ```
        async with engine.kv_events() as events:
            async for batch in events:
                for event in batch.events:
                    ...
        ```

        Raises (on entering):
            UsageError: the engine was opened without `kv_events=True`.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        return self._manager.kv_events.subscribe()

    async def heartbeat(self) -> Statistics:
        """Ask round the ring, through the step loop itself, and return a picture as of now.

        It comes back only if every part of the engine turns; put a deadline around it.

        Raises:
            EngineBroken, EngineClosed: the engine serves no more.
        """
        await self._manager.heartbeat()
        return self.statistics()

    async def probe(self) -> None:
        """Have one token made, as for any request; put a deadline around it.

        It says more than a heartbeat: there is room for a request, and the model computes. It goes ahead of
        those that wait; if as many run as may, it waits for one to end, or with `preempt_gap` displaces one.

        Raises:
            Overloaded: too many requests live.
            RequestError: the token could not be made.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        async with self.generate(probe_request()) as stream:
            await stream.read()

    def abort_all(self, why: str | None = None) -> int:
        """End all requests at once, whoever reads them; new ones are taken.

        Whoever reads one gets what has come of it, and then RequestAborted. It does not wait: what they held
        is free within one step, which `wait_quiet()` waits for.

        Args:
            why: a sentence for those who read them.

        Returns:
            How many there were.
        """
        return self._manager.aborts.all(why)

    async def drain(self, seconds: float) -> int:
        """Take nothing new from now on, wait for what lives, and end what is left after so many seconds.

        New requests get EngineDraining. It returns as soon as no request lives, and after `seconds` in any
        case, whatever state the processes are in; then close the engine. Called again it waits again, and the
        shortest time counts; cancelled, it leaves requests alone, and nothing new is taken all the same.

        Args:
            seconds: how long requests may go on.

        Returns:
            How many had to be ended, as by `abort_all()`.

        Raises:
            UsageError: the time is out of range.
        """
        if not 0 <= seconds < math.inf:  # NaN neither
            raise UsageError(f"seconds is {seconds}; it must be 0 or more, and finite", param="seconds")
        self._manager.drain.begin(seconds)
        with anyio.move_on_after(seconds):
            await self._manager.wait_quiet()
        return self._manager.aborts.all("the engine is being closed and cannot wait for it")

    async def control(self, request: ControlReq) -> ControlOutput:
        """Send a control message to the scheduler; return its answer, of the class `request.output`.

        A scheduler answers what it does not support as well, with `success=False` and a sentence.

        Args:
            request: one of `vidette_protocol.messages`; its `id` is set here. `deadline_s` bounds the wait,
                and so does any deadline of the caller's.

        Raises:
            UsageError: the scheduler could not read it: a value is of the wrong type or out of range.
            TimeoutError: no answer came within `deadline_s`.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        return await self._manager.calls.control(request)

    async def open_session(
        self,
        session_id: str | None = None,
        *,
        streaming: bool = False,
        timeout: float | None = None,
        capacity_of_str_len: int = 0,
    ) -> str:
        """Open a session: requests that name it in `session_params` go on with what was said in it before.

        A request counts in it once it was read to its end, and not at all if its block is left before.
        Sessions end with the processes of the engine, also if these are started again.

        Args:
            session_id: its id, which no open session has; None makes one.
            streaming: one request at a time, each going on behind the last.
            timeout: seconds without a request after which it is closed; None: never.
            capacity_of_str_len: how many characters are expected, for people.

        Returns:
            Its id.

        Raises:
            UsageError: the id is that of an open session, or a value is out of range.
            Overloaded: too many sessions are open.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        return await open_session(
            self._manager.calls,
            session_id,
            streaming=streaming,
            timeout=timeout,
            capacity_of_str_len=capacity_of_str_len,
        )

    async def close_session(self, session_id: str) -> None:
        """Close a session: it takes nothing new, and is gone with the last of its requests.

        Raises:
            UsageError: it is not open.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        await close_session(self._manager.calls, session_id)

    async def wait_quiet(self) -> None:
        """Wait until no request is held anywhere: the end of each has come round the ring."""
        await self._manager.wait_quiet()

    async def wait_turning(self) -> None:
        """Wait until scheduler and detokenizer run, should they be being started again.

        Raises:
            EngineBroken, EngineClosed: they will not any more.
        """
        await self._supervisor.wait_turning()
        self._manager.check_open()

    async def wait_broken(self) -> EngineBroken:
        """Wait until the engine breaks: a process has ended before its time, and is not started again.

        Returns:
            The error that all waiters get.

        Raises:
            EngineClosed: the engine was closed, and was not broken before.
        """
        return await self._supervisor.wait_broken()


@asynccontextmanager
async def open_engine(
    model: str | EngineConfig | None = None,
    *,
    codec: Codec | None = None,
    handlers: Handlers | None = None,
    child: str | None = None,
    tracer: Tracer | None = None,
    **options: Any,
) -> AsyncGenerator[Engine]:
    """Open an engine; leaving the block ends all that it started.

    Args:
        model: a known name, "toy", or the path of a GGUF file; default smollm2-135m-instruct. Or a whole
            configuration; then no other option is given.
        codec: knows messages of your own, for `Engine.control`; see `vidette_protocol.hook_custom_types`.
        handlers: who answers them in the scheduler; for the topology "inline".
        child: main module of the processes, which has the same codec, and the handlers; for the topology
            "processes". See `vidette.child`.
        tracer: of OpenTelemetry; makes a span for each request, whose parent is the span that is current
            where `generate` is entered.
        options: the other fields of EngineConfig, such as topology="processes".

    Raises:
        UsageError: an option is not known or out of range, or the model is not known, or the codec and what
            goes with it make no sense together.
        ModelError: the model's file is missing, damaged or not supported.
        EngineBroken: a process ended before it was ready, or took longer than `start_timeout`.
        OSError: a process could not be started.
    """
    config = to_config(model, options)
    custom = check_custom(Custom(codec, handlers, child), config.topology)
    check_tracer(tracer)
    source = resolve(config.model)
    body = Body()
    supervisor: Supervisor | None = None
    try:
        with bare(body):
            async with anyio.create_task_group() as scope_of_caller:
                with body.watched():
                    own = Own(shield=True)
                    # Not by start(): in a scope that is cancelled already, that waits for what is shielded.
                    scope_of_caller.start_soon(own.run)
                    try:
                        tasks = await own.wait_tasks()
                        offload = ThreadOffload(tasks, TOKENISING_THREADS)
                        loaded = await load(source, offload)
                        if config.topology == "inline":
                            await offload(import_roles)
                            start = partial(start_inline, config, loaded.table, custom=custom)
                        else:
                            backend = sniffio.current_async_library()
                            start = partial(start_processes, config, backend=backend, custom=custom)
                        supervisor = Supervisor(config, tasks, start)
                        manager: TokenizerManager | None = None
                        try:
                            ready = await supervisor.open()
                            ring = supervisor.ring
                            manager = loaded.front(config, ring, ready=ready, offload=offload)
                            supervisor.serve(manager)
                            yield Engine(manager, supervisor, loaded.table, tracer)
                        finally:
                            if manager is not None:
                                manager.shutdown()
                            with anyio.CancelScope(shield=True):  # bounded: stop() has deadlines of its own
                                await supervisor.stop(config.stop_timeout if manager is not None else 0)
                    finally:
                        own.scope.cancel("the engine was closed")
    finally:
        if supervisor is not None:  # all tasks have ended: nobody waits for a descriptor any more
            supervisor.close()
