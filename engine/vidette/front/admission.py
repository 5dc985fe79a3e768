"""`Admission`: whether one request more may live, by number, by tokens, and by what waits to be sent.

A request counts with the tokens it may come to hold, prompt and output: for each of them the scheduler keeps
memory at once, and the front as they come. How many tokens a text has shows only when it is tokenised. Until
then it counts with as many as it could have, which are at most its bytes, and at most what fits: with more it
is refused. So what a request costs is counted before it is spent, and what lives has a bound, whoever sends
it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import anyio

from vidette.errors import Overloaded, UsageError
from vidette.transport.channel import FrameChannel
from vidette_protocol.ids import Vid
from vidette_protocol.messages import GenerateItem

REQUESTS_BYTES: Final = 16 * 1024 * 1024
"""With so much waiting to be sent to the scheduler nothing new is taken; aborts and questions are."""
ENDS_REMEMBERED: Final = 32
"""Of how many requests the ends are looked at, to say when another try is sensible."""
SHORTEST_RETRY: Final = 1.0
LONGEST_RETRY: Final = 60.0
"""Seconds between which another try is said to be sensible."""


class Admission:
    """What lives in a front, counted.

    Args:
        max_requests: most requests that may live.
        max_tokens: most tokens that they may come to hold. A request for more is let in when nothing lives.
        living: says how many requests live.
        is_over: says whether one does not.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        *,
        living: Callable[[], int],
        is_over: Callable[[Vid], bool],
    ) -> None:
        self.tokens = 0
        """Tokens that what lives may come to hold."""
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._living = living
        self._is_over = is_over
        self._costs: dict[Vid, int] = {}
        self._since: dict[Vid, float] = {}
        self._rendering = 0
        self._ends: deque[float] = deque(maxlen=ENDS_REMEMBERED)
        """Of requests, by `_busy`."""
        self._busy_before = 0.0
        self._busy_since = 0.0

    def check(
        self, costs: Sequence[int], outbox: FrameChannel | None, *, replaced: Vid | None = None
    ) -> None:
        """Check that there is room for more requests.

        Args:
            costs: tokens that each of them may come to hold.
            outbox: where they would be sent; None: they wait for it.
            replaced: one of those that live, which ends when they are taken; None: none does.

        Raises:
            Overloaded: there is not, now.
            UsageError: there never is.
        """
        more = len(costs)
        if more > self._max_requests:
            raise UsageError(
                f"{more} answers are asked for at once; at most {self._max_requests} requests may live",
                param="n",
            )
        live, held, others = self._living() + self._rendering, self.tokens, ""
        if replaced is not None:
            live, held, others = live - 1, held - self._costs[replaced], "other "
        if live + more > self._max_requests:
            raise self._refuse(f"{live} {others}requests live; at most {self._max_requests} may", 1)
        tokens = sum(costs)
        if held:
            excess = held + tokens - self._max_tokens
            if excess > 0:
                raise self._refuse(
                    f"{live} {others}requests live, which may take {held} tokens, and {tokens} are asked "
                    f"for; together they may take at most {self._max_tokens}",
                    math.ceil(excess * live / held),
                )
        self.check_outbox(outbox)

    def check_outbox(self, outbox: FrameChannel | None) -> None:
        """Check that the scheduler keeps up with what is sent to it.

        Raises:
            Overloaded: it does not.
        """
        if outbox is not None and outbox.queued_bytes >= REQUESTS_BYTES:
            waiting = f"{outbox.queued_bytes} bytes wait to be sent to the scheduler"
            raise self._refuse(f"{waiting}; nothing new is taken from {REQUESTS_BYTES} on", 1)

    def admit(self, vid: Vid, tokens: int) -> None:
        """Count a request that lives from now on, or one that lives anew, now that its cost is known."""
        if not self._costs:
            self._busy_since = anyio.current_time()
        self.tokens += tokens - self._costs.get(vid, 0)
        self._costs[vid] = tokens
        if vid not in self._since:
            self._since[vid] = anyio.current_time()

    def end(self, vid: Vid) -> None:
        """Count a request no more; nothing happens if it is not counted."""
        if vid not in self._costs:
            return
        busy = self._busy()
        self._ends.append(busy)
        self.tokens -= self._costs.pop(vid)
        del self._since[vid]
        if not self._costs:
            self._busy_before = busy

    def move(self, old: Vid, new: Vid) -> None:
        """Note that a request lives on under another vid."""
        self._costs[new] = self._costs.pop(old)
        self._since[new] = self._since.pop(old)

    def age_s(self, vid: Vid) -> float:
        """Return for how many seconds a request has lived, those under other vids included."""
        now = anyio.current_time()
        return now - self._since.get(vid, now)

    @contextmanager
    def rendering(self, messages: Sequence[Mapping[str, str]], max_total_tokens: int) -> Iterator[None]:
        """Count a conversation while it is rendered: as a request, of as many tokens as it could have.

        Args:
            messages: as they came.
            max_total_tokens: more of them would not fit.

        Raises:
            Overloaded: there is no room for it.
        """
        texts = (str(text) for message in messages for text in message.values())
        tokens = min(sum(most_tokens(text, max_total_tokens) for text in texts), max_total_tokens)
        self.check([tokens], None)
        self._rendering += 1
        self.tokens += tokens
        try:
            yield
        finally:
            self._rendering -= 1
            self.tokens -= tokens

    def forget_over(self) -> None:
        """Count those no more that ended all at once, without a word of each."""
        if len(self._costs) != self._living():
            for vid in [vid for vid in self._costs if self._is_over(vid)]:
                self.end(vid)

    def __len__(self) -> int:
        """Return how many requests are counted."""
        return len(self._costs) + self._rendering

    def _refuse(self, message: str, ends: int) -> Overloaded:
        """Return what is raised; there may be room again when so many more have ended."""
        seconds = SHORTEST_RETRY
        if len(self._ends) > 1:
            seconds = ends * (self._busy() - self._ends[0]) / len(self._ends)
        return Overloaded(message, retry_after=min(max(SHORTEST_RETRY, seconds), LONGEST_RETRY))

    def _busy(self) -> float:
        """Return for how many seconds requests have lived: a clock that stands still while none does."""
        return self._busy_before + (anyio.current_time() - self._busy_since if self._costs else 0)


def most_tokens(text: str, max_total_tokens: int) -> int:
    """Return how many tokens a text that was not tokenised can have, one in front included, if it fits."""
    if len(text) >= max_total_tokens:
        return max_total_tokens
    nbytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return min(1 + nbytes, max_total_tokens)


def most_taken(item: GenerateItem, max_total_tokens: int) -> int:
    """Return how many tokens a request may come to hold, as far as is known before it is tokenised.

    Args:
        item: checked.
        max_total_tokens: most tokens of prompt and output together.
    """
    wanted = item.sampling_params.max_new_tokens
    if wanted is None:
        return max_total_tokens
    text = item.text
    prompt = len(item.input_ids or ()) if text is None else most_tokens(text, max_total_tokens)
    return min(prompt + wanted, max_total_tokens)
