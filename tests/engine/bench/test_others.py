from __future__ import annotations

import os
import time

import pytest

from vidette.bench import others
from vidette.bench.others import LOOK_SECONDS, Others, Patience


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


class World:
    """A clock, and what others take: of each look and of each try, in order."""

    def __init__(self, *shares: float) -> None:
        self.now = 0.0
        self.slept = 0.0
        self._shares = list(shares)

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, watch=lambda: self, sleep=self.sleep, clock=lambda: self.now)

    def share(self) -> float:
        return self._shares.pop(0)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def call(self) -> float:
        self.now += 10
        return self.now


def test_without_patience_everything_is_measured_once_and_at_once() -> None:
    world = World(0.5, 0.0)
    patience = world.patience(0)
    assert patience.measure(world.call) == (10, 0.5)
    assert patience.measure(world.call) == (20, 0.0)
    assert world.slept == 0


def test_it_waits_until_the_machine_is_quiet() -> None:
    world = World(0.5, 0.06, 0.04, 0.01)
    assert world.patience(60).measure(world.call) == (10, 0.01)
    assert world.slept == 3 * LOOK_SECONDS


def test_what_was_disturbed_is_measured_again_and_the_quietest_is_kept() -> None:
    world = World(0.0, 0.1, 0.0, 0.3)
    assert world.patience(21).measure(world.call) == (10, 0.1)
    world = World(0.0, 0.3, 0.0, 0.02)
    assert world.patience(60).measure(world.call) == (20, 0.02)


def test_patience_ends() -> None:
    world = World(*[0.9] * 100)
    patience = world.patience(2)
    assert patience.measure(world.call) == (10, 0.9)
    assert world.slept == 2
    assert patience.measure(world.call) == (20, 0.9)
    assert world.slept == 2
