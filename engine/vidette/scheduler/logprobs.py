"""Log probabilities, of the rows that asked for some.

Those of output tokens are of the distribution that the token was drawn from, after penalties, biases, masks
and temperature, before `top_k`, `top_p` and `min_p`; a greedy request's are at temperature 1 (both as SGLang
unless it is told otherwise; vLLM gives those of the raw logits). Those of the prompt are of the raw logits at
temperature 1 (SGLang and vLLM): nothing was drawn there.

The most probable tokens are in the order of the logits, equal ones by the lower id; so the first is the one
that a greedy request takes. A masked token has the least float32 instead of minus infinity, which JSON does
not know (as SGLang). Where the logits are not finite, every number is NaN and every id 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.models.accelerator import upload
from vidette.scheduler.ranking import find_peaks, rank_exactly
from vidette.scheduler.sampler import parts
from vidette_protocol.limits import Limits, logprob_bytes_at
from vidette_protocol.messages import TokenizedGenerateReqInput, TokenLogprobs

ROW_BYTES: Final = 1024 * 1024
"""Log probabilities of output tokens that are said at once, whatever the stream interval."""
LOWEST: Final = float(np.finfo(np.float32).min)
"""Log probability of a masked token."""
_NO_IDS: Final = np.empty(0, dtype=np.int64)


class Wanted(NamedTuple):
    """What one request wants to know at each position.

    Args:
        start: first position of the prompt to report; the length of the prompt if none is.
        top: how many of the most probable tokens.
        ids: int64, tokens asked for; None: none were named, so their columns are left out.
    """

    start: int
    top: int = 0
    ids: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, request: TokenizedGenerateReqInput, vocab_size: int) -> Wanted | None:
        """Return what a request wants, or None if it asked for no log probabilities.

        A `logprob_start_len` of -1 reports nothing of the prompt; with `token_ids_logprob` its last token (as
        SGLang).

        Raises:
            ValueError: it cannot be had; the sentence says why.
        """
        if not request.return_logprob:
            return None
        prompt = len(request.token_ids)
        start, ids = request.logprob_start_len, None
        if request.token_ids_logprob is not None and len(request.token_ids_logprob):
            ids = np.frombuffer(request.token_ids_logprob, dtype=np.int32).astype(np.int64)
            outside = ids[(ids < 0) | (ids >= vocab_size)]
            if len(outside):
                raise ValueError(f"token_ids_logprob has {outside[0]}; token ids are 0 to {vocab_size - 1}")
        if start > prompt:
            raise ValueError(f"logprob_start_len is {start}, but the prompt has {prompt} tokens")
        if start < 0:
            start = prompt if ids is None else max(prompt - 1, 0)
        wanted = cls(start, min(request.top_logprobs_num, vocab_size), ids)
        positions = prompt - start + (request.sampling_params.max_new_tokens or 0)
        total, most = positions * wanted.nbytes, Limits().logprob_bytes
        if total > most:
            raise ValueError(f"return_logprob is about {total} bytes; at most {most} are reported")
        return wanted

    @property
    def nbytes(self) -> int:
        """Bytes that one position takes."""
        return logprob_bytes_at(self.top, 0 if self.ids is None else len(self.ids))

    @property
    def interval(self) -> int:
        """Output tokens after which they are to be said, lest a message grow too long."""
        return max(1, ROW_BYTES // self.nbytes)


class Found(NamedTuple):
    """Log probabilities at N positions; float32, ids int32."""

    chosen: NDArray[np.float32]
    """[N] of the tokens that are there."""
    top_values: NDArray[np.float32]
    """[N, top]"""
    top_ids: NDArray[np.int32]
    """[N, top]"""
    asked: NDArray[np.float32]
    """[N, number of ids]"""

    @classmethod
    def nothing(cls, wanted: Wanted, count: int = 1) -> Found:
        """Return what there is where there is no probability, as of the first token of a prompt: NaN."""
        asked = 0 if wanted.ids is None else len(wanted.ids)
        return cls(
            np.full(count, np.nan, dtype=np.float32),
            np.full((count, wanted.top), np.nan, dtype=np.float32),
            np.zeros((count, wanted.top), dtype=np.int32),
            np.full((count, asked), np.nan, dtype=np.float32),
        )


@torch.inference_mode()
def find_logprobs(
    logits: torch.Tensor,
    places: Sequence[int],
    tokens: Sequence[int],
    wanted: Sequence[Wanted],
    temperatures: Sequence[float],
) -> list[Found]:
    """Return the log probabilities at some rows of the logits, one position each.

    Args:
        logits: float32 [L, V], contiguous; as `sample` left them.
        places: n rows of them.
        tokens: n tokens that are there; of NOT_FINITE it is NaN.
        wanted: n times what is wanted.
        temperatures: n, `SamplingRow.logprob_temperature`.
    """
    top = max((want.top for want in wanted), default=0)
    widths = [0 if want.ids is None else len(want.ids) for want in wanted]
    asked = np.zeros((len(wanted), max(widths, default=0)), dtype=np.int64)
    for row, want in enumerate(wanted):
        if want.ids is not None:
            asked[row, : widths[row]] = want.ids
    found: list[Found] = []
    for part in parts(len(places), logits.shape[1]):
        one = _find(
            logits,
            np.array(places[part]),
            np.array(tokens[part]),
            asked[part],
            top=top,
            temperatures=temperatures[part],
        )
        for row, (want, width) in enumerate(zip(wanted[part], widths[part], strict=True)):
            here = slice(row, row + 1)
            found.append(
                Found(
                    one.chosen[here],
                    one.top_values[here, : want.top],
                    one.top_ids[here, : want.top],
                    one.asked[here, :width],
                )
            )
    return found


class PromptLogprobs:
    """Log probabilities of one prompt, found chunk by chunk.

    The logits after one token are about the next. So those after the last token of a chunk are about the
    first of the next chunk, and those after the last of the prompt are about the first of the output: these
    are not asked for here. What was found stays; a request that is computed again goes on where it was.

    Args:
        prompt_ids: all tokens of the prompt.
        wanted: what to find; from `wanted.start` on.
    """

    def __init__(self, prompt_ids: NDArray[np.int32], wanted: Wanted) -> None:
        self._prompt = prompt_ids
        self._wanted = wanted
        self._found = [Found.nothing(wanted)] if wanted.start == 0 and len(prompt_ids) else []
        self._next = max(wanted.start, 1)

    @property
    def first(self) -> int:
        """First position whose logits are still needed. What is cached may go up to it, not beyond."""
        return self._next - 1

    @property
    def complete(self) -> bool:
        """Whether all is found."""
        return self._next >= len(self._prompt)

    def needed(self, first: int, count: int) -> range:
        """Return which positions' logits are needed of a chunk.

        Args:
            first: position of the first token of the chunk.
            count: tokens in the chunk.
        """
        end = min(first + count, len(self._prompt) - 1)
        return range(max(first, self.first), end) if self.first < end else range(0)

    @torch.inference_mode()
    def add(self, position: int, logits: torch.Tensor) -> None:
        """Take the logits of needed positions, in order and without a gap.

        Args:
            position: of the first of them; it is `first`.
            logits: float32 [P, V], after the tokens from there on.
        """
        if position != self.first:
            raise ValueError(f"logits are from position {position} on, not from {self.first}")
        count = min(len(logits), len(self._prompt) - self._next)
        ids = _NO_IDS if self._wanted.ids is None else self._wanted.ids
        for part in parts(count, logits.shape[1]):
            piece = logits[part].contiguous()
            tokens = self._prompt[self._next : self._next + len(piece)].astype(np.int64)
            asked = np.broadcast_to(ids, (len(tokens), len(ids)))
            rows = np.arange(len(tokens))
            self._found.append(
                _find(piece, rows, tokens, asked, top=self._wanted.top, temperatures=[1.0] * len(tokens))
            )
            self._next += len(tokens)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens that were asked about."""
        return self._prompt[self._wanted.start :]

    @property
    def found(self) -> Found:
        """What was found so far, from `wanted.start` on."""
        return join(self._found, self._wanted)


