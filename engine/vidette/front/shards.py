"""`Shards`: what the detokenizers of a ring have said, each of which has its share of the requests."""

from __future__ import annotations

from collections import deque

from vidette.front.questions import Questions
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import BatchStrOutput, FreezeGCReq, HeartbeatReq, SchedulerLedger


class Shards:
    """What is known of the detokenizers of one ring, and of the scheduler by way of them.

    Each says what it holds, and what the scheduler held when it said so. They do so at their own pace, so an
    older ledger may come behind a newer one; their numbers tell. Every step that changes what is held says so
    to one of them at least: once the end of every request has come, all of it is current.

    Args:
        count: how many there are.
        questions: told what all of them have answered.
    """

    def __init__(self, count: int, questions: Questions) -> None:
        self.ledger = SchedulerLedger()
        """What the scheduler held when it was last heard of."""
        self._questions = questions
        self._open = [0] * count
        self._answers: list[deque[HeartbeatReq | FreezeGCReq]] = [deque() for _ in range(count)]

    @property
    def open(self) -> int:
        """How many requests they held when each was last heard of."""
        return sum(self._open)

    def hear(self, shard: int, step: BatchStrOutput) -> None:
        """Note what one of them holds after a step."""
        self._note(shard, step.detokenizer_open, step.ledger)

    def answer(self, shard: int, answer: HeartbeatReq | FreezeGCReq) -> None:
        """Take an answer of one of them; the last to a question is that of all.

        They are asked the same in the same order, and so they answer.

        Raises:
            RemoteProtocolError: it answers more than was asked, or something else than the others.
        """
        if isinstance(answer, HeartbeatReq):
            self._note(shard, answer.detokenizer_open, answer.scheduler)
        self._answers[shard].append(answer)
        if all(self._answers):
            answers = [waiting.popleft() for waiting in self._answers]
            if any((type(other), other.id) != (type(answer), answer.id) for other in answers):
                said = ", ".join(f"{type(other).__name__} {other.id}" for other in answers)
                raise RemoteProtocolError(f"the detokenizers answer different questions: {said}")
            self._questions.settle(*answers)
        elif len(self._answers[shard]) > len(self._questions) and not self._questions.ended:
            raise RemoteProtocolError(f"detokenizer {shard} answers what it was not asked")

    def _note(self, shard: int, held: int | None, ledger: SchedulerLedger | None) -> None:
        if held is not None:
            self._open[shard] = held
        if ledger is not None and ledger.number >= self.ledger.number:
            self.ledger = ledger
