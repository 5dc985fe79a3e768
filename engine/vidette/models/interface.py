"""What a model is to the rest of the engine: one plan in, logits and best tokens out.

The scheduler writes a `StepPlan` (plain NumPy, no torch); a `Model` turns it into a `StepResult` in one call
over all rows and layers; a `Tokenizer` turns text into token ids in the front; a `TokenTable` turns ids back
into bytes in the detokenizer. Nothing here imports torch at run time: the front and the detokenizer
never pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

BLOCK_SIZE = 16
"""Tokens per block of the paged KV pool."""
NOT_FINITE: Final = -1
"""In place of a token: the logits that it would be chosen by are not finite, or all masked."""


class StepPlan(NamedTuple):
    """One step: R rows (requests), T tokens to compute in all.

    After L of these tokens the logits are wanted, after G others just the token with the largest logit, which
    a model may find without writing the logits of a whole vocabulary.

    A row is a decode (one token) or a chunk of a prefill (several); both kinds may be mixed in any order.
    Token `t` of row `r` sits at absolute position `positions[t]`; its key and value are written to slot
    `block_tables[r, positions[t] // BLOCK_SIZE] * BLOCK_SIZE + positions[t] % BLOCK_SIZE`, and it attends to
    positions 0 to `positions[t]` of its own row.
    """

    token_ids: NDArray[np.int32]
    """[T] token ids, row after row."""
    positions: NDArray[np.int32]
    """[T] absolute position of each token in its sequence."""
    row_starts: NDArray[np.int32]
    """[R + 1] row r owns tokens row_starts[r] to row_starts[r + 1] (exclusive)."""
    context_lens: NDArray[np.int32]
    """[R] tokens of the row that are in the pool once this step has run (the last position + 1)."""
    block_tables: NDArray[np.int32]
    """[R, B] block numbers of each row, padded on the right with 0; may be part of a wider table."""
    logit_tokens: NDArray[np.int32]
    """[L] indices into the T tokens; logits are returned for these alone, in this order."""
    best_tokens: NDArray[np.int32]
    """[G] indices into the T tokens; the best next token is returned for these alone, in this order."""

    @property
    def wanted_tokens(self) -> NDArray[np.int32]:
        """[L + G] all of the T tokens after which something is wanted: `logit_tokens`, then `best_tokens`."""
        if not len(self.best_tokens):
            return self.logit_tokens
        if not len(self.logit_tokens):
            return self.best_tokens
        return np.concatenate((self.logit_tokens, self.best_tokens))


class StepResult(NamedTuple):
    """What a step has computed. On a device it may not have been computed yet."""

    logits: torch.Tensor
    """float32 [L, vocab_size], row i the logits after token `plan.logit_tokens[i]`. They may be changed, and
    the next step may overwrite them."""
    best: torch.Tensor
    """int64 [G], the token with the largest logit after token `plan.best_tokens[i]`; of equal ones it is the
    lowest, and NOT_FINITE if the largest is not finite or one of them is NaN."""


class ModelInfo(NamedTuple):
    """What the rest of the engine has to know of a model; read from the file's header alone."""

    name: str
    """Name under which it is served, such as "smollm2-135m-instruct"."""
    architecture: str
    """Family, such as "llama" or "toy"."""
    vocab_size: int
    context_len: int
    """Most tokens of prompt and output together, from the model itself."""
    eos_token_ids: frozenset[int]
    """Any of these ends a request unless it asked for `ignore_eos`."""
    kv_bytes_per_token: int
    """Bytes of keys and values one token takes in the pool, over all layers."""
    bos_token_id: int | None = None
    """What the tokenizer puts before every text; None: nothing."""


class TokenTable(NamedTuple):
    """The bytes each token stands for: all that detokenizing takes.

    Text is the bytes of all tokens, one after the other, read as UTF-8; what is no UTF-8 becomes U+FFFD.
    """

    token_bytes: Sequence[bytes]
    """Bytes of every token id; a special token's are its name in UTF-8."""
    special: frozenset[int]
    """Ids of special (control) tokens, which are not shown unless a request asks for it."""
    space_prefix: bool = False
    """Whether the tokenizer puts a space before a text, which is taken away again where a text begins."""
    spaced_specials: bool = False
    """Whether the tokenizer puts spaces around special tokens that are shown."""


class Tokenizer(Protocol):
    """Text to token ids, in the front. Safe to call from any thread; calls must not need an event loop."""

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the token ids of a text; names of special tokens in it become these tokens."""
        ...

    def fewest_tokens(self, text: str, enough: int) -> int:
        """Return how many tokens a text has at least, told in far less time than `encode` takes.

        Args:
            text: any string.
            enough: it looks no further once it knows of so many.
        """
        ...

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's own template, ready for `encode`.

        Raises:
            ChatTemplateError: the model has no template, or the template refuses these messages.
        """
        ...


class BlockCopier(Protocol):
    """Takes copies of blocks of a pool, and puts them back."""

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[Any]:
        """Return copies: row `i` is all that block `blocks[i]` holds. Shape and type are the model's own."""
        ...

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        """Make block `blocks[i]` hold row `i` of what `export_blocks` returned, of whatever blocks."""


class Model(BlockCopier, Protocol):
    """Weights and KV pool of one model; owned and called by one thread."""

    info: ModelInfo
    overlaps: bool
    """Whether it computes while the host goes on, so that `forward` returns before it has computed."""

    def allocate(self, num_blocks: int) -> None:
        """Create the KV pool: `num_blocks` blocks of BLOCK_SIZE tokens. Called once, before `forward`."""

    def forward(self, plan: StepPlan) -> StepResult:
        """Compute one step over all rows and layers.

        If the model `overlaps`, whoever reads the result waits for it.

        Args:
            plan: has been read when this returns, and is written anew for the next step.
        """
        ...
