"""Logits to tokens, over all rows at once.

In this order: penalties, biases and `min_new_tokens` (`vidette.scheduler.sampling` has the formulas); then
temperature; then `top_k`; then `top_p`, a share of what top_k left; then `min_p`, a share of the most
probable token. That is SGLang's order; vLLM has min_p before top_k. A set of top_k or top_p is filled in the
order of the logits, among equal ones by the lower token id, and so holds no more than it must.

A draw is one uniform number per row, looked up in the row's distribution. The number is a hash of the
request's seed and the position in its output, and the way it is looked up depends on the request's
parameters and logits alone: the same seed gives the same text whatever else is in the batch, and a request
that is computed again goes on as it was. So sums are taken row by row, in one order; none goes over rows.

A request that just takes the most probable tokens does not come here, unless it wants log probabilities: the
model finds them (`StepResult.best`). No row is sorted where that can be avoided:

- the best token: the largest peak, then the largest in its block (`vidette.scheduler.ranking`)
- the whole vocabulary: a block of the softmax by its sum, then a token in the block
- top_k: the k largest are ranked, and drawn from
- top_p and min_p: the softmax, and a few of the largest of it. If these do not reach top_p, tokens are drawn
  from the whole and refused when what is more probable makes up top_p already; what is not more probable
  than a refused token is out as well, so that is over after few draws
- top_k of very many, or with ties at the edge of what was ranked: sorted

On a device nothing is waited for but the tokens: `begin` sends all that it takes to choose them behind the
logits, which may still be computed, and whoever wants the tokens reads them when they are there. With them
comes whether what was ranked was enough, if there is some top_k, top_p or min_p; the few rows of which it was
not are drawn anew then. Rows that are not finite are drawn from like the others, and marked in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.models.accelerator import Fetched, fetch, upload
from vidette.models.best import take_best
from vidette.models.interface import NOT_FINITE
from vidette.scheduler.ranking import BLOCK, Ranking, find_best, find_peaks, look_into, rank
from vidette.scheduler.sampling import FEW, SamplingRow, Way
from vidette.scheduler.seeded import uniforms

PIECE: Final = 1 << 19
"""Numbers of a row-by-row computation that are in memory at once: few enough to stay in a cache."""
_LARGEST: Final = torch.finfo(torch.float32).max
_GREEDY: Final = (Way.BEST, FEW)


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], positions: Sequence[int]) -> list[int]:
    """Choose the next token of each row. What it was is told to the row by `push`, if it is kept.

    Args:
        logits: float32 [L, V], contiguous. Those of tokens that a row edits are changed in place.
        rows: L requests, as their output is so far; one with nothing to edit may be there several times.
        positions: L positions in the outputs.

    Returns:
        L token ids; NOT_FINITE where a row's logits are not finite, or are all masked.
    """
    return begin(logits, rows, positions).tokens()


@torch.inference_mode()
def begin(logits: torch.Tensor, rows: Sequence[SamplingRow], positions: Sequence[int]) -> Sampling:
    """Begin to choose the next token of each row, as `sample` does; a device need not have done it yet.

    The logits are not to be overwritten before the tokens were read.
    """
    if not rows:
        return Sampling([])
    if all(row.takes_best(position) for row, position in zip(rows, positions, strict=True)):
        return Sampling(fetch(take_best(logits)))
    faulty = _edit(logits, rows, positions)
    peaks = find_peaks(logits)
    best = peaks.amax(dim=1)
    # The maximum is NaN if any is NaN and +inf if any is +inf: one pass tells both. -inf alone is a mask.
    faulty = ~torch.isfinite(best) if faulty is None else ~torch.isfinite(best) | faulty
    ways: dict[tuple[Way, int], list[int]] = {}
    for i, row in enumerate(rows):
        ways.setdefault((row.way, row.reach), []).append(i)
    doubts: list[_Doubt] = []
    if len(ways.get(_GREEDY, ())) == len(rows):  # then it is all there is to do
        tokens = find_best(logits, peaks)
    else:
        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        for (way, _), chosen in ways.items():
            places = upload(torch.tensor(chosen), logits.device)
            if way is Way.BEST:
                found = find_best(logits, peaks).index_select(0, places)
            else:
                draws = _Draws.of(rows, positions, chosen, places, best)
                found, certain = _DRAW[way](logits, peaks, draws)
                if certain is not None:
                    doubts.append(_Doubt(chosen, draws, certain, _REDRAW[way]))
            tokens.index_copy_(0, places, found)
    tokens.masked_fill_(faulty, NOT_FINITE)
    if doubts:
        tokens = torch.cat([tokens, *(doubt.certain.long() for doubt in doubts)])
    return Sampling(fetch(tokens), logits, doubts)


class Sampling:
    """The next token of each row, while it is being chosen.

    Args:
        numbers: the tokens, and behind them for each doubt which of its rows are certain.
        logits: what they are chosen from.
        doubts: rows that may have to be drawn anew.
    """

    __slots__ = ("_doubts", "_logits", "_numbers")

    def __init__(
        self,
        numbers: list[int] | Fetched,
        logits: torch.Tensor | None = None,
        doubts: Sequence[_Doubt] = (),
    ) -> None:
        self._numbers = numbers
        self._logits = logits
        self._doubts = doubts

    def wait(self) -> None:
        """Wait until the tokens can be read; nothing changes."""
        if isinstance(self._numbers, Fetched):
            self._numbers.wait()

    @torch.inference_mode()
    def tokens(self) -> list[int]:
        """Return the tokens, as `sample` does, as soon as they are there."""
        numbers = self._numbers
        tokens: list[int] = numbers.wait().tolist() if isinstance(numbers, Fetched) else numbers
        if self._logits is None or not self._doubts:
            return tokens
        start = len(self._logits)
        tokens, certain = tokens[:start], tokens[start:]
        start = 0
        for rows, draws, _, redraw in self._doubts:
            left = [i for i, row in enumerate(rows) if tokens[row] != NOT_FINITE and not certain[start + i]]
            start += len(rows)
            if left:
                found = redraw(self._logits, draws.at(torch.tensor(left))).tolist()
                for i, token in zip(left, found, strict=True):
                    tokens[rows[i]] = token
        return tokens


# --- edits -----------------------------------------------------------------------------


def _edit(logits: torch.Tensor, rows: Sequence[SamplingRow], positions: Sequence[int]) -> torch.Tensor | None:
    """Apply penalties, biases and masks in place.

    Returns:
        bool [L], which rows hide what is not finite by that; None: none of them.
    """
    vocab = logits.shape[1]
    edited = [i for i, row in enumerate(rows) if row.edited]
    if edited:
        ids, factors, adds = zip(*(rows[i].edits for i in edited), strict=True)
        where = _flat(edited, ids, vocab, logits.device)
        flat = logits.view(-1)
        old = flat.take(where)
        factor = upload(torch.from_numpy(np.concatenate(factors)), logits.device)
        new = torch.where(old > 0, old / factor, old * factor)
        new += upload(torch.from_numpy(np.concatenate(adds)), logits.device)
        # What was finite stays so: else a penalty could end a request, or mask a token.
        flat[where] = torch.where(torch.isfinite(old), new.clamp(-_LARGEST, _LARGEST), new)
    bound = [i for i, row in enumerate(rows) if positions[i] < row.min_new_tokens and len(row.ends)]
    if not bound:
        return None
    where = _flat(bound, [rows[i].ends for i in bound], vocab, logits.device)
    flat = logits.view(-1)
    hidden = ~(flat.take(where) < torch.inf)
    flat.index_fill_(0, where, -torch.inf)
    counts = torch.zeros(len(rows), device=logits.device)
    return counts.index_add_(0, where // vocab, hidden.float()) > 0


def _flat(
    rows: Sequence[int], ids: Sequence[NDArray[np.int64]], vocab: int, device: torch.device
) -> torch.Tensor:
    """Return where in the flattened logits the tokens of some rows are."""
    starts = np.repeat(np.array(rows, dtype=np.int64) * vocab, [len(one) for one in ids])
    return upload(torch.from_numpy(starts + np.concatenate(ids)), device)


# --- draws -----------------------------------------------------------------------------


class _Draws(NamedTuple):
    """Rows that are drawn in one way, and their parameters: columns [n, 1]."""

    places: torch.Tensor
    """int64 [n], which rows of the logits."""
    best: torch.Tensor
    """Largest logit."""
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    number: torch.Tensor
    """What is looked up."""
    keys: NDArray[np.uint64]
    """[2, n] seeds and positions, for more numbers."""
    reach: int
    """How many tokens are ranked of each row."""

    @classmethod
    def of(
        cls,
        rows: Sequence[SamplingRow],
        positions: Sequence[int],
        chosen: Sequence[int],
        places: torch.Tensor,
        best: torch.Tensor,
    ) -> _Draws:
        """Gather the parameters of the chosen rows."""
        picked = [rows[i] for i in chosen]
        keys = np.array([[row.seed for row in picked], [positions[i] for i in chosen]], dtype=np.uint64)
        columns = torch.tensor(
            [[row.temperature, row.top_k, row.top_p, row.min_p] for row in picked], dtype=torch.float64
        )
        columns = upload(columns, best.device)
        return cls(
            places,
            best[places][:, None],
            temperature=columns[:, 0:1].float(),
            top_k=columns[:, 1:2],
            top_p=columns[:, 2:3],
            min_p=columns[:, 3:4],
            number=_column(uniforms(keys[0], keys[1]), best.device),
            keys=keys,
            reach=picked[0].reach,
        )

    def at(self, which: torch.Tensor | slice) -> _Draws:
        """Return some of them, by a slice or by places in host memory."""
        there = which if isinstance(which, slice) else upload(which, self.places.device)
        return _Draws(
            self.places[there],
            self.best[there],
            self.temperature[there],
            self.top_k[there],
            self.top_p[there],
            self.min_p[there],
            self.number[there],
            self.keys[:, which if isinstance(which, slice) else which.numpy()],
            self.reach,
        )


class _Doubt(NamedTuple):
    """Rows that were drawn from what was ranked of them, which may not have been enough."""

    rows: Sequence[int]
    draws: _Draws
    certain: torch.Tensor
    """bool [n], of which it was."""
    redraw: Callable[[torch.Tensor, _Draws], torch.Tensor]
    """Draws those of which it was not."""


def _column(numbers: NDArray[np.float64], device: torch.device) -> torch.Tensor:
    return upload(torch.from_numpy(numbers), device)[:, None]


def parts(count: int, vocab: int) -> Iterator[slice]:
    """Cut rows into parts of about PIECE numbers, but at least a row for each thread."""
    size = max(torch.get_num_threads(), PIECE // vocab)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def softmax_parts(logits: torch.Tensor, draws: _Draws) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the distributions of some rows, part by part; the next ones overwrite them.

    They are float32 [n, B * BLOCK], with nothing past the vocabulary.
    """
    vocab = logits.shape[1]
    scaled = shares = logits.new_empty(0)
    for part in parts(len(draws.places), vocab):
        places = draws.places[part]
        if not len(scaled):
            scaled = torch.empty(len(places), -(-vocab // BLOCK) * BLOCK, device=logits.device)
            scaled[:, vocab:] = -torch.inf
            shares = torch.empty_like(scaled)
        picked = scaled[: len(places), :vocab]
        torch.index_select(logits, 0, places, out=picked)
        picked.sub_(draws.best[part]).div_(draws.temperature[part])
        yield part, torch.softmax(scaled[: len(places)], dim=1, out=shares[: len(places)])


_Drawn = tuple[torch.Tensor, torch.Tensor | None]
"""Tokens, int64 [n], and bool [n] which of them are certain; None: all."""


def _draw_whole(logits: torch.Tensor, peaks: torch.Tensor, draws: _Draws) -> _Drawn:
    """Draw from all tokens."""
    del peaks
    sums = torch.cat([_sum_blocks(shares) for _, shares in softmax_parts(logits, draws)])
    block, number = _look_up_block(sums, draws.number)
    scaled = (look_into(logits, draws.places, block) - draws.best) / draws.temperature
    place = _look_up(torch.softmax(scaled.double(), dim=1).cumsum(dim=1), number)
    return (block * BLOCK + place)[:, 0], None


def _draw_ranked(logits: torch.Tensor, peaks: torch.Tensor, draws: _Draws) -> _Drawn:
    """Draw among the top_k largest, which are ranked; ties may leave open which they are."""
    ranking = rank(logits, peaks, draws.places, draws.reach)
    scaled = (ranking.values - draws.best).double() / draws.temperature
    shares = torch.softmax(scaled, dim=1)
    shares *= torch.arange(shares.shape[1], device=shares.device) < draws.top_k
    return _draw_kept(ranking, shares, _last(shares.cumsum(dim=1)), draws)


def _draw_sorted(logits: torch.Tensor, peaks: torch.Tensor, draws: _Draws) -> _Drawn:
    """Draw among the top_k largest, of rows that are sorted."""
    del peaks
    return _sort_and_draw(logits, draws), None


def _sort_and_draw(logits: torch.Tensor, draws: _Draws) -> torch.Tensor:
    found = []
    for part in parts(len(draws.places), 4 * logits.shape[1]):  # a sorted row takes four times the memory
        piece = draws.at(part)
        values, ids = logits.index_select(0, piece.places).sort(dim=1, descending=True, stable=True)
        shares = torch.softmax((values - piece.best) / piece.temperature, dim=1).double()
        shares *= torch.arange(shares.shape[1], device=shares.device) < piece.top_k
        ranking = Ranking(values, ids, torch.ones_like(ids, dtype=torch.bool))
        found.append(_draw_kept(ranking, shares, _last(shares.cumsum(dim=1)), piece)[0])
    return torch.cat(found)


def _draw_nucleus(logits: torch.Tensor, peaks: torch.Tensor, draws: _Draws) -> _Drawn:
    """Draw among what top_p and min_p leave of the whole vocabulary, if that was ranked."""
    ranking = rank(logits, peaks, draws.places, draws.reach)
    shares = torch.cat(
        [whole.gather(1, ranking.ids[part]).double() for part, whole in softmax_parts(logits, draws)]
    )
    return _draw_kept(ranking, shares, torch.ones_like(draws.number), draws)


def _refuse_and_draw(logits: torch.Tensor, draws: _Draws) -> torch.Tensor:
    return torch.cat(
        [_draw_refusing(logits, shares, draws.at(part)) for part, shares in softmax_parts(logits, draws)]
    )


def _draw_kept(
    ranking: Ranking, shares: torch.Tensor, total: torch.Tensor, draws: _Draws
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw among ranked tokens of which top_p and min_p leave some.

    Args:
        ranking: of n rows.
        shares: float64 [n, K], what each ranked token has of `total`; 0 if top_k leaves it out.
        total: float64 [n, 1], what all have, ranked or not, that top_k leaves.
        draws: n rows.

    Returns:
        The tokens, and bool [n]: whether all that are left were ranked surely. If not, the token is none.
    """
    before = shares.cumsum(dim=1) - shares
    kept = (before < draws.top_p * total) & (shares >= draws.min_p * shares[:, :1]) & (shares > 0)
    columns = _look_up(torch.where(kept, shares, 0.0).cumsum(dim=1), draws.number)
    return ranking.ids.gather(1, columns)[:, 0], (ranking.sure | ~kept).all(dim=1)


def _draw_refusing(logits: torch.Tensor, shares: torch.Tensor, draws: _Draws) -> torch.Tensor:
    """Draw among what top_p and min_p leave, without knowing what that is.

    A token drawn from the whole is as one drawn from the set if it is in the set, so refusing the others
    leaves the distribution that is wanted.

    Args:
        logits: [L, V].
        shares: float32 [n, B * BLOCK], changed in place.
        draws: n rows.
    """
    tokens = torch.zeros(len(draws.places), dtype=torch.int64, device=logits.device)
    values = logits.index_select(0, draws.places)
    ids = torch.arange(logits.shape[1], dtype=torch.float32, device=logits.device)
    limit = draws.top_p * _last(_sum_blocks(shares).double().cumsum(dim=1))
    if (draws.min_p > 0).any():
        least = draws.min_p.float() * shares.amax(dim=1, keepdim=True)
        shares *= torch.ge(shares, least, out=torch.empty_like(shares))
    sums = _sum_blocks(shares)
    left = torch.arange(len(tokens), device=logits.device)
    number, draw = draws.number, 0
    while True:
        block, within = _look_up_block(sums, number)
        near = block * BLOCK + torch.arange(BLOCK, device=logits.device)
        drawn = near.gather(1, _look_up(shares.gather(1, near).double().cumsum(dim=1), within))
        tokens[left] = drawn[:, 0]
        value = values.gather(1, drawn)
        # Comparisons are four times as fast if their results are numbers.
        alike = torch.eq(values, value, out=torch.empty_like(values))
        ahead = torch.lt(ids, drawn.float(), out=torch.empty_like(values)).mul_(alike)
        shares[:, : len(ids)] *= torch.gt(values, value, out=alike).add_(ahead)
        sums = _sum_blocks(shares)
        refused = (_last(sums.double().cumsum(dim=1)) >= limit)[:, 0]
        if not refused.any():
            return tokens
        again = refused.nonzero()[:, 0]
        left, values, limit = left[again], values[again], limit[again]
        shares, sums = shares[again], sums[again]
        draw += 1
        keys = draws.keys[:, left.cpu().numpy()]
        number = _column(uniforms(keys[0], keys[1], draw), logits.device)


_DRAW: Final = {
    Way.WHOLE: _draw_whole,
    Way.RANKED: _draw_ranked,
    Way.SORTED: _draw_sorted,
    Way.NUCLEUS: _draw_nucleus,
}
_REDRAW: Final = {Way.RANKED: _sort_and_draw, Way.NUCLEUS: _refuse_and_draw}


# --- lookups ---------------------------------------------------------------------------


def _look_up(cumulative: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return for each row the first place whose cumulative mass exceeds the number's share of the total.

    Args:
        cumulative: float64 [n, K].
        numbers: float64 [n, 1], in [0, 1].

    Returns:
        int64 [n, 1]; never a place that adds nothing, unless the total is 0.
    """
    total = _last(cumulative)
    places = torch.searchsorted(cumulative, numbers * total, right=True)
    # By rounding a number's share may be the total itself: the first place that reaches it is the last one.
    return torch.minimum(places, (cumulative < total).sum(dim=1, keepdim=True)).clamp_(
        max=cumulative.shape[1] - 1
    )


def _look_up_block(sums: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the block that each number belongs to, int64 [n, 1], and the number that is left for the block.

    Args:
        sums: float32 [n, B], of the blocks.
        numbers: float64 [n, 1].
    """
    sums = sums.double()
    cumulative = sums.cumsum(dim=1)
    block = _look_up(cumulative, numbers)
    share = sums.gather(1, block)
    number = (numbers * _last(cumulative) - cumulative.gather(1, block) + share) / share
    return block, number.clamp_(0.0, 1.0)


def _sum_blocks(shares: torch.Tensor) -> torch.Tensor:
    return shares.view(len(shares), -1, BLOCK).sum(dim=2)


def _last(cumulative: torch.Tensor) -> torch.Tensor:
    return cumulative[:, -1:]
