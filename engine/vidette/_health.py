"""`Health`: three answers to how an engine is; `Watchdog`: what is done about a ring that hangs.

Both go by what comes round the ring, and when. No flag is set anywhere that says that all is well.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from msgspec import Struct

from vidette._ring import Breakdown, Ring
from vidette.config import EngineConfig
from vidette.front.pulse import Pulse
from vidette_protocol.messages import SchedulerLedger

logger = logging.getLogger(__name__)

COMPUTING_TIMES: Final = 10
"""How many times `hang_timeout` a ring has whose processes compute or wait for a device: steps are long."""
COMPUTING_SHARE: Final = 0.1
"""Share of one core from which on a process computes."""
STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a device",
    "T": "stopped",
    "t": "traced",
    "Z": "dead",
}
"""What the kernel's letters mean."""
STOPPED: Final = frozenset("Tt")
ON_DEVICE: Final = "D"


class Health(Struct, frozen=True):
    """Three different answers to how an engine is, each weaker one a condition of the next.

    Args:
        live: it serves, or will again by itself; not so once it has broken for good, or is closed.
        progress: its parts turn: they run, and no heartbeat is overdue.
        ready: it would serve a request now: something has come round this ring, nothing is overdue, and it is
            not being closed.
        reason: why the first that is False is so.
        silence_s: how long the oldest heartbeat has been on its way; 0 if none is.
        heard_s: how long ago tokens or a heartbeat last came round this ring; None if nothing has yet.
        queue_age_s: how long the oldest request had waited for its turn when the scheduler was heard last.
        step_s: how long its step before that took.
        paused: whether it takes no steps until it is told to go on; it is not ready then.
    """

    live: bool
    progress: bool
    ready: bool
    reason: str | None = None
    silence_s: float = 0.0
    heard_s: float | None = None
    queue_age_s: float = 0.0
    step_s: float = 0.0
    paused: bool = False


def take_health(
    ended: str | None,
    *,
    turning: bool,
    draining: bool,
    pulse: Pulse,
    ledger: SchedulerLedger,
    stall_timeout: float,
) -> Health:
    """Return how an engine is now.

    Args:
        ended: why it serves no more, if so.
        turning: whether its ring turns, as far as is known.
        draining: whether it is being closed, and takes nothing new.
        pulse: of its front.
        ledger: what the scheduler said last.
        stall_timeout: seconds after which a heartbeat is overdue.
    """
    silence, heard = pulse.silence_s, pulse.heard_s
    overdue = silence >= stall_timeout
    reason = ended
    if reason is None and not turning:
        reason = "scheduler and detokenizer are being started again"
    elif reason is None and overdue:
        reason = f"no heartbeat has come back for {silence:.1f} s"
    elif reason is None and draining:
        reason = "the engine is being closed, and takes no more requests"
    elif reason is None and ledger.paused:
        reason = "generation is paused"
    elif reason is None and heard is None:
        reason = "nothing has come round the ring yet"
    return Health(
        live=ended is None,
        progress=ended is None and turning and not overdue,
        ready=reason is None,
        reason=reason,
        silence_s=silence,
        heard_s=heard,
        queue_age_s=ledger.queue_age_s,
        step_s=ledger.step_s,
        paused=ledger.paused,
    )


class Watchdog:
    """Tells the log when heartbeats of a ring stay away, and ends the ring if it is to be ended then.

    Args:
        config: `watchdog`, `stall_timeout`, `hang_timeout`.
        ring: watched.
        pulse: of the front that it belongs to.
    """

    def __init__(self, config: EngineConfig, ring: Ring, pulse: Pulse) -> None:
        self._config = config
        self._ring = ring
        self._pulse = pulse
        # A role in this process cannot be ended: nobody can stop a thread.
        self._ends = config.watchdog == "restart" and bool(ring.children)
        self._silence = math.inf
        self._computed = 0.0
        self._used = 0.0

    async def run(self) -> None:
        """Watch until cancelled, or until the ring was ended."""
        overdue = False
        while True:
            await self._pulse.wait_news()
            silence = self._pulse.silence_s
            if overdue != (silence >= self._config.stall_timeout):
                overdue = not overdue
                if overdue:
                    logger.warning("no heartbeat has come back for %.1f s%s", silence, self._states())
                else:
                    self._silence = math.inf
                    if self._pulse.heard_s is not None:  # else the ring is gone, and what was due with it
                        logger.warning("heartbeats come back again")
            if overdue and self._ends and self._hangs(silence):
                message = f"the engine hung: no heartbeat came back for {silence:.1f} s{self._states()}"
                stopped = [child.role for child in self._ring.children if child.look().state in STOPPED]
                role = stopped[0] if len(stopped) == 1 else None
                self._ring.break_down(Breakdown(message, role=role))
                return

    def _hangs(self, silence: float) -> bool:
        """Return whether a silence has lasted too long.

        One in which something is computed, or a device is waited for, may be longer.
        """
        looks = [child.look() for child in self._ring.children]
        used = sum(look.cpu_s for look in looks)
        first = silence < self._silence  # it is that of another heartbeat
        if first:
            self._computed = 0.0
        elif used - self._used > COMPUTING_SHARE * (silence - self._silence):
            self._computed = silence
        self._silence, self._used = silence, used
        if any(look.state == ON_DEVICE for look in looks):
            self._computed = silence
        if any(look.state in STOPPED for look in looks):
            self._computed = 0.0
        if first:  # whether something is computed shows at the next one, half a second from now
            return False
        most = self._config.hang_timeout
        return silence - self._computed >= most or silence >= COMPUTING_TIMES * most

    def _states(self) -> str:
        states = [f"{child.role}: {STATES.get(child.look().state, 'gone')}" for child in self._ring.children]
        return f" ({', '.join(states)})" if states else ""
