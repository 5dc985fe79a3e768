"""Traces of steps: into the operator's folder alone, of the steps asked for, and never in the way."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from vidette.scheduler import profiling
from vidette.scheduler.profiling import LONGEST_RECORDING_SECONDS, Profiler
from vidette_protocol.messages import ProfileReq, ProfileReqOutput


class Steps:
    """A loop of which nothing is known but how many steps it has taken."""

    def __init__(self, profiler: Profiler) -> None:
        self.count = 0
        self._profiler = profiler

    def take(self, number: int = 1, *, launch: bool = True) -> None:
        for _ in range(number):
            with self._profiler.step(lambda: self.count):
                torch.ones(4).add_(1)
                self.count += launch


def start(**options: Any) -> ProfileReq:
    return ProfileReq(id=1, req_type="start", **options)


STOP = ProfileReq(id=2, req_type="stop")


@pytest.fixture
def profiler(tmp_path: Path) -> Any:
    made = Profiler(str(tmp_path), lambda: 1234.5)
    yield made
    made.close()


def steps_in(answer: ProfileReqOutput) -> set[str]:
    assert answer.success, answer.message
    assert answer.path is not None
    events = json.loads(Path(answer.path).read_text())["traceEvents"]
    names = {event.get("name", "") for event in events}
    assert "aten::ones" in names
    return {name for name in names if name.startswith("step ")}


def test_all_steps_between_start_and_stop(profiler: Profiler, tmp_path: Path) -> None:
    steps = Steps(profiler)
    steps.take(3)
    assert profiler.answer(start(profile_id="slow"), steps.count) == ProfileReqOutput(id=1)
    steps.take(2)
    stopped = profiler.answer(STOP, steps.count)
    steps.take(2)
    assert steps_in(stopped) == {"step 3", "step 4"}
    assert [path.name for path in tmp_path.iterdir()] == ["slow-3.trace.json"]
    assert profiler.answer(STOP, steps.count) == stopped  # to who lost the first answer


def test_so_many_steps_from_one_on_and_it_ends_by_itself(profiler: Profiler) -> None:
    steps = Steps(profiler)
    profiler.answer(start(start_step=2, num_steps=2), 0)
    steps.take(3)
    steps.take(launch=False)
    steps.take(3)
    stopped = profiler.answer(STOP, steps.count)
    assert steps_in(stopped) == {"step 2", "step 3"}
    assert profiler.answer(STOP, steps.count) == stopped
    assert profiler.answer(start(profile_id="next"), steps.count).success
    assert "no step was taken" in profiler.answer(STOP, steps.count).message
    assert profiler.answer(STOP, steps.count).message == "nothing is being recorded"


def test_a_forgotten_one_ends_though_nothing_is_computed(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "MOST_STEPS", 5)
    steps = Steps(profiler)
    profiler.answer(start(num_steps=100), 0)
    steps.take(4, launch=False)
    assert "already" in profiler.answer(start(), 0).message
    steps.take(launch=False)
    assert isinstance(profiler.step(lambda: 0), nullcontext)
    assert steps_in(profiler.answer(STOP, 0)) == {"step 0"}


def test_a_forgotten_one_ends_in_time(tmp_path: Path) -> None:
    now = 100.0
    profiler = Profiler(str(tmp_path), lambda: 0.0, lambda: now)
    steps = Steps(profiler)
    profiler.answer(start(start_step=1), 0)
    now += LONGEST_RECORDING_SECONDS  # it has not begun
    steps.take(2)
    now += LONGEST_RECORDING_SECONDS - 1
    steps.take()
    now += 1
    assert list(tmp_path.iterdir()) == []
    steps.take(3)
    assert steps_in(profiler.answer(STOP, steps.count)) == {"step 1", "step 2", "step 3"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"output_dir": "/tmp"}, "output_dir is not taken"),
        ({"output_dir": ""}, "output_dir is not taken"),
        ({"profile_id": "../up"}, "letters, digits"),
        ({"profile_id": "a/b"}, "letters, digits"),
        ({"profile_id": ""}, "letters, digits"),
        ({"profile_id": "x" * 65}, "letters, digits"),
        ({"profile_id": "x\n"}, "letters, digits"),
        ({"profile_id": "taken"}, "already; choose another"),
        ({"num_steps": 0}, "at least 1"),
        ({"profile_by_stage": True}, "not supported yet"),
        pytest.param(
            {"activities": ["GPU"]},
            "no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_what_cannot_be_is_refused_and_begins_nothing(
    profiler: Profiler, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    (tmp_path / "taken-0.trace.json").write_text("a trace")
    answer = profiler.answer(start(**options), 0)
    assert not answer.success
    assert why in answer.message
    Steps(profiler).take()
    assert profiler.answer(STOP, 1).message == "nothing is being recorded"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["a trace"]


def test_without_a_folder_nothing_is_recorded() -> None:
    profiler = Profiler(None, lambda: 0.0)
    assert "profile_dir" in profiler.answer(start(), 0).message


def test_a_second_start_leaves_the_first_alone(profiler: Profiler) -> None:
    steps = Steps(profiler)
    profiler.answer(start(), 0)
    steps.take()
    assert "already" in profiler.answer(start(), 1).message
    assert steps_in(profiler.answer(STOP, 1)) == {"step 0"}


def test_without_a_step_there_is_no_trace(profiler: Profiler, tmp_path: Path) -> None:
    profiler.answer(start(), 0)
    assert "no step was taken" in profiler.answer(STOP, 0).message
    assert list(tmp_path.iterdir()) == []
    assert profiler.answer(start(), 0).success


@pytest.mark.parametrize("options", [{}, {"num_steps": 1}], ids=["told to end", "ends by itself"])
def test_a_folder_that_is_gone_fails_the_trace_and_not_the_step(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    profiler = Profiler(str(folder), lambda: 0.0)
    profiler.answer(start(**options), 0)
    folder.rmdir()
    steps = Steps(profiler)
    steps.take(2)
    for _ in range(2):
        assert "could not be written" in profiler.answer(STOP, steps.count).message
    folder.mkdir()
    assert profiler.answer(start(), steps.count).success
    profiler.close()
