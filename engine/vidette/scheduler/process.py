"""The scheduler's AnyIO shell: the link to the front, and one lifetime task per request.

A request goes to the compute thread as it comes, and so does an abort, so that everything the front sends
reaches the thread in the front's order. The task of a vid waits until the thread says that the vid is over;
an AbortReq cancels its scope. Whatever else ends the task, such as the end of this process's task group, its
synchronous `finally` posts the abort to the thread, unless that was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import anyio
import anyio.abc
from anyio import to_thread

from vidette._custom import Handlers
from vidette.config import EngineConfig
from vidette.scheduler.compute import ComputeThread, ThreadNews
from vidette.scheduler.controls import Control
from vidette.scheduler.effects import Command
from vidette.scheduler.handlers import Answering
from vidette.scheduler.loop import StepLoop
from vidette.transport.capture import Recorder
from vidette.transport.channel import Channel, FrameChannel
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.mailbox import Mailbox
from vidette.transport.sink import Sink
from vidette_protocol.codec import Codec, front_codec
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import Vid, front_of
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenizedGenerateReqInput,
    ControlOutput,
    ControlReq,
    FreezeGCReq,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    HeartbeatReq,
    KVEventBatch,
    Message,
    ProfileReq,
    Ready,
    ShutdownReq,
    TokenizedGenerateReqInput,
)
from vidette_protocol.messages.catalogue import (
    DETOKENIZER_TO_SCHEDULER,
    SCHEDULER_TO_DETOKENIZER,
)


class Steps(Protocol):
    """What drives the step loop, as far as the loop of events sees it; a `ComputeThread`, or a simulation."""

    def post(self, command: Command, /) -> None:
        """Hand a command to the next step, without blocking."""


async def run_scheduler(
    front: FrameChannel,
    detokenizers: Mapping[str, Channel],
    *,
    config: EngineConfig,
    make_loop: Callable[[], StepLoop],
    incarnation: int = 0,
    recorder: Recorder | None = None,
    codec: Codec | None = None,
    handlers: Handlers | None = None,
    collects: bool = True,
) -> None:
    """Serve one front until it says shutdown or is gone; a link that closes during the handshake ends it too.

    Args:
        front: the link to the front.
        detokenizers: the link to each detokenizer, by its role; their write sides go to the compute thread.
        config: how the engine is built.
        make_loop: loads the model and builds the loop; called in the compute thread.
        incarnation: how often a scheduler was started before in this engine.
        recorder: records what comes from the front.
        codec: the front's, if it knows messages of a user's own.
        handlers: who answers these.
        collects: whether the garbage collector of this process is the scheduler's to freeze.

    Raises:
        RemoteProtocolError: one of the others speaks another protocol.
        Exception: what ended the compute thread.
    """
    up = Link(
        front,
        (front_codec() if codec is None else codec).mirrored(),
        role="scheduler",
        peer="front",
        recorder=recorder,
    )
    steps = Codec(sends=SCHEDULER_TO_DETOKENIZER, receives=DETOKENIZER_TO_SCHEDULER)
    down = [Link(channel, steps, role="scheduler", peer=peer) for peer, channel in detokenizers.items()]
    for link in (up, *down):
        link.post_hello(incarnation=incarnation)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(up.run_writer)
        try:
            for channel in detokenizers.values():
                channel.flush_nowait()
            for link in (up, *down):
                await link.receive_hello()
        except LinkClosed:
            tasks.cancel_scope.cancel()
            return
        news: Mailbox[ThreadNews] = Mailbox()
        thread = ComputeThread(
            make_loop,
            [Sink(channel.detach(), high_water=channel.high_water) for channel in detokenizers.values()],
            steps,
            tell=news.post,
            clock=time.monotonic,
            collects=collects,
            # Torch has one profiler for a process: in the program's own, it is the program's.
            profile_dir=config.profile_dir if collects else None,
        )
        try:
            await _serve(up, thread, news, config, handlers or {})
        finally:
            # The thread has returned: `_serve` owns it. Nobody posts any more.
            thread.close()
            news.close()
            tasks.cancel_scope.cancel()


async def _serve(
    up: Link, thread: ComputeThread, news: Mailbox[ThreadNews], config: EngineConfig, handlers: Handlers
) -> None:
    returned = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run_thread, thread, returned, tasks.cancel_scope)
        lives = Lives(thread, tasks)
        tasks.start_soon(_hear_thread, up, news, lives, config)
        try:
            if await hear_front(up, thread, lives, config, Answering(handlers, up, tasks)):
                await returned.wait()
        finally:
            thread.stop()
            tasks.cancel_scope.cancel()


async def _run_thread(thread: ComputeThread, returned: anyio.Event, scope: anyio.CancelScope) -> None:
    # A limiter of its own: the default one is shared and could make the thread wait for its turn. Not
    # abandoned on cancel: whoever cancels has told the thread to stop, and waits for it here.
    try:
        await to_thread.run_sync(thread.run, limiter=anyio.CapacityLimiter(1))
    except LinkClosed as error:
        # Not our fault: end quietly, so that the front looks for the cause where it is.
        scope.cancel(f"a detokenizer is gone: {error}")
    returned.set()


async def _hear_thread(up: Link, news: Mailbox[ThreadNews], lives: Lives, config: EngineConfig) -> None:
    while True:
        item = await news.receive()
        if isinstance(item, StepLoop):
            up.post(
                Ready(
                    role="scheduler",
                    max_total_tokens=item.max_total_tokens,
                    num_blocks=config.num_blocks,
                    step_tokens=config.step_tokens,
                    max_running=config.max_running,
                )
            )
        elif isinstance(item, KVEventBatch | ControlOutput):
            up.post(item)
        else:
            lives.end(item)


async def hear_front(
    up: Link, thread: Steps, lives: Lives, config: EngineConfig, answering: Answering
) -> bool:
    """Take the front's messages until it says shutdown (True) or is gone (False)."""
    try:
        while True:
            await up.channel.wait_room()  # for answers: whoever asks and does not listen is not asked further
            message: Message = await up.receive()
            match message:
                case TokenizedGenerateReqInput():
                    lives.begin(message)
                case BatchTokenizedGenerateReqInput():
                    lives.begin_all(message)
                case AbortReq(abort_all=True):
                    lives.abort_all(message)
                case AbortReq():
                    lives.abort(message)
                case HeartbeatReq() | FreezeGCReq() | ProfileReq():
                    thread.post(message)
                case _ if isinstance(message, Control):
                    thread.post(message)
                case GetInternalStateReq():
                    up.post(_tell_state(message, config))
                case ControlReq():
                    if not answering.begin(message):
                        up.post(_refuse(message))
                case ShutdownReq():
                    thread.post(message)
                    return True
                case _:
                    raise RemoteProtocolError(f"{type(message).__name__} came after the handshake")
    except LinkClosed:
        return False


