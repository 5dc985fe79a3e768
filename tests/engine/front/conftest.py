"""A front whose ring is the test: what it sends can be seen, and what it hears is said by hand."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import numpy as np
import pytest
from numpy.typing import NDArray

from vidette.front.manager import TokenizerManager
from vidette.models import ModelInfo
from vidette.transport.link import Link
from vidette.transport.memory import MemoryChannel
from vidette_protocol.codec import Codec
from vidette_protocol.messages import (
    BatchStrOutput,
    FinishReason,
    GenerateReqInput,
    Message,
    Ready,
    SamplingParams,
    SchedulerLedger,
    StrRow,
)
from vidette_protocol.messages.catalogue import (
    DETOKENIZER_TO_FRONT,
    FRONT_TO_DETOKENIZER,
    FRONT_TO_SCHEDULER,
    SCHEDULER_TO_FRONT,
)

T = TypeVar("T")

DEADLINE = 20.0
INFO = ModelInfo(
    name="fake",
    architecture="fake",
    vocab_size=128,
    context_len=1000,
    eos_token_ids=frozenset({0}),
    kv_bytes_per_token=4,
)
STOP = FinishReason("stop", matched=0)
ABORTED = FinishReason("abort", message="the caller ended the request")


class RecordingChannel(MemoryChannel):
    """A channel that keeps what is posted into it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.posted: list[bytes] = []

    def post(self, frame: bytes) -> None:
        self.posted.append(frame)
        super().post(frame)


class AsciiTokenizer:
    """One token for each character; the empty string of tokens for spaces alone."""

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.array([ord(character) for character in text.strip()], dtype=np.int32)

    def fewest_tokens(self, text: str, enough: int) -> int:
        return min(enough, len(text.strip()))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


class FakeOffload:
    """Another thread that is none: it takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate: anyio.Event | None = None

    async def __call__(self, function: Callable[[], T], /) -> T:
        self.begun += 1
        await anyio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        return function()


def ask(prompt: str | list[int] = "hello", *, rid: str | None = None, **params: Any) -> GenerateReqInput:
    """Return a request as a caller makes it."""
    sampling = SamplingParams(**{"max_new_tokens": 5, "sampling_seed": 7, **params})
    if isinstance(prompt, str):
        return GenerateReqInput(rid=rid, text=prompt, sampling_params=sampling)
    return GenerateReqInput(rid=rid, input_ids=prompt, sampling_params=sampling)


class Front:
    """A manager, and the other ends of its links."""

    def __init__(
        self,
        *,
        max_requests: int = 100,
        front_id: int = 0,
        max_total_tokens: int = 100,
        detokenizers: int = 1,
        **more: Any,
    ) -> None:
        self._count = detokenizers
        self._codec = Codec(sends=SCHEDULER_TO_FRONT, receives=FRONT_TO_SCHEDULER)
        self.offload = FakeOffload()
        self.ready = Ready(role="scheduler", max_total_tokens=max_total_tokens)
        self.manager = TokenizerManager(
            *self._new_ring(),
            tokenizer=AsciiTokenizer(),
            info=INFO,
            ready=self.ready,
            offload=self.offload,
            max_requests=max_requests,
            front_id=front_id,
            **more,
        )
        self.fault: Exception | None = None
        """What ended the hearing of one of the links."""
        self._tasks: anyio.abc.TaskGroup | None = None

    def _new_ring(self) -> tuple[Link, list[Link]]:
        """Play another ring from here on; return the front's links to it."""
        scheduler, self.scheduler_channel = RecordingChannel.pair()
        texts = [RecordingChannel.pair() for _ in range(self._count)]
        self.posted = scheduler.posted
        """Frames that were sent to the scheduler."""
        self._read = 0
        self.scheduler = Link(
            self.scheduler_channel, self._codec, role="scheduler", peer="front", opened=True
        )
        self.detokenizers = [
            Link(
                theirs,
                Codec(sends=DETOKENIZER_TO_FRONT, receives=FRONT_TO_DETOKENIZER),
                role="detokenizer",
                peer="front",
                opened=True,
            )
            for _, theirs in texts
        ]
        self.detokenizer = self.detokenizers[0]
        self.detokenizer_channel = texts[0][1]
        return (
            Link(
                scheduler,
                Codec(sends=FRONT_TO_SCHEDULER, receives=SCHEDULER_TO_FRONT),
                role="front",
                peer="scheduler",
                opened=True,
            ),
            [
                Link(
                    ours,
                    Codec(sends=FRONT_TO_DETOKENIZER, receives=DETOKENIZER_TO_FRONT),
                    role="front",
                    peer="detokenizer",
                    opened=True,
                )
                for ours, _ in texts
            ],
        )

    def attach(self) -> None:
        """Put another ring in the place of one that was lost."""
        self.manager.attach(*self._new_ring(), self.ready)
        self._hear()

    def _hear(self) -> None:
        assert self._tasks is not None
        for shard in range(self._count):
            self._tasks.start_soon(self.hear, partial(self.manager.hear_detokenizer, shard))
        self._tasks.start_soon(self.hear, self.manager.hear_scheduler)

    def sent(self) -> list[Message]:
        """Return what was sent to the scheduler since this was asked last; looks, and waits for nothing."""
        new = self.posted[self._read :]
        self._read += len(new)
        return [self._codec.decode(frame) for frame in new]

    def say(
        self,
        *rows: StrRow,
        ledger: SchedulerLedger | None = None,
        detokenizer_open: int = 0,
        shard: int = 0,
    ) -> None:
        """Let a detokenizer say what a step made."""
        self.detokenizers[shard].post(
            BatchStrOutput.from_rows(list(rows), ledger or SchedulerLedger(), detokenizer_open)
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Give the others their turn until something is so."""
        with anyio.fail_after(DEADLINE):
            while not condition():
                await anyio.lowlevel.checkpoint()

    async def heard(self) -> None:
        """Wait until all that was said has been heard."""
        self.say(ledger=SchedulerLedger(steps=(marker := self.manager.scheduler_ledger.steps + 1)))
        await self.until(lambda: self.manager.scheduler_ledger.steps == marker or self.fault is not None)

    async def hear(self, listen: Callable[[], Awaitable[None]]) -> None:
        try:
            await listen()
        except Exception as error:  # noqa: BLE001  the tests look at it
            self.fault = error

    @classmethod
    @asynccontextmanager
    async def serving(cls, **options: Any) -> AsyncGenerator[Self]:
        """Open a front that hears its links until the block is left."""
        front = cls(**options)
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                front._tasks = tasks
                front._hear()
                yield front
                tasks.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def nothing_stays_frozen() -> Iterator[None]:
    """Give the garbage collector back what a test froze: it is the one of all tests."""
    yield
    gc.unfreeze()
