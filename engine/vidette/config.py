"""What an engine is made with: every choice, its default and its unit in one struct."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from msgspec import Struct

from vidette.errors import UsageError
from vidette.models.interface import BLOCK_SIZE
from vidette_protocol.ids import MAX_FRONT_ID

Topology = Literal["processes", "inline"]
"""Front, scheduler and detokenizer in three processes, or all in this one."""
Supervision = Literal["fail", "restart"]
"""What the death of a process is: the end of the engine, or of a moment."""


class EngineConfig(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How an engine is built.

    Args:
        model: a known name, "toy", or the path of a GGUF file.
        topology: "inline" (all in this process, over memory) or "processes" (three supervised processes).
        kv_tokens: size of the KV pool in tokens; rounded up to whole blocks.
        step_tokens: most tokens computed in one step; a step is the time an abort may take.
        max_running: most requests computed at once.
        max_requests: most requests that may live in the front; more are refused as Overloaded.
        threads: threads of the compute library; None leaves its default.
        start_timeout: seconds until every process has to be ready. With "inline" the weights are read by a
            thread of this process, which cannot be stopped: opening then ends when that has ended.
        stop_timeout: seconds the processes have to end by themselves, once told to.
        supervision: what follows when scheduler or detokenizer ends before its time. "fail": the engine
            breaks, and every waiter is told. "restart": both are started again, and requests go on;
            with "inline" that helps only against what a role raises.
        max_restarts: most restarts within a minute; at one more death it is as with "fail".
        restart_delay: seconds before the first restart within a minute; doubled for each further one.
        max_restart_delay: most seconds before a restart.
        front_id: high bits of every vid; unique among the fronts of a deployment.
        capture: an existing folder in which every frame between processes is recorded, prompts included, for
            `vidette wire` to read; None: nothing is. Writing blocks the loops for as long as the disk does.
    """

    model: str = "smollm2-135m-instruct"
    topology: Topology = "inline"
    kv_tokens: int = 16384
    step_tokens: int = 256
    max_running: int = 64
    max_requests: int = 4096
    threads: int | None = None
    start_timeout: float = 120.0
    stop_timeout: float = 5.0
    supervision: Supervision = "fail"
    max_restarts: int = 5
    restart_delay: float = 0.1
    max_restart_delay: float = 5.0
    front_id: int = 0
    capture: str | None = None

    @property
    def num_blocks(self) -> int:
        """Size of the KV pool in blocks."""
        return -(-self.kv_tokens // BLOCK_SIZE)


def check_config(config: EngineConfig) -> EngineConfig:
    """Return a configuration if it makes sense.

    Raises:
        UsageError: a value is out of range.
    """
    for name in ("kv_tokens", "step_tokens", "max_running", "max_requests"):
        value = getattr(config, name)
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1", param=name)
    if config.max_running > config.step_tokens:
        raise UsageError(
            f"max_running is {config.max_running}; it must be at most step_tokens ({config.step_tokens}), "
            "so that every running request advances in each step",
            param="max_running",
        )
    if config.topology not in ("processes", "inline"):
        raise UsageError(
            f"topology is {config.topology!r}; it must be 'processes' or 'inline'", param="topology"
        )
    if config.supervision not in ("fail", "restart"):
        raise UsageError(
            f"supervision is {config.supervision!r}; it must be 'fail' or 'restart'", param="supervision"
        )
    if config.max_restarts < 0:
        raise UsageError(f"max_restarts is {config.max_restarts}; it must be 0 or more", param="max_restarts")
    if config.threads is not None and config.threads < 1:
        raise UsageError(f"threads is {config.threads}; it must be at least 1", param="threads")
    for name in ("start_timeout", "stop_timeout", "restart_delay", "max_restart_delay"):
        value = getattr(config, name)
        if not 0 <= value < math.inf:  # NaN neither
            raise UsageError(f"{name} is {value}; it must be 0 seconds or more, and finite", param=name)
    if config.capture is not None and not Path(config.capture).is_dir():
        raise UsageError(f"capture is {config.capture!r}; it must be an existing folder", param="capture")
    if not 0 <= config.front_id <= MAX_FRONT_ID:
        raise UsageError(
            f"front_id is {config.front_id}; it must be from 0 to {MAX_FRONT_ID}", param="front_id"
        )
    return config