def _tell_state(question: GetInternalStateReq, config: EngineConfig) -> GetInternalStateReqOutput:
    return GetInternalStateReqOutput(
        id=question.id,
        internal_state={
            "num_blocks": config.num_blocks,
            "step_tokens": config.step_tokens,
            "max_running": config.max_running,
        },
    )


def _refuse(question: ControlReq) -> ControlOutput:
    """Answer a control message that is not handled yet."""
    return question.output(
        id=question.id, success=False, message=f"this scheduler does not support {type(question).__name__}"
    )


class Lives:
    """The lifetime tasks: one per vid that the thread was asked for and has not ended."""

    def __init__(self, thread: Steps, tasks: anyio.abc.TaskGroup) -> None:
        self._thread = thread
        self._tasks = tasks
        self._lives: dict[Vid, _Life] = {}

    def begin(self, request: TokenizedGenerateReqInput) -> None:
        """Start the task of a request."""
        vid = Vid(request.vid)
        if vid in self._lives:
            raise RemoteProtocolError(f"vid {vid} was sent twice")
        # Done here, before the task has run for the first time: an abort right behind finds it.
        life = self._lives[vid] = _Life()
        self._thread.post(request)
        self._tasks.start_soon(self._live, vid, life)

    def begin_all(self, batch: BatchTokenizedGenerateReqInput) -> None:
        """Start the tasks of requests that were submitted together."""
        for request in batch:
            self.begin(request)

    def abort_all(self, abort: AbortReq) -> None:
        """Cancel the tasks of all vids of one front up to one of them."""
        # The thread has got every request before this, so it finds those that live by itself.
        self._thread.post(abort)
        for vid, life in self._lives.items():
            if vid <= abort.vid and front_of(vid) == front_of(Vid(abort.vid)):
                life.left()
                life.scope.cancel("aborted by the front, as all were")

    def abort(self, abort: AbortReq) -> None:
        """Cancel the task of a vid; pass on the abort of a vid that has none."""
        life = self._lives.get(Vid(abort.vid))
        if life is None or life.over.is_set():  # a session may have to hear of it still
            self._thread.post(abort)
        else:
            life.leave(self._thread, abort)
            life.scope.cancel("aborted by the front")

    def end(self, vids: list[Vid]) -> None:
        """Let the tasks of vids end that the thread is done with."""
        for vid in vids:
            life = self._lives.get(vid)
            if life is not None:
                life.over.set()

    def __len__(self) -> int:
        """Return how many tasks there are."""
        return len(self._lives)

    async def _live(self, vid: Vid, life: _Life) -> None:
        try:
            with life.scope:
                await life.over.wait()
        finally:
            del self._lives[vid]
            life.leave(self._thread, AbortReq(vid=vid))


class _Life:
    """One request's scope in this process."""

    __slots__ = ("_left", "over", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()
        self._left = False

    def left(self) -> None:
        """Note that the thread was told."""
        self._left = True

    def leave(self, thread: Steps, abort: AbortReq) -> None:
        """Post the abort, unless it was posted or the request is over."""
        if not (self._left or self.over.is_set()):
            self._left = True
            thread.post(abort)
