"""`Ring`: scheduler and detokenizers, running somewhere, with the front's links to them.

The two topologies differ here and nowhere else: `start_processes` puts each role into a process of its own,
`start_inline` runs both as tasks of this loop, over the same codec and the same frames. Whatever ends a role
before it was told to end is a *breakdown*; the first one is kept and told to everybody who waits.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from enum import IntEnum
from functools import partial

import anyio
import anyio.abc
from msgspec import Struct

from vidette._custom import Custom
from vidette._groups import sole_cause
from vidette.config import EngineConfig
from vidette.errors import EngineBroken
from vidette.models import TokenTable
from vidette.transport.capture import recording
from vidette.transport.channel import Channel, FrameChannel, socket_pair
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link, RoleFailed
from vidette.transport.memory import MemoryChannel
from vidette.transport.spawn import Child, describe_exit
from vidette_protocol.codec import Codec, front_codec
from vidette_protocol.errors import ProtocolError
from vidette_protocol.messages import Failed, Ready
from vidette_protocol.messages.catalogue import (
    DETOKENIZER_TO_FRONT,
    FRONT_TO_DETOKENIZER,
)

PATIENCE_SECONDS = 0.2
"""How long a mere sign of trouble (a clean exit) waits for the cause of it: another role's death."""
CLOSED_SECONDS = 2.0
"""How long a closed link waits for the exit status of its process, too. With torch loaded, one takes about
0.1 s to die, and several times as long on a busy machine."""

OWN_CHILD = "vidette._child"
"""Main module of the children, unless they have to know messages of a user's own."""

REAP_SECONDS = 2.0
"""How long a killed process may take to be gone."""


class Sign(IntEnum):
    """Signs of trouble that may have a cause elsewhere; the larger, the more it says."""

    LINK_CLOSED = 0
    CLEAN_END = 1
    SAID_SO = 2


class Breakdown(Struct, frozen=True):
    """What ended the ring before its time."""

    message: str
    role: str | None = None
    exit_status: int | None = None
    last_words: str = ""
    cause: BaseException | None = None

    def error(self) -> EngineBroken:
        """Return a new exception: one that several waiters raise must not be shared."""
        error = EngineBroken(
            self.message, role=self.role, exit_status=self.exit_status, last_words=self.last_words
        )
        error.__cause__ = self.cause
        return error


class ProcessInfo(Struct, frozen=True):
    """A process of the engine.

    Args:
        role: what it does.
        pid: its process id.
        incarnation: how often this role was started before.
    """

    role: str
    pid: int
    incarnation: int = 0


