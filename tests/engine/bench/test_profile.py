from __future__ import annotations

from pathlib import Path

import pytest

from vidette.bench.profile import plot_profile, profile_table

PROFILES = {
    "decode_b1": {"linear": 3e-3, "attention": 1e-3, "sampler": 0.0},
    "decode_b8": {"linear": 6e-3, "norm": 2e-3},
}


def test_a_table_has_microseconds_and_shares() -> None:
    lines = profile_table(PROFILES)
    assert [line.split("  ")[0].strip() for line in lines] == [
        *("microseconds a step", "linear", "attention", "sampler", "norm", "all")
    ]
    assert lines[0].split()[-2:] == ["decode_b1", "decode_b8"]
    assert lines[1].split() == ["linear", "3000.0", "75.0%", "6000.0", "75.0%"]
    assert lines[4].split() == ["norm", "0.0", "0.0%", "2000.0", "25.0%"]
    assert lines[-1].split() == ["all", "4000.0", "100.0%", "8000.0", "100.0%"]
    assert len({len(line) for line in lines}) == 1


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "profile.png"
    plot_profile(str(path), PROFILES | {"nothing": {"linear": 0.0}}, "a model")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
