"""A picture of latency against load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vidette.bench.latency import Spread, Summary

SIZE_INCHES = (11.0, 4.2)


class Level(NamedTuple):
    """One load, and what it came to.

    Args:
        concurrency: how many requests were under way at once.
        summary: what came of them.
    """

    concurrency: int
    summary: Summary


def plot_latency(path: str, levels: Sequence[Level], title: str) -> None:
    """Draw how latencies and throughput go with the load, as a PNG.

    Args:
        path: of the file.
        levels: at least one.
        title: of the picture.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    # Without pyplot, which keeps what it draws in a global list and looks for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    latency, gaps, throughput = figure.subplots(1, 3)
    loads = [level.concurrency for level in levels]
    for axes, name, found in (
        (latency, "TTFT", [level.summary.ttft for level in levels]),
        (gaps, "ITL", [level.summary.itl for level in levels]),
    ):
        for percentile, values in (("p50", _values(found, 0)), ("p99", _values(found, 1))):
            axes.plot(loads, values, marker="o", label=f"{name} {percentile}")
        axes.set_ylabel(f"{name}, ms")
        axes.set_ylim(bottom=0)
        axes.legend()
    rates = [level.summary.output_tok_s for level in levels]
    throughput.plot(loads, rates, marker="o", color="tab:green", label="output")
    throughput.set_ylabel("output, tokens/s")
    throughput.set_ylim(bottom=0)
    good = throughput.twinx()
    good.plot(
        loads, [level.summary.goodput_s for level in levels], marker="s", color="tab:red", label="goodput"
    )
    good.set_ylabel("goodput, requests/s")
    good.set_ylim(bottom=0)
    throughput.legend(handles=[*throughput.get_lines(), *good.get_lines()], loc="lower left")
    for axes in (latency, gaps, throughput):
        axes.set_xlabel("requests under way")
        axes.set_xticks(loads)
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, format="png", dpi=120)


def _values(spreads: Sequence[Spread | None], which: int) -> list[float]:
    """Return one percentile of each; a hole where there is none."""
    return [float("nan") if found is None else (found.p50, found.p99)[which] for found in spreads]
