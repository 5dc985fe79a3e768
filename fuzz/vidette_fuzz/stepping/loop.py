"""`ExploredLoop`: the engine's step loop, driven by choices: what a step takes along, what the model says."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE, ModelInfo, StepPlan, StepResult, TokenTable
from vidette.scheduler.choosing import Flight
from vidette.scheduler.controls import Controls
from vidette.scheduler.drafts import Drafts
from vidette.scheduler.effects import Command
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette.scheduler.plan import Share
from vidette.scheduler.sequence import Sequence
from vidette.scheduler.sessions import Sessions
from vidette.scheduler.told import Told
from vidette_fuzz.stepping.bounds import LoopBounds, Outcome
from vidette_fuzz.stepping.cloning import clone
from vidette_fuzz.stepping.pool import ExploredCache, ExploredRadix, Memory, Read
from vidette_protocol.ids import Vid, label
from vidette_protocol.lifecycle import SchedulerMachine
from vidette_protocol.messages import TokenRow

VOCAB: Final = 1024
EOS: Final = 1
RIGHT: Final = 100
"""What is guessed of the output's first token; of the next ones it is one more each."""
OTHER: Final = 300
"""What the model says instead."""
PROMPT: Final = 500
"""First token of the first prompt."""
WAIT: Final = 1000.0
"""Seconds that pass when time passes; more than a session is kept."""


class _Model:
    """A model that nobody asks: what it says is chosen.

    Args:
        overlaps: whether it computes as a device does.
    """

    info = ModelInfo("explored", "explored", VOCAB, 1 << 20, frozenset({EOS}), 1)

    def __init__(self, *, overlaps: bool) -> None:
        self.overlaps = overlaps

    def allocate(self, num_blocks: int) -> None:
        """Nothing is computed, so nothing is stored."""

    def forward(self, plan: StepPlan) -> StepResult:
        """Never called.

        Raises:
            NotImplementedError: it was.
        """
        raise NotImplementedError

    def export_blocks(self, blocks: Items[int]) -> NDArray[Any]:
        """Never called: there is no second tier.

        Raises:
            NotImplementedError: it was.
        """
        raise NotImplementedError

    def import_blocks(self, blocks: Items[int], payload: NDArray[Any]) -> None:
        """Never called: there is no second tier.

        Raises:
            NotImplementedError: it was.
        """
        raise NotImplementedError


_TABLE: Final = TokenTable([b"x"] * VOCAB, frozenset({EOS}))


class Guesses(Drafts):
    """Drafts that are chosen."""

    __slots__ = ("coming",)

    def __init__(self) -> None:
        super().__init__((), most=1)
        self.coming: list[int] = []

    def propose(self, most: int) -> list[int]:
        """Return what was chosen, as far as it may be so long."""
        return self.coming[: max(0, most)]


class LoopParts(NamedTuple):
    """Which classes play the roles; mutants take the place of the real ones here."""

    loop: type[ExploredLoop]
    cache: type[ExploredCache] = ExploredCache
    sessions: type[Sessions] = Sessions


