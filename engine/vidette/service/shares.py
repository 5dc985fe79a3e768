"""`Shares`: how much of the engine each key may have, so that no client takes all of it.

A request counts as the answers it asks for, from its head to its end, whatever ends it, but for one that is
refused because its key has no more. That bounds how many a key has at once. A rate is what is left of a
minute's worth: it fills up steadily, and while it is full a key may ask for all of it at once. Tokens are
counted when they are known, which is afterwards, so a key may come to owe some; it is let in again once they
are paid off. The prompt counts with each of its answers, and what was made of these counts whether or not the
client has read it.

Nothing is kept but one record for each key that was configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, Self

from msgspec import Struct

from vidette.errors import Overloaded, UsageError
from vidette.service.limits import ServiceLimits

ANYONE: Final = "anyone"
"""Who has no key, where none is needed."""
CALLER: Final = "vidette.caller"
"""Key of an ASGI scope: the name of the client's key; None is whoever runs the server."""
LONGEST_RETRY: Final = 60.0
"""Seconds after which another try is said to be sensible, at most."""
MINUTE: Final = 60.0

Clock = Callable[[], float]
"""Returns seconds that only rise."""


class ShareUsedUp(Overloaded):
    """A key has all that it may have, for now."""


class Counted(Protocol):
    """What an answer took; a `vidette.Stream`."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt; 0 while it has not begun."""
        ...

    @property
    def heard_tokens(self) -> int:
        """Tokens of it that were made so far, whether or not anybody has read them."""
        ...


class Use(Struct, frozen=True):
    """What is told of a key.

    Args:
        name: of the key.
        live: answers that are being made for it.
        requests: answers that are over.
        refused: requests that were refused because of its share.
        tokens: of prompts and answers that are over.
    """

    name: str
    live: int
    requests: int
    refused: int
    tokens: int


class Rate:
    """What is left of a minute's worth of something.

    Args:
        per_minute: how much that is; all of it is there at first.
    """

    __slots__ = ("_at", "_left", "per_minute")

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self._left = per_minute
        self._at = 0.0

    def left(self, now: float) -> float:
        """Return how much is left; less than nothing is what is owed."""
        return min(self.per_minute, self._left + (now - self._at) * self.per_minute / MINUTE)

    def wait(self, amount: float, now: float) -> float:
        """Return in how many seconds there is so much, or all that there can be; 0: now."""
        return max(0.0, min(amount, self.per_minute) - self.left(now)) * MINUTE / self.per_minute

    def take(self, amount: float, now: float) -> None:
        """Take so much, whether or not it is there."""
        self._left = self.left(now) - amount
        self._at = now


