"""From a configuration to a step loop: what is said while that takes long."""

from __future__ import annotations

import logging

import pytest

from vidette.scheduler.build import LoadingLog


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
