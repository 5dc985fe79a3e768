"""Options that several subcommands have, and what they mean to an engine."""

from __future__ import annotations

import argparse
from typing import Any

from vidette.cli._parser import HelpAll
from vidette.config import EngineConfig

ENGINE_OPTIONS = (
    "topology",
    "detokenizers",
    "kv_tokens",
    "step_tokens",
    "max_running",
    "max_requests",
    "max_queued_tokens",
    "schedule_policy",
    "preempt_gap",
    "queue_timeout",
    "running_timeout",
    "host_kv_tokens",
    "kv_events",
    "draft_tokens",
    "draft_corpus",
    "dtype",
    "device",
    "cuda_graphs",
    "threads",
    "capture",
    "profile_dir",
    "supervision",
    "watchdog",
    "hang_timeout",
    "stop_timeout",
)


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a known model, one of a hub as ORG/NAME, the path of a .gguf file or of a Hugging Face folder, "
        f"or 'toy' (default: {EngineConfig().model})",
    )


def add_dtype_option(parser: argparse._ActionsContainer) -> None:
    """Add --dtype."""
    parser.add_argument(
        "--dtype",
        choices=("auto", "int8", "float32"),
        help="what weights are computed in: as the file has them, 8 bits, or torch's float32 (default: auto)",
    )


def add_backend_option(parser: argparse._ActionsContainer) -> None:
    """Add --backend."""
    parser.add_argument(
        "--backend",
        choices=("asyncio", "trio"),
        default="asyncio",
        help="event loop library (default: asyncio)",
    )


def add_engine_options(parser: argparse.ArgumentParser, *, topology: str) -> None:
    """Add the options that are fields of EngineConfig.

    Args:
        parser: of the subcommand.
        topology: its default.
    """
    parser.add_argument("--help-all", action=HelpAll, help="explain all options, and exit")
    default = EngineConfig()
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--topology",
        choices=("processes", "inline"),
        default=topology,
        help=f"supervised processes, or all in one (default: {topology})",
    )
    _add(engine, "--kv-tokens", "TOKENS", f"size of the KV pool (default: {default.kv_tokens})")
    _add(engine, "--max-running", "N", f"most requests computed at once (default: {default.max_running})")
    add_dtype_option(engine)
    engine.add_argument(
        "--device",
        metavar="DEVICE",
        help="where the model is computed: cpu, cuda, cuda:N, or auto, which is CUDA if there is some "
        f"(default: {default.device})",
    )
    _add(engine, "--threads", "N", "how many threads compute a step (default: one for each processor)")
    _add_scheduling(parser.add_argument_group("scheduling"))
    _add_caches(parser.add_argument_group("caches"))
    _add_guesses(parser.add_argument_group("guesses"))
    processes = parser.add_argument_group("processes")
    text = f"how many processes turn tokens into text (default: {default.detokenizers})"
    _add(processes, "--detokenizers", "N", text)
    processes.add_argument(
        "--cuda-graphs",
        choices=("lazy", "start", "off"),
        help="when steps that only decode are captured: as they occur, before the first request, or never "
        f"(default: {default.cuda_graphs})",
    )
    recording = parser.add_argument_group("recording")
    recording.add_argument(
        "--capture",
        metavar="DIR",
        help="an existing folder in which what passes between processes is recorded, prompts included "
        "(default: nothing is)",
    )
    recording.add_argument(
        "--profile-dir",
        metavar="DIR",
        help="an existing folder into which POST /start_profile has traces of steps written (default: none "
        "are)",
    )


def _add(
    group: argparse._ActionsContainer, option: str, metavar: str, text: str, kind: type[float] = int
) -> None:
    group.add_argument(option, type=kind, metavar=metavar, help=text)


def _add_scheduling(group: argparse._ActionsContainer) -> None:
    default = EngineConfig()
    _add(
        group,
        "--step-tokens",
        "TOKENS",
        f"most that are computed in one step (default: {default.step_tokens})",
    )
    _add(
        group, "--max-requests", "N", f"most requests that may live at once (default: {default.max_requests})"
    )
    _add(
        group,
        "--max-queued-tokens",
        "TOKENS",
        "most that all requests which live may take, prompts and outputs together (default: "
        f"{default.max_queued_tokens})",
    )
    group.add_argument(
        "--schedule-policy",
        choices=("fcfs", "lpm", "lof"),
        help="who is begun next: first come, longest prefix match, or longest output first (default: "
        f"{default.schedule_policy})",
    )
    _add(
        group,
        "--preempt-gap",
        "N",
        "a request takes the place of one whose priority is so much lower (default: never)",
    )
    text = "how long a request may wait to be begun (default: any time)"
    _add(group, "--queue-timeout", "SECONDS", text, float)
    text = "how long it may take once it is begun (default: any time)"
    _add(group, "--running-timeout", "SECONDS", text, float)


def _add_caches(group: argparse._ActionsContainer) -> None:
    _add(
        group,
        "--host-kv-tokens",
        "TOKENS",
        "size of a second pool, for cached prefixes the first has no room for (default: 0, none)",
    )
    group.add_argument(
        "--kv-events",
        action="store_true",
        default=None,
        help="have the scheduler tell what it stores in the prefix cache and removes",
    )


def _add_guesses(group: argparse._ActionsContainer) -> None:
    _add(
        group,
        "--draft-tokens",
        "TOKENS",
        "most that are guessed ahead from what was said before (default: 0, none)",
    )
    group.add_argument(
        "--draft-corpus",
        metavar="FILE",
        help="a text file in which guesses are looked up besides (default: in none)",
    )


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was given of the engine's options, for `open_engine()`."""
    given = {name: getattr(options, name, None) for name in ("model", *ENGINE_OPTIONS)}
    return {name: value for name, value in given.items() if value is not None}
