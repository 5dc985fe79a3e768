"""The toy model: fast to start, cheap to run, and sensitive to every mistake in the paged pool.

Its pool holds the token ids themselves. A step writes the new ids by slot, reads each row's whole context
back through the block table, and derives the logits from a position-weighted hash of what it read. So a
wrong block table, a block freed twice or a stale slot changes the text: a test that compares texts has
tested the block accounting.
"""

# ruff: noqa: N803, N806  array names end in their shape: T tokens, L rows of logits, C context positions

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.models.best import split_logits
from vidette.models.interface import BLOCK_SIZE, ModelInfo, StepPlan, StepResult
from vidette.models.toy_tokenizer import TOY_EOS_ID, TOY_VOCAB_SIZE, toy_info

_STATES: Final = 1024
_SEED: Final = 20
_EOS_STATES: Final = 18  # of 1024: greedy decoding ends about once in 60 tokens
_LEAD_STATES: Final = 80  # of 1024: these peak at the first byte of a multi-byte character
_CONTINUE_STATES: Final = 640  # of 1024, used after a byte above 127: these peak at a continuation byte
_PEAK: Final = 8.0
_UNWRITTEN: Final = -1


class ToyModel:
    """A deterministic function of all tokens of a row's context, behind the `Model` interface.

    The same context gives the same logits, bit for bit, whatever else is in the batch. Most peaks are
    printable ASCII; some start a multi-byte character, which the next tokens may or may not complete, so
    that streams split characters and meet malformed UTF-8; about one in 60 is the end-of-sequence token.
    """

    def __init__(self) -> None:
        self.info: ModelInfo = toy_info()
        self.overlaps = False
        rng = np.random.default_rng(_SEED)
        self._logits_of_state = _logits_table(rng)
        # Odd weights: no position can lose the low bits of its token.
        self._position_weights = rng.integers(0, 2**63, self.info.context_len, dtype=np.uint64) * 2 + 1
        self._pool = np.empty(0, dtype=np.int64)

    def allocate(self, num_blocks: int) -> None:
        """Create the pool: `num_blocks` blocks of BLOCK_SIZE token ids."""
        self._pool = np.full(num_blocks * BLOCK_SIZE, _UNWRITTEN, dtype=np.int64)

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        """Return copies of the token ids in these blocks, int64 [blocks, BLOCK_SIZE]."""
        return self._pool.reshape(-1, BLOCK_SIZE)[list(blocks)]

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        """Put copies of token ids into these blocks."""
        self._pool.reshape(-1, BLOCK_SIZE)[list(blocks)] = payload

    def forward(self, plan: StepPlan) -> StepResult:
        """Write the step's token ids into the pool and hash each wanted context as read from it."""
        num_rows = len(plan.row_starts) - 1
        rows_T = np.repeat(np.arange(num_rows), np.diff(plan.row_starts))
        blocks_T = plan.block_tables[rows_T, plan.positions // BLOCK_SIZE]
        slots_T = blocks_T * BLOCK_SIZE + plan.positions % BLOCK_SIZE
        self._pool[slots_T] = plan.token_ids

        wanted_L = plan.wanted_tokens
        last_L = plan.positions[wanted_L]
        positions_C = np.arange(int(last_L.max(initial=0)) + 1)
        blocks_LC = plan.block_tables[rows_T[wanted_L]][:, positions_C // BLOCK_SIZE]
        tokens_LC = self._pool[blocks_LC * BLOCK_SIZE + positions_C % BLOCK_SIZE]
        states_L = _hash_contexts(tokens_LC, self._position_weights[: len(positions_C)], last_L)
        last_tokens_L = tokens_LC[np.arange(len(last_L)), last_L]
        after_high_byte_L = (last_tokens_L >= 128) & (last_tokens_L < 256)
        logits = torch.from_numpy(self._logits_of_state[states_L + _STATES * after_high_byte_L])
        return split_logits(logits, plan)


def _hash_contexts(
    tokens_LC: NDArray[np.int64], weights_C: NDArray[np.uint64], last_L: NDArray[np.int32]
) -> NDArray[np.intp]:
    """Reduce tokens 0 to `last_L[i]` of each row to a state below _STATES; unsigned sums wrap around."""
    terms_LC = (tokens_LC + 2).astype(np.uint64) * weights_C
    terms_LC[np.arange(len(weights_C)) > last_L[:, None]] = 0
    sums_L = terms_LC.sum(axis=1, dtype=np.uint64)
    mixed_L = (sums_L ^ (sums_L >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    states_L: NDArray[np.intp] = (mixed_L >> np.uint64(54)).astype(np.intp)
    return states_L


def _logits_table(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return [2 * _STATES, vocab] logits: noise, low outside printable ASCII, and one peak in each row.

    The second half is for contexts that end in a byte above 127.
    """
    peaks = rng.integers(32, 127, 2 * _STATES)
    peaks[:_EOS_STATES] = TOY_EOS_ID
    # First bytes of characters of 2, 3 and 4 bytes.
    peaks[_EOS_STATES : _EOS_STATES + _LEAD_STATES] = rng.choice([0xC3, 0xCE, 0xD0, 0xE2, 0xF0], _LEAD_STATES)
    peaks[-_CONTINUE_STATES:] = rng.integers(0x80, 0xC0, _CONTINUE_STATES)

    table = rng.standard_normal((2 * _STATES, TOY_VOCAB_SIZE)).astype(np.float32)
    table[:, :32] -= 4.0
    table[:, 127:] -= 4.0
    table[np.arange(len(peaks)), peaks] = _PEAK
    return table
