"""`Observer`: how long requests take and how long they are, counted into histograms; off until it is started.

What is observed costs the front a comparison and an addition for each delta, and nothing while it is off. A
request that asks not to be counted (`log_metrics=False`), such as a probe of health, is not observed.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Final, Literal, Protocol

from vidette_protocol.messages import Served, SpeculativeMetrics

EndedBy = Literal["stop", "length", "abort", "error"]
"""How a request came to its end."""

FIRST_TOKEN_BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
NEXT_TOKEN_BOUNDS: Final = (
    *(0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BOUNDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
LENGTH_BOUNDS: Final = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))


class Watch(Protocol):
    """Observes one request."""

    def take(self, tokens: int, prompt_tokens: int) -> None:
        """Note that tokens have come.

        Args:
            tokens: how many.
            prompt_tokens: length of the prompt.
        """
        ...

    def finish(
        self, how: EndedBy, prompt_tokens: int, served: Served, spec: SpeculativeMetrics | None
    ) -> None:
        """Note that it is over; of several ends the first counts.

        Args:
            how: how it ended.
            prompt_tokens: length of the prompt.
            served: how it was served.
            spec: how speculation went.
        """
        ...

    def move(self) -> None:
        """Note that it goes on after the death of a process."""
        ...


class Histogram:
    """How many values were how large.

    Args:
        bounds: upper bounds of the buckets, rising; a last bucket has none.

    Attributes:
        counts: values in each bucket.
        total: their sum.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, as often as it occurred."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class Observer:
    """What was observed of the requests of one front.

    Args:
        clock: seconds, from any beginning.

    Attributes:
        on: whether requests that come now are observed.
        first_token: seconds from the call to the first token.
        next_token: seconds from one token to the next; those that come together share the time, and those
            that come with the first have none.
        request: seconds from the call to the end, of those that ended by themselves, as the next three.
        queue: seconds that they waited to be begun.
        prompts: lengths of their prompts in tokens.
        outputs: lengths of their outputs in tokens.
        prompt_tokens: tokens of prompts that were computed or found, noted with the first token behind them.
        output_tokens: tokens that came.
        drafts: drafts that were verified, of those that ended, whatever ended them.
        draft_tokens: tokens of them.
        right_drafts: tokens of them that were right.
        ended: how many ended how.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.on = False
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.next_token = Histogram(NEXT_TOKEN_BOUNDS)
        self.request = Histogram(REQUEST_BOUNDS)
        self.queue = Histogram(REQUEST_BOUNDS)
        self.prompts = Histogram(LENGTH_BOUNDS)
        self.outputs = Histogram(LENGTH_BOUNDS)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.drafts = 0
        self.draft_tokens = 0
        self.right_drafts = 0
        self.ended: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}

    def start(self) -> Observer:
        """Observe requests from now on; return itself."""
        self.on = True
        return self

    def begin(self, counted: bool) -> Timing | None:
        """Note that a request comes; return what observes it, if anything does.

        Args:
            counted: whether it is to be observed.
        """
        return Timing(self) if self.on and counted else None


class Timing:
    """Observes one request, from when it was made.

    Args:
        observer: counts.
    """

    __slots__ = ("_began", "_ended", "_last", "_made", "_observer")

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._began = observer.clock()
        self._last: float | None = None
        self._made = 0
        self._ended = False

    def take(self, tokens: int, prompt_tokens: int) -> None:
        """Note that tokens have come; see `Watch`."""
        observer = self._observer
        now = observer.clock()
        if self._last is None:
            observer.first_token.observe(now - self._began)
            observer.prompt_tokens += prompt_tokens
        else:
            observer.next_token.observe((now - self._last) / tokens, tokens)
        self._last = now
        self._made += tokens
        observer.output_tokens += tokens

    def finish(
        self, how: EndedBy, prompt_tokens: int, served: Served, spec: SpeculativeMetrics | None
    ) -> None:
        """Note that it is over; see `Watch`."""
        if self._ended:
            return
        self._ended = True
        observer = self._observer
        observer.ended[how] += 1
        if spec is not None:
            observer.drafts += spec.spec_verify_ct
            observer.draft_tokens += spec.spec_num_drafts
            observer.right_drafts += spec.spec_num_correct_drafts
        if how in ("stop", "length"):
            if self._last is None:  # only its prompt was asked for
                observer.prompt_tokens += prompt_tokens
            observer.request.observe(observer.clock() - self._began)
            observer.queue.observe(served.queue_s)
            observer.prompts.observe(prompt_tokens)
            observer.outputs.observe(self._made)

    def move(self) -> None:
        """Nothing: to its caller it is one request."""


class Both:
    """Two that observe one request.

    Args:
        first: told first.
        second: told then.
    """

    __slots__ = ("_first", "_second")

    def __init__(self, first: Watch, second: Watch) -> None:
        self._first = first
        self._second = second

    def take(self, tokens: int, prompt_tokens: int) -> None:
        """Tell both."""
        self._first.take(tokens, prompt_tokens)
        self._second.take(tokens, prompt_tokens)

    def finish(
        self, how: EndedBy, prompt_tokens: int, served: Served, spec: SpeculativeMetrics | None
    ) -> None:
        """Tell both."""
        self._first.finish(how, prompt_tokens, served, spec)
        self._second.finish(how, prompt_tokens, served, spec)

    def move(self) -> None:
        """Tell both."""
        self._first.move()
        self._second.move()


def both(first: Watch | None, second: Watch | None) -> Watch | None:
    """Return what observes for both, if there are two, or one."""
    if first is None or second is None:
        return first if second is None else second
    return Both(first, second)
