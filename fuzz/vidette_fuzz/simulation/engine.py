"""`Generation`: one engine from its start to its end, its parts joined by links of an adversary.

The parts are the real ones: the front with its supervision, the scheduler's shell and its step loop, the
detokenizer's loop, the codec. What is not is the compute thread: `Steps` drives the step loop as it does, in
a task, and a step takes what time the adversary says. The model computes in a step, or while the scheduler
goes on, as a device does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

import anyio
import msgspec

from vidette._ring import Ring
from vidette.config import EngineConfig
from vidette.detokenizer.process import run_detokenizer
from vidette.errors import EngineBroken, Error
from vidette.models.interface import TokenTable
from vidette.models.toy import ToyModel
from vidette.models.toy_tokenizer import ToyTokenizer, toy_token_table
from vidette.scheduler.handlers import Answering
from vidette.scheduler.options import LoopOptions
from vidette.scheduler.process import Lives, hear_front
from vidette.scheduler.sequence import Sequence
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette_fuzz.overlapping import Overlapping
from vidette_fuzz.simulation.adversary import Adversary, AdverseChannel, Tapped
from vidette_fuzz.simulation.guesses import Guesses
from vidette_fuzz.simulation.observed import SimulatedDetokenizer, SimulatedLoop, SimulatedManager
from vidette_fuzz.simulation.refinement import Refinement
from vidette_fuzz.simulation.steps import Steps
from vidette_fuzz.simulation.undisturbed import Undisturbed
from vidette_protocol.codec import Codec, front_codec
from vidette_protocol.ids import Vid, label
from vidette_protocol.messages import (
    BatchTokenizedGenerateReqInput,
    Message,
    Ready,
    TokenizedGenerateReqInput,
)
from vidette_protocol.messages.catalogue import (
    DETOKENIZER_TO_FRONT,
    DETOKENIZER_TO_SCHEDULER,
    FRONT_TO_DETOKENIZER,
    SCHEDULER_TO_DETOKENIZER,
)
from vidette_protocol.messages.columns import pack_i32
from vidette_protocol.trace import Trace

T = TypeVar("T")

TOLD_SECONDS = 0.25
"""Within so many seconds of a death, everybody who waits is told."""
STOP_SECONDS = 3600.0
"""A stop takes as long as the links do; one that takes longer does not end by itself."""
QUIET_SECONDS = 3600.0
"""Within so many seconds of the last request nothing of it is left."""


class Build(NamedTuple):
    """Of which classes an engine is made; a seeded bug takes the place of one.

    Args:
        manager: the front.
        loop: the scheduler's core.
        lives: the scheduler's lifetime tasks.
        detokenizer: the detokenizer.
    """

    manager: type[SimulatedManager] = SimulatedManager
    loop: type[SimulatedLoop] = SimulatedLoop
    lives: type[Lives] = Lives
    detokenizer: type[SimulatedDetokenizer] = SimulatedDetokenizer


class Stock:
    """What takes long to make and is the same for every history."""

    def __init__(self) -> None:
        self.undisturbed = Undisturbed()
        self.model = ToyModel()
        self.table: TokenTable = toy_token_table()
        self.tokenizer = ToyTokenizer()
        self.front_codec = front_codec()
        self.scheduler_codec = self.front_codec.mirrored()
        self.step_codec = Codec(sends=SCHEDULER_TO_DETOKENIZER, receives=DETOKENIZER_TO_SCHEDULER)
        self.row_codec = Codec(sends=FRONT_TO_DETOKENIZER, receives=SCHEDULER_TO_DETOKENIZER)
        self.text_codec = Codec(sends=FRONT_TO_DETOKENIZER, receives=DETOKENIZER_TO_FRONT)


SLICE: Final = 0.001
"""Seconds in which whatever is due at once has happened."""


class Fate(NamedTuple):
    """What becomes of an engine.

    Args:
        end: a role dies, or the engine is closed with whatever lives, or it serves until nobody asks.
        after: seconds from its start on.
    """

    end: Literal["scheduler", "detokenizer", "both", "close", "quiet"]
    after: float = 0.0


class Died(Exception):  # noqa: N818  what happened
    """A role was killed."""


class Generation:
    """One engine.

    Args:
        stock: shared by all.
        build: what it is made of.
        adversary: in whose hands it is.
    """

    def __init__(self, stock: Stock, build: Build, adversary: Adversary) -> None:
        self.stock = stock
        self.journal = adversary.journal
        self.manager: SimulatedManager | None = None
        """Set as soon as it serves."""
        self.opened = anyio.Event()
        self.killed_at: float | None = None
        self.closing = False
        self.sent: dict[Vid, TokenizedGenerateReqInput] = {}
        """Requests as they came to the scheduler."""
        self._build = build
        self._adversary = adversary
        self._trace = Trace()
        self._victims: frozenset[str] = frozenset()
        self._loop: SimulatedLoop | None = None
        self._detokenizers: list[SimulatedDetokenizer] = []
        self._lives: Lives | None = None
        random = adversary.random
        step_tokens = random.choice([4, 16, 64])
        self._config = EngineConfig(
            model="toy",
            detokenizers=random.choice([1, 1, 2]),
            kv_tokens=16 * random.choice([6, 8, 16, 64]),
            step_tokens=step_tokens,
            max_running=min(step_tokens, random.choice([1, 4, 16])),
            max_requests=random.choice([3, 8, 64]),
        )
        self._options = LoopOptions(
            num_blocks=self._config.num_blocks,
            step_tokens=step_tokens,
            max_running=self._config.max_running,
            policy=random.choice(["fcfs", "lpm", "lof"]),
            preempt_gap=random.choice([None, 1]),
            host_blocks=random.choice([0, 0, 8]),
            draft_tokens=random.choice([0, 4]),
            detokenizers=self._config.detokenizers,
        )
        self._tokenising = random.choice([0.001, 0.1, 5.0])
        self._high_water = random.choice([64, 1024, 1 << 20])
        self._overlaps = random.choice([False, True])
        self._watch = Refinement(self.journal, detokenizers=self._config.detokenizers)
        roles = self._config.detokenizer_roles
        self._scopes = {role: anyio.CancelScope() for role in ("scheduler", *roles)}
        self._front_ends = {role: AdverseChannel.pair("front", role, adversary) for role in self._scopes}
        self._steps_ends = {role: AdverseChannel.pair("scheduler", role, adversary) for role in roles}

    @property
    def room(self) -> int:
        """Most tokens of prompt and output together."""
        return self._config.kv_tokens

    @property
    def over(self) -> bool:
        """Whether whoever waits for it is told so, or soon will be."""
        return self.closing or self.killed_at is not None

    async def run(self, fate: Fate, idle: anyio.Event) -> None:
        """Start it, serve, and end it.

        Args:
            fate: how it ends, if it does not before.
            idle: set when nobody will ask any more.
        """
        texts = {
            role: Tapped(self._front_ends[role][0], self._see_text, before=self._adversary.keep_busy)
            for role in self._steps_ends
        }
        ring = Ring(self._front_ends["scheduler"][0], texts, codec=self.stock.front_codec)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                ring.run_role, "scheduler", partial(self._live, "scheduler", self._run_scheduler)
            )
            for role in self._steps_ends:
                run = partial(self._run_detokenizer, role)
                tasks.start_soon(ring.run_role, role, partial(self._live, role, run))
            tasks.start_soon(self._bury, ring)
            if fate.end not in ("close", "quiet"):
                tasks.start_soon(self._kill, fate)
            try:
                ready = await ring.open()
            except EngineBroken as error:
                self._judge_breakdown(error)
            else:
                await self._serve(ring, ready, fate, idle, tasks)
            self.closing = True
            self.opened.set()
            if self.manager is not None:
                self._watch.stop()
                self.manager.shutdown()
            began = anyio.current_time()
            await ring.stop(STOP_SECONDS)
            if anyio.current_time() >= began + STOP_SECONDS:
                self.journal.violate(f"8: a role does not stop within {STOP_SECONDS} s")
            tasks.cancel_scope.cancel()
        ring.close()
        if self.killed_at is None:
            self._check_tables()

    async def _serve(
        self, ring: Ring, ready: Ready, fate: Fate, idle: anyio.Event, tasks: anyio.abc.TaskGroup
    ) -> None:
        self.manager = manager = self._build.manager(
            ring.scheduler,
            ring.detokenizers,
            watch=self._watch,
            tokenizer=self.stock.tokenizer,
            info=self.stock.model.info,
            ready=ready,
            offload=self._offload,
            max_requests=self._config.max_requests,
            tokenise_timeout=3600.0,  # an adversary is slower than any prompt is long
        )
        tasks.start_soon(self._tell_broken, ring, manager)
        tasks.start_soon(ring.hear, "scheduler", manager.hear_scheduler)
        for shard, link in enumerate(ring.detokenizers):
            tasks.start_soon(ring.hear, link.peer, partial(manager.hear_detokenizer, shard))
        self.journal.note("an engine serves")
        self.opened.set()
        with anyio.move_on_after(fate.after if fate.end == "close" else None) as scope:
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(_cancel_when, ring.ended, waiting.cancel_scope)
                await idle.wait()
                waiting.cancel_scope.cancel()
        if scope.cancelled_caught:
            self.journal.harm("close", "the engine is closed")
        elif ring.breakdown is None:
            await self._check_quiet(manager, ring)

    async def _offload(self, function: Callable[[], T], /) -> T:
        await anyio.sleep(self._adversary.while_(self._tokenising))
        return function()

    # --- deaths ------------------------------------------------------------------

    async def _kill(self, fate: Fate) -> None:
        await anyio.sleep(fate.after)
        if self.closing:
            return
        self.killed_at = anyio.current_time()
        # Of several detokenizers it is the last.
        ends = {"both": [*self._scopes], "detokenizer": [*self._steps_ends][-1:]}
        self._victims = frozenset(ends.get(fate.end, [fate.end]))
        self.journal.harm("kill", f"{fate.end} dies")
        for role in sorted(self._victims):
            self._scopes[role].cancel()
        self._watch.died()

    async def _live(self, role: str, run: Callable[[], Any]) -> None:
        with self._scopes[role]:
            await run()
        if self._scopes[role].cancel_called:
            raise Died(f"{role} was killed")

    async def _bury(self, ring: Ring) -> None:
        """Kill who is left of a replica, some time after the first of it has died."""
        await ring.ended.wait()
        if ring.breakdown is not None:
            await anyio.sleep(self._adversary.while_(0.02))
            for scope in self._scopes.values():
                scope.cancel()

    async def _tell_broken(self, ring: Ring, manager: SimulatedManager) -> None:
        await ring.ended.wait()
        if ring.breakdown is not None:
            self._judge_breakdown(ring.breakdown.error())
            manager.end(ring.breakdown.error)

    def _judge_breakdown(self, error: Error) -> None:
        if self.killed_at is None:
            self.killed_at = anyio.current_time()
            self.journal.violate(f"the engine breaks by itself: {error} ({error.__cause__!r})")

    # --- the roles ---------------------------------------------------------------

    async def _run_scheduler(self) -> None:
        stock, config = self.stock, self._config
        front, below = self._front_ends["scheduler"][1], [ours for ours, _ in self._steps_ends.values()]
        up = Link(Tapped(front, self._see_request), stock.scheduler_codec, role="scheduler", peer="front")
        down = [
            Link(channel, stock.step_codec, role="scheduler", peer=peer)
            for peer, channel in zip(self._steps_ends, below, strict=True)
        ]
        try:
            for link in (up, *down):
                link.post_hello()
            for link in (up, *down):
                await link.receive_hello()
            self._loop = loop = self._build.loop(
                Overlapping(stock.model) if self._overlaps else stock.model,
                self._options,
                table=stock.table,
                watch=self._watch,
                guess=self._guess,
            )
            total = loop.max_total_tokens
            up.post(Ready(role="scheduler", max_total_tokens=total, num_blocks=config.num_blocks))
            steps = Steps(loop, up, down, below, high_water=self._high_water, adversary=self._adversary)
            async with anyio.create_task_group() as tasks:
                lives = self._lives = self._build.lives(steps, tasks)
                tasks.start_soon(steps.run, lives, tasks)
                if await hear_front(up, steps, lives, config, Answering({}, up, tasks)):
                    await steps.returned.wait()
                tasks.cancel_scope.cancel()
        except LinkClosed:
            pass
        finally:
            for channel in (front, *below):
                channel.close()

    def _guess(self, sequence: Sequence) -> Guesses:
        prompt = pack_i32(sequence.tokens[: sequence.prompt_tokens])
        alone = msgspec.structs.replace(self.sent[sequence.vid], input_ids=prompt, session_params=None)
        answer = self.stock.undisturbed.answer(alone)
        return Guesses(answer.token_ids, sequence.made, self._adversary.random)

    async def _run_detokenizer(self, role: str) -> None:
        above, front = self._steps_ends[role][1], self._front_ends[role][1]

        def make(table: TokenTable) -> SimulatedDetokenizer:
            detokenizer = self._build.detokenizer(table, self._watch)
            self._detokenizers.append(detokenizer)
            return detokenizer

        try:
            tapped = Tapped(above, self._see_row)
            await run_detokenizer(tapped, front, table=self.stock.table, role=role, make=make)
        finally:
            above.close()
            front.close()

    # --- what passes ---------------------------------------------------------------

    def _see_request(self, frame: bytes | bytearray) -> None:
        message = self.stock.scheduler_codec.decode(frame)
        match message:
            case TokenizedGenerateReqInput():
                self.sent[Vid(message.vid)] = message
            case BatchTokenizedGenerateReqInput():
                self.sent.update({Vid(request.vid): request for request in message})
        self._see(message)

    def _see_row(self, frame: bytes | bytearray) -> None:
        self._see(self.stock.row_codec.decode(frame))

    def _see_text(self, frame: bytes | bytearray) -> None:
        self._see(self.stock.text_codec.decode(frame))

    def _see(self, message: Message) -> None:
        fault = self._trace.see(message)
        if fault is not None:
            self.journal.violate(f"trace: {fault}")

    # --- the end -------------------------------------------------------------------

    async def _check_quiet(self, manager: SimulatedManager, ring: Ring) -> None:
        """Wait until nothing lives, and check that nothing is held then."""
        with anyio.move_on_after(QUIET_SECONDS) as scope:
            try:
                await manager.wait_quiet()
                await manager.heartbeat()
                # An answer that nobody waits for takes another way; in simulated time polling costs nothing.
                while manager.held()["questions"]:  # noqa: ASYNC110
                    await anyio.sleep(1)
            except EngineBroken:
                return
        if ring.breakdown is not None:
            return
        if scope.cancelled_caught:
            self.journal.violate(f"8: {len(manager)} requests live {QUIET_SECONDS} s after the last was left")
            return
        self._watch.quiet()
        self.check_front()
        # A lifetime task hears of its end beside the ring: the answer may be round before its turn has come.
        await anyio.sleep(SLICE)
        self._check_tables()
        if self._trace.open:
            self.journal.violate(f"1: no end has come of vids {[*map(label, sorted(self._trace.open))]}")
        said = manager.scheduler_ledger
        if said.live or said.waiting or said.blocks_used or said.tombstones or manager.detokenizer_open:
            self.journal.violate(
                f"7: the front is told {said}, {manager.detokenizer_open} at the detokenizers"
            )

    def check_front(self) -> None:
        """Check that the front holds nothing; when every caller has left."""
        if self.manager is not None:
            self._check_empty(self.manager.held())

    def _check_tables(self) -> None:
        self._check_empty({"lifetime tasks": 0 if self._lives is None else len(self._lives)})
        for part in (self._loop, *self._detokenizers):
            self._check_empty({} if part is None else part.held())

    def _check_empty(self, held: dict[str, int]) -> None:
        left = {name: count for name, count in held.items() if count}
        if left:
            self.journal.violate(f"7: something is still held: {left}")


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
