"""`Conversation`: what a client does with a session; a turn is answered as its whole prompt is, alone."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final, NamedTuple

import anyio
import msgspec

from vidette.errors import Error, RequestError
from vidette.front.sessions import close_session, open_session
from vidette_fuzz.simulation.engine import Generation
from vidette_fuzz.simulation.journal import Journal
from vidette_fuzz.simulation.observed import SimulatedManager
from vidette_fuzz.simulation.undisturbed import Answer
from vidette_protocol.ids import Vid, label
from vidette_protocol.messages import GenerateReqInput, SamplingParams, SessionParams
from vidette_protocol.messages.columns import pack_i32

Tokens = tuple[int, ...]

_ENDED: Final = ("stop", "length")


class Turn(NamedTuple):
    """One turn of a conversation.

    Args:
        request: it.
        prompts: what its whole prompt may be.
        reads: deltas after which it is left; None: it is read to its end.
    """

    request: GenerateReqInput
    prompts: list[Tokens]
    reads: int | None = None

    @property
    def name(self) -> str:
        """Its rid."""
        assert isinstance(self.request.rid, str)
        return self.request.rid


class Said(NamedTuple):
    """What came of a turn.

    Args:
        vid: of it.
        ended: whether it came to its own end, and was read so far.
        answer: what was read.
    """

    vid: Vid
    ended: bool
    answer: Answer | None = None


class Conversation:
    """A session of one client, from its opening to its close, if it is closed.

    Args:
        name: of the session, and the beginning of its turns' names.
        random: says what happens.
        generation: the engine.
        journal: where it is noted, and where it is said if an answer is wrong.
    """

    def __init__(self, name: str, random: Random, generation: Generation, journal: Journal) -> None:
        assert generation.manager is not None
        self._name = name
        self._random = random
        self._generation = generation
        self._manager: SimulatedManager = generation.manager
        self._journal = journal
        self._streaming = random.random() < 0.4
        self._timeout = random.choice([None, 1.0, 60.0])
        self._known: dict[str, Tokens] = {}
        """What was read to its end: by name, the prompt and the output."""
        self._last = ""
        self._turns = 0

    async def run(self) -> None:
        """Open it, take some turns, and close it or leave it to its timeout.

        Raises:
            Error: the engine is not there any more, or takes no more.
        """
        random = self._random
        await open_session(self._manager.calls, self._name, streaming=self._streaming, timeout=self._timeout)
        for _ in range(random.randrange(1, 5)):
            await anyio.sleep(random.choice([0.0, 0.0, random.expovariate(1.0)]))
            if not self._streaming and random.random() < 0.25:
                await self._replace()
            else:
                turn = self._next()
                self._learn(turn, await self._take(turn))
        if random.random() < 0.5:
            try:
                await close_session(self._manager.calls, self._name)
            except Error as error:
                if self._timeout is None or "is not open" not in str(error):
                    raise

    # --- turns -----------------------------------------------------------------

    def _next(self) -> Turn:
        random = self._random
        own = self._own()
        reads = random.choice([None, None, None, 0, 1, 3])
        if self._streaming:
            known = self._known.get(self._last, ())
            return Turn(self._ask(own, None), [known + own], reads)
        names: list[str | None] = [None, *self._known]
        behind = random.choice(names)
        if behind is None:
            return Turn(self._ask(own, None), [own], reads)
        known = self._known[behind]
        offset = random.choice([None, None, 1])
        return Turn(self._ask(own, behind, offset=offset), [known[:offset] + own], reads)

    async def _replace(self) -> None:
        """Take a turn, and another that takes its place while it is in flight, or when it just ended."""
        own, first = self._own(), self._next()._replace(reads=None)
        second = Turn(self._ask(own, first.name, replace=True), [first.prompts[0] + own])
        said: dict[str, Said] = {}
        failed: list[Error] = []

        async def take(turn: Turn, *, check: bool) -> None:
            try:
                said[turn.name] = await self._take(turn, check=check, replaced=True)
            except Error as error:  # raised below, out of the group
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(take, first, check=True))
            await anyio.sleep(self._random.choice([0.0, 0.001, self._random.expovariate(1 / 0.05)]))
            await take(second, check=False)
        if failed:
            raise failed[0]
        self._learn(first, said[first.name])
        if first.name in self._known:
            second.prompts.append(self._known[first.name] + own)
        heard = said[second.name]
        if heard.answer is not None:
            self._check(heard.vid, heard.answer, second.prompts)
            prompts = [one for one in second.prompts if self._expect(heard.vid, one) == heard.answer]
            self._learn(second._replace(prompts=prompts), heard)

    def _own(self) -> Tokens:
        return tuple(self._random.randrange(32, 127) for _ in range(self._random.choice([1, 2, 9])))

    def _ask(
        self, own: Tokens, behind: str | None, *, offset: int | None = None, replace: bool = False
    ) -> GenerateReqInput:
        random = self._random
        self._turns += 1
        return GenerateReqInput(
            rid=f"{self._name}-{self._turns}",
            input_ids=list(own),
            sampling_params=SamplingParams(
                max_new_tokens=random.choice([1, 3, 9]),
                temperature=random.choice([0.0, 1.0]),
                sampling_seed=random.randrange(1000),
                ignore_eos=True,
                stream_interval=random.choice([None, None, 2]),
            ),
            session_params=SessionParams(id=self._name, rid=behind, offset=offset, replace=replace),
        )

    async def _take(self, turn: Turn, *, check: bool = True, replaced: bool = False) -> Said:
        """Ask for a turn and read it.

        Args:
            turn: which.
            check: whether to compare the answer.
            replaced: whether another may take its place, or it that of another.
        """
        async with self._manager.generate(turn.request) as stream:
            try:
                reason = None
                count = 0
                while reason is None and (turn.reads is None or count < turn.reads):
                    reason = (await anext(stream)).finish_reason
                    count += 1
                    if check and reason is None:
                        answer = Answer(stream.token_ids, stream.text, None)
                        self._check(stream.vid, answer, turn.prompts)
            except RequestError as error:
                self._judge(turn, error, replaced=replaced)
                return Said(stream.vid, ended=False)
            if reason is None:
                self._journal.harm("leave")
                return Said(stream.vid, ended=False)
            answer = Answer(stream.token_ids, stream.text, reason)
            if check:
                self._check(stream.vid, answer, turn.prompts)
            return Said(stream.vid, ended=reason.type in _ENDED, answer=answer)

    def _learn(self, turn: Turn, said: Said) -> None:
        if said.ended and said.answer is not None and turn.prompts:
            self._last = turn.name
            self._known[self._last] = turn.prompts[0] + said.answer.token_ids

    # --- what it checks ----------------------------------------------------------

    def _judge(self, turn: Turn, error: RequestError, *, replaced: bool) -> None:
        """Check that a turn has a reason not to be answered."""
        said = str(error)
        new = turn.request.sampling_params
        assert isinstance(new, SamplingParams)
        longest = max(map(len, turn.prompts)) + (new.max_new_tokens or 0)
        room = self._generation.room - (12 if replaced else 0)  # what another has said may be before it
        fair = (
            ("is not open" in said and self._timeout is not None)
            or (longest > room and ("tokens fit" in said or "together at most" in said))
            or (replaced and ("took its place" in said or "has no request" in said))
        )
        self._journal.note(f"a turn of {self._name} is refused: {said}")
        if not fair:
            self._journal.violate(f"a turn of {self._name} is refused: {said}")

    def _check(self, vid: Vid, answer: Answer, prompts: list[Tokens]) -> None:
        expected = [self._expect(vid, prompt) for prompt in prompts]
        if not any(_agrees(answer, one) for one in expected):
            self._journal.violate(
                f"4: vid {label(vid)}, a turn, is answered {answer}, undisturbed {expected}"
            )

    def _expect(self, vid: Vid, prompt: Tokens) -> Answer:
        sent = self._generation.sent[vid]
        whole = msgspec.structs.replace(sent, input_ids=pack_i32(prompt), session_params=None)
        return self._generation.stock.undisturbed.answer(whole)


def _agrees(answer: Answer, expected: Answer) -> bool:
    if answer.reason is not None:
        return answer == expected
    count = len(answer.token_ids)
    return answer.token_ids == expected.token_ids[:count] and expected.text.startswith(answer.text)
