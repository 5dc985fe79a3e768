from __future__ import annotations

from pathlib import Path

import pytest

from vidette.bench.latency import Answer, summarise
from vidette.bench.plot import Level, plot_latency

pytest.importorskip("matplotlib")


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    one = summarise([Answer(0.0, pieces=[0.1, 0.2], ended=0.2, output_tokens=2)])
    without_gaps = summarise([Answer(0.0, pieces=[0.3], ended=0.3, output_tokens=1)])
    path = tmp_path / "found.png"
    plot_latency(str(path), [Level(1, one), Level(2, one), Level(8, without_gaps)], "a model: sizes")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[start : start + 4]) for start in (16, 20))
    assert width > 2 * height > 400
