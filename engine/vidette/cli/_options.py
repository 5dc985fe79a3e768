"""Options that several subcommands have, and what they mean to an engine."""

from __future__ import annotations

import argparse
from typing import Any

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
        metavar="NAME|PATH",
        help="a known model, the path of a .gguf file or of a Hugging Face folder, or 'toy' "
        "(default: smollm2-135m-instruct)",
    )


def add_dtype_option(parser: argparse._ActionsContainer) -> None:
    """Add --dtype."""
    parser.add_argument(
        "--dtype",
        choices=("auto", "int8", "float32"),
        help="what weights are computed in: as the file has them, 8 bits, or torch's float32 (default: auto)",
    )


def add_backend_option(parser: argparse.ArgumentParser) -> None:
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
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--topology",
        choices=("processes", "inline"),
        default=topology,
        help=f"supervised processes, or all in one (default: {topology})",
    )
    group.add_argument(
        "--detokenizers", type=int, metavar="N", help="how many processes turn tokens into text (default: 1)"
    )
    group.add_argument("--kv-tokens", type=int, metavar="N", help="size of the KV pool in tokens")
    group.add_argument("--step-tokens", type=int, metavar="N", help="most tokens computed in one step")
    group.add_argument("--max-running", type=int, metavar="N", help="most requests computed at once")
    group.add_argument("--max-requests", type=int, metavar="N", help="most requests that may live at once")
    group.add_argument(
        "--max-queued-tokens",
        type=int,
        metavar="N",
        help="most tokens, prompts and outputs together, that all requests which live may take",
    )
    group.add_argument(
        "--schedule-policy",
        choices=("fcfs", "lpm", "lof"),
        help="who is begun next: first come, longest prefix match, or longest output first (default: fcfs)",
    )
    group.add_argument(
        "--preempt-gap",
        type=int,
        metavar="N",
        help="a request takes the place of one whose priority is so much lower (default: never)",
    )
    group.add_argument(
        "--queue-timeout", type=float, metavar="S", help="seconds a request may wait to be begun"
    )
    group.add_argument(
        "--running-timeout", type=float, metavar="S", help="seconds it may take once it is begun"
    )
    group.add_argument(
        "--host-kv-tokens",
        type=int,
        metavar="N",
        help="size of a second pool, for cached prefixes the first has no room for (default: 0)",
    )
    group.add_argument(
        "--kv-events",
        action="store_true",
        default=None,
        help="have the scheduler tell what it stores in the prefix cache and removes",
    )
    group.add_argument(
        "--draft-tokens",
        type=int,
        metavar="N",
        help="most tokens that are guessed ahead from what was said before (default: 0)",
    )
    group.add_argument(
        "--draft-corpus", metavar="FILE", help="a text file in which guesses are looked up besides"
    )
    add_dtype_option(group)
    group.add_argument(
        "--device",
        metavar="DEVICE",
        help="where the model is computed: cpu, cuda, cuda:N, or auto, which is CUDA if there is some "
        "(default: cpu)",
    )
    group.add_argument(
        "--cuda-graphs",
        choices=("lazy", "start", "off"),
        help="when steps that only decode are captured: as they occur, before the first request, or never "
        "(default: lazy)",
    )
    group.add_argument("--threads", type=int, metavar="N", help="how many threads compute a step")
    group.add_argument(
        "--capture", metavar="DIR", help="record what passes between processes, prompts included, in a folder"
    )
    group.add_argument(
        "--profile-dir",
        metavar="DIR",
        help="a folder into which POST /start_profile has traces of steps written",
    )


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was given of the engine's options, for `open_engine()`."""
    given = {name: getattr(options, name, None) for name in ("model", *ENGINE_OPTIONS)}
    return {name: value for name, value in given.items() if value is not None}
