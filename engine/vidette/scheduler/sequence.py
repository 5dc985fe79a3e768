"""`Sequence`: one request as it is computed, its tokens, and how many of them are in the pool."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE, ModelInfo, TokenTable
from vidette.scheduler.drafts import Drafts, Texts
from vidette.scheduler.kv_cache import Hold, NextBlock
from vidette.scheduler.logprobs import Found, PromptLogprobs, Wanted, write_columns
from vidette.scheduler.queue import MAX_PRIORITY, Ticket
from vidette.scheduler.radix import Namespace
from vidette.scheduler.sampling import SamplingRow
from vidette.scheduler.stops import StopResult, Stops
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import SchedulerMachine
from vidette_protocol.messages import (
    FinishReason,
    SamplingParams,
    Served,
    TokenizedGenerateReqInput,
    TokenRow,
)

GROWTH: Final = 64
"""Output tokens for which room is made at least."""
INDEXED: Final = 8192
"""Tokens of a prompt, from its end, in which drafts are looked up: an index takes some 400 bytes for each."""


class Sequence:
    """One request. One that waits holds little more than its prompt; `prepare()` makes it ready to run.

    Args:
        request: as the front sent it.
        arrival: when it came, on the clock of the step loop.
        wanted: which log probabilities it wants; None: none.

    Attributes:
        tokens: the prompt and what was made, then drafts; only the first `length` are known.
        length: how many tokens are known.
        last: the last of them.
        computed: how many of them have keys and values in the pool.
        charged: how many of them were counted as served, or made by itself.
        made: output tokens.
        most: how many they may be.
        begun: whether it has run.
        found: tokens of the prompt that the cache had when it first ran.
        found_in_host: those of them that came back from the second tier.
        retractions: how often its blocks were taken for others.
        waited: seconds until it was begun.
        timed: whether it is to be said when it was begun, and when its tokens were made.
        untold: whether that is to be said for the first time.
        begun_at: when it was begun, if it is timed.
        served: what was said of this last.
        hold: what it holds of the pool; None while it waits.
        next_block: while its prefill lasts: the whole block that it computes next.
        row: what it wants of its tokens, once it is ready to run.
        stops: what ends it, likewise.
        wanted: as given.
        prompt_logprobs: those of its prompt; None: none are wanted, or they were said.
        said: whether something was said of it.
        interval: how many output tokens are said at once.
        unsaid: output tokens that were not said yet.
        unsaid_logprobs: of these.
        spoiled: whether its model made nonsense, so that what it computed is of no use to others.
        drafts: what it may say next; None: it is not speculated on.
    """

    __slots__ = (
        "arrival",
        "begun",
        "begun_at",
        "charged",
        "computed",
        "drafts",
        "found",
        "found_in_host",
        "hold",
        "interval",
        "last",
        "length",
        "made",
        "most",
        "next_block",
        "params",
        "priority",
        "prompt_logprobs",
        "prompt_tokens",
        "ready",
        "retractions",
        "row",
        "said",
        "served",
        "space",
        "spoiled",
        "stops",
        "tenant",
        "timed",
        "tokens",
        "unsaid",
        "unsaid_logprobs",
        "untold",
        "vid",
        "waited",
        "wanted",
    )

    row: SamplingRow
    stops: Stops

    def __init__(
        self, request: TokenizedGenerateReqInput, arrival: float, wanted: Wanted | None = None
    ) -> None:
        params: SamplingParams = request.sampling_params
        assert params.max_new_tokens is not None, "decoding has checked that the front set it"
        prompt: NDArray[np.int32] = np.frombuffer(request.input_ids, dtype=np.int32)
        self.vid = Vid(request.vid)
        self.params = params
        self.priority = min(max(request.priority, -MAX_PRIORITY), MAX_PRIORITY)
        self.tenant = request.routing_key
        self.space = Namespace(request.extra_key, request.cache_salt)
        self.arrival = arrival
        interval = params.stream_interval or 1
        self.interval = interval if wanted is None else min(interval, wanted.interval)
        self.most = params.max_new_tokens
        self.wanted = wanted
        self.prompt_logprobs = (
            None if wanted is None or wanted.start >= len(prompt) else PromptLogprobs(prompt, wanted)
        )
        self.drafts: Drafts | None = None
        self.ready = self.begun = self.said = self.spoiled = False
        self.prompt_tokens = self.length = len(prompt)
        self.last = int(prompt[-1]) if len(prompt) else 0
        self.tokens = prompt
        self.made = self.computed = self.charged = 0
        self.found = self.found_in_host = self.retractions = 0
        self.waited = self.begun_at = 0.0
        self.timed = self.untold = request.timed
        self.served = Served()
        self._append(request.resumed_ids)
        self.hold: Hold | None = None
        self.next_block: NextBlock | None = None
        self.unsaid: list[int] = []
        self.unsaid_logprobs: list[Found] = []

    def begin(self, now: float) -> None:
        """Note that it runs for the first time."""
        self.begun = True
        self.waited = now - self.arrival
        if self.timed:
            self.begun_at = now

    def prepare(self, info: ModelInfo, table: TokenTable) -> None:
        """Make it ready to run, and to say what it has made already; nothing if that was done.

        Args:
            info: of the model.
            table: the bytes of each token.
        """
        if self.ready:
            return
        self.ready = True
        eos, prompt = info.eos_token_ids, self.tokens[: self.prompt_tokens]
        self.stops = Stops.of(self.params, eos, table, prompt.tolist())
        self.row = SamplingRow(
            self.params,
            prompt,
            eos_ids=eos,
            vocab_size=info.vocab_size,
            output_ids=self.tokens[self.prompt_tokens : self.length].tolist(),
        )

    # --- for the policy --------------------------------------------------------

    @property
    def uncomputed(self) -> int:
        """Tokens whose keys and values are not in the pool; 1 of one that decodes."""
        return self.length - self.computed

    @property
    def decoding(self) -> bool:
        """Whether the next token it computes is one that it has made."""
        return self.uncomputed == 1 and self.made > 0

    @property
    def room(self) -> int:
        """Tokens that still fit into the blocks it holds."""
        return (0 if self.hold is None else len(self.hold.blocks)) * BLOCK_SIZE - self.computed

    @property
    def held(self) -> int:
        """Blocks that others could have without it."""
        return 0 if self.hold is None else self.hold.alone

    @property
    def ticket(self) -> Ticket:
        """What the queue has to know of it."""
        return Ticket(self.vid, self.priority, self.arrival, self.tenant, self.prompt_tokens, self.most)

    # --- tokens ----------------------------------------------------------------

    @property
    def known(self) -> NDArray[np.int32]:
        """The tokens that are known."""
        return self.tokens[: self.length]

    @property
    def output(self) -> NDArray[np.int32]:
        """The output tokens made so far."""
        return self.tokens[self.prompt_tokens : self.length]

    @property
    def findable(self) -> int:
        """How many of its tokens may come from the cache: not those whose logits are wanted."""
        last = self.length - 1
        return last if self.prompt_logprobs is None else min(last, self.prompt_logprobs.first)

    def logits_wanted(self, count: int) -> int:
        """Return how many logits are wanted if so many tokens are computed, of the last of them."""
        end = self.computed + count
        first = end - 1 if end == self.length else end
        if self.prompt_logprobs is not None:
            needed = self.prompt_logprobs.needed(self.computed, count)
            if needed:
                first = needed.start
        return end - first

    @property
    def takes_best(self) -> bool:
        """Whether of its next tokens nothing is wanted but which are the most probable ones."""
        return self.wanted is None and self.row.takes_best(self.made)

    def charge(self, count: int) -> int:
        """Return how many of the next tokens to be computed were not charged before; now they are."""
        before = max(self.charged, self.computed)
        self.charged = max(before, self.computed + count)
        return self.charged - before

    def speculate(self, most: int, corpora: Texts) -> None:
        """Have what comes next be guessed; it is not where a token changes the chances of the next one."""
        if not self.row.edited:
            self.drafts = Drafts(self.known[-INDEXED:].tolist(), most=most, corpora=corpora)

    def draft(self, most: int) -> list[int]:
        """Write what may come next behind what is known; return it."""
        if self.drafts is None:
            return []
        drafts = self.drafts.propose(min(most, self.most - self.made - 1))
        self._write(drafts)
        return drafts

    def take(self, tokens: Items[int]) -> StopResult | None:
        """Take the next output tokens, as far as its end; return what they led to, if that is anything."""
        result = self.stops.push(tokens)
        taken = tokens if result is None else tokens[: result.taken]
        if self.row.edited:
            for token in taken:
                self.row.push(token)
        if self.drafts is not None:
            self.drafts.extend(taken)
        self._append(taken)
        self.computed = self.length - 1  # a draft that is right was computed along
        self.unsaid += taken
        return result

    @property
    def due(self) -> bool:
        """Whether what is unsaid is to be said now: the first token, and from there on each interval."""
        return not self.said or len(self.unsaid) >= self.interval

    def say(self, offset: int, reason: FinishReason | None, held: int) -> TokenRow:
        """Return what is unsaid, as a row from this offset on.

        Args:
            offset: of the first of these tokens in the output.
            reason: how the request ends; None: it goes on.
            held: bytes at the end of the text that are not to be shown.
        """
        logprobs = None
        if self.wanted is not None:
            logprobs = write_columns(self.wanted, self.unsaid_logprobs, self.prompt_logprobs)
        spec = None if self.drafts is None or reason is None else self.drafts.metrics()
        mode = 0 if self.said else self.stops.mode
        served = None if self.said and reason is None and not self.untold else self._served()
        row = TokenRow(self.vid, offset, tuple(self.unsaid), reason, logprobs, spec, "", held, mode, served)
        self.unsaid.clear()
        self.unsaid_logprobs.clear()
        self.prompt_logprobs = None
        self.said = True
        return row

    def say_rest(self, machine: SchedulerMachine) -> TokenRow:
        """Return what is unsaid of one that is about to be ended: as if it came with a batch of its own."""
        machine.launch([self.vid])
        row = machine.land(self.vid, len(self.unsaid), end=False)
        assert row is not None, "something is unsaid"
        return self.say(row.offset, None, 0)

    def _served(self) -> Served | None:
        """Return how it was served, if something has changed since that was said, or times are to be told."""
        now = Served(self.found, self.found_in_host, self.retractions, self.waited, self.begun_at)
        if self.served == now and not self.timed:
            return None
        self.untold = False
        self.served = now
        return now

    def _append(self, tokens: Items[int] | memoryview) -> None:
        count = len(tokens)
        if count:
            self._write(tokens)
            self.length += count
            self.made += count
            self.last = tokens[-1]

    def _write(self, tokens: Items[int] | memoryview) -> None:
        count = len(tokens)
        if not count:
            return
        end = self.length + count
        if end > len(self.tokens):
            more = np.empty(max(len(self.tokens), count, GROWTH), dtype=np.int32)
            self.tokens = np.concatenate((self.tokens, more))
        if count == 1:  # nearly always, and a slice costs several times as much
            self.tokens[self.length] = tokens[0]
        else:
            self.tokens[self.length : end] = tokens
