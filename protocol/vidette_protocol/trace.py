"""`Trace`: judges what passed the links of an engine, from the outside and after the fact.

It sees every message, but no machine: so it checks what can be told from messages alone. A vid is requested
once; its rows come only after that, without gap or repeat, and end once; and what leaves the detokenizer is
what came into it, row by row.
"""

from __future__ import annotations

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import DetokenizerMachine, end_of
from vidette_protocol.messages import (
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    BatchTokenizedGenerateReqInput,
    Message,
    StrRow,
    TokenizedGenerateReqInput,
    TokenRow,
)


class Trace:
    """What is known of the requests of one ring of processes.

    Args:
        whole: whether nothing that passed is missing from the beginning; else rows of unknown vids are not
            held against anyone.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        self._requested: set[Vid] = set()
        self._aborted: set[Vid] = set()
        self._steps = _Rows()
        self._texts = _Rows()

    def see(self, message: Message) -> str | None:
        """Take the next message, whichever link it passed; return in a sentence what is wrong with it."""
        match message:
            case TokenizedGenerateReqInput():
                return self._request(Vid(message.vid))
            case BatchTokenizedGenerateReqInput():
                return next(filter(None, [self._request(Vid(vid)) for vid in message.vids]), None)
            case AbortReq():
                self._aborted.add(Vid(message.vid))
            case BatchTokenIDOutput():
                return next(filter(None, [self._row(self._steps, row) for row in message.rows()]), None)
            case BatchStrOutput():
                return next(filter(None, [self._row(self._texts, row) for row in message.rows()]), None)
        return None

    @property
    def open(self) -> frozenset[Vid]:
        """Vids that were requested and whose end has not reached the front."""
        return frozenset(self._requested - self._texts.ended)

    @property
    def counts(self) -> dict[str, int]:
        """How many vids were requested, aborted and ended."""
        return {
            "requested": len(self._requested),
            "aborted": len(self._aborted),
            "ended": len(self._texts.ended),
        }

    def _request(self, vid: Vid) -> str | None:
        if vid in self._requested:
            return f"vid {vid} is requested twice"
        self._requested.add(vid)
        return None

    def _row(self, rows: _Rows, row: TokenRow | StrRow) -> str | None:
        vid = Vid(row.vid)
        if vid not in self._requested and self._whole:
            return f"vid {vid} has a row at offset {row.offset}, and was never requested"
        fault = rows.see(row)
        if fault is None and rows is self._texts and vid in self._steps.sent:
            came, sent = self._texts.sent[vid], self._steps.sent[vid]
            if came > sent:
                return f"vid {vid} has {came} tokens at the front, of {sent} that the scheduler sent"
        return fault


class _Rows:
    """What passed one link."""

    def __init__(self) -> None:
        self._machine = DetokenizerMachine()
        self.ended: set[Vid] = set()
        self.sent: dict[Vid, int] = {}

    def see(self, row: TokenRow | StrRow) -> str | None:
        """Take the next row; return what is wrong with it."""
        vid = Vid(row.vid)
        if vid in self.ended:
            return f"vid {vid} has a row at offset {row.offset} after its end"
        try:
            self._machine.receive(vid, row.offset, len(row.token_ids), end_of(row.reason))
        except RemoteProtocolError as error:
            return str(error)
        self.sent[vid] = row.offset + len(row.token_ids)
        if row.reason is not None:
            self.ended.add(vid)
        return None
