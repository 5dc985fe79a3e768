"""Which bytes a request's tokens add to its text: one rule, to find stops in it and to show it.

In the usual way a token is its bytes, and a special one nothing. The other ways (`TextMode`) depend on what
came before, so a request has its own `Speller`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vidette.models.interface import TokenTable
from vidette_protocol.messages import SamplingParams, TextMode


def text_mode(params: SamplingParams, table: TokenTable, prompt: Iterable[int] = ()) -> TextMode:
    """Return how the output of a request becomes text.

    Args:
        params: what it asks for.
        table: its vocabulary.
        prompt: token ids of its prompt; where none of them is shown, the output is where a text begins.
    """
    mode = TextMode(0)
    if not params.skip_special_tokens:
        mode |= TextMode.SPECIAL
        if params.spaces_between_special_tokens and table.spaced_specials:
            mode |= TextMode.SPACED
    if table.space_prefix and table.special.issuperset(prompt):
        mode |= TextMode.BEGINNING
    return mode


class Speller:
    """The bytes of one request's tokens, in the order they come.

    Args:
        table: the bytes of each token.
        mode: how they become text.
    """

    __slots__ = ("_after_special", "_beginning", "_bytes", "_known", "_shows", "_spaced", "_special", "plain")

    def __init__(self, table: TokenTable, mode: int = 0) -> None:
        self._bytes = table.token_bytes
        self._known = len(table.token_bytes)
        self._special = table.special
        self._shows = bool(mode & TextMode.SPECIAL)
        self._spaced = bool(mode & TextMode.SPACED)
        self._beginning = bool(mode & TextMode.BEGINNING)
        self._after_special: bool | None = None
        self.plain = mode == 0
        """Whether what a token adds does not depend on those before it, and special ones add nothing."""

    def join(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes that the next tokens add.

        Args:
            tokens: ids; one outside the vocabulary (padding rows of some models have no token) adds nothing.
        """
        if self.plain:
            table, special, known = self._bytes, self._special, self._known
            return b"".join([table[i] for i in tokens if i not in special and 0 <= i < known])
        return b"".join([self.spell(token) for token in tokens])

    def spell(self, token: int) -> bytes:
        """Return the bytes that the next token adds."""
        if not 0 <= token < self._known:
            return b""
        special = token in self._special
        if special and not self._shows:
            return b""
        piece = self._bytes[token]
        if self._beginning and piece:
            self._beginning = False
            if not special:
                piece = piece.removeprefix(b" ")
        if self._spaced:
            before = self._after_special
            self._after_special = special
            if before is not None and (special or before):
                piece = b" " + piece
        return piece

    def spell_both(self, token: int) -> tuple[bytes, bytes | None]:
        """Return the bytes that the next token adds, and those of its name if it is one that is hidden."""
        if not self._shows and token in self._special:
            return b"", self._bytes[token]
        if self.plain:
            return (self._bytes[token] if 0 <= token < self._known else b""), None
        return self.spell(token), None
