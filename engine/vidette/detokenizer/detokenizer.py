"""`Detokenizer`: a step message in, a step message out, as one synchronous call."""

from __future__ import annotations

import msgspec

from vidette.detokenizer.incremental import IncrementalText
from vidette.models.interface import TokenTable
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import DetokenizerMachine, end_of
from vidette_protocol.messages import BatchStrOutput, BatchTokenIDOutput, StrRow, TokenRow


class Detokenizer:
    """The texts of all open requests.

    Args:
        table: the bytes of each token.
    """

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._machine = DetokenizerMachine()
        self._texts: dict[Vid, IncrementalText] = {}

    def __len__(self) -> int:
        """Return how many requests are open."""
        return len(self._texts)

    def step(self, message: BatchTokenIDOutput, now: float = 0.0) -> BatchStrOutput:
        """Turn what one step made into text.

        Args:
            message: as the scheduler sent it.
            now: by the machine's monotonic clock, for the requests that are timed.

        Raises:
            RemoteProtocolError: a row does not fit what came before of its vid, or holds back what was said.
        """
        rows = [self._row(row) for row in message.rows()]
        if message.sparse_served:
            rows = [_timed(row, now) for row in rows]
        return BatchStrOutput.from_rows(rows, message.ledger, len(self._texts))

    def _row(self, row: TokenRow) -> StrRow:
        vid = Vid(row.vid)
        if self._machine.receive(vid, row.offset, len(row.token_ids), end_of(row.reason)):
            self._texts[vid] = IncrementalText(self._table, row.mode)
        last = row.reason is not None
        said = self._texts.pop(vid) if last else self._texts[vid]
        try:
            text = said.push(row.token_ids, last=last, held=row.held)
        except ValueError as error:
            raise RemoteProtocolError(f"vid {row.vid}: {error}") from error
        return StrRow(
            row.vid,
            row.offset,
            row.token_ids,
            row.reason,
            row.decoded_text + text,
            logprobs=row.logprobs,
            spec=row.spec,
            served=row.served,
        )


def _timed(row: StrRow, now: float) -> StrRow:
    """Return a row with the time in it, if its request is to be told."""
    if row.served is None or not row.served.begun_at:
        return row
    return msgspec.structs.replace(row, served=msgspec.structs.replace(row.served, made_at=now))