def join(found: Sequence[Found], wanted: Wanted) -> Found:
    """Put positions one after the other."""
    if not found:
        return Found.nothing(wanted, 0)
    return Found(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def write_columns(
    wanted: Wanted, output: Sequence[Found], prompt: PromptLogprobs | None = None
) -> TokenLogprobs:
    """Return what a row of a step message says.

    Args:
        wanted: what the request asked for.
        output: of each new token of the row.
        prompt: of the prompt, complete, if this is the first row and some of it were asked for.
    """
    made = join(output, wanted)
    told = None if prompt is None else prompt.found
    return TokenLogprobs(
        output_token_logprobs_val=_pack(made.chosen),
        output_top_logprobs_val=_pack(made.top_values) if wanted.top else None,
        output_top_logprobs_idx=_pack(made.top_ids) if wanted.top else None,
        output_token_ids_logprobs_val=None if wanted.ids is None else _pack(made.asked),
        input_token_logprobs_val=None if told is None else _pack(told.chosen),
        input_top_logprobs_val=_pack(told.top_values) if told is not None and wanted.top else None,
        input_top_logprobs_idx=_pack(told.top_ids) if told is not None and wanted.top else None,
        input_token_ids_logprobs_val=None if told is None or wanted.ids is None else _pack(told.asked),
        input_token_logprobs_idx=None if prompt is None else _pack(prompt.tokens),
        token_ids_logprob=None if wanted.ids is None else _pack(wanted.ids.astype(np.int32)),
        top_logprobs_num=wanted.top,
    )


def _find(
    logits: torch.Tensor,
    places: NDArray[np.int64],
    tokens: NDArray[np.int64],
    asked: NDArray[np.int64],
    *,
    top: int,
    temperatures: Sequence[float],
) -> Found:
    """Return what is at n positions, of a piece that fits in memory.

    Args:
        logits: [L, V], contiguous.
        places: [n] rows of them.
        tokens: [n]
        asked: [n, A] token ids.
        top: how many of the most probable.
        temperatures: n.
    """
    device = logits.device
    rows = upload(torch.from_numpy(places), device)
    picked = logits.index_select(0, rows)
    best = picked.amax(dim=1, keepdim=True)
    scale = upload(torch.tensor(temperatures, dtype=torch.float32), device)[:, None]
    logprobs = torch.log_softmax((picked - best).div_(scale), dim=1)
    faulty = ~torch.isfinite(best)
    logprobs.masked_fill_(faulty, torch.nan)
    ids = [
        upload(torch.from_numpy(tokens), device)[:, None].clamp(min=0),
        upload(torch.from_numpy(asked.copy()), device),
    ]
    if top:
        everything = torch.arange(len(rows), device=device)
        ids.append(rank_exactly(picked, find_peaks(picked), everything, top).ids.masked_fill_(faulty, 0))
    values = logprobs.gather(1, torch.cat(ids, dim=1)).clamp_(min=LOWEST).cpu().numpy()
    chosen = values[:, 0].copy()
    chosen[tokens < 0] = np.nan
    width = asked.shape[1]
    top_ids = ids[2].cpu().numpy().astype(np.int32) if top else np.zeros((len(rows), 0), dtype=np.int32)
    return Found(chosen, values[:, 1 + width :], top_ids, values[:, 1 : 1 + width])


def _pack(values: NDArray[np.float32] | NDArray[np.int32]) -> memoryview:
    return memoryview(values.tobytes())
