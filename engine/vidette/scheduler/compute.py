"""The compute thread: drives `StepLoop`, sends what it makes, and sleeps when there is nothing to do.

Commands come in by `post()`, a deque and a bell; the thread drains them at every step boundary. What a step
makes for the detokenizer goes out from here, one coalesced send per step. With nothing to compute the thread
blocks until the bell rings; with output parked it watches the socket as well, so a parked finish always
leaves. It never polls on a timer.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable

import msgspec
import torch

from vidette._freeze import carry_out
from vidette.scheduler.loop import Command, Effects, StepLoop
from vidette.transport.mailbox import Bell
from vidette.transport.sink import Sink
from vidette_protocol.codec import Codec
from vidette_protocol.ids import Vid


class ComputeThread:
    """What runs in the worker thread of a scheduler.

    Args:
        make_loop: builds the step loop; called in the thread, where what it makes stays.
        sink: the way to the detokenizer; the thread owns it.
        codec: for the messages that go into the sink.
        tell: called in the thread with the loop once it is ready, then with vids as they end; must not block.
        clock: seconds, for `StepLoop.step`.
        collects: whether the garbage collector of this process is the scheduler's to freeze.
    """

    def __init__(
        self,
        make_loop: Callable[[], StepLoop],
        sink: Sink,
        codec: Codec,
        *,
        tell: Callable[[StepLoop | list[Vid]], None],
        clock: Callable[[], float],
        collects: bool = True,
    ) -> None:
        self._make_loop = make_loop
        self._sink = sink
        self._codec = codec
        self._tell = tell
        self._clock = clock
        self._collects = collects
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
            LinkClosed: the detokenizer is gone.
        """
        try:
            with torch.inference_mode():
                loop = self._make_loop()
                self._tell(loop)
                while not self._stopped:
                    effects = loop.step(self._drain(), self._clock(), launch=not self._sink.full)
                    self._carry_out(effects)
                    if effects.stop:
                        self._flush_all()
                        return
                    self._rest(effects)
        finally:
            self._sink.close()

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
            self._sink.put(self._codec.encode(message))
        for question in effects.freeze_gc:
            state = carry_out(question) if self._collects else None
            self._sink.put(self._codec.encode(msgspec.structs.replace(question, scheduler=state)))
        if effects.unfreeze_gc and self._collects:
            gc.unfreeze()
        self._sink.flush()
        if effects.over:
            self._tell(effects.over)

    def _rest(self, effects: Effects) -> None:
        """Wait for the bell or the next deadline, unless there is something to do at once."""
        parked = not self._sink.flush()
        if self._commands or self._stopped or (effects.busy and not self._sink.full):
            return
        self._bell.wait(
            writable=self._sink.fileno() if parked else None,
            seconds=None if effects.wake_at is None else max(0.0, effects.wake_at - self._clock()),
        )

    def _flush_all(self) -> None:
        while not self._stopped and not self._sink.flush():
            self._bell.wait(writable=self._sink.fileno())
