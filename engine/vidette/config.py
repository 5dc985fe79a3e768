"""What an engine is made with: every choice, its default and its unit in one struct."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from vidette.errors import UsageError
from vidette.models.interface import BLOCK_SIZE
from vidette_protocol.ids import MAX_FRONT_ID

Topology = Literal["processes", "inline"]
"""Front, scheduler and detokenizers in processes of their own, or all in this one."""
Supervision = Literal["fail", "restart"]
"""What the death of a process is: the end of the engine, or of a moment."""
Watchdog = Literal["report", "restart"]
"""What follows when heartbeats stay away: a sentence in the log, or the end of the processes."""

Dtype = Literal["auto", "int8", "float32"]
"""What weights are computed in."""

CudaGraphs = Literal["lazy", "start", "off"]
"""When steps of decodes are captured as CUDA graphs."""

LogFormat = Literal["text", "json"]
"""How lines of a log are written."""

SchedulePolicy = Literal["fcfs", "lpm", "lof"]
"""In what order requests of equal standing are begun."""
MAX_DRAFT: Final = 32
"""Most tokens that may be guessed ahead."""
MAX_DETOKENIZERS: Final = 16
"""Most detokenizers of one engine."""


class EngineConfig(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How an engine is built.

    Args:
        model: a known name, "toy", or the path of a GGUF file.
        topology: "inline" (all in this process, over memory) or "processes" (supervised processes).
        detokenizers: how many turn tokens into text, each for its share of the requests. More than one pay
            only where a process cannot keep up with all that is made; with "inline" never.
        kv_tokens: size of the KV pool in tokens; rounded up to whole blocks.
        step_tokens: most tokens computed in one step; a step is the time an abort may take.
        max_running: most requests computed at once.
        max_requests: most requests that may live in the front; more are refused as Overloaded.
        max_queued_tokens: most tokens that all requests which live may come to hold, prompts and outputs
            together; more are refused as Overloaded. A text that was not tokenised yet counts with its bytes.
        tokenise_timeout: seconds that a prompt may take to tokenise, or a conversation to render, the wait
            for its turn included; then the request is refused as PromptTimeout.
        dtype: what weights are computed in. "auto": by native kernels, in the 4 or 8 bits that a file has
            them in, and others in 8 bits with a scale for each 32. "int8": all in 8 bits. "float32": by
            torch, several times slower; so it is with all of them where there are no native kernels.
            On CUDA "auto" is bfloat16, or float32 where the device lacks that, and "int8" is refused.
        device: where the model is computed: "cpu", "cuda", "cuda:N" (the N-th device), or "auto", which is
            CUDA where torch finds a device, unless dtype is "int8", and else the CPU. What runs on CUDA was
            never tried on a device, which is why that is not the default.
        cuda_graphs: when steps that only decode are captured as CUDA graphs. "lazy": each shape of such a
            step when it first occurs, which takes a moment. "start": all of them before the first request.
            "off": never; then the host launches each operation by itself.
        threads: how many compute a step; None: one for each processor that this process may use.
        start_timeout: seconds until every process has to be ready. With "inline" the weights are read by a
            thread of this process, which cannot be stopped: opening then ends when that has ended.
        stop_timeout: seconds the processes have to end by themselves, once told to.
        supervision: what follows when scheduler or detokenizer ends before its time. "fail": the engine
            breaks, and every waiter is told. "restart": both are started again, and requests go on;
            with "inline" that helps only against what a role raises.
        max_restarts: most restarts within a minute; at one more death it is as with "fail".
        restart_delay: seconds before the first restart within a minute; doubled for each further one.
        max_restart_delay: most seconds before a restart.
        stall_timeout: seconds after which a heartbeat that has not come back is overdue: `Health.progress` is
            False then, and the log says so.
        watchdog: what else follows when no heartbeat comes back. "report": nothing. "restart": after
            `hang_timeout` scheduler and detokenizer are killed, and `supervision` says what becomes of that.
            With "inline" they cannot be killed, and it is "report".
        hang_timeout: seconds that takes, while their processes neither compute nor wait for a device, such as
            a disk; ten times as many if they do, since a step may be long. At least `stall_timeout`.
        schedule_policy: who is begun next of those that wait. "fcfs": who came first. "lpm": whose beginning
            is in the prefix cache, the longest first. "lof": whose output may be longest. Shares of tenants
            (`routing_key`) and `priority` go before it, and nobody is passed over for ever.
        ageing_s: seconds of waiting that make up for one level of `priority`.
        preempt_gap: a request takes the place of running ones whose priority is lower by at least so much,
            which go on later; None: never. Priorities count from -16 to 16.
        queue_timeout: seconds a request may wait to be begun; then it ends as an error. None: any time.
        running_timeout: seconds it may take from then on, likewise.
        host_kv_tokens: size of a second pool in host memory, to which cached prefixes go that the first has
            no room for; in tokens, rounded up to whole blocks. 0: there is none.
        kv_events: whether the front is told what is stored in the prefix cache and removed, for
            `Engine.kv_events()`.
        draft_tokens: most tokens of a request that are guessed ahead from what it has said and read before,
            and computed along with the next one; right guesses save steps, and no text changes. 0: none.
        draft_corpus: a text file in which guesses are looked up besides; None: nowhere.
        front_id: high bits of every vid; unique among the fronts of a deployment.
        capture: an existing folder in which every frame between processes is recorded, prompts included, for
            `vidette wire` to read; None: nothing is. Writing blocks the loops for as long as the disk does.
        profile_dir: an existing folder into which traces of steps are written when that is asked for; None:
            none are made. With "inline" none are either: torch's profiler is the program's own then.
        log_format: how the processes write on stderr what they log, "text", or "json": an object in each
            line. With "inline" they are this one, whose log is the program's own.
    """

    model: str = "smollm2-135m-instruct"
    topology: Topology = "inline"
    detokenizers: int = 1
    kv_tokens: int = 16384
    step_tokens: int = 256
    max_running: int = 64
    max_requests: int = 4096
    max_queued_tokens: int = 16 * 1024 * 1024
    tokenise_timeout: float = 30.0
    dtype: Dtype = "auto"
    device: str = "cpu"
    cuda_graphs: CudaGraphs = "lazy"
    threads: int | None = None
    start_timeout: float = 120.0
    stop_timeout: float = 5.0
    supervision: Supervision = "fail"
    max_restarts: int = 5
    restart_delay: float = 0.1
    max_restart_delay: float = 5.0
    stall_timeout: float = 4.0
    watchdog: Watchdog = "report"
    hang_timeout: float = 30.0
    schedule_policy: SchedulePolicy = "fcfs"
    ageing_s: float = 30.0
    preempt_gap: int | None = None
    queue_timeout: float | None = None
    running_timeout: float | None = None
    host_kv_tokens: int = 0
    kv_events: bool = False
    draft_tokens: int = 0
    draft_corpus: str | None = None
    front_id: int = 0
    capture: str | None = None
    profile_dir: str | None = None
    log_format: LogFormat = "text"

    @property
    def block_tokens(self) -> int:
        """Tokens of one block of the KV pool."""
        return BLOCK_SIZE

    @property
    def num_blocks(self) -> int:
        """Size of the KV pool in blocks."""
        return -(-self.kv_tokens // BLOCK_SIZE)

    @property
    def host_blocks(self) -> int:
        """Size of the second pool in blocks."""
        return -(-self.host_kv_tokens // BLOCK_SIZE)

    @property
    def detokenizer_roles(self) -> tuple[str, ...]:
        """Names of the detokenizers, in the order of their shares."""
        if self.detokenizers == 1:
            return ("detokenizer",)
        return tuple(f"detokenizer-{number}" for number in range(self.detokenizers))


def check_config(config: EngineConfig) -> EngineConfig:
    """Return a configuration if it makes sense.

    Raises:
        UsageError: a value is out of range.
    """
    for name in ("kv_tokens", "step_tokens", "max_running", "max_requests", "max_queued_tokens"):
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
    if not 1 <= config.detokenizers <= MAX_DETOKENIZERS:
        raise UsageError(
            f"detokenizers is {config.detokenizers}; it must be from 1 to {MAX_DETOKENIZERS}",
            param="detokenizers",
        )
    if config.supervision not in ("fail", "restart"):
        raise UsageError(
            f"supervision is {config.supervision!r}; it must be 'fail' or 'restart'", param="supervision"
        )
    if config.watchdog not in ("report", "restart"):
        raise UsageError(
            f"watchdog is {config.watchdog!r}; it must be 'report' or 'restart'", param="watchdog"
        )
    _check_scheduling(config)
    if config.max_restarts < 0:
        raise UsageError(f"max_restarts is {config.max_restarts}; it must be 0 or more", param="max_restarts")
    if config.dtype not in ("auto", "int8", "float32"):
        raise UsageError(f"dtype is {config.dtype!r}; it must be 'auto', 'int8' or 'float32'", param="dtype")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", config.device):
        raise UsageError(
            f"device is {config.device!r}; it must be 'auto', 'cpu', 'cuda' or 'cuda:N'", param="device"
        )
    if config.cuda_graphs not in ("lazy", "start", "off"):
        raise UsageError(
            f"cuda_graphs is {config.cuda_graphs!r}; it must be 'lazy', 'start' or 'off'", param="cuda_graphs"
        )
    if config.threads is not None and config.threads < 1:
        raise UsageError(f"threads is {config.threads}; it must be at least 1", param="threads")
    for name in ("tokenise_timeout", "start_timeout", "stop_timeout", "restart_delay", "max_restart_delay"):
        value = getattr(config, name)
        if not 0 <= value < math.inf:  # NaN neither
            raise UsageError(f"{name} is {value}; it must be 0 seconds or more, and finite", param=name)
    for name in ("stall_timeout", "hang_timeout"):
        value = getattr(config, name)
        if not 0 < value < math.inf:
            raise UsageError(f"{name} is {value}; it must be more than 0 seconds, and finite", param=name)
    if config.watchdog == "restart" and config.hang_timeout < config.stall_timeout:
        raise UsageError(
            f"hang_timeout is {config.hang_timeout}; it must be at least stall_timeout "
            f"({config.stall_timeout}), since no heartbeat is missed before that",
            param="hang_timeout",
        )
    for name, folder in (("capture", config.capture), ("profile_dir", config.profile_dir)):
        if folder is not None and not Path(folder).is_dir():
            raise UsageError(f"{name} is {folder!r}; it must be an existing folder", param=name)
    if config.log_format not in ("text", "json"):
        raise UsageError(
            f"log_format is {config.log_format!r}; it must be 'text' or 'json'", param="log_format"
        )
    if not 0 <= config.front_id <= MAX_FRONT_ID:
        raise UsageError(
            f"front_id is {config.front_id}; it must be from 0 to {MAX_FRONT_ID}", param="front_id"
        )
    return config


def _check_scheduling(config: EngineConfig) -> None:
    if config.schedule_policy not in ("fcfs", "lpm", "lof"):
        raise UsageError(
            f"schedule_policy is {config.schedule_policy!r}; it must be 'fcfs', 'lpm' or 'lof'",
            param="schedule_policy",
        )
    for name in ("ageing_s", "queue_timeout", "running_timeout"):
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:  # NaN neither
            raise UsageError(f"{name} is {value}; it must be more than 0 seconds, and finite", param=name)
    if config.preempt_gap is not None and config.preempt_gap < 1:
        raise UsageError(f"preempt_gap is {config.preempt_gap}; it must be at least 1", param="preempt_gap")
    if config.host_kv_tokens < 0:
        raise UsageError(
            f"host_kv_tokens is {config.host_kv_tokens}; it must be 0 or more", param="host_kv_tokens"
        )
    if not 0 <= config.draft_tokens <= MAX_DRAFT:
        raise UsageError(
            f"draft_tokens is {config.draft_tokens}; it must be from 0 to {MAX_DRAFT}", param="draft_tokens"
        )
    if config.draft_corpus is not None and not Path(config.draft_corpus).is_file():
        raise UsageError(
            f"draft_corpus is {config.draft_corpus!r}; it must be an existing file", param="draft_corpus"
        )
