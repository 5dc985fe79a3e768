"""Where the microseconds of a step go: a table for people, and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Profile = Mapping[str, float]
"""Seconds of one step, by what they are spent on."""

SIZE_INCHES: Final = (11.0, 4.2)
SMALL: Final = 0.04
"""A part smaller than this share of a step has no number in the picture."""


def profile_table(profiles: Mapping[str, Profile]) -> list[str]:
    """Return lines: what is done, and of each workload its microseconds and its share.

    Args:
        profiles: by workload.
    """
    phases = list(dict.fromkeys(phase for profile in profiles.values() for phase in profile))
    totals = {name: sum(profile.values()) for name, profile in profiles.items()}
    width = max(map(len, (*phases, "microseconds a step")))
    lines = [" ".join([f"{'microseconds a step':<{width}}", *(f"{name:>18}" for name in profiles)])]
    for phase in phases:
        cells = [_cell(profile.get(phase, 0.0), totals[name]) for name, profile in profiles.items()]
        lines.append(" ".join([f"{phase:<{width}}", *cells]))
    lines.append(" ".join([f"{'all':<{width}}", *(_cell(total, total) for total in totals.values())]))
    return lines


def _cell(seconds: float, total: float) -> str:
    return f"{1e6 * seconds:>10.1f} {seconds / total if total else 0.0:>7.1%}"


def plot_profile(path: str, profiles: Mapping[str, Profile], title: str) -> None:
    """Draw each workload as a bar of its parts, as a PNG.

    Args:
        path: of the file.
        profiles: by workload, at least one.
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
    axes = figure.subplots()
    totals = {name: sum(profile.values()) for name, profile in profiles.items()}
    labels = [f"{name}\n{1e6 * total:.0f} us" for name, total in totals.items()]
    lefts = [0.0] * len(profiles)
    phases = list(dict.fromkeys(phase for profile in profiles.values() for phase in profile))
    for place, phase in enumerate(phases):
        shares = [
            profile.get(phase, 0.0) / totals[name] if totals[name] else 0.0
            for name, profile in profiles.items()
        ]
        bars = axes.barh(labels, shares, left=lefts, label=phase, color=f"C{place}")
        axes.bar_label(
            bars,
            [f"{share:.0%}" if share >= SMALL else "" for share in shares],
            label_type="center",
            fontsize=8,
        )
        lefts = [left + share for left, share in zip(lefts, shares, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of a step")
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(path, format="png", dpi=120)
