"""What a client saw of a server, as numbers; pure.

The definitions are those of `vllm bench serve`, by which most people compare:

- TTFT: from the moment a request is sent to the first piece of its answer that is not empty. A piece that
  only names the role is none
- E2EL: from then to the last piece; what comes behind it, such as the usage, does not count
- ITL: the gaps between the pieces of an answer, those of all answers together. A piece may hold several
  tokens
- TPOT: (E2EL - TTFT) / (output tokens - 1) of an answer of two tokens or more
- throughput: what was completed, over the whole time from the first request to the end of the last
- goodput: requests that met every objective, over the same time

Requests that failed are counted, and are in none of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import floor, inf
from typing import Final, NamedTuple

from msgspec import Struct

PERCENTILES: Final = (50, 90, 95, 99)
OBJECTIVES: Final = ("ttft", "itl", "tpot", "e2el")


class Answer(Struct):
    """One request and what came of it; times are seconds on one clock.

    Args:
        started: when it was sent.
        pieces: when each piece of text came.
        ended: when the answer was complete, or had failed.
        prompt_tokens: as the server says; 0: it does not.
        cached_tokens: those of them that it did not compute again.
        output_tokens: as the server says, or else the number of pieces.
        counted: whether the server said so.
        error: why it failed; None: it did not.
    """

    started: float
    pieces: list[float] = []
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first piece; None: there is none."""
        return self.pieces[0] - self.started if self.pieces else None

    @property
    def e2el(self) -> float | None:
        """Seconds to the last piece; None: there is none."""
        return self.pieces[-1] - self.started if self.pieces else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece and the next."""
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]

    @property
    def itl(self) -> float | None:
        """The mean gap; None: there is none."""
        return (self.pieces[-1] - self.pieces[0]) / (len(self.pieces) - 1) if len(self.pieces) > 1 else None

    @property
    def tpot(self) -> float | None:
        """Seconds for each token but the first; None: there is no other."""
        if not self.pieces or self.output_tokens < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.output_tokens - 1)


class Objectives(NamedTuple):
    """What a good answer takes at most, in seconds.

    Args:
        ttft: to the first piece.
        itl: its mean gap between pieces.
        tpot: for each token but the first.
        e2el: to the last piece.
    """

    ttft: float = inf
    itl: float = inf
    tpot: float = inf
    e2el: float = inf

    @classmethod
    def of(cls, texts: Iterable[str]) -> Objectives:
        """Read texts such as "ttft:200", in milliseconds.

        Raises:
            ValueError: one is not known, not positive, or given twice.
        """
        found: dict[str, float] = {}
        for text in texts:
            name, _, limit = text.partition(":")
            if name not in OBJECTIVES or name in found:
                raise ValueError(f"{text!r} is not one of {', '.join(OBJECTIVES)} and a number, each once")
            try:
                found[name] = float(limit) / 1e3
            except ValueError:
                raise ValueError(f"{text!r} has no number of milliseconds behind its colon") from None
            if not 0 < found[name] < inf:
                raise ValueError(f"{text!r} is no time in milliseconds")
        return cls(**found)

    def met(self, answer: Answer) -> bool:
        """Tell whether an answer is complete and good; the first piece of one without any is late."""
        if answer.error is not None:
            return False
        late = inf if answer.ttft is None else answer.ttft
        last = inf if answer.e2el is None else answer.e2el
        return (
            late <= self.ttft
            and last <= self.e2el
            and (answer.itl or 0.0) <= self.itl
            and (answer.tpot or 0.0) <= self.tpot
        )


ANY: Final = Objectives()
"""Every answer is good."""


class Spread(Struct, frozen=True):
    """How some durations are spread, in milliseconds.

    Args:
        count: how many there are.
        mean: their mean.
        p50, p90, p95, p99: percentiles, between two of them in proportion.
        most: the longest.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


class Summary(Struct, frozen=True):
    """What one load came to.

    Args:
        seconds: from the first request to the end of the last.
        requests: how many were sent.
        completed: how many of them did not fail.
        good: how many met every objective.
        prompt_tokens, cached_tokens, output_tokens: of those completed.
        uncounted: completed ones whose output tokens the server did not count: their pieces were.
        errors: how often each error came.
        ttft, itl, tpot, e2el: None where there is not one value.
    """

    seconds: float
    requests: int
    completed: int
    good: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    uncounted: int
    errors: dict[str, int]
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2el: Spread | None

    @property
    def request_s(self) -> float:
        """Completed requests per second."""
        return self.completed / self.seconds if self.seconds else 0.0

    @property
    def output_tok_s(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def goodput_s(self) -> float:
        """Good requests per second."""
        return self.good / self.seconds if self.seconds else 0.0


def summarise(answers: Sequence[Answer], objectives: Objectives = ANY) -> Summary:
    """Return what a load came to; in any order."""
    completed = [answer for answer in answers if answer.error is None]
    errors = Counter(answer.error for answer in answers if answer.error is not None)
    seconds = 0.0
    if answers:
        seconds = max(answer.ended for answer in answers) - min(answer.started for answer in answers)
    return Summary(
        seconds=seconds,
        requests=len(answers),
        completed=len(completed),
        good=sum(map(objectives.met, completed)),
        prompt_tokens=sum(answer.prompt_tokens for answer in completed),
        cached_tokens=sum(answer.cached_tokens for answer in completed),
        output_tokens=sum(answer.output_tokens for answer in completed),
        uncounted=sum(not answer.counted for answer in completed),
        errors=dict(errors.most_common()),
        ttft=spread(answer.ttft for answer in completed),
        itl=spread(gap for answer in completed for gap in answer.gaps),
        tpot=spread(answer.tpot for answer in completed),
        e2el=spread(answer.e2el for answer in completed),
    )


def spread(seconds: Iterable[float | None]) -> Spread | None:
    """Return how durations are spread; None if there are none. What is None does not count."""
    values = sorted(1e3 * value for value in seconds if value is not None)
    if not values:
        return None
    p50, p90, p95, p99 = (percentile(values, share) for share in PERCENTILES)
    return Spread(len(values), sum(values) / len(values), p50, p90, p95, p99, values[-1])


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, at least one; between two of them in proportion."""
    place = (len(values) - 1) * percent / 100
    below = floor(place)
    above = min(below + 1, len(values) - 1)
    low, high = values[below], values[above]
    return min(high, low + (high - low) * (place - below))  # rounding is not to exceed the larger one
