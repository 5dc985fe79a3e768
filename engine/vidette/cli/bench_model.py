"""`vidette bench model` and `vidette bench quality`: their options, and the models they are about."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vidette.cli._options import add_dtype_option, add_model_option
from vidette.cli._run import say
from vidette.errors import UsageError

if TYPE_CHECKING:
    from vidette.bench.bandwidth import Bandwidth
    from vidette.bench.llama_cpp import LlamaBench
    from vidette.bench.profile import Profile
    from vidette.bench.results import Results
    from vidette.models import Model, ModelSource

MODEL = "smollm2-135m-instruct"
DTYPE = "auto"
RUNS = 5
PROFILE = "bench-model.png"


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette bench model`."""
    _add_common(parser)
    parser.add_argument(
        "--runs", type=_count, default=RUNS, metavar="N", help=f"values of each kind (default: {RUNS})"
    )
    parser.add_argument("--quick", action="store_true", help="few steps a run: values not to be quoted")
    parser.add_argument(
        "--profile",
        nargs="?",
        type=Path,
        const=Path(PROFILE),
        metavar="PNG",
        help=f"where the time of a step goes, as a table and as a picture, which is {PROFILE} if it has no "
        "name (default: neither)",
    )
    parser.add_argument(
        "--patience",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="time to spend on waiting for a quiet machine, and on measuring again what is not (default: 0)",
    )
    peer = parser.add_argument_group("peer")
    peer.add_argument(
        "--against", choices=("llama.cpp",), help="what is measured in turns with ours (default: nothing)"
    )
    peer.add_argument(
        "--llama-bin",
        type=Path,
        metavar="DIR",
        help="where llama-batched-bench is , which --against needs (default: nowhere)",
    )
    peer.add_argument(
        "--llama-model", type=Path, metavar="PATH", help="its GGUF file (default: the same as ours)"
    )


def add_quality_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette bench quality`."""
    _add_common(parser)
    parser.add_argument(
        "--windows", type=_count, default=4, metavar="N", help="how many of 512 tokens each (default: 4)"
    )
    parser.add_argument(
        "--text",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="what is read, as Markdown (default: docs/*.md of the checkout)",
    )


def bench_model(options: argparse.Namespace) -> tuple[Results | None, int]:
    """Measure steps of a model."""
    from vidette.bench.model import bench_model as measure  # noqa: PLC0415
    from vidette.bench.model import threads_of, weight_bytes_of  # noqa: PLC0415
    from vidette.bench.others import Patience  # noqa: PLC0415
    from vidette.config import EngineConfig  # noqa: PLC0415
    from vidette.models import load_token_table, resolve  # noqa: PLC0415
    from vidette.scheduler.build import share_processors  # noqa: PLC0415

    source = resolve(options.model or MODEL)
    if options.profile is not None:
        _check_picture(options.profile)
    with _threads(options.threads):
        peer = _peer(options, source)
        model = _load(source, options.dtype or DTYPE, options.threads)
        share_processors(model, EngineConfig(topology="processes"))  # as it is served
        threads = threads_of(model)
        results, profiles = measure(
            model,
            load_token_table(source),
            weight_bytes=weight_bytes_of(model, source),
            runs=options.runs,
            say=say,
            bandwidth=_bandwidth(model, threads),
            patience=Patience(options.patience),
            peer=None if peer is None else peer(threads),
            quick=options.quick,
            profile=options.profile is not None,
        )
    if options.against is not None:
        results.notes.append(f"llama.cpp computes {options.llama_model or source.path}")
    if options.profile is not None:
        _show_profile(options.profile, profiles, f"{source.name}, {threads} threads")
    return results, 0


def bench_quality(options: argparse.Namespace) -> tuple[Results | None, int]:
    """Compare the predictions of a model with those of its weights in float32."""
    from vidette.bench.quality import bench_quality as measure  # noqa: PLC0415
    from vidette.bench.quality import find_texts, read_prose  # noqa: PLC0415
    from vidette.models import load_tokenizer, resolve  # noqa: PLC0415

    source = resolve(options.model or MODEL)
    text = read_prose(find_texts(options.text))
    with _threads(options.threads):
        results = measure(
            _load(source, options.dtype or DTYPE, options.threads),
            _load(source, "float32", options.threads),
            load_tokenizer(source),
            text,
            windows=options.windows,
            say=say,
        )
    return results, 0


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    add_dtype_option(parser)
    parser.add_argument(
        "--threads", type=_count, metavar="N", help="how many compute (default: one for each processor)"
    )


def _load(source: ModelSource, dtype: str, threads: int | None) -> Model:
    from vidette.models import load_model  # noqa: PLC0415

    say(f"loading {source.name} ({dtype})")
    return load_model(source, dtype=dtype, threads=threads)


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    """Have torch compute with so many threads while the block runs."""
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _bandwidth(model: Model, threads: int) -> Bandwidth:
    """Return a way to read memory that is like the model's own."""
    from vidette.bench.bandwidth import NativeBandwidth, TorchBandwidth  # noqa: PLC0415
    from vidette.kernels.library import open_kernels  # noqa: PLC0415
    from vidette.kernels.native import NativeDecoder  # noqa: PLC0415

    kernels = open_kernels().kernels if isinstance(model, NativeDecoder) else None
    return TorchBandwidth() if kernels is None else NativeBandwidth(kernels, threads)


def _peer(options: argparse.Namespace, source: ModelSource) -> Callable[[int], LlamaBench] | None:
    """Return what makes the peer once its number of threads is known; whether it can is checked now."""
    if options.against is None:
        return None
    from vidette.bench.llama_cpp import LlamaBench, find_program  # noqa: PLC0415

    if options.llama_bin is None:
        raise UsageError(
            "--against llama.cpp takes --llama-bin as well: where it was built", param="llama_bin"
        )
    path = options.llama_model or source.path
    if path is None or not path.is_file():
        raise UsageError(
            f"llama.cpp takes a GGUF file, and {path or source.name} is none", param="llama_model"
        )
    program = find_program(options.llama_bin)
    return lambda threads: LlamaBench(program, path, threads=threads)


def _check_picture(path: Path) -> None:
    """Measure nothing for a picture that cannot be drawn."""
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed; `pip install vidette[bench]` adds it", param="profile"
        ) from error
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--profile is {path}, in a folder that is not there", param="profile")


def _show_profile(path: Path, profiles: Mapping[str, Profile], title: str) -> None:
    from vidette.bench.profile import plot_profile, profile_table  # noqa: PLC0415

    for line in profile_table(profiles):
        say(line)
    try:
        plot_profile(str(path), profiles, f"{title}: where the time of a step goes")
    except OSError as error:
        say(f"no picture: {error}")
    else:
        say(f"the picture is {path}")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _seconds(text: str) -> float:
    seconds = float(text.removesuffix("s"))
    if not 0 <= seconds < math.inf:  # NaN neither
        raise argparse.ArgumentTypeError(f"{text} is no time in seconds")
    return seconds
