"""`TokenizerManager`: admits, tokenises and routes requests; owns the front's machine.

Every decision is one synchronous call on the machine, and what it says is done right behind it without an
await in between. A request's whole life is the body of `generate()`: whatever ends that body, an exception,
a cancellation, a plain exit, its `finally` tells the machine and posts the abort, without awaiting. When
the ring dies and another takes its place, what lives is sent again with the output its callers have had, and
goes on behind it; what is new meanwhile waits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from vidette.config import EngineConfig
from vidette.errors import DuplicateRequest, EngineClosed, Error, RequestReplaced
from vidette.front.aborts import Aborts
from vidette.front.admission import Admission, most_taken
from vidette.front.calls import Calls
from vidette.front.checks import check_group_request, check_known, check_request, make_rid, settle
from vidette.front.drain import Drain
from vidette.front.kv_events import KVEvents
from vidette.front.living import Living
from vidette.front.observer import Observer, Timing
from vidette.front.offload import Offload
from vidette.front.prompts import Prompts
from vidette.front.pulse import Pulse
from vidette.front.questions import Questions
from vidette.front.route import Route, batches, to_send
from vidette.front.shards import Shards
from vidette.front.stream import Group, Stream, waking
from vidette.front.totals import Totals
from vidette.models.interface import ModelInfo, Tokenizer
from vidette.transport.link import Link, RoleFailed
from vidette_protocol.errors import DuplicateRid, RemoteProtocolError
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import FrontMachine, FrontState, end_of
from vidette_protocol.limits import Limits
from vidette_protocol.messages import (
    AbortReq,
    BatchStrOutput,
    ControlOutput,
    Failed,
    FreezeGCReq,
    GenerateItem,
    GenerateReqInput,
    HeartbeatReq,
    KVEventBatch,
    Ready,
    SamplingParams,
    SchedulerLedger,
    ShutdownReq,
    TokenizedGenerateReqInput,
)


class TokenizerManager:
    """The front of one engine.

    Args:
        scheduler: link to the scheduler, opened.
        detokenizers: link to each detokenizer, opened.
        tokenizer: text to token ids.
        info: what the front has to know of the model.
        ready: the scheduler's Ready, with its bounds.
        offload: runs tokenising off the loop.
        max_requests: most requests that may live here.
        max_queued_tokens: most tokens that they may come to hold.
        tokenise_timeout: seconds that a prompt may take to tokenise or to render.
        front_id: high bits of every vid.
        kv_events: whether the scheduler tells what its prefix cache holds.
        limits: bounds on what a request may hold.
    """

    def __init__(
        self,
        scheduler: Link,
        detokenizers: Sequence[Link],
        *,
        tokenizer: Tokenizer,
        info: ModelInfo,
        ready: Ready,
        offload: Offload,
        max_requests: int,
        max_queued_tokens: int = EngineConfig().max_queued_tokens,
        tokenise_timeout: float = EngineConfig().tokenise_timeout,
        front_id: int = 0,
        kv_events: bool = False,
        limits: Limits = Limits(),  # noqa: B008  immutable
    ) -> None:
        self.info = info
        self.ready = ready
        self.totals = Totals()
        self._scheduler, self._detokenizers = scheduler, detokenizers
        self._prompts = Prompts(tokenizer, offload, vocab_size=info.vocab_size, timeout=tokenise_timeout)
        self._admission = Admission(
            max_requests, max_queued_tokens, living=self.__len__, is_over=self._is_over
        )
        self._limits = limits._replace(prompt_tokens=min(limits.prompt_tokens, ready.max_total_tokens - 1))
        self._machine = FrontMachine(front_id=front_id, remembered=limits.ended_remembered)
        self._routes: dict[Vid, Route] = {}
        self.pulse = Pulse(lambda: self.calls.heartbeat(bounded=False), self.__len__)
        self._questions = Questions(self.pulse)
        self._shards = Shards(len(detokenizers), self._questions)
        self.calls = Calls(self._questions, link=self._asked, floor=lambda: self._machine.floor)
        self.drain = Drain()
        self.aborts = Aborts(
            self._machine,
            self._routes,
            self.drain,
            self.totals,
            link=lambda: self._scheduler,
            post=self._post_abort,
            done=self._wake,
        )
        self.observer = Observer()
        self.kv_events = KVEvents(told=kv_events)
        self._lost: Callable[[], Error] | None = None  # what ended the ring, while there is no other yet
        self.living = Living(self._machine, self._routes, self._admission, lost=lambda: bool(self._lost))
        self._changed = anyio.Event()
        self._ended: Callable[[], Error] | None = None
        self._quiet = anyio.Event()

    # --- requests ------------------------------------------------------------------

    @asynccontextmanager
    async def generate(
        self,
        request: GenerateReqInput,
        *,
        replace: bool = False,
        deadline_s: float | None = None,
        timed: bool = False,
    ) -> AsyncGenerator[Stream]:
        """Open a request for one answer; leaving the block, in whatever way, ends it.

        Args:
            request: one prompt, one answer.
            replace: end a request that has the same rid, and take its place; else it is refused. It is ended
                even if this one turns out not to fit, which shows only when it is tokenised.
            deadline_s: seconds from sending, after which the scheduler ends it by itself; None: never.
            timed: whether its stages are to be told; see `Served`.

        Raises:
            UsageError: the request cannot be served as it is.
            DuplicateRequest: its rid is in use.
            Overloaded: too many requests live.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        self._check_taking()
        item = check_request(request, new_rid=make_rid, limits=self._limits, vocab_size=self.info.vocab_size)
        check_known(item.sampling_params, self._scheduler.unknown_there(SamplingParams))
        timing = self.observer.begin(item.log_metrics)
        vid = self._submit(item, replace=replace)
        stream: Stream | None = None
        try:
            prompt = await self._prompts.tokenise(item)
            await self._wait_ring(vid)
            # From here to the yield nothing awaits: the route exists before the scheduler can answer.
            message = self._prepare(vid, item, prompt, deadline_s, timed)
            self._scheduler.post(message)
            stream = self._begin(message, timing)
            yield stream
        finally:  # no await in here: nothing of it can be cancelled
            self._leave(vid if stream is None else stream.vid)

    @asynccontextmanager
    async def generate_group(
        self, request: GenerateReqInput, *, deadline_s: float | None = None, timed: bool = False
    ) -> AsyncGenerator[Group]:
        """Open a request for several answers; leaving the block, in whatever way, ends all of them.

        They are taken in all or none: if one cannot be served, none is.

        Raises:
            UsageError, DuplicateRequest, Overloaded, EngineBroken, EngineClosed: as `generate`.
        """
        self._check_taking()
        checked = check_group_request(
            request, new_rid=make_rid, limits=self._limits, vocab_size=self.info.vocab_size
        )
        items = checked.items
        for item in items:
            check_known(item.sampling_params, self._scheduler.unknown_there(SamplingParams))
        timings = [self.observer.begin(item.log_metrics) for item in items]
        vids = self._submit_group(items)
        self.aborts.name(request.rid, items, vids[0])
        streams: tuple[Stream, ...] = ()
        try:
            prompts = [await self._prompts.tokenise(item) for item in items[:: checked.n]]
            await self._wait_ring(*vids)
            # From here to the yield nothing awaits, as above.
            messages = [
                self._prepare(vid, item, prompts[place // checked.n], deadline_s, timed)
                for place, (vid, item) in enumerate(zip(vids, items, strict=True))
            ]
            for batch in batches(messages):
                self._scheduler.post(batch)
            streams = tuple(map(self._begin, messages, timings))
            yield Group(streams, n=checked.n, single=checked.single)
        finally:  # no await in here, as above
            self.aborts.forget(vids[0])
            for vid in [stream.vid for stream in streams] or vids:
                self._leave(vid)

    def _prepare(
        self, vid: Vid, item: GenerateItem, prompt: memoryview, deadline_s: float | None, timed: bool
    ) -> TokenizedGenerateReqInput:
        """Return what is to be sent now of a request that was tokenised meanwhile; raise if nothing is."""
        self.check_open()
        if self._is_over(vid):
            raise self.drain.why_over(vid, item.rid)
        self._admission.check_outbox(self._scheduler.channel)
        tokens = len(prompt) // 4
        params = settle(item, tokens, self.ready.max_total_tokens, self._limits.logprob_bytes)
        self._admission.admit(vid, tokens + (params.max_new_tokens or 0))
        floor = self._machine.floor
        return to_send(item, prompt, params, vid=vid, floor=floor, deadline_s=deadline_s, timed=timed)

    def _begin(self, message: TokenizedGenerateReqInput, timing: Timing | None) -> Stream:
        """Note that a request was sent; return what its caller reads."""
        vid = Vid(message.vid)
        self._machine.send(vid)
        self.pulse.wake()
        self.totals.submitted += 1
        route = self._routes[vid] = Route.of(message)
        route.stream.watch(timing)
        return route.stream

    async def _wait_ring(self, *vids: Vid) -> None:
        """Wait until there is a ring for requests, or none will come any more, or one of them is over."""
        while self._lost is not None and self._ended is None and not any(map(self._is_over, vids)):
            await self._changed.wait()

    async def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's template, off the loop; see `Engine.render_chat`."""
        self._check_taking()
        with self._admission.rendering(messages, self.ready.max_total_tokens):
            return await self._prompts.render(messages)

    async def tokenise(self, text: str) -> list[int]:
        """Return the tokens of a text, off the loop; see `Engine.tokenize`."""
        self._check_taking()
        with self._admission.rendering([{"text": text}], self.ready.max_total_tokens):
            return await self._prompts.ids_of(text, self._limits.text_chars)

    def _is_over(self, vid: Vid) -> bool:
        return self._machine.state(vid) is FrontState.OVER

    def _check_room(self, items: Sequence[GenerateItem], *, replaced: Vid | None = None) -> list[int]:
        """Check that there is room for requests; return what each may take."""
        self._prompts.check_fit(items, self.ready.max_total_tokens)
        costs = [most_taken(item, self.ready.max_total_tokens) for item in items]
        outbox = self._scheduler.channel if self._lost is None else None
        self._admission.check(costs, outbox, replaced=replaced)
        return costs

    def _submit(self, item: GenerateItem, *, replace: bool) -> Vid:
        rid = Rid(item.rid)
        holder = self._machine.holder(rid) if replace else None
        (cost,) = self._check_room([item], replaced=holder)
        try:
            vid = self._replace(rid) if replace else self._machine.submit(rid)
        except DuplicateRid as error:
            raise DuplicateRequest(rid) from error
        self._admission.admit(vid, cost)
        return vid

    def _submit_group(self, items: Sequence[GenerateItem]) -> tuple[Vid, ...]:
        costs = self._check_room(items)
        try:
            vids = self._machine.submit_group([Rid(item.rid) for item in items])
        except DuplicateRid as error:
            raise DuplicateRequest(error.rid) from error
        for vid, cost in zip(vids, costs, strict=True):
            self._admission.admit(vid, cost)
        return vids

    def _replace(self, rid: Rid) -> Vid:
        vid, replaced = self._machine.replace(rid)
        if replaced is not None:
            # Its block is still to be left, by its own task, which then finds nothing more to do.
            route = self._routes.get(replaced.vid)
            self._post_abort(replaced.vid, route, post=replaced.post)
            if route is not None:
                route.stream.fail(lambda: RequestReplaced(rid), "abort")
        return vid

    def _leave(self, vid: Vid) -> None:
        """End a request from the caller's side; nothing happens if it is over."""
        lived = not self._is_over(vid)
        post = self._machine.abort(vid)
        if self._is_over(vid):  # else it counts until its end has come round
            self._admission.end(vid)
        self.drain.forget(vid)
        route = self._routes.pop(vid, None)
        if lived:
            self._post_abort(vid, route, post=post)
        if route is not None:  # another task may wait for it still
            if route.unheard and not post and self._lost is None and self._ended is None:
                self._scheduler.post(AbortReq(vid=vid, floor=self._machine.floor))  # its session has to hear
            route.stream.leave()
        self._note_quiet()

    def _post_abort(self, vid: Vid, route: Route | None, *, post: bool) -> None:
        """Tell the scheduler, if it knows of it, that a request which has just been aborted is over."""
        if post:
            self._scheduler.post(AbortReq(vid=vid, floor=self._machine.floor))
            self.totals.aborted += 1
        elif route is not None and self._lost is not None:
            self.totals.aborted += 1  # it was to be sent again

    # --- control ----------------------------------------------------------------------

    async def heartbeat(self) -> HeartbeatReq:
        """Ask round the ring, through the step loop; return what comes back."""
        return await self.calls.heartbeat()

    def _asked(self) -> Link:
        """Return the link that questions go to; raise what keeps them from being answered."""
        self.check_open()
        if self._lost is not None:
            raise self._lost()
        return self._scheduler

    async def wait_quiet(self) -> None:
        """Wait until no request lives anywhere: every end has come round the ring."""
        while len(self._machine):
            await self._quiet.wait()
        await anyio.lowlevel.checkpoint()

    def shutdown(self) -> None:
        """Refuse what comes from now on, end what lives, and tell the ring to stop."""
        if self._ended is None and self._lost is None:
            self._scheduler.post(ShutdownReq())
        self.end(lambda: EngineClosed("the engine was closed; open another one"))

    def end(self, failure: Callable[[], Error]) -> None:
        """Give every waiter, now and from now on, this error; the first call counts."""
        if self._ended is not None:
            return
        self._ended = failure
        for vid in self._machine.lost():
            route = self._routes.get(vid)
            if route is not None:  # one that was not sent yet finds out when it would be
                self.totals.failed += 1
                route.stream.fail(failure)
        self._questions.end(failure)
        self.kv_events.end(failure)
        self.calls.collector.close()
        self._changed.set()
        self._note_quiet()

    def lose(self, failure: Callable[[], Error]) -> None:
        """Note that the ring has died, and that another will take its place.

        Requests whose callers are there will go on, new ones wait; questions end with this error until then.
        """
        self._lost = failure
        for old, new in self._machine.moved(0):
            self._admission.move(old, new)
            route = self._routes.pop(old)
            if route.resumes:
                self._routes[new] = route
                route.stream.move(new)
            else:  # it may be what they die of, or its session has died
                self._machine.abort(new)
                self.totals.failed += 1
                route.stream.fail(route.give_up)
        self._shards = Shards(len(self._detokenizers), self._questions)
        self._questions.fail(failure)
        self.kv_events.reset()
        self._note_quiet()

    def attach(self, scheduler: Link, detokenizers: Sequence[Link], ready: Ready) -> None:
        """Take another ring, and send it all requests that were lost with the one before.

        Args:
            scheduler: link to the scheduler, opened.
            detokenizers: link to each detokenizer, opened.
            ready: the scheduler's Ready.
        """
        self._scheduler, self._detokenizers, self.ready = scheduler, detokenizers, ready
        self._lost = None
        self.calls.repeat()
        for vid, route in self._routes.items():
            if self._machine.state(vid) is FrontState.NEW:
                self._scheduler.post(route.again(self._machine.floor))
                self._machine.send(vid)
                self.totals.resumed += 1
        self._wake()

    def _wake(self) -> None:
        """Have those look again who wait for a ring, or for quiet."""
        self._changed.set()
        self._changed = anyio.Event()
        self._note_quiet()

    def __len__(self) -> int:
        """Return how many requests are not over."""
        return len(self._machine)

    def check_open(self) -> None:
        """Raise what ended the engine, if it has ended."""
        if self._ended is not None:
            raise self._ended()

    def _check_taking(self) -> None:
        self.check_open()
        self.drain.check()

    # --- the ring -----------------------------------------------------------------------

    @property
    def scheduler_ledger(self) -> SchedulerLedger:
        """What the scheduler held when it was last heard of."""
        return self._shards.ledger

    @property
    def detokenizer_open(self) -> int:
        """What the detokenizers held when they were last heard of."""
        return self._shards.open

    async def hear_detokenizer(self, shard: int = 0) -> None:
        """Route what comes from a detokenizer, until the link closes.

        Args:
            shard: its place among them.

        Raises:
            LinkClosed: the detokenizer is gone.
            RemoteProtocolError: it broke the protocol.
            RoleFailed: it says that it failed.
        """
        link = self._detokenizers[shard]
        while True:
            message = await link.receive()
            if self._lost is not None:
                continue  # what it says now will be said again
            match message:
                case BatchStrOutput():
                    self._shards.hear(shard, message)
                    async with waking() as told:
                        self._route(message, told)
                case HeartbeatReq() | FreezeGCReq():
                    self._shards.answer(shard, message)
                case Failed():
                    raise RoleFailed(link.peer, message)
                case _:
                    raise RemoteProtocolError(f"{type(message).__name__} came after the handshake")

    async def hear_scheduler(self) -> None:
        """Hear what the scheduler itself has to say, until the link closes.

        Raises:
            LinkClosed: the scheduler is gone.
            RemoteProtocolError: it broke the protocol.
            RoleFailed: it says that it failed.
        """
        link = self._scheduler
        while True:
            message = await link.receive()
            if self._lost is not None:
                continue
            match message:
                case ControlOutput():
                    self._questions.settle(message)
                case KVEventBatch():
                    self.kv_events.deliver(message)
                case Failed():
                    raise RoleFailed(link.peer, message)
                case _:
                    raise RemoteProtocolError(f"{type(message).__name__} came after the handshake")

    def _route(self, message: BatchStrOutput, told: list[Stream]) -> None:
        """Give rows to those they are for, and note the streams that have to be woken."""
        self.pulse.heard()
        for row in message.rows():
            vid, reason = Vid(row.vid), row.reason
            end = None if reason is None else end_of(reason)
            to = self._machine.receive(vid, row.offset, len(row.token_ids), end)
            if reason is not None:
                self._admission.end(vid)
            if to is None:
                continue
            if reason is not None:
                self.totals.end(reason)
            told.append(stream := self._routes[to].stream)
            stream.deliver(row)
        self.totals.dropped = self._machine.dropped
        self._note_quiet()

    def _note_quiet(self) -> None:
        self._admission.forget_over()
        if not len(self._machine):
            self._quiet.set()
            self._quiet = anyio.Event()
