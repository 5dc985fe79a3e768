"""`Profiler`: torch's profiler over the steps of the compute thread, one trace at a time.

Traces go into the folder that the engine was opened with; a path that comes over a link is never used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from vidette_protocol.messages import ProfileReq, ProfileReqOutput

MOST_STEPS: Final = 10_000
"""Steps after which a recording ends by itself, those that compute nothing too: it is held in memory."""
LONGEST_RECORDING_SECONDS: Final = 600.0
"""What a recording may last: the first step after that ends it."""
PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a `profile_id` may be: part of a file's name."""


class Profiler:
    """Records what steps spend their time on.

    It belongs to one thread, the one whose steps are recorded; in that thread a trace is written as well, and
    no step is taken meanwhile.

    Args:
        folder: where traces go; None: nothing is recorded.
        wall: seconds since the epoch, for names.
        clock: seconds, for how long a recording lasts.
    """

    def __init__(
        self,
        folder: str | None,
        wall: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._wall = wall
        self._clock = clock
        self._wanted: ProfileReq | None = None
        """What is recorded, or will be."""
        self._first = 0
        """The first step of it."""
        self._taken = 0
        """Steps in it, also those that computed nothing."""
        self._began = 0.0
        self._path = Path()
        self._recording: profile | None = None
        self._ended: Path | str | None = None
        """The trace of the last recording, or why there is none."""

    def answer(self, question: ProfileReq, steps: int) -> ProfileReqOutput:
        """Begin or end a recording, and say so.

        Args:
            question: which.
            steps: how many were taken so far.
        """
        try:
            if question.req_type == "start":
                self._begin(question, steps)
                return ProfileReqOutput(id=question.id)
            return ProfileReqOutput(id=question.id, path=str(self._end()))
        except (OSError, RuntimeError, ValueError) as error:
            return ProfileReqOutput(id=question.id, success=False, message=str(error))

    def step(self, steps: Callable[[], int]) -> AbstractContextManager[None]:
        """Return what a step is to be taken in.

        Args:
            steps: says how many were taken so far.
        """
        return nullcontext() if self._wanted is None else self._watched(self._wanted, steps)

    def close(self) -> None:
        """End a recording, and forget it."""
        recording, self._recording, self._wanted = self._recording, None, None
        if recording is not None:
            recording.stop()

    @contextmanager
    def _watched(self, wanted: ProfileReq, steps: Callable[[], int]) -> Iterator[None]:
        number = steps()
        if number < self._first:
            yield
            return
        if self._recording is None:
            self._first = number
            self._start(wanted)
        if self._recording is None:  # it could not begin
            yield
            return
        with record_function(f"step {number}"):
            yield
        self._taken += 1
        computed = steps() - self._first
        if (
            computed >= (wanted.num_steps or MOST_STEPS)
            or self._taken >= MOST_STEPS
            or self._clock() - self._began >= LONGEST_RECORDING_SECONDS
        ):
            self._finish()

    def _begin(self, question: ProfileReq, steps: int) -> None:
        if self._folder is None:
            raise ValueError("no folder for traces: profile_dir was not given, or the topology is inline")
        if question.output_dir is not None:
            raise ValueError("output_dir is not taken: traces go into the folder the engine was opened with")
        if question.profile_by_stage:
            raise ValueError("profile_by_stage is not supported yet: steps have both in them")
        if self._wanted is not None:
            raise ValueError(f"steps are being recorded already, for {self._path.name}")
        if question.num_steps is not None and question.num_steps < 1:
            raise ValueError(f"num_steps is {question.num_steps}; it must be at least 1")
        name = f"{self._wall():.0f}" if question.profile_id is None else question.profile_id
        if PLAIN_NAME.fullmatch(name) is None:
            raise ValueError(f"profile_id is {name[:80]!r}; it must be 1 to 64 letters, digits, '-' and '_'")
        _activities(question)
        self._path = self._folder / f"{name}-{steps}.trace.json"
        if self._path.exists():
            raise ValueError(f"there is a trace {self._path.name} already; choose another profile_id")
        self._wanted, self._first, self._ended = question, question.start_step or 0, None

    def _end(self) -> Path:
        if self._wanted is not None and self._recording is None:
            self._wanted = None
            raise ValueError("no step was taken since the start: there is no trace")
        if self._recording is not None:
            self._finish()
        if self._ended is None:
            raise ValueError("nothing is being recorded")
        if isinstance(self._ended, str):
            raise ValueError(self._ended)  # noqa: TRY004  it is no wrong type
        return self._ended

    def _start(self, question: ProfileReq) -> None:
        recording = profile(
            activities=_activities(question),
            record_shapes=question.record_shapes,
            with_stack=question.with_stack,
        )
        try:
            recording.start()
        except RuntimeError as error:  # somebody else in this process records
            self._wanted, self._ended = None, str(error)
        else:
            self._recording = recording
            self._taken, self._began = 0, self._clock()

    def _finish(self) -> None:
        """End the recording and write its trace; every stop from now on tells what came of it."""
        recording, self._recording, self._wanted = self._recording, None, None
        if recording is None:
            return
        try:
            recording.stop()
            recording.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            self._ended = str(error)
        else:
            # torch tells nobody but stderr of a trace that it could not write.
            there = self._path.exists()
            self._ended = self._path if there else f"the trace {self._path.name} could not be written"


def _activities(question: ProfileReq) -> list[ProfilerActivity]:
    """Return what is recorded.

    Raises:
        ValueError: nothing of what was asked for is there.
    """
    asked = question.activities or ["CPU", "GPU"]
    there = {"CPU": ProfilerActivity.CPU}
    if torch.cuda.is_available():
        there["GPU"] = ProfilerActivity.CUDA
    chosen = [there[name] for name in dict.fromkeys(asked) if name in there]
    if not chosen:
        raise ValueError("there is no GPU whose activity could be recorded")
    return chosen