class Share:
    """What one key has, and how much it may.

    Args:
        name: of the key.
        clock: of the engine.
        requests: most answers at once; None: any number.
        requests_per_minute: most answers; None: any number.
        tokens_per_minute: most tokens of prompts and answers; None: any number.
        bodies_bytes: most bytes of bodies that are being read at once; None: any number.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        requests: int | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        bodies_bytes: int | None = None,
    ) -> None:
        self._name = name
        self._clock = clock
        self._most = requests
        self._requests = None if requests_per_minute is None else Rate(requests_per_minute)
        self._tokens = None if tokens_per_minute is None else Rate(tokens_per_minute)
        self._most_read = bodies_bytes
        self._live = self._over = self._refused = self._spent = self._reading = 0

    def enter(self) -> Place:
        """Return the place of one request more, as one answer.

        Raises:
            ShareUsedUp: it is, for now.
        """
        self.take(1)
        return Place(self)

    def use(self) -> Use:
        """Return what is told of it."""
        return Use(self._name, self._live, self._over, self._refused, self._spent)

    def take(self, count: int) -> None:
        """Take room for so many answers.

        Raises:
            ShareUsedUp: there is none, for now.
            UsageError: there never is.
        """
        now = self._clock()
        if self._most is not None and self._live + count > self._most:
            self._refused += 1
            if count > self._most:
                raise UsageError(
                    f"{count} answers are asked for at once; a key may have {self._most}", param="n"
                )
            raise ShareUsedUp(f"{self._live} requests of key {self._name!r} live; at most {self._most} may")
        for rate, amount, what in ((self._requests, count, "requests"), (self._tokens, 1, "tokens")):
            if rate is not None and (seconds := rate.wait(amount, now)) > 0:
                self._refused += 1
                raise ShareUsedUp(
                    f"key {self._name!r} has had its {rate.per_minute:g} {what} a minute",
                    retry_after=min(seconds, LONGEST_RETRY),
                )
        if self._requests is not None:
            self._requests.take(count, now)
        self._live += count

    def untake(self, count: int) -> None:
        """Give room for so many answers back as if it had not been taken."""
        self._live -= count
        if self._requests is not None:
            self._requests.take(-count, self._clock())

    def give_back(self, count: int) -> None:
        """Give room for so many answers back, which are over."""
        self._live -= count
        self._over += count

    def spend(self, tokens: int) -> None:
        """Count so many tokens, which were made."""
        self._spent += tokens
        if self._tokens is not None:
            self._tokens.take(tokens, self._clock())

    def read(self, count: int) -> None:
        """Count so many bytes more of bodies that are being read.

        Raises:
            ShareUsedUp: they have become too many, for now; these count as well, until `forget`.
        """
        self._reading += count
        if self._most_read is not None and self._reading > self._most_read:
            self._refused += 1
            raise ShareUsedUp(
                f"{self._reading} bytes of bodies of key {self._name!r} are being read; "
                f"at most {self._most_read} may"
            )

    def forget(self, count: int) -> None:
        """Count so many of them no more."""
        self._reading -= count


class Place:
    """What one request has of a share: a context manager, behind which it has been given back.

    Args:
        share: of which one answer was taken.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._count = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        count, self._count = self._count, 0
        if isinstance(error, ShareUsedUp):  # of bytes: the request is refused, as if it had never come in
            self._share.untake(count)
        else:
            self._share.give_back(count)

    def widen(self, answers: int) -> None:
        """Have room for so many answers, all in all, or for none.

        Raises:
            ShareUsedUp: there is not, for now.
            UsageError: there never is.
        """
        if answers > self._count:
            count, self._count = self._count, 0
            self._share.untake(count)
            self._share.take(answers)
            self._count = answers

    def hand_on(self) -> Place:
        """Return what has the room from now on: this has none to give back any more."""
        other = Place(self._share)
        other._count, self._count = self._count, 0
        return other

    @contextmanager
    def billing(self, answers: Sequence[Counted]) -> Iterator[None]:
        """Count the tokens of answers when the block is over, whatever ends it."""
        try:
            yield
        finally:
            self._share.spend(sum(answer.prompt_tokens + answer.heard_tokens for answer in answers))


class Shares:
    """The shares of all keys of a server.

    Args:
        names: of the keys; without any, whoever comes has one share together.
        limits: what each may have.
        max_requests: requests that the engine lets live, of which by default no key of several has more than
            half, as of the bytes of bodies.
        clock: of the engine.
    """

    def __init__(
        self, names: Sequence[str], limits: ServiceLimits, *, max_requests: int, clock: Clock
    ) -> None:
        most, most_read = limits.key_requests, None
        if len(names) > 1:
            most = max(1, max_requests // 2) if most is None else most
            most_read = max(limits.body_bytes, limits.all_bodies_bytes // 2)
        self._free = Share("", clock)
        self._shares = {
            name: Share(
                name,
                clock,
                requests=most,
                requests_per_minute=limits.key_requests_per_minute,
                tokens_per_minute=limits.key_tokens_per_minute,
                bodies_bytes=most_read,
            )
            for name in names or (ANYONE,)
        }

    def of(self, name: str | None) -> Share:
        """Return the share of a key; None, whoever runs the server, has one without bounds."""
        return self._free if name is None else self._shares[name]

    def uses(self) -> tuple[Use, ...]:
        """Return what is told of each key."""
        return tuple(share.use() for share in self._shares.values())