class ExploredLoop(StepLoop):
    """A step loop.

    Args:
        parts: what it is made of.
        bounds: how large it is.
    """

    def __init__(self, parts: LoopParts, bounds: LoopBounds) -> None:
        options = LoopOptions(
            num_blocks=bounds.blocks, step_tokens=VOCAB, max_running=VOCAB, draft_tokens=bounds.drafts
        )
        super().__init__(_Model(overlaps=bounds.overlaps), options, table=_TABLE)
        self._cache = self.blocks = parts.cache(bounds.blocks, ExploredRadix())
        self._sessions = parts.sessions(max_total_tokens=self.max_total_tokens)
        self._controls = Controls(self._sessions, self._cache, self._corpora)
        self._bounds = bounds
        self._memory = Memory(bounds.blocks)
        self._text: dict[Vid, list[int]] = {}
        """What the model has said of each live request, its end included."""
        self.ends: dict[Vid, str] = {}
        """How requests ended, since that was last asked."""

    def copy(self) -> Self:
        """Return an independent loop in the same state."""
        shared = self._kept()
        for sequence in (*self._waiting.values(), *self._running.values()):
            shared.append(sequence.params)
            if sequence.ready:
                shared.append(sequence.row)  # nothing in it changes without penalties
        return clone(self, {id(each): each for each in shared})

    def _kept(self) -> list[object]:
        """Return what never changes."""
        return [self._model, self._options, self._corpora, self._bounds, _TABLE, _TABLE.token_bytes]

    # --- what is there -------------------------------------------------------

    @property
    def machine(self) -> SchedulerMachine:
        """Its machine."""
        return self._machine

    @property
    def running(self) -> frozenset[Vid]:
        """Those that hold blocks."""
        return frozenset(self._running)

    @property
    def sessions(self) -> Sessions:
        """Its sessions."""
        return self._sessions

    @property
    def turns(self) -> set[Vid]:
        """Turns that sessions take for those in flight."""
        return {vid for session in self._sessions._sessions.values() for vid in session.live}

    def prompt(self, vid: Vid) -> tuple[int, ...] | None:
        """Return the prompt of a live request; None of another."""
        sequence = self._waiting.get(vid) or self._running.get(vid)
        return None if sequence is None else tuple(sequence.known[: sequence.prompt_tokens].tolist())

    def text(self, vid: Vid) -> tuple[int, ...]:
        """Return what the model has said of a request that lives, or has just ended."""
        return tuple(self._text.get(vid, ()))

    def outcomes(self, vid: Vid) -> list[Outcome]:
        """Return what the model may say of a request in the next step."""
        sequence = self._waiting.get(vid) or self._running[vid]
        if sequence.hold is not None and self._chunk(sequence) < sequence.uncomputed:
            return [Outcome()]
        most = min(self._bounds.drafts, sequence.most - sequence.made - 1) if sequence.decoding else 0
        plain = [Outcome(right) for right in range(most + 1)]
        stopped = [Outcome(most, stop) for stop in range(1, most + 2)]
        return [*plain, *stopped, *([Outcome(0, 1)] if most else [])]

    def fits(self, vids: Iterable[Vid]) -> bool:
        """Return whether there are blocks for a step of some requests, whatever is cached."""
        return sum(map(self._needs, vids)) <= self._cache.available

    def _needs(self, vid: Vid) -> int:
        sequence = self._waiting.get(vid)
        if sequence is not None:
            return -(-sequence.length // BLOCK_SIZE)
        sequence = self._running[vid]
        assert sequence.hold is not None
        return max(
            0, -(-(sequence.computed + self._chunk(sequence)) // BLOCK_SIZE) - len(sequence.hold.blocks)
        )

    def _chunk(self, sequence: Sequence) -> int:
        return min(self._bounds.chunk, sequence.uncomputed)

    # --- what happens --------------------------------------------------------

    def take(self, command: Command) -> list[TokenRow]:
        """Apply a command between two batches; return what is said of requests."""
        told = Told(self._now)
        self._apply(command, self._now, told)
        return self._tell(told)

    def compute(self, vids: Iterable[Vid], outcomes: Iterable[Outcome]) -> list[TokenRow]:
        """Compute a step; return what is said of requests.

        Args:
            vids: what it takes along, begun if it was not.
            outcomes: what the model says of each.
        """
        told = Told(self._now)
        chosen = list(zip(vids, outcomes, strict=True))
        self._begin_all([vid for vid, _ in chosen], told)
        for vid, outcome in chosen:
            sequence = self._running[vid]
            if sequence.drafts is not None:
                sequence.drafts = guesses = Guesses()
                guesses.coming = [
                    EOS if place + 1 == outcome.stop <= outcome.right else RIGHT + sequence.made + place
                    for place in range(self._bounds.drafts)
                ]
        batch = self._take_along([vid for vid, _ in chosen])
        for share in batch:
            self._memory.write(*written(share))
        with torch.inference_mode():
            result = self._result(batch, [outcome for _, outcome in chosen])
            self._land(Flight(batch, result), told)
        return self._tell(told)

    def _begin_all(self, vids: Iterable[Vid], told: Told) -> None:
        """Begin those that are not."""
        for vid in vids:
            if vid in self._waiting and self._prepare(self._waiting[vid], told):
                self._begin(vid, self._now)

    def _take_along(self, vids: Iterable[Vid]) -> list[Share]:
        """Return the batch of some that have begun; it is launched now."""
        batch = [
            Share.of(self._running[vid], self._chunk(self._running[vid]), self._bounds.drafts, self._cache)
            for vid in vids
        ]
        self._charge(batch)
        self._machine.launch(share.sequence.vid for share in batch)
        return batch

    def retract(self, vid: Vid) -> None:
        """Take the blocks of a running request."""
        self._retract(vid)
        self._memory.forget(self.blocks.free())

    def flush(self) -> None:
        """Evict all that nobody uses."""
        self._cache.clear()
        self._memory.forget(self.blocks.free())

    def pass_time(self) -> None:
        """Let the time pass after which a session that nobody uses ends."""
        self._now += WAIT
        self._controls.settle(self._now, len(self._machine))

    def _tell(self, told: Told) -> list[TokenRow]:
        self._controls.take_answers()
        return self._note(told.rows)

    def _note(self, rows: list[TokenRow]) -> list[TokenRow]:
        """Note which blocks are free, and how requests ended; return what was said of them."""
        self._memory.forget(self.blocks.free())
        for row in rows:
            if row.reason is not None:
                self.ends[Vid(row.vid)] = row.reason.type
        return rows

    # --- what the model says -------------------------------------------------

    def _result(self, batch: Items[Share], outcomes: Items[Outcome]) -> StepResult:
        """Return what the model says of a batch, and note what the texts are from now on."""
        logits: list[NDArray[np.float32]] = []
        best: list[int] = []
        for share, outcome in zip(batch, outcomes, strict=True):
            lines = self._say(share, outcome)
            if share.best:
                best += [int(line.argmax()) for line in lines]
            else:
                logits += lines
        return StepResult(
            torch.from_numpy(np.array(logits, dtype=np.float32).reshape(-1, VOCAB)),
            torch.tensor(best, dtype=torch.int64),
        )

    def _say(self, share: Share, outcome: Outcome) -> list[NDArray[np.float32]]:
        """Return the logits of a share, and note what the text is from now on."""
        lines = [np.zeros(VOCAB, dtype=np.float32) for _ in range(share.wanted)]
        sequence, drafts = share.sequence, share.drafts
        said: list[int] = []
        right = min(outcome.right, len(drafts))
        for place in range(share.chosen):
            if place < right:
                token = drafts[place]
            elif place == right and outcome.stop == right + 1:
                token = EOS
            else:
                token = (OTHER if place < len(drafts) else RIGHT) + sequence.made + place
            lines[len(lines) - share.chosen + place][token] = 1.0
            said.append(token)
        if said:
            text = self._text.setdefault(sequence.vid, [])
            text += said[: right + 1]
            if EOS in text:
                del text[text.index(EOS) + 1 :]
        return lines

    # --- what must hold ------------------------------------------------------

    def check(self, rows: Iterable[TokenRow]) -> list[str]:
        """Return a sentence for each rule that is broken; requests that ended are forgotten then.

        Args:
            rows: what was said just now.
        """
        faults: list[str] = []
        for row in rows:
            vid, text = Vid(row.vid), self._text.get(Vid(row.vid), [])
            end = row.offset + len(row.token_ids)
            if list(row.token_ids) != text[row.offset : end]:
                told = list(row.token_ids)
                faults.append(f"4: vid {label(vid)} is told {told} from token {row.offset} on, of {text}")
            elif row.reason is not None and row.reason.type in {"stop", "length"} and end != len(text):
                faults.append(f"4: vid {label(vid)} ends after {end} tokens of {text}")
        holds = []
        for vid, sequence in self._running.items():
            assert sequence.hold is not None
            holds.append(sequence.hold)
            if not self._memory.holds(Read(sequence.known[: sequence.computed], sequence.hold.blocks)):
                faults.append(f"5: vid {label(vid)} goes on with what is not its own")
        for vid, sequence in self._waiting.items():
            if sequence.hold is not None:
                faults.append(f"5: vid {label(vid)} waits, and holds blocks")
        faults += self.blocks.check(holds)
        for node in self.blocks.explored.nodes():
            tokens = np.frombuffer(node.tokens, dtype=np.int32)
            if not self._memory.holds(Read(tokens, node.blocks)):
                faults.append("5: what is cached was never computed")
        for vid in self.ends:
            self._text.pop(vid, None)
        return faults

    def picture(self) -> tuple[object, ...]:
        """Return a hashable picture: equal for loops that behave alike from here on."""
        waiting = tuple((vid, _picture(sequence)) for vid, sequence in sorted(self._waiting.items()))
        running = tuple((vid, _picture(sequence)) for vid, sequence in sorted(self._running.items()))
        return (waiting, running), self.blocks.explored.picture(), self._now


def written(share: Share) -> tuple[list[int], int, NDArray[np.int32]]:
    """Return into which blocks a share writes, from which position on, and what."""
    sequence = share.sequence
    assert sequence.hold is not None
    first = sequence.computed
    tokens = sequence.tokens[first : first + share.tokens]
    return sequence.hold.blocks.copy(), first, tokens.copy()


def _picture(sequence: Sequence) -> tuple[object, ...]:
    hold = sequence.hold
    return (
        sequence.prompt_tokens,
        sequence.known.tobytes(),
        sequence.computed,
        len(sequence.unsaid),
        sequence.said,
        sequence.begun,
        None if hold is None else (len(hold.blocks), hold.shared),
    )
