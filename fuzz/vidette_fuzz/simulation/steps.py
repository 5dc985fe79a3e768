"""`Steps`: drives a step loop in simulated time, as the compute thread does in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
import anyio.abc
import torch

from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.endings import DEADLINE_GRACE
from vidette.scheduler.process import Lives
from vidette.scheduler.shares import Shares
from vidette.transport.link import Link
from vidette_fuzz.simulation.adversary import Adversary, AdverseChannel
from vidette_fuzz.simulation.observed import SimulatedLoop
from vidette_protocol.ids import Vid, label
from vidette_protocol.messages import TokenizedGenerateReqInput

MOST_STEPS: Final = 5_000
"""More steps than any engine of a history takes."""


class Steps:
    """Drives a step loop in a task, as the compute thread does in a thread.

    Args:
        loop: driven.
        up: the link to the front.
        down: the link to each detokenizer.
        channels: what carries them.
        high_water: bytes that a detokenizer has not taken, from which on nothing is launched.
        adversary: says how long a step takes.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        up: Link,
        down: Sequence[Link],
        channels: Sequence[AdverseChannel],
        *,
        high_water: int,
        adversary: Adversary,
    ) -> None:
        self.returned = anyio.Event()
        self._loop = loop
        self._up = up
        self._down = down
        self._channels = channels
        self._shares = Shares(len(down))
        self._high_water = high_water
        self._adversary = adversary
        self._commands: list[Command] = []
        self._posted = anyio.Event()
        self._due: dict[Vid, float] = {}
        self._rested_from = 0.0

    def post(self, command: Command, /) -> None:
        """Hand a command to the next step."""
        self._commands.append(command)
        self._posted.set()

    async def run(self, lives: Lives, tasks: anyio.abc.TaskGroup) -> None:
        """Step until told to stop.

        Args:
            lives: told of the vids that are over.
            tasks: runs the telling.
        """
        for _ in range(MOST_STEPS):
            effects = self._step()
            if not effects.in_flight:
                await anyio.sleep(self._adversary.step_seconds())
            for message in effects.messages:
                for place, share in self._shares.of(message):
                    self._down[place].post(share)
            for answer in effects.answers:
                self._up.post(answer)
            if effects.over:
                tasks.start_soon(self._tell, lives, effects.over)
            if effects.stop:
                self.returned.set()
                return
            if effects.in_flight:  # what was made is on its way while the next batch is computed
                await anyio.sleep(self._adversary.step_seconds())
            await self._rest(effects)
        self._adversary.journal.violate(f"8: the scheduler takes more than {MOST_STEPS} steps")
        self.returned.set()

    def _step(self) -> Effects:
        commands, self._commands = self._commands, []
        self._posted = anyio.Event()
        now = anyio.current_time()
        for vid, due in self._due.items():
            if now > max(due, self._rested_from) + 1e-6:
                self._adversary.journal.violate(f"deadline: nobody wakes for that of vid {label(vid)}")
        for command in commands:
            if isinstance(command, TokenizedGenerateReqInput) and command.deadline_s is not None:
                self._due[Vid(command.vid)] = now + command.deadline_s + DEADLINE_GRACE
        with torch.inference_mode():
            effects = self._loop.step(commands, now, launch=not self._full)
        for vid in effects.over:
            self._due.pop(vid, None)
        return effects

    async def _tell(self, lives: Lives, over: list[Vid]) -> None:
        await anyio.sleep(self._adversary.while_(0.001))
        lives.end(over)

    async def _rest(self, effects: Effects) -> None:
        self._rested_from = anyio.current_time()
        if effects.in_flight or self._commands or (effects.busy and not self._full):
            return
        deadline = float("inf") if effects.wake_at is None else effects.wake_at
        with anyio.CancelScope(deadline=deadline):
            async with anyio.create_task_group() as waiting:
                for channel in self._channels:
                    if channel.unread:
                        waiting.start_soon(_cancel_when, channel.taken, waiting.cancel_scope)
                await self._posted.wait()
                waiting.cancel_scope.cancel()

    @property
    def _full(self) -> bool:
        return any(channel.unread >= self._high_water for channel in self._channels)


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
