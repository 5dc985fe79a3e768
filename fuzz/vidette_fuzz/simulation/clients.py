"""`Client`: asks, reads, leaves at any moment; and checks whatever it hears."""

from __future__ import annotations

import math
from random import Random
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

import anyio

from vidette.errors import (
    DuplicateRequest,
    EngineBroken,
    EngineClosed,
    Error,
    Overloaded,
    RequestError,
    RequestReplaced,
)
from vidette.front.stream import Stream
from vidette.scheduler.endings import DEADLINE_GRACE, EXPIRED
from vidette_fuzz.simulation.conversations import Conversation
from vidette_fuzz.simulation.engine import TOLD_SECONDS, Generation
from vidette_fuzz.simulation.journal import Journal
from vidette_fuzz.simulation.observed import SimulatedManager
from vidette_protocol.ids import label
from vidette_protocol.messages import (
    FinishReason,
    GenerateReqInput,
    GetInternalStateReq,
    SamplingParams,
)

Kind = Literal["read", "cancel", "exit", "raise", "deadline", "group", "session", "heartbeat", "state"]
KINDS: Final[tuple[Kind, ...]] = (
    "read",
    "cancel",
    "exit",
    "raise",
    "deadline",
    "group",
    "session",
    "heartbeat",
    "state",
)
WEIGHTS: Final = (8, 8, 4, 2, 3, 3, 4, 1, 1)
WATCHING: Final = (0, 0, 0, 0, 0, 0, 0, 4, 1)
"""Of a client that asks after the engine only."""
COMMON: Final = ("common-1", "common-10")
"""Slots that several clients use; one name begins as the other."""
_CANCELLED: Final = frozenset({"cancel", "group", "session", "state"})
_INSTANT: Final = 1e-6


class Plan(NamedTuple):
    """What a client does next.

    Args:
        kind: "cancel": its scope ends at a moment. "exit": it leaves after some deltas. "raise": likewise,
            by an error. "deadline": it has the scheduler end the request after a time, and waits for that.
            "group": as cancel, with several answers. "session": as cancel, with several turns. "heartbeat",
            "state": it asks after the engine.
        rid: its slot; others may use it as well.
        replace: whether it takes the slot if somebody holds it.
        after: seconds, or deltas.
        slow: mean seconds between two deltas that it takes.
    """

    kind: Kind
    rid: str
    replace: bool
    after: float
    slow: float


class Habits(NamedTuple):
    """What the clients of one history have in common.

    Args:
        thinking: mean seconds between two requests of a client.
        sharing: share of requests whose rid others use as well.
        replacing: share of requests that take the place of whoever has their rid.
    """

    thinking: float
    sharing: float
    replacing: float

    @classmethod
    def draw(cls, random: Random) -> Self:
        """Draw some."""
        return cls(
            random.choice([0.02, 0.5, 5.0, 40.0]), random.choice([0.1, 0.9]), random.choice([0.1, 0.7])
        )


class Left(Exception):  # noqa: N818
    """Raised by a client in its own block, to leave it."""


class Place(Protocol):
    """Where engines are found."""

    journal: Journal

    async def wait_engine(self) -> Generation | None:
        """Wait until one serves; None: none will any more."""
        ...


