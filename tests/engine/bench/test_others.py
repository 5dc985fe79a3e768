from __future__ import annotations

import os
import time

import pytest

from vidette.bench import others
from vidette.bench.others import Others


@pytest.mark.parametrize(("busy", "share"), [(30.0, 0.2), (11.0, 0.01), (10.0, 0.0), (5.0, 0.0)])
def test_what_is_neither_idle_nor_ours_is_the_others(
    busy: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([(1000.0, 10.0), (1100.0, busy)])
    monkeypatch.setattr(others, "_read", lambda: next(readings))
    assert Others().share() == pytest.approx(share)


def test_what_the_system_counts_is_taken_apart() -> None:
    #            user nice system idle iowait irq softirq steal guest, which is in user already
    line = "cpu  100   20   30    800  40     5   5       10    99  0"
    assert others._count(line, 10, ours=6.0) == (101.0, 17.0 - 6.0)


def test_it_counts_from_its_making_on() -> None:
    counted = Others()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert 0 <= counted.share() <= 1
    everything, theirs = others._read()
    assert 0 < theirs + sum(os.times()[:4]) <= everything