class Ring:
    """The other roles, from the front's side.

    Args:
        scheduler: channel to the scheduler.
        detokenizers: channel to each detokenizer, by its role.
        capture: folder in which what comes from them is recorded; None: nothing is.
        codec: of the link to the scheduler; None: that of our own messages.
        incarnation: how many rings were in its place before.

    Raises:
        UsageError: nothing can be recorded there.
    """

    def __init__(
        self,
        scheduler: FrameChannel,
        detokenizers: Mapping[str, FrameChannel],
        *,
        capture: str | None = None,
        codec: Codec | None = None,
        incarnation: int = 0,
    ) -> None:
        with ExitStack() as files:
            heard_scheduler, *heard_detokenizers = (
                files.enter_context(
                    recording(capture, sender=sender, receiver="front", incarnation=incarnation)
                )
                for sender in ("scheduler", *detokenizers)
            )
            self._files = files.pop_all()
        self.incarnation = incarnation
        self.scheduler = Link(
            scheduler,
            # Its own: a codec with bulk is used by one thread, and the given one may serve several engines.
            front_codec() if codec is None else codec.copy(),
            role="front",
            peer="scheduler",
            recorder=heard_scheduler,
        )
        texts = Codec(sends=FRONT_TO_DETOKENIZER, receives=DETOKENIZER_TO_FRONT)
        self.detokenizers = tuple(
            Link(channel, texts, role="front", peer=role, recorder=recorder)
            for (role, channel), recorder in zip(detokenizers.items(), heard_detokenizers, strict=True)
        )
        self.children: list[Child] = []
        self.opened = False
        """Whether all roles have been ready."""
        self.breakdown: Breakdown | None = None
        self.ended = anyio.Event()
        """Set once it has broken down, or is told to stop."""
        self._signs: dict[Sign, Breakdown] = {}
        self._stopping = False
        self._running = 0
        self._stopped = anyio.Event()

    @property
    def processes(self) -> tuple[ProcessInfo, ...]:
        """The processes besides this one."""
        return tuple(ProcessInfo(child.role, child.pid, self.incarnation) for child in self.children)

    async def open(self) -> Ready:
        """Shake hands and wait until all roles are ready; return the scheduler's Ready.

        Raises:
            EngineBroken: one of them failed.
        """
        ready: Ready | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_broken, tasks.cancel_scope)
            try:
                for link in self._links:
                    link.post_hello(incarnation=self.incarnation)
                for link in self._links:
                    await _receive_hello(link)
                for link in self.detokenizers:
                    await _receive_ready(link)
                ready = await _receive_ready(self.scheduler)
            except LinkClosed as error:
                await self._suspect(
                    Sign.LINK_CLOSED, Breakdown(f"a link closed before the engine was ready: {error}")
                )
            except ProtocolError as error:
                self.break_down(Breakdown(f"the engine cannot start: {error}", cause=error))
            except RoleFailed as failed:
                await self._suspect(Sign.SAID_SO, _breakdown_of(failed))
            tasks.cancel_scope.cancel()
        if self.breakdown is not None:
            raise self.breakdown.error()
        assert ready is not None
        self.opened = True
        return ready

    def break_down(self, breakdown: Breakdown) -> None:
        """Note what ended the ring, unless it was told to end or something did before; end the rest."""
        if self._stopping or self.breakdown is not None:
            return
        self.breakdown = breakdown
        self.ended.set()
        self.kill()

    async def hear(self, role: str, listen: Callable[[], Awaitable[None]]) -> None:
        """Run one of the front's listeners; what ends it is a breakdown of that role."""
        try:
            await listen()
        except LinkClosed:
            await self._suspect(Sign.LINK_CLOSED, Breakdown(f"the link to the {role} closed", role=role))
        except RoleFailed as failed:
            await self._suspect(Sign.SAID_SO, _breakdown_of(failed))
        except ProtocolError as error:
            self.break_down(Breakdown(f"the {role} broke the protocol: {error}", role=role, cause=error))

    async def stop(self, timeout: float) -> None:
        """Wait until all roles, told by ShutdownReq, have ended; after `timeout` seconds kill them."""
        self._stopping = True
        self.ended.set()
        if self.breakdown is None:
            await self._wait_stopped(timeout)
        if self.children:
            self.kill()
            await self._wait_stopped(REAP_SECONDS)  # here rather than in close(), which would block the loop

    def kill(self) -> None:
        """End at once whatever process still runs."""
        for child in self.children:
            child.kill()

    def close(self) -> None:
        """Kill what still runs, and give every descriptor back; the tasks of the ring must have ended."""
        for link in self._links:
            link.close()
        for child in self.children:
            child.close()
        self._files.close()

    @property
    def _links(self) -> tuple[Link, ...]:
        return (self.scheduler, *self.detokenizers)

    # --- what start_* put into the task group -----------------------------------------

    async def watch(self, child: Child) -> None:
        """Wait for a child's end, which is a breakdown unless the ring was told to stop."""
        self._begin()
        try:
            status = await child.wait_exit()
            words = child.last_words()
            message = describe_exit(child.role, status, words)
            breakdown = Breakdown(message, role=child.role, exit_status=status, last_words=words)
            if status == 0:
                await self._suspect(Sign.CLEAN_END, breakdown)
            else:
                self.break_down(breakdown)
        finally:
            self._end()

    async def run_role(self, role: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a role in this process; its end is a breakdown unless the ring was told to stop."""
        self._begin()
        try:
            await run()
            await self._suspect(Sign.CLEAN_END, Breakdown(f"the {role} ended", role=role))
        except Exception as error:  # noqa: BLE001  supervision: the cause goes to every waiter
            cause = sole_cause(error)
            self.break_down(
                Breakdown(f"the {role} failed: {type(cause).__name__}: {cause}", role=role, cause=cause)
            )
        finally:
            self._end()

    async def _suspect(self, sign: Sign, breakdown: Breakdown) -> None:
        """Note a sign that may be the echo of something else; break down by the best if no cause shows."""
        if self._stopping:
            return
        self._signs.setdefault(sign, breakdown)
        with anyio.move_on_after(CLOSED_SECONDS if sign is Sign.LINK_CLOSED else PATIENCE_SECONDS):
            await self.ended.wait()
        self.break_down(self._signs[max(self._signs)])

    async def _wait_stopped(self, timeout: float) -> None:
        with anyio.move_on_after(timeout):
            while self._running:
                await self._stopped.wait()

    def _begin(self) -> None:
        self._running += 1

    def _end(self) -> None:
        self._running -= 1
        self._stopped.set()
        self._stopped = anyio.Event()

    async def _cancel_when_broken(self, scope: anyio.CancelScope) -> None:
        await self.ended.wait()
        scope.cancel("a role of the engine ended")


def start_processes(
    config: EngineConfig,
    tasks: anyio.abc.TaskGroup,
    *,
    backend: str,
    custom: Custom = Custom(),  # noqa: B008  immutable
    incarnation: int = 0,
) -> Ring:
    """Start scheduler and detokenizers as processes, supervised by tasks of the group.

    Args:
        config: how the engine is built.
        tasks: what owns the processes.
        backend: event loop library of the processes.
        custom: messages of a user's own.
        incarnation: how many rings were in its place before.

    Raises:
        OSError: a process cannot be started.
    """
    roles = config.detokenizer_roles
    front_scheduler, scheduler_front = socket_pair()
    texts = {role: socket_pair() for role in roles}
    steps = {role: socket_pair() for role in roles}
    links: dict[str, dict[str, socket.socket]] = {
        role: {"front": texts[role][1], "scheduler": steps[role][1]} for role in roles
    }
    links["scheduler"] = {"front": scheduler_front} | {role: steps[role][0] for role in roles}
    theirs = [sock for ends in links.values() for sock in ends.values()]
    try:
        ring = Ring(
            Channel(front_scheduler),
            {role: Channel(texts[role][0]) for role in roles},
            capture=config.capture,
            codec=custom.codec,
            incarnation=incarnation,
        )
    except BaseException:
        _close(front_scheduler, *(texts[role][0] for role in roles), *theirs)
        raise
    try:
        for role, ends in links.items():
            ring.children.append(
                Child(
                    role,
                    ends,
                    config,
                    backend=backend,
                    incarnation=incarnation,
                    module=custom.child or OWN_CHILD,
                )
            )
    except BaseException:
        _close(*theirs)
        ring.close()
        raise
    for link in (ring.scheduler, *ring.detokenizers):
        tasks.start_soon(link.run_writer)
    for child in ring.children:
        tasks.start_soon(child.run_listener)
        tasks.start_soon(ring.watch, child)
    return ring


def start_inline(
    config: EngineConfig,
    table: TokenTable,
    tasks: anyio.abc.TaskGroup,
    *,
    custom: Custom = Custom(),  # noqa: B008  immutable
    incarnation: int = 0,
) -> Ring:
    """Start scheduler and detokenizers as tasks of the group.

    Args:
        config: how the engine is built.
        table: the bytes of each token.
        tasks: what owns them.
        custom: messages of a user's own.
        incarnation: how many rings were in its place before.
    """
    from vidette.detokenizer.process import run_detokenizer  # noqa: PLC0415
    from vidette.scheduler.build import build_loop  # noqa: PLC0415
    from vidette.scheduler.process import run_scheduler  # noqa: PLC0415

    roles = config.detokenizer_roles
    front_scheduler, scheduler_front = MemoryChannel.pair()
    texts = {role: MemoryChannel.pair() for role in roles}
    ring = Ring(
        front_scheduler,
        {role: ours for role, (ours, _) in texts.items()},
        capture=config.capture,
        codec=custom.codec,
        incarnation=incarnation,
    )
    # The compute thread sends by itself, so these are sockets in both topologies.
    steps = {role: tuple(map(Channel, socket_pair())) for role in roles}

    async def scheduler() -> None:
        try:
            with recording(
                config.capture, sender="front", receiver="scheduler", incarnation=incarnation
            ) as recorder:
                await run_scheduler(
                    scheduler_front,
                    {role: ours for role, (ours, _) in steps.items()},
                    config=config,
                    make_loop=partial(build_loop, config),
                    incarnation=incarnation,
                    recorder=recorder,
                    codec=custom.codec,
                    handlers=custom.handlers,
                    collects=False,  # the front does
                )
        finally:
            scheduler_front.close()
            for ours, _ in steps.values():
                ours.close()

    async def detokenizer(role: str) -> None:
        scheduler, front = steps[role][1], texts[role][1]
        try:
            with recording(
                config.capture, sender="scheduler", receiver=role, incarnation=incarnation
            ) as recorder:
                await run_detokenizer(
                    scheduler,
                    front,
                    table=table,
                    role=role,
                    incarnation=incarnation,
                    recorder=recorder,
                    collects=False,
                )
        finally:
            front.close()
            scheduler.close()

    tasks.start_soon(ring.run_role, "scheduler", scheduler)
    for role in roles:
        tasks.start_soon(ring.run_role, role, partial(detokenizer, role))
    return ring


def import_roles() -> None:
    """Import what `start_inline` needs; takes seconds, so call it off the loop.

    A front whose scheduler is a process of its own never needs any of it, torch least of all.
    """
    import vidette.detokenizer.process  # noqa: PLC0415
    import vidette.scheduler.build  # noqa: PLC0415
    import vidette.scheduler.process  # noqa: F401, PLC0415


def _close(*sockets: socket.socket) -> None:
    for sock in sockets:
        sock.close()


async def _receive_hello(link: Link) -> None:
    message = await link.receive_first()
    if isinstance(message, Failed):  # before it could say hello
        raise RoleFailed(link.peer, message)
    link.check_hello(message)


async def _receive_ready(link: Link) -> Ready:
    message = await link.receive()
    if isinstance(message, Failed):
        raise RoleFailed(link.peer, message)
    assert isinstance(message, Ready)  # the link has seen to it
    return message


def _breakdown_of(failed: RoleFailed) -> Breakdown:
    """What a role says of its own failure; its exit, which follows, says the status as well."""
    return Breakdown(f"the {failed.role} failed: {failed}", role=failed.role)