class Client:
    """Asks one thing after the other.

    Args:
        number: to tell it from others.
        random: says what it does.
        place: where it finds engines.
        habits: how it goes about it.
        requests: how often it asks.
    """

    def __init__(self, number: int, random: Random, place: Place, habits: Habits, requests: int) -> None:
        self._number = number
        self._random = random
        self._place = place
        self._journal = place.journal
        self._requests = requests
        self._weights = WATCHING if random.random() < 0.1 else WEIGHTS
        self._habits = habits
        self.asked = 0
        """How often it has asked."""
        self._sent = False

    async def run(self) -> None:
        """Ask, until it has asked often enough or there is nobody to ask."""
        for _ in range(self._requests):
            await anyio.sleep(self._random.expovariate(1 / self._habits.thinking))
            generation = await self._place.wait_engine()
            if generation is None:
                return
            self.asked += 1
            await self._ask(generation, self._plan())

    def _plan(self) -> Plan:
        random = self._random
        (kind,) = random.choices(KINDS, self._weights)
        after = random.choice([0.0, random.uniform(0, 0.1), random.expovariate(1.0), random.uniform(0, 60)])
        if kind in ("exit", "raise"):
            after = random.randrange(6)
        if kind == "session":
            after = random.choice([math.inf, math.inf, after])
        own = f"slot-{self._number}"
        return Plan(
            kind,
            rid=random.choice(COMMON) if random.random() < self._habits.sharing else own,
            replace=random.random() < self._habits.replacing,
            after=after,
            slow=random.choice([0.0, 0.0, 0.0, 0.5, 10.0]),
        )

    async def _ask(self, generation: Generation, plan: Plan) -> None:
        """Do what is planned; whatever comes of it has to be explained."""
        assert generation.manager is not None
        self._journal.note(f"client {self._number}: {plan.kind} {plan.rid}, {plan.after:.4f}")
        began = anyio.current_time()
        self._sent = plan.kind in ("heartbeat", "state")
        deadline = began + plan.after if plan.kind in _CANCELLED else math.inf
        try:
            with anyio.CancelScope(deadline=deadline) as scope:
                match plan.kind:
                    case "heartbeat":
                        await generation.manager.heartbeat()
                    case "state":
                        await self._ask_state(generation.manager)
                    case "group":
                        await self._ask_group(generation, plan)
                    case "session":
                        name = f"session-{self._number}-{self.asked}"
                        await Conversation(name, self._random, generation, self._journal).run()
                    case _:
                        await self._request(generation, plan)
        except (Left, TimeoutError):
            pass
        except Error as error:
            self._judge(error, generation, plan, began)
        except Exception as error:  # noqa: BLE001  whatever else comes out of the engine is a find
            self._journal.violate(f"client {self._number} gets {type(error).__name__}: {error}")
        else:
            if scope.cancelled_caught:
                self._journal.harm("cancel", f"client {self._number} was cancelled")
                if anyio.current_time() > max(deadline, began) + _INSTANT:
                    self._journal.violate(f"a block is left {anyio.current_time() - deadline} s too late")

    def _judge(self, error: Error, generation: Generation, plan: Plan, began: float) -> None:
        """Check that an error has a reason."""
        now = anyio.current_time()
        match error:
            case EngineBroken():
                killed = generation.killed_at
                fair = killed is not None
                # Who is being tokenised still finds out when that is done.
                waits = self._sent and not plan.slow and plan.kind != "session"
                if killed is not None and waits and now > max(killed, began) + TOLD_SECONDS:
                    self._journal.violate(f"9: a caller is told {now - killed:.3f} s after the death")
            case EngineClosed():
                fair = generation.closing
            case DuplicateRequest():
                fair = not plan.replace or plan.kind == "group"
            case RequestReplaced():
                fair = plan.kind not in {"heartbeat", "state"}
            case Overloaded():
                fair = True
            case RequestError():
                expired = str(EXPIRED.message) in str(error)
                fair = plan.kind == "deadline" and expired and now >= began + plan.after + DEADLINE_GRACE
            case _:
                fair = False
        self._journal.note(f"client {self._number} is told {type(error).__name__}")
        if not fair:
            self._journal.violate(f"client {self._number} is told {type(error).__name__}: {error}")

    # --- what it asks --------------------------------------------------------------

    async def _ask_state(self, manager: SimulatedManager) -> None:
        output = await manager.calls.control(GetInternalStateReq(id=0))
        if not output.success:
            self._journal.violate(f"the scheduler does not tell its state: {output.message}")

    async def _request(self, generation: Generation, plan: Plan) -> None:
        assert generation.manager is not None
        request = self._prompt(plan.rid)
        seconds = plan.after if plan.kind in ("cancel", "deadline") else None
        async with generation.manager.generate(request, replace=plan.replace, deadline_s=seconds) as stream:
            self._sent = True
            try:
                await self._read(generation, plan, stream)
            finally:
                left = "ends" if stream.done else "leaves"
                self._journal.note(f"client {self._number} {left} with {len(stream.token_ids)} tokens")
        stream.listen(self._hear_late)

    async def _read(self, generation: Generation, plan: Plan, stream: Stream) -> None:
        """Read a stream to where the client leaves it, and check every delta."""
        ids: tuple[int, ...] = ()
        text = ""
        count = 0
        while True:
            if plan.kind in ("exit", "raise") and count >= plan.after:
                self._journal.harm("leave")
                if plan.kind == "raise":
                    raise Left
                return
            delta = await anext(stream)
            count += 1
            ids, text = ids + delta.token_ids, text + delta.text
            self._check(generation, stream, ids, text, delta.finish_reason)
            if delta.finish_reason is not None:
                if await anext(stream, None) is not None:
                    self._journal.violate(f"1: {stream.rid} goes on after its end")
                return
            if plan.slow:
                self._journal.harm("slow_reader")
                await anyio.sleep(self._random.expovariate(1 / plan.slow))

    async def _ask_group(self, generation: Generation, plan: Plan) -> None:
        assert generation.manager is not None
        request = self._prompt(plan.rid, answers=self._random.choice([2, 3]))
        async with generation.manager.generate_group(request) as group:
            self._sent = True
            while places := await group.wait_ready():
                for place in places:
                    stream = group.streams[place]
                    delta = await anext(stream)
                    self._check(generation, stream, stream.token_ids, stream.text, delta.finish_reason)
        for stream in group.streams:
            stream.listen(self._hear_late)

    def _prompt(self, rid: str, answers: int = 1) -> GenerateReqInput:
        """Draw one of a few requests, so that answers are known already."""
        random = Random(self._random.randrange(48))
        length = random.choice([1, 3, 20, 50])
        text = "".join(random.choices("abcdefgh ijklm äöü 日本 🦊.", k=length))[:length]
        params = SamplingParams(
            max_new_tokens=random.choice([1, 2, 5, 24]),
            temperature=random.choice([0.0, 1.0]),
            ignore_eos=random.random() < 0.5,
            sampling_seed=random.randrange(1000),
            stop=random.choice([None, None, ["e", "th"], [" "]]),
            stream_interval=random.choice([None, None, 2, 5]),
            frequency_penalty=random.choice([0.0, 0.0, 0.5]),
            n=answers,
        )
        fairness: dict[str, Any] = {
            "priority": random.choice([None, None, 1, 5]),
            "routing_key": random.choice([None, "a", "b"]),
            "cache_salt": random.choice([None, None, "s"]),
        }
        if random.random() < 0.5:
            ids = [random.randrange(256) for _ in range(length)]
            return GenerateReqInput(rid=rid, input_ids=ids, sampling_params=params, **fairness)
        return GenerateReqInput(rid=rid, text=text, sampling_params=params, **fairness)

    # --- what it checks ------------------------------------------------------------

    def _check(
        self,
        generation: Generation,
        stream: Stream,
        ids: tuple[int, ...],
        text: str,
        reason: FinishReason | None,
    ) -> None:
        """Compare what has come so far with what comes when nobody disturbs it."""
        expected = generation.stock.undisturbed.answer(generation.sent[stream.vid])
        if reason is not None:
            if (ids, text, reason) != expected and reason != EXPIRED:
                self._journal.violate(
                    f"4: vid {label(stream.vid)} is answered {text!r} ({reason}), undisturbed {expected}"
                )
        elif ids != expected.token_ids[: len(ids)] or not expected.text.startswith(text):
            self._journal.violate(
                f"4: vid {label(stream.vid)} is answered {text!r}, undisturbed {expected.text!r}"
            )

    def _hear_late(self) -> None:
        self._journal.violate(f"2: client {self._number} hears something of a request that it has left")
