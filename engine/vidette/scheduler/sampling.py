"""`SamplingRow`: what one request wants of its tokens, and what its tokens so far do to the logits.

An edit of a logit x, if the request asks for any, in this order (HF's and vLLM's; OpenAI's formulas):

1. `repetition_penalty` r, for tokens of the prompt and of the output: x / r if x > 0, else x * r
   (Keskar et al., CTRL, 2019, as in HF and vLLM; SGLang leaves the prompt out)
2. `frequency_penalty` f and `presence_penalty` p, for tokens that were put out c > 0 times: x - c * f - p
   (OpenAI, vLLM, SGLang)
3. `logit_bias` b: x + b (OpenAI, SGLang; vLLM adds it before 1)
4. `min_new_tokens`: minus infinity for what would end the output, until there are so many

Only tokens that occur are touched: for each the request keeps a factor and a sum, which a new token updates
in constant time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidette_protocol.messages import SamplingParams
from vidette_protocol.messages.sampling import GREEDY_BELOW

FEW: Final = 64
"""Least tokens that are ranked in a row: most sets of `top_p` are smaller."""
MANY: Final = 1024
"""Most tokens that are ranked in a row; for a `top_k` of so many the row is sorted."""
_SMALLEST: Final = 2.0**-126
_LARGEST: Final = float(np.finfo(np.float32).max)


class Way(IntEnum):
    """How a token is found. It depends on the request's own parameters alone."""

    BEST = 0
    """The most probable token."""
    WHOLE = 1
    """A draw from the whole vocabulary."""
    RANKED = 2
    """A draw from the tokens that `top_k` leaves, fewer than MANY."""
    SORTED = 3
    """A draw from the tokens that `top_k` leaves, which are more."""
    NUCLEUS = 4
    """A draw from the tokens that `top_p` or `min_p` leave, without `top_k`."""


class SamplingRow:
    """One request to the sampler.

    Args:
        params: `sampling_seed` is set, token ids are below vocab_size.
        prompt_ids: tokens of the prompt.
        eos_ids: end-of-sequence tokens.
        vocab_size: of the model.
        output_ids: tokens put out before, of a request that is resumed.
    """

    __slots__ = (
        "_adds",
        "_bias",
        "_counts",
        "_factors",
        "_frequency",
        "_given",
        "_ids",
        "_length",
        "_places",
        "_presence",
        "_repetition",
        "edited",
        "ends",
        "logprob_temperature",
        "min_new_tokens",
        "min_p",
        "reach",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "way",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int] | NDArray[np.int32],
        *,
        eos_ids: Collection[int],
        vocab_size: int,
        output_ids: Sequence[int] = (),
    ) -> None:
        self.seed = params.sampling_seed or 0
        # Beyond float32 is as good as its largest; by infinity, a masked token's -inf would become NaN.
        self.temperature = min(params.temperature, _LARGEST)
        self.logprob_temperature = 1.0 if params.temperature < GREEDY_BELOW else self.temperature
        """Temperature of the distribution that log probabilities are of: that of the draw; greedy ones 1."""
        self.top_k = params.top_k if 0 < params.top_k < vocab_size else vocab_size
        self.top_p = params.top_p if params.top_p < 1 else inf
        self.min_p = params.min_p
        self.way = _way(params, vocab_size)
        self.reach = max(FEW, 1 << self.top_k.bit_length()) if self.way is Way.RANKED else FEW
        """Tokens that are ranked: more than `top_k`, to see ties, and a power of two, for few groups."""
        self.min_new_tokens = params.min_new_tokens
        self.ends = _ends(params, eos_ids, vocab_size)
        """Tokens that would end the output, of a request that has `min_new_tokens`."""
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._repetition = params.repetition_penalty
        self._counts: dict[int, int] | None = None
        """How often each token was put out, if that matters."""
        self._bias = params.logit_bias or {}
        penalised = bool(self._frequency or self._presence or self._repetition != 1)
        self.edited = penalised or bool(self._bias)
        """Whether the logits of some tokens are changed, now or later."""
        if self.edited:
            self._take(np.asarray(prompt_ids if self._repetition != 1 else (), dtype=np.int64))
        if penalised:
            self._counts = {}
            for token in output_ids:
                self.push(token)

    def push(self, token: int) -> None:
        """Take note of the next output token."""
        counts = self._counts
        if counts is None:
            return
        count = counts.get(token, 0) + 1
        counts[token] = count
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = self._place(token)
        self._factors[place] = self._factor
        self._adds[place] = self._bias.get(token, 0.0) - count * self._frequency - self._presence

    def takes_best(self, position: int) -> bool:
        """Return whether from a position of the output on each token is that with the largest logit."""
        return (
            self.way is Way.BEST
            and not self.edited
            and (position >= self.min_new_tokens or not len(self.ends))
        )

    @property
    def edits(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Tokens whose logits are changed, each once; what divides or multiplies them; what is added."""
        length = self._length
        return self._ids[:length], self._factors[:length], self._adds[:length]

    @property
    def _factor(self) -> float:
        return max(self._repetition, _SMALLEST)

    def _take(self, prompt: NDArray[np.int64]) -> None:
        """Lay out the tokens that are known from the start, in order: those of the prompt and the biases."""
        biased = np.fromiter(self._bias, dtype=np.int64, count=len(self._bias))
        self._ids = np.union1d(prompt, biased)
        self._length = self._given = len(self._ids)
        """Tokens laid out, and those of them from the start."""
        self._factors = np.ones(self._length, dtype=np.float32)
        self._adds = np.zeros(self._length, dtype=np.float32)
        self._factors[np.searchsorted(self._ids, prompt)] = self._factor
        self._adds[np.searchsorted(self._ids, biased)] = list(self._bias.values())
        self._places: dict[int, int] = {}
        """Places of the tokens put out."""

    def _place(self, token: int) -> int:
        """Return the place of a token, which is a new one at the end unless it was there from the start."""
        place = int(np.searchsorted(self._ids[: self._given], token))
        if place < self._given and self._ids[place] == token:
            return place
        place = self._length
        if place == len(self._ids):
            room = max(16, place)
            self._ids = np.concatenate([self._ids, np.empty(room, dtype=np.int64)])
            self._factors = np.concatenate([self._factors, np.empty(room, dtype=np.float32)])
            self._adds = np.concatenate([self._adds, np.empty(room, dtype=np.float32)])
        self._ids[place] = token
        self._length += 1
        return place


def _way(params: SamplingParams, vocab_size: int) -> Way:
    if params.greedy:
        return Way.BEST
    if 0 < params.top_k < vocab_size:
        return Way.RANKED if params.top_k < MANY else Way.SORTED
    return Way.NUCLEUS if params.top_p < 1 or params.min_p > 0 else Way.WHOLE


def _ends(params: SamplingParams, eos_ids: Collection[int], vocab_size: int) -> NDArray[np.int64]:
    if not params.min_new_tokens or params.ignore_eos:
        return np.empty(0, dtype=np.int64)
    ends = np.unique(np.array([*eos_ids, *(params.stop_token_ids or ())], dtype=np.int64))
    return ends[ends < vocab_size]
