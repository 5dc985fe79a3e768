"""One request's tokens to text, as they come.

In a byte-level vocabulary a token is a string of bytes, so text is the bytes of all tokens decoded as UTF-8.
An incremental decoder holds back at most the three bytes of an unfinished character, so pieces are never
taken back, cost nothing that grows with the text, and put together are exactly the text of the whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from vidette.models.interface import TokenTable


class IncrementalText:
    """The text of one request.

    Args:
        table: the bytes of each token.
    """

    __slots__ = ("_decoder", "_special", "_token_bytes")

    def __init__(self, table: TokenTable) -> None:
        self._token_bytes = table.token_bytes
        self._special = table.special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int], *, last: bool) -> str:
        """Return the characters that these tokens complete.

        Args:
            token_ids: the next tokens; special ones are not shown, nor are ids outside the vocabulary
                (padding rows of some models have no token).
            last: whether they are the last: an unfinished character becomes U+FFFD.
        """
        count, table, special = len(self._token_bytes), self._token_bytes, self._special
        shown = b"".join(table[i] for i in token_ids if i not in special and 0 <= i < count)
        return self._decoder.decode(shown, final=last)
