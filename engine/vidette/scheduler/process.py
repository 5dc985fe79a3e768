"""The scheduler's AnyIO shell: the link to the front, and one lifetime task per request.

A request goes to the compute thread as it comes, and so does an abort, so that everything the front sends
reaches the thread in the front's order. The task of a vid waits until the thread says that the vid is over;
an AbortReq cancels its scope. Whatever else ends the task, such as the end of this process's task group, its
synchronous `finally` posts the abort to the thread, unless that was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.abc
from anyio import to_thread

from vidette.config import EngineConfig
from vidette.scheduler.compute import ComputeThread
from vidette.scheduler.loop import StepLoop
from vidette.transport.channel import Channel, FrameChannel
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.mailbox import Mailbox
from vidette.transport.sink import Sink
from vidette_protocol.codec import (
    DETOKENIZER_TO_SCHEDULER,
    FRONT_TO_SCHEDULER,
    SCHEDULER_TO_DETOKENIZER,
    SCHEDULER_TO_FRONT,
    Codec,
)
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    AbortReq,
    FreezeGCReq,
    HeartbeatReq,
    Message,
    Ready,
    ShutdownReq,
    TokenizedGenerateReqInput,
)

ThreadNews = StepLoop | list[Vid]
"""From the thread: the loop once it is ready, then vids as they end."""


async def run_scheduler(
    front: FrameChannel,
    detokenizer: Channel,
    *,
    config: EngineConfig,
    make_loop: Callable[[], StepLoop],
    incarnation: int = 0,
) -> None:
    """Serve one front until it says shutdown or is gone; a link that closes during the handshake ends it too.

    Args:
        front: the link to the front.
        detokenizer: the link to the detokenizer; its write side goes to the compute thread.
        config: how the engine is built.
        make_loop: loads the model and builds the loop; called in the compute thread.
        incarnation: how often a scheduler was started before in this engine.

    Raises:
        RemoteProtocolError: one of the others speaks another protocol.
        Exception: what ended the compute thread.
    """
    up = Link(
        front,
        Codec(sends=SCHEDULER_TO_FRONT, receives=FRONT_TO_SCHEDULER),
        role="scheduler",
        peer="front",
    )
    codec = Codec(sends=SCHEDULER_TO_DETOKENIZER, receives=DETOKENIZER_TO_SCHEDULER)
    down = Link(detokenizer, codec, role="scheduler", peer="detokenizer")
    up.post_hello(incarnation=incarnation)
    down.post_hello(incarnation=incarnation)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(front.run_writer)
        try:
            detokenizer.flush_nowait()
            await up.receive_hello()
            await down.receive_hello()
        except LinkClosed:
            tasks.cancel_scope.cancel()
            return
        news: Mailbox[ThreadNews] = Mailbox()
        thread = ComputeThread(
            make_loop, Sink(detokenizer.detach()), codec, tell=news.post, clock=time.monotonic
        )
        try:
            await _serve(up, thread, news, config)
        finally:
            # The thread has returned: `_serve` owns it. Nobody posts any more.
            thread.close()
            news.close()
            tasks.cancel_scope.cancel()


async def _serve(up: Link, thread: ComputeThread, news: Mailbox[ThreadNews], config: EngineConfig) -> None:
    returned = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run_thread, thread, returned, tasks.cancel_scope)
        lives = _Lives(thread, tasks)
        tasks.start_soon(_hear_thread, up, news, lives, config)
        try:
            if await _hear_front(up, thread, lives):
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
        scope.cancel(f"the detokenizer is gone: {error}")
    returned.set()


async def _hear_thread(up: Link, news: Mailbox[ThreadNews], lives: _Lives, config: EngineConfig) -> None:
    while True:
        item = await news.receive()
        if isinstance(item, StepLoop):
            up.post(
                Ready(
                    role="scheduler",
                    max_total_tokens=item.max_total_tokens,
                    num_blocks=config.num_blocks,
                    step_tokens=config.step_tokens,
                )
            )
        else:
            lives.end(item)


async def _hear_front(up: Link, thread: ComputeThread, lives: _Lives) -> bool:
    """Take the front's messages until it says shutdown (True) or is gone (False)."""
    try:
        while True:
            message: Message = await up.receive()
            match message:
                case TokenizedGenerateReqInput():
                    lives.begin(message)
                case AbortReq():
                    lives.abort(message)
                case HeartbeatReq() | FreezeGCReq():
                    thread.post(message)
                case ShutdownReq():
                    thread.post(message)
                    return True
                case _:
                    raise RemoteProtocolError(f"{type(message).__name__} came after the handshake")
    except LinkClosed:
        return False


class _Lives:
    """The lifetime tasks: one per vid that the thread was asked for and has not ended."""

    def __init__(self, thread: ComputeThread, tasks: anyio.abc.TaskGroup) -> None:
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

    def abort(self, abort: AbortReq) -> None:
        """Cancel the task of a vid; pass on the abort of a vid that has none."""
        life = self._lives.get(Vid(abort.vid))
        if life is None:
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

    def leave(self, thread: ComputeThread, abort: AbortReq) -> None:
        """Post the abort, unless it was posted or the request is over."""
        if not (self._left or self.over.is_set()):
            self._left = True
            thread.post(abort)
