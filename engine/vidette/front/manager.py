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
import msgspec

from vidette.errors import DuplicateRequest, EngineClosed, Error, Overloaded, RequestReplaced, UsageError
from vidette.front.checks import (
    check_group_request,
    check_ids,
    check_known,
    check_request,
    make_rid,
    settle_sampling,
)
from vidette.front.offload import Offload
from vidette.front.questions import Answered, Asked, Questions
from vidette.front.route import MAX_RESUMES, Route, batches, seconds_until
from vidette.front.stream import Group, Stream
from vidette.front.totals import Totals
from vidette.models.interface import ModelInfo, Tokenizer
from vidette.transport.link import Link
from vidette_protocol.errors import DuplicateRid, ProtocolError, RemoteProtocolError
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import FrontMachine, FrontState, end_of
from vidette_protocol.limits import Limits
from vidette_protocol.messages import (
    AbortReq,
    BatchStrOutput,
    ControlOutput,
    ControlReq,
    Failed,
    FreezeGCReq,
    GenerateItem,
    GenerateReqInput,
    HeartbeatReq,
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
        detokenizer: link to the detokenizer, opened.
        tokenizer: text to token ids.
        info: what the front has to know of the model.
        ready: the scheduler's Ready, with its bounds.
        offload: runs tokenising off the loop.
        max_requests: most requests that may live here.
        front_id: high bits of every vid.
        limits: bounds on what a request may hold.
    """

    def __init__(
        self,
        scheduler: Link,
        detokenizer: Link,
        *,
        tokenizer: Tokenizer,
        info: ModelInfo,
        ready: Ready,
        offload: Offload,
        max_requests: int,
        front_id: int = 0,
        limits: Limits = Limits(),  # noqa: B008  immutable
    ) -> None:
        self.info = info
        self.ready = ready
        self.totals = Totals()
        self.scheduler_ledger = SchedulerLedger()
        """What the scheduler held when it was last heard of."""
        self.detokenizer_open = 0
        """What the detokenizer held when it was last heard of."""
        self._scheduler = scheduler
        self._detokenizer = detokenizer
        self._tokenizer = tokenizer
        self._offload = offload
        self._max_requests = max_requests
        self._limits = limits._replace(prompt_tokens=min(limits.prompt_tokens, ready.max_total_tokens - 1))
        self._machine = FrontMachine(front_id=front_id, remembered=limits.ended_remembered)
        self._routes: dict[Vid, Route] = {}
        self._questions = Questions()
        self._rendering = 0
        self._lost: Callable[[], Error] | None = None
        """What ended the ring, while there is no other yet."""
        self._changed = anyio.Event()
        self._ended: Callable[[], Error] | None = None
        self._quiet = anyio.Event()

    # --- requests ------------------------------------------------------------------

    @asynccontextmanager
    async def generate(
        self, request: GenerateReqInput, *, replace: bool = False, deadline_s: float | None = None
    ) -> AsyncGenerator[Stream]:
        """Open a request for one answer; leaving the block, in whatever way, ends it.

        Args:
            request: one prompt, one answer.
            replace: end a request that has the same rid, and take its place; else it is refused. It is ended
                even if this one turns out not to fit, which shows only when it is tokenised.
            deadline_s: seconds from sending, after which the scheduler ends it by itself; None: never.

        Raises:
            UsageError: the request cannot be served as it is.
            DuplicateRequest: its rid is in use.
            Overloaded: too many requests live.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        self.check_open()
        item = check_request(request, new_rid=make_rid, limits=self._limits, vocab_size=self.info.vocab_size)
        check_known(item.sampling_params, self._scheduler.unknown_there(SamplingParams))
        vid = self._replace(item.rid) if replace else self._submit(item.rid)
        stream: Stream | None = None
        try:
            prompt = await self._tokenise(item)
            await self._wait_ring()
            # From here to the yield nothing awaits: the route exists before the scheduler can answer.
            message = self._prepare(vid, item, prompt, deadline_s)
            self._scheduler.post(message)
            stream = self._begin(message)
            yield stream
        finally:  # no await in here: nothing of it can be cancelled
            self._leave(vid if stream is None else stream.vid)

    @asynccontextmanager
    async def generate_group(
        self, request: GenerateReqInput, *, deadline_s: float | None = None
    ) -> AsyncGenerator[Group]:
        """Open a request for several answers; leaving the block, in whatever way, ends all of them.

        They are taken in all or none: if one cannot be served, none is.

        Raises:
            UsageError, DuplicateRequest, Overloaded, EngineBroken, EngineClosed: as `generate`.
        """
        self.check_open()
        checked = check_group_request(
            request, new_rid=make_rid, limits=self._limits, vocab_size=self.info.vocab_size
        )
        items = checked.items
        for item in items:
            check_known(item.sampling_params, self._scheduler.unknown_there(SamplingParams))
        vids = self._submit_group([item.rid for item in items])
        streams: tuple[Stream, ...] = ()
        try:
            prompts = [await self._tokenise(item) for item in items[:: checked.n]]
            await self._wait_ring()
            # From here to the yield nothing awaits, as above.
            messages = [
                self._prepare(vid, item, prompts[place // checked.n], deadline_s)
                for place, (vid, item) in enumerate(zip(vids, items, strict=True))
            ]
            for batch in batches(messages):
                self._scheduler.post(batch)
            streams = tuple(map(self._begin, messages))
            yield Group(streams, n=checked.n, single=checked.single)
        finally:  # no await in here, as above
            for vid in [stream.vid for stream in streams] or vids:
                self._leave(vid)

    def _prepare(
        self, vid: Vid, item: GenerateItem, prompt: memoryview, deadline_s: float | None
    ) -> TokenizedGenerateReqInput:
        """Return what is to be sent now of a request that was tokenised meanwhile; raise if nothing is."""
        self.check_open()
        if self._machine.state(vid) is FrontState.OVER:
            raise RequestReplaced(item.rid)
        return TokenizedGenerateReqInput(
            vid=vid,
            floor=self._machine.floor,
            rid=item.rid,
            input_ids=prompt,
            sampling_params=settle_sampling(
                item.sampling_params, len(prompt) // 4, self.ready.max_total_tokens
            ),
            deadline_s=deadline_s,
        )

    def _begin(self, message: TokenizedGenerateReqInput) -> Stream:
        """Note that a request was sent; return what its caller reads."""
        vid = Vid(message.vid)
        self._machine.send(vid)
        self.totals.submitted += 1
        route = self._routes[vid] = Route.of(message)
        return route.stream

    async def _wait_ring(self) -> None:
        """Wait until there is a ring to send to, or none will come any more."""
        while self._lost is not None and self._ended is None:
            await self._changed.wait()

    async def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's template, off the loop.

        Raises:
            ChatTemplateError: it does not fit the template.
            Overloaded: too many requests live, those included that are being rendered.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        self.check_open()
        self._check_room()
        self._rendering += 1
        try:
            return await self._offload(lambda: self._tokenizer.render_chat(messages))
        finally:
            self._rendering -= 1

    def _check_room(self, more: int = 1) -> None:
        live = len(self._machine) + self._rendering
        if more > self._max_requests:
            raise UsageError(
                f"{more} answers are asked for at once; at most {self._max_requests} requests may live",
                param="n",
            )
        if live + more > self._max_requests:
            raise Overloaded(f"{live} requests live; at most {self._max_requests} may")

    def _submit(self, rid: str) -> Vid:
        self._check_room()
        try:
            return self._machine.submit(Rid(rid))
        except DuplicateRid as error:
            raise DuplicateRequest(rid) from error

    def _submit_group(self, rids: Sequence[str]) -> tuple[Vid, ...]:
        self._check_room(len(rids))
        try:
            return self._machine.submit_group(list(map(Rid, rids)))
        except DuplicateRid as error:
            raise DuplicateRequest(error.rid) from error

    def _replace(self, rid: str) -> Vid:
        holder = self._machine.holder(Rid(rid))
        self._check_room(0 if holder is not None else 1)
        vid, replaced = self._machine.replace(Rid(rid))
        if replaced is not None:
            # Its block is still to be left, by its own task, which then finds nothing more to do.
            route = self._routes.get(replaced.vid)
            self._post_abort(replaced.vid, route, post=replaced.post)
            if route is not None:
                route.stream.fail(lambda: RequestReplaced(rid))
        return vid

    def _leave(self, vid: Vid) -> None:
        """End a request from the caller's side; nothing happens if it is over."""
        lived = self._machine.state(vid) is not FrontState.OVER
        post = self._machine.abort(vid)
        route = self._routes.pop(vid, None)
        if lived:
            self._post_abort(vid, route, post=post)
        if route is not None:  # another task may wait for it still
            route.stream.leave()
        self._note_quiet()

    def _post_abort(self, vid: Vid, route: Route | None, *, post: bool) -> None:
        """Tell the scheduler, if it knows of it, that a request which has just been aborted is over."""
        if post:
            self._scheduler.post(AbortReq(vid=vid, floor=self._machine.floor))
            self.totals.aborted += 1
        elif route is not None and self._lost is not None:
            self.totals.aborted += 1  # it was to be sent again

    async def _tokenise(self, item: GenerateItem) -> memoryview:
        """Return the prompt as packed int32, in a column of its own."""
        if item.input_ids is not None:
            ids = check_ids(item.input_ids, self.info.vocab_size)
            await anyio.lowlevel.checkpoint()  # so that a scope which has ended submits nothing
        else:
            text = item.text
            assert text is not None
            ids = await self._offload(lambda: self._tokenizer.encode(text))
            if not len(ids):
                raise UsageError("text has no tokens; a prompt has at least one", param="text")
        return ids.data.cast("B")

    # --- control ----------------------------------------------------------------------

    async def heartbeat(self) -> HeartbeatReq:
        """Ask round the ring, through the step loop; return what comes back.

        Raises:
            EngineBroken, EngineClosed: the engine serves no more.
        """
        floor = self._machine.floor
        answer = await self._ask(lambda call: HeartbeatReq(id=call, floor=floor), HeartbeatReq)
        assert isinstance(answer, HeartbeatReq)  # Questions has seen to it
        return answer

    async def freeze_gc(self) -> None:
        """Have scheduler and detokenizer collect garbage once and leave what lives out of collections.

        Raises:
            EngineBroken, EngineClosed: the engine serves no more.
        """
        await self._ask(lambda call: FreezeGCReq(id=call), FreezeGCReq)

    async def control(self, request: ControlReq) -> ControlOutput:
        """Send a control message to the scheduler; return its answer, of the class `request.output`.

        Args:
            request: its `id` is set here. Without a `deadline_s` of its own, it gets what is left of the
                caller's deadline.

        Raises:
            UsageError: the scheduler could not read it: a value is of the wrong type or out of range.
            TimeoutError: no answer came within `deadline_s`.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        seconds = request.deadline_s
        if seconds is None:
            seconds = seconds_until(anyio.current_effective_deadline())
        question = msgspec.structs.replace(request, id=0, deadline_s=seconds)
        try:
            self._scheduler.check(question)
        except ProtocolError as error:
            raise UsageError(f"{type(request).__name__} cannot be sent: {error}") from error
        with anyio.fail_after(request.deadline_s):
            answer = await self._ask(lambda call: msgspec.structs.replace(question, id=call), request.output)
        assert isinstance(answer, ControlOutput)  # Questions has seen to it
        return answer

    async def _ask(self, make: Callable[[int], Asked], kind: type[Answered]) -> Answered:
        self.check_open()
        if self._lost is not None:
            raise self._lost()
        return await self._questions.ask(make, kind, self._scheduler.post)

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
        self._questions.fail(failure)
        self._changed.set()
        self._note_quiet()

    def lose(self, failure: Callable[[], Error]) -> None:
        """Note that the ring has died, and that another will take its place.

        Requests whose callers are there will go on, new ones wait; questions end with this error until then.
        """
        self._lost = failure
        for old, new in self._machine.moved(0):
            route = self._routes.pop(old)
            if route.stream.resumed < MAX_RESUMES:
                self._routes[new] = route
                route.stream.move(new)
            else:  # it may be what they die of
                self._machine.abort(new)
                self.totals.failed += 1
                route.stream.fail(route.give_up)
        self.scheduler_ledger, self.detokenizer_open = SchedulerLedger(), 0
        self._questions.fail(failure)
        self._note_quiet()

    def attach(self, scheduler: Link, detokenizer: Link, ready: Ready) -> None:
        """Take another ring, and send it all requests that were lost with the one before.

        Args:
            scheduler: link to the scheduler, opened.
            detokenizer: link to the detokenizer, opened.
            ready: the scheduler's Ready.
        """
        self._scheduler, self._detokenizer, self.ready = scheduler, detokenizer, ready
        self._lost = None
        for vid, route in self._routes.items():
            if self._machine.state(vid) is FrontState.NEW:
                self._scheduler.post(route.again(self._machine.floor))
                self._machine.send(vid)
                self.totals.resumed += 1
        self._changed.set()
        self._changed = anyio.Event()

    def __len__(self) -> int:
        """Return how many requests are not over."""
        return len(self._machine)

    def check_open(self) -> None:
        """Raise what ended the engine, if it has ended."""
        if self._ended is not None:
            raise self._ended()

    # --- the ring -----------------------------------------------------------------------

    async def hear_detokenizer(self) -> None:
        """Route what comes from the detokenizer, until the link closes.

        Raises:
            LinkClosed: the detokenizer is gone.
            RemoteProtocolError: it broke the protocol.
            RoleFailed: it says that it failed.
        """
        link = self._detokenizer
        while True:
            message = await link.receive()
            if self._lost is not None:
                continue  # what it says now will be said again
            match message:
                case BatchStrOutput():
                    self._route(message)
                case HeartbeatReq() | FreezeGCReq():
                    self._answer(message)
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
                    self._answer(message)
                case Failed():
                    raise RoleFailed(link.peer, message)
                case _:
                    raise RemoteProtocolError(f"{type(message).__name__} came after the handshake")

    def _route(self, message: BatchStrOutput) -> None:
        self.scheduler_ledger = message.ledger
        self.detokenizer_open = message.detokenizer_open
        for row in message.rows():
            to = self._machine.receive(Vid(row.vid), row.offset, len(row.token_ids), end_of(row.reason))
            if to is None:
                continue
            if row.reason is not None:
                if row.reason.type == "error":
                    self.totals.failed += 1
                else:
                    self.totals.finished += 1
            self._routes[to].stream.deliver(row)
        self.totals.dropped = self._machine.dropped
        self._note_quiet()

    def _answer(self, message: Answered) -> None:
        if isinstance(message, HeartbeatReq):
            if message.scheduler is not None:
                self.scheduler_ledger = message.scheduler
            if message.detokenizer_open is not None:
                self.detokenizer_open = message.detokenizer_open
        self._questions.settle(message)

    def _note_quiet(self) -> None:
        if not len(self._machine):
            self._quiet.set()
            self._quiet = anyio.Event()


class RoleFailed(Exception):  # noqa: N818  what it is told, not an error of the front's
    """A role says that it ends by a fault of its own; its exit will follow."""

    def __init__(self, role: str, failed: Failed) -> None:
        super().__init__(failed.message)
        self.role = role
