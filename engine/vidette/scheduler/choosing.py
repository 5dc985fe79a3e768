"""From a step's result to what each sequence of the batch says next.

A draft is judged by what would have been chosen without it: each of its places has its own number to draw by
(seed and position), so it is kept as far as it is the very token that is chosen there. The text is the same
with drafts as without, greedy or not.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import torch

from vidette.models.accelerator import Fetched, fetch, upload
from vidette.models.interface import NOT_FINITE, StepResult
from vidette.scheduler.logprobs import Found, Wanted, find_logprobs
from vidette.scheduler.plan import Share
from vidette.scheduler.sampler import Sampling, begin
from vidette.scheduler.sampling import SamplingRow


class Made(NamedTuple):
    """What a sequence says next.

    Args:
        tokens: one, and as many more as drafts were right; none if the logits are not finite, or if it is
            to say nothing.
        logprobs: of these tokens, if it wants some.
        faulty: whether the logits behind these are not finite.
    """

    tokens: list[int]
    logprobs: Items[Found] = ()
    faulty: bool = False


class _Begun(NamedTuple):
    """Tokens that are being chosen.

    Args:
        counts: how many of each share.
        rows: what is wanted of each.
        logits: what they are chosen from.
        sampling: the tokens.
    """

    counts: list[int]
    rows: list[SamplingRow]
    logits: torch.Tensor
    sampling: Sampling


class Flight:
    """A batch that was launched, and what each of its sequences says next: known when it lands.

    A device is sent all that this takes at once. On a CPU nothing is looked at before it lands.

    Args:
        batch: as it was launched; nothing is to happen to its sequences until it has landed.
        result: `wanted` of each share, in order, best tokens or logits; these may be changed in place.
    """

    __slots__ = ("_begun", "_best", "_result", "batch")

    def __init__(self, batch: Items[Share], result: StepResult) -> None:
        self.batch = batch
        self._result = result
        self._begun: _Begun | None = None
        self._best: Fetched | None = None
        if result.logits.device.type != "cpu":
            self._begun, self._best = self._begin(), fetch(result.best)

    def wait(self) -> None:
        """Wait until a device has computed it; nothing changes."""
        if self._begun is not None and self._best is not None:
            self._begun.sampling.wait()
            self._best.wait()  # also of no tokens: they arrive behind all else that was launched

    def land(self) -> list[Made | None]:
        """Return what each sequence says next, as soon as that is known; None: its prefill goes on."""
        counts, rows, logits, sampling = self._begin() if self._begun is None else self._begun
        tokens = sampling.tokens()
        best: list[int] = (self._result.best if self._best is None else self._best.wait()).tolist()
        if logits is not self._result.logits:  # as none but these are wanted besides
            self._add_prompt_logprobs()
        made: list[Made | None] = []
        start = best_start = 0
        reported: list[tuple[int, int, Wanted]] = []
        for place, (share, count) in enumerate(zip(self.batch, counts, strict=True)):
            if not share.last:
                made.append(None)
                continue
            if share.best:
                chosen = best[best_start : best_start + count]
                best_start += count
            else:
                chosen = tokens[start : start + count]
            said = Made(chosen) if count == 1 and chosen[0] != NOT_FINITE else _accept(chosen, share.drafts)
            made.append(said)
            if share.best:
                continue
            wanted = share.sequence.wanted
            if wanted is not None:
                reported += [(place, start + i, wanted) for i in range(len(said.tokens))]
            start += count
        return _with_logprobs(made, reported, logits, tokens, rows) if reported else made

    def _begin(self) -> _Begun:
        """Begin to choose."""
        logits = self._result.logits
        places: list[int] = []
        rows: list[SamplingRow] = []
        positions: list[int] = []
        counts: list[int] = []
        end = 0
        for share in self.batch:
            count = share.chosen
            counts.append(count)
            if share.best:
                continue
            sequence = share.sequence
            end += share.wanted
            if count == 1:  # nearly always
                places.append(end - 1)
                rows.append(sequence.row)
                positions.append(sequence.made)
            else:
                places += range(end - count, end)
                rows += [sequence.row] * count
                positions += range(sequence.made, sequence.made + count)
        if len(places) != end:
            logits = logits.index_select(0, upload(torch.tensor(places, dtype=torch.int64), logits.device))
        return _Begun(counts, rows, logits, begin(logits, rows, positions))

    def _add_prompt_logprobs(self) -> None:
        start = 0
        for share in self.batch:
            if share.best:
                continue
            prompt = share.sequence.prompt_logprobs
            if prompt is not None:
                needed = prompt.needed(share.sequence.computed, share.tokens)
                if needed:
                    prompt.add(needed.start, self._result.logits[start : start + len(needed)])
            start += share.wanted


class FailedFlight(Flight):
    """A batch whose launch has failed, which comes up where it is waited for.

    Args:
        error: what went wrong.
    """

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self.batch = ()
        self._error = error

    def wait(self) -> None:
        """Raise what went wrong."""
        raise self._error

    def land(self) -> list[Made | None]:
        """Raise what went wrong."""
        raise self._error


def _accept(tokens: list[int], drafts: Items[int]) -> Made:
    right = 0
    while right < len(drafts) and tokens[right] == drafts[right]:
        right += 1
    kept = tokens[: right + 1]
    if kept and kept[-1] == NOT_FINITE:
        return Made(kept[:-1], faulty=True)
    return Made(kept)


def _with_logprobs(
    made: list[Made | None],
    reported: Items[tuple[int, int, Wanted]],
    logits: torch.Tensor,
    tokens: Items[int],
    rows: Items[SamplingRow],
) -> list[Made | None]:
    lines = [line for _, line, _ in reported]
    found = find_logprobs(
        logits,
        lines,
        [tokens[line] for line in lines],
        [wanted for _, _, wanted in reported],
        [rows[line].logprob_temperature for line in lines],
    )
    by_place: dict[int, list[Found]] = {}
    for (place, _, _), one in zip(reported, found, strict=True):
        by_place.setdefault(place, []).append(one)
    return [
        said if said is None or place not in by_place else said._replace(logprobs=by_place[place])
        for place, said in enumerate(made)
    ]
