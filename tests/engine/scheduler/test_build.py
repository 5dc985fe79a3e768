"""From a configuration to a step loop: what is said meanwhile, and who gets threads."""

from __future__ import annotations

import logging

import pytest
import torch

from vidette.config import EngineConfig
from vidette.kernels.native import NativeDecoder
from vidette.models.toy import ToyModel
from vidette.scheduler.build import LoadingLog, share_processors


def test_loading_is_told_of_every_other_second(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    log = LoadingLog("big", lambda: now)
    with caplog.at_level(logging.INFO, "vidette"):
        for done in range(1, 11):
            now += 0.7
            log(done, 10)
    assert caplog.messages == [
        "loading big: 3 of 10 matrices, 2 s",
        "loading big: 6 of 10 matrices, 4 s",
        "loading big: 9 of 10 matrices, 6 s",
        "loading big: 10 of 10 matrices, 7 s",
    ]


def test_nothing_is_said_of_what_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    log = LoadingLog("small", lambda: 0.0)
    with caplog.at_level(logging.INFO, "vidette"):
        for done in range(1, 11):
            log(done, 10)
    assert caplog.messages == []


def test_torch_keeps_its_threads_where_it_computes_or_is_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside native kernels, in a process of ours, torch takes one; else what was asked for, or its own."""
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    native = object.__new__(NativeDecoder)
    share_processors(ToyModel(), EngineConfig(topology="processes"))
    share_processors(native, EngineConfig(topology="inline"))
    assert asked == []
    share_processors(ToyModel(), EngineConfig(topology="processes", threads=3))
    share_processors(native, EngineConfig(topology="processes", threads=3))
    assert asked == [3, 1]
