"""`Shares`: who is told what, where several detokenizers share the requests.

A vid belongs to one of them for life, by its remainder, so its rows keep their order. The rows of a step are
packed apart, once, which costs next to nothing; taking a packed message apart would cost half of what a
detokenizer does with it, in the thread that computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from vidette_protocol.messages import BatchTokenIDOutput, HeartbeatReq, Message, SchedulerLedger, TokenRow

MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Tokens and log probabilities in a message from which on it is closed, so that no frame is too long."""


def pack_rows(rows: Sequence[TokenRow], ledger: SchedulerLedger, count: int) -> list[BatchTokenIDOutput]:
    """Return what a step says, one message or more for each detokenizer that has some of the rows.

    Args:
        rows: in their order; if there are none, it is all about the ledger, and one is told.
        ledger: what is held after the step.
        count: how many detokenizers there are.
    """
    if count == 1:
        return [BatchTokenIDOutput.from_rows(part, ledger) for part in _cut(rows)]
    shares: list[list[TokenRow]] = [[] for _ in range(count)]
    for row in rows:
        shares[row.vid % count].append(row)
    told = [share for share in shares if share] or [[]]
    return [BatchTokenIDOutput.from_rows(part, ledger) for share in told for part in _cut(share)]


def _cut(rows: Sequence[TokenRow]) -> Iterator[Sequence[TokenRow]]:
    """Yield the rows in parts, at least one, each for a message that is not too long."""
    first = nbytes = 0
    for place, row in enumerate(rows):
        if nbytes > MESSAGE_BYTES:
            yield rows[first:place]
            first, nbytes = place, 0
        nbytes += 4 * len(row.token_ids)
        if row.logprobs is not None:
            columns = msgspec.structs.astuple(row.logprobs)
            nbytes += sum(column.nbytes for column in columns if isinstance(column, memoryview))
    yield rows[first:] if first else rows


class Shares:
    """Says to which detokenizer each message goes.

    Whatever is no row goes to all. They pass on what they are told at their own pace; so ledgers are
    numbered, for whoever hears them to know the latest.

    Args:
        count: how many detokenizers there are; with one, it is told everything as it is.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._ledgers = 0

    def of(self, message: Message) -> Iterable[tuple[int, Message]]:
        """Return who is told of a message, by place, and what. Rows were packed by `pack_rows`."""
        count = self._count
        if count == 1:
            return ((0, message),)
        match message:
            case BatchTokenIDOutput():
                place = message.vids[0] % count if len(message) else 0
                return ((place, msgspec.structs.replace(message, ledger=self._number(message.ledger))),)
            case HeartbeatReq(scheduler=SchedulerLedger() as ledger):
                message = msgspec.structs.replace(message, scheduler=self._number(ledger))
        return [(place, message) for place in range(count)]

    def _number(self, ledger: SchedulerLedger) -> SchedulerLedger:
        self._ledgers += 1
        return msgspec.structs.replace(ledger, number=self._ledgers)
