"""`Stops`: when a request is over, decided token by token, and how much of its text is not to be shown.

After each token, in this order: as many tokens as were asked for; a stop string; a pattern; a token that ends
the output. What several tokens at once lead to is what they lead to one by one, so that it is the same
whatever a step makes, and again when a request goes on elsewhere.

A stop string is looked for in the text as it is shown, and as it is with hidden special tokens spelled out
(so that "<|im_end|>" can be a stop string). Of several it is the one that ends first, and of those that end
together the longest. The detokenizer is told how many bytes at the end of the text it must not show: while a
request goes on, those with which some stop string begins; at its end, what is cut off. So it need know no
stop strings, the cut is where the match is, and no part of one that matched is ever shown.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from vidette.models.interface import TokenTable
from vidette.models.spelling import Speller, text_mode
from vidette.scheduler.stop_strings import START, Hit, StopStrings
from vidette_protocol.limits import Limits
from vidette_protocol.messages import FinishReason, SamplingParams, TextMode
from vidette_protocol.patterns import Pattern, Search


class StopResult(NamedTuple):
    """What some tokens led to.

    Args:
        taken: how many of them are of the output; those behind the end are not.
        held: bytes at the end of the text, these tokens included, that are not shown: not yet, or, at the
            end, not at all. For `TokenRow.held`.
        reason: how the request ends; None: it goes on.
    """

    taken: int
    held: int
    reason: FinishReason | None


class Stops:
    """What ends one request; build it with `Stops.of`.

    Attributes:
        made: output tokens so far.
        held: bytes at the end of their text that are not shown.
        mode: how tokens become text, for `TokenRow.mode` of the row at offset 0.
        reads: whether text is looked at; if not, only how many tokens there are and which.
    """

    __slots__ = (
        "_decode",
        "_ends",
        "_least",
        "_most",
        "_searches",
        "_skips",
        "_speller",
        "_strings",
        "_trims",
        "held",
        "made",
        "mode",
        "reads",
    )

    def __init__(
        self,
        params: SamplingParams,
        ends: frozenset[int],
        table: TokenTable,
        *,
        mode: TextMode,
        strings: StopStrings | None,
        patterns: Sequence[Pattern],
    ) -> None:
        assert params.max_new_tokens is not None, "decoding has checked that the front set it"
        self._most = params.max_new_tokens
        self._least = params.min_new_tokens
        self._trims = not params.no_stop_trim
        self._ends = ends
        self._speller = Speller(table, mode)
        self._strings = None if strings is None else _Watch(strings, _stops_of(params))
        self._searches = [Search(pattern) for pattern in patterns]
        self.reads = strings is not None or bool(patterns)
        self._skips = not self.reads and self._speller.plain
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.made = 0
        self.held = 0
        self.mode = mode

    @classmethod
    def of(
        cls, params: SamplingParams, eos: frozenset[int], table: TokenTable, prompt: Iterable[int] = ()
    ) -> Self:
        """Return what ends a request that asks for this.

        Args:
            params: checked, `max_new_tokens` set.
            eos: tokens that end an output of the model.
            table: the bytes of each token.
            prompt: token ids of the prompt.
        """
        ends = frozenset[int]() if params.ignore_eos else eos.union(params.stop_token_ids or ())
        stops = _stops_of(params)
        given = params.stop_regex or []
        patterns = dict.fromkeys([given] if isinstance(given, str) else given)
        most = Limits().stop_regex_states
        return cls(
            params,
            ends,
            table,
            mode=text_mode(params, table, prompt),
            strings=StopStrings(stops) if stops else None,
            patterns=[Pattern(pattern, most) for pattern in patterns],
        )

    def push(self, tokens: Sequence[int]) -> StopResult | None:
        """Take the next output tokens; not to be called again after an end.

        Returns:
            What they led to; None: the request goes on, and all of its text is shown.
        """
        if self._skips and len(tokens) == 1 and self.made + 1 < self._most and tokens[0] not in self._ends:
            self.made += 1  # nearly always
            return None
        for taken, token in enumerate(tokens, 1):
            reason = self._take(token)
            if reason is not None:
                return StopResult(taken, self.held, reason)
        return StopResult(len(tokens), self.held, None) if self.held else None

    def _take(self, token: int) -> FinishReason | None:
        self.made += 1
        full = self.made >= self._most
        if self._skips and not full and token not in self._ends:
            return None
        early = self.made < self._least
        piece, name = self._speller.spell_both(token)
        strings, cut = self._strings, 0
        matched: int | str | None = None
        if strings is not None:
            found = strings.push(piece, name, early=early)
            if found is not None:
                matched, start, end = found
                cut = start if self._trims else end
        pattern = self._search(piece if name is None else name, early=early) if self._searches else None
        if matched is None:
            if pattern is not None:
                matched = pattern
            elif token in self._ends and not early:
                matched, cut = token, len(piece) if self._trims else 0
        # Length first, as the field does. What the last token completes is cut off all the same.
        if full or matched is not None:
            self.held = cut
            return (
                FinishReason("length", length=self._most) if full else FinishReason("stop", matched=matched)
            )
        self.held = 0 if strings is None else strings.held
        return None

    def _search(self, piece: bytes, *, early: bool) -> str | None:
        """Return the first pattern that has a match in the text so far."""
        text = self._decode(piece)
        found = None
        for search in self._searches:
            if search.push(text):
                if early:
                    search.restart()
                else:
                    found = found or search.pattern
        return found


class _Watch:
    """Watches one text for stop strings, as it is shown and as it is with hidden tokens spelled out.

    Attributes:
        held: bytes at the end of what is shown that may be the beginning of a stop string.
    """

    __slots__ = ("_hidden", "_shown", "_spelled", "_strings", "_texts", "_total", "held")

    def __init__(self, strings: StopStrings, texts: Sequence[str]) -> None:
        self._strings = strings
        self._texts = texts
        self._shown = self._spelled = START
        self._total = 0
        # Of each hidden token: how many bytes were spelled up to its end, and how many it has itself.
        self._hidden: deque[tuple[int, int]] = deque()
        self.held = 0

    def push(self, piece: bytes, name: bytes | None, *, early: bool) -> tuple[str, int, int] | None:
        """Take what a token adds.

        Args:
            piece: the bytes that are shown of it.
            name: of a token that is hidden, its bytes.
            early: whether it is too early for an end: what ends here is passed over.

        Returns:
            A stop string that ends in it, and how many bytes of the shown text are behind its beginning and
            behind its end.
        """
        if name is not None or self._shown != self._spelled:
            return self._push_both(piece, name, early=early)
        self._shown, hit = self._scan(self._shown, piece, early=early)
        self._spelled = self._shown
        self._total += len(piece)
        self.held = self._strings.open(self._shown)
        if hit is None:
            return None
        behind = len(piece) - hit.end
        return self._texts[hit.string], behind + self._strings.lengths[hit.string], behind

    def _push_both(self, piece: bytes, name: bytes | None, *, early: bool) -> tuple[str, int, int] | None:
        strings, hidden = self._strings, self._hidden
        while hidden and hidden[0][0] <= self._total - strings.longest:
            hidden.popleft()
        spelled = piece if name is None else name
        self._total += len(spelled)
        if name is not None:
            hidden.append((self._total, len(name)))
        self._shown, shown_hit = self._scan(self._shown, piece, early=early)
        self._spelled, spelled_hit = self._scan(self._spelled, spelled, early=early)
        self.held = max(strings.open(self._shown), self._shown_of_last(strings.open(self._spelled)))
        # The one that ends first; of two that end together the one of which more is shown.
        found: list[tuple[int, int, int, str]] = []
        if shown_hit is not None:
            behind = len(piece) - shown_hit.end
            start = behind + strings.lengths[shown_hit.string]
            found.append((-behind, start, behind, self._texts[shown_hit.string]))
        if spelled_hit is not None:
            behind = len(spelled) - spelled_hit.end
            start = self._shown_of_last(behind + strings.lengths[spelled_hit.string])
            found.append((-behind, start, self._shown_of_last(behind), self._texts[spelled_hit.string]))
        if not found:
            return None
        _, start, end, text = min(found, key=lambda each: (each[0], -each[1]))
        return text, start, end

    def _scan(self, state: int, piece: bytes, *, early: bool) -> tuple[int, Hit | None]:
        return (self._strings.run(state, piece), None) if early else self._strings.scan(state, piece)

    def _shown_of_last(self, count: int) -> int:
        """Return how many of the last bytes that were spelled are shown."""
        start = self._total - count
        for end, length in self._hidden:
            count -= max(0, end - max(end - length, start))
        return count


def _stops_of(params: SamplingParams) -> list[str]:
    """Return the stop strings as a list."""
    stops = params.stop or []
    return [stops] if isinstance(stops, str) else stops
