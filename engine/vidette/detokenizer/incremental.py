"""One request's tokens to text, as they come.

A token is a string of bytes (`vidette.models.spelling`), so text is the bytes of all tokens decoded as UTF-8.
An incremental decoder holds back at most the three bytes of an unfinished character, and before it those
bytes wait that the scheduler wants held, since a stop string may begin there. What was said is never taken
back, a piece costs nothing that grows with the text, and the pieces put together are exactly the text of the
whole, less what was cut off its end.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from vidette.models.interface import TokenTable
from vidette.models.spelling import Speller, text_mode
from vidette_protocol.messages import SamplingParams, TextMode


class IncrementalText:
    """The text of one request.

    Args:
        table: the bytes of each token.
        mode: how tokens become text, a TextMode.
    """

    __slots__ = ("_decoder", "_speller", "_waiting")

    def __init__(self, table: TokenTable, mode: int = 0) -> None:
        self._speller = Speller(table, mode)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waiting = b""

    def push(self, token_ids: Iterable[int], *, last: bool, held: int = 0) -> str:
        """Return the characters that these tokens complete.

        Args:
            token_ids: the next tokens.
            last: whether they are the last: an unfinished character becomes U+FFFD.
            held: bytes at the end of what was spelled so far that are not said: not yet, or, with the last
                tokens, not at all.

        Raises:
            ValueError: some of these bytes have been said already.
        """
        ready = self._speller.join(token_ids)
        if held or self._waiting:
            ready = self._waiting + ready
            end = len(ready) - held
            if end < 0:
                raise ValueError(f"{held} bytes are held back, of which {len(ready)} have not been said")
            ready, self._waiting = ready[:end], ready[end:]
        return self._decoder.decode(ready, last)


def new_text(table: TokenTable, *, begins: bool = True, skip_special_tokens: bool = True) -> IncrementalText:
    """Return what makes text of tokens that no request has made.

    Args:
        table: the bytes of each token.
        begins: whether a text begins with them, and does not go on.
        skip_special_tokens: leave special tokens out of it.
    """
    mode = text_mode(SamplingParams(skip_special_tokens=skip_special_tokens), table)
    return IncrementalText(table, mode if begins else mode & ~TextMode.BEGINNING)
