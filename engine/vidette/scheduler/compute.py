"""The compute thread: drives `StepLoop`, sends what it makes, and sleeps when there is nothing to do.

Commands come in by `post()`, a deque and a bell; the thread drains them at every step boundary. What a step
makes for the detokenizers goes out from here, one coalesced send per step and detokenizer. A model that
`overlaps` computes the next batch meanwhile; what is posted until that is done belongs to the step that lands
it. With nothing to compute the thread blocks until the bell rings; with output parked it watches the sockets
as well, so a parked finish always leaves. It never polls on a timer.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import torch

from vidette._freeze import carry_out
from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.profiling import Profiler
from vidette.scheduler.shares import Shares
from vidette.transport.mailbox import Bell
from vidette.transport.sink import Sink
from vidette_protocol.codec import Codec
from vidette_protocol.ids import Vid
from vidette_protocol.messages import ControlOutput, KVEventBatch, Message

ThreadNews = StepLoop | list[Vid] | KVEventBatch | ControlOutput
"""From the thread: the loop once it is ready, then vids as they end, and what the front itself is told."""


class ComputeThread:
    """What runs in the worker thread of a scheduler.

    Args:
        make_loop: builds the step loop; called in the thread, where what it makes stays.
        sinks: the way to each detokenizer; the thread owns them.
        codec: for the messages that go into the sinks.
        tell: called in the thread with the loop once it is ready, then with vids as they end, and events
            and answers for the front; must not block.
        clock: seconds, for `StepLoop.step`.
        collects: whether the garbage collector of this process is the scheduler's to freeze.
        wall: seconds since the epoch, for events.
        profile_dir: folder for traces of the steps; None: none are made.
    """

    def __init__(
        self,
        make_loop: Callable[[], StepLoop],
        sinks: Sequence[Sink],
        codec: Codec,
        *,
        tell: Callable[[ThreadNews], None],
        clock: Callable[[], float],
        collects: bool = True,
        wall: Callable[[], float] = time.time,
        profile_dir: str | None = None,
    ) -> None:
        self._make_loop = make_loop
        self._sinks = sinks
        self._shares = Shares(len(sinks))
        self._codec = codec
        self._tell = tell
        self._clock = clock
        self._collects = collects
        self._wall = wall
        self._profiler = Profiler(profile_dir, wall)
        self._commands: deque[Command] = deque()
        self._bell = Bell()
        self._stopped = False

    def post(self, command: Command) -> None:
        """Hand a command to the next step; from any thread, without blocking."""
        self._commands.append(command)
        self._bell.ring()

    def stop(self) -> None:
        """Make `run()` return at the next step boundary, whatever lives; idempotent."""
        self._stopped = True
        self._bell.ring()

    def run(self) -> None:
        """Run until a ShutdownReq has been answered or `stop()` was called.

        Raises:
            LinkClosed: a detokenizer is gone.
        """
        try:
            with torch.inference_mode():
                loop = self._make_loop()
                self._tell(loop)
                while not self._stopped:
                    with self._profiler.step(lambda: loop.ledger().steps):
                        loop.wait()
                        effects = loop.step(self._drain(), self._clock(), launch=not self._full)
                    self._carry_out(effects)
                    for question in effects.profile:
                        self._tell(self._profiler.answer(question, loop.ledger().steps))
                    if effects.stop:
                        self._flush_all()
                        return
                    self._rest(effects)
        finally:
            self._profiler.close()
            for sink in self._sinks:
                sink.close()

    def close(self) -> None:
        """Give the bell's descriptor back; after `run()` has returned and nobody posts any more."""
        self._bell.close()

    def _drain(self) -> list[Command]:
        commands = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    def _carry_out(self, effects: Effects) -> None:
        for message in effects.messages:
            self._put(message)
        for question in effects.freeze_gc:
            state = carry_out(question) if self._collects else None
            self._put(msgspec.structs.replace(question, scheduler=state))
        if effects.unfreeze_gc and self._collects:
            gc.unfreeze()
        self._flush()
        if effects.over:
            self._tell(effects.over)
        if effects.events:
            self._tell(KVEventBatch(ts=self._wall(), events=list(effects.events)))
        for answer in effects.answers:
            self._tell(answer)

    def _rest(self, effects: Effects) -> None:
        """Wait for the bell or the next deadline, unless there is something to do at once."""
        parked = self._flush()
        if effects.in_flight or self._commands or self._stopped or (effects.busy and not self._full):
            return
        self._bell.wait(
            writable=parked,
            seconds=None if effects.wake_at is None else max(0.0, effects.wake_at - self._clock()),
        )

    def _flush_all(self) -> None:
        while not self._stopped and (parked := self._flush()):
            self._bell.wait(writable=parked)

    def _put(self, message: Message) -> None:
        for place, share in self._shares.of(message):
            self._sinks[place].put(self._codec.encode(share))

    def _flush(self) -> list[int]:
        """Send what can be sent; return the descriptors of the sinks in which something is left."""
        return [sink.fileno() for sink in self._sinks if not sink.flush()]

    @property
    def _full(self) -> bool:
        return any(sink.full for sink in self._sinks)
