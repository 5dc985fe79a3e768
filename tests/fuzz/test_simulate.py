from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

import anyio
import pytest
from trio.testing import MockClock

from vidette.transport.framing import LinkClosed
from vidette_fuzz.simulate import History, run_simulation, simulate
from vidette_fuzz.simulation.adversary import Adversary, AdverseChannel
from vidette_fuzz.simulation.engine import Build, Stock
from vidette_fuzz.simulation.journal import Journal
from vidette_fuzz.simulation.mutants import ENGINE_MUTANTS, EngineMutant
from vidette_fuzz.simulation.refinement import Refinement
from vidette_fuzz.simulation.undisturbed import Undisturbed
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import End, FrontMachine, Row
from vidette_protocol.messages import SamplingParams, TokenizedGenerateReqInput

HISTORIES = 30
KINDS = {
    *("cancel", "close", "coalesce", "delay", "kill", "leave", "restart"),
    *("front_stall", "full", "slow_reader", "slow_step", "split", "stall"),
}


@pytest.fixture(scope="module")
def stock() -> Stock:
    return Stock()


@pytest.fixture(scope="module")
def histories(stock: Stock) -> list[History]:
    return [simulate(seed, stock=stock) for seed in range(HISTORIES)]


def test_no_history_breaks_a_rule(histories: list[History]) -> None:
    """Whatever clients, links and deaths do, every history keeps the rules and is one of the world's."""
    assert [str(history) for history in histories if history.violations] == []


def test_the_adversary_does_all_it_can(histories: list[History]) -> None:
    faults = sum((history.faults for history in histories[1:]), histories[0].faults)
    assert faults.keys() == KINDS


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_equal_seeds_give_equal_histories(seed: int, histories: list[History], stock: Stock) -> None:
    """A history depends on its seed, and neither on what ran before nor on what was remembered."""
    assert simulate(seed, stock=stock) == histories[seed]
    assert simulate(seed) == histories[seed]


def test_other_seeds_give_other_histories(histories: list[History]) -> None:
    assert len({history.events for history in histories}) == HISTORIES


@pytest.mark.parametrize("mutant", ENGINE_MUTANTS.values(), ids=ENGINE_MUTANTS)
def test_each_mutant_is_found(mutant: EngineMutant) -> None:
    """A seeded bug of the engine's code breaks a rule in one of the first histories, and that can be told."""
    report = run_simulation(1e9, build=mutant.build, most=60)
    (found,) = report.violations
    assert found.violations
    assert simulate(found.seed, mutant.build).violations == found.violations
    assert f"BROKEN {found.violations[0]}" in str(found)


def test_a_run_ends_when_its_time_is_over(ticking: Callable[[], float]) -> None:
    report = run_simulation(2.5, 10, clock=ticking)
    assert (report.histories, report.violations) == (3, ())
    assert report.seconds > 0


def test_a_run_has_one_history_at_least() -> None:
    with pytest.raises(ValueError, match="at least"):
        run_simulation(1, most=0)


@pytest.fixture
def ticking() -> Callable[[], float]:
    """A clock that goes on by a second each time it is read."""
    ticks = count()
    return lambda: float(next(ticks))


# --- links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_link_keeps_order_and_content(seed: int) -> None:
    """What is posted comes in its order and unchanged, whatever becomes of its pieces, and then the end."""
    random = Random(seed)
    frames = [random.randbytes(random.choice([0, 1, 50, 70_000])) for _ in range(30)]

    async def main() -> None:
        left, right = AdverseChannel.pair("a", "b", Adversary(random, Journal()))
        received = []

        async def read() -> None:
            with pytest.raises(LinkClosed):
                while True:
                    received.append(bytes(await right.receive()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for frame in frames:
                left.post(frame)
                await anyio.sleep(random.choice([0, 0.01, 1]))
            left.close()
        assert received == frames
        assert left.unread == 0

    anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


# --- refinement -----------------------------------------------------------------------------------


def in_time(walk: Callable[[Refinement], None]) -> list[str]:
    """Return what is broken after a walk."""
    journal = Journal()

    async def main() -> None:
        walk(Refinement(journal))

    anyio.run(main, backend="trio")
    return journal.violations


FIRST = Vid(0)


def begin(watch: Refinement) -> None:
    watch.front = FrontMachine()
    watch.front.submit(Rid("r"))
    watch.submitted("submit", (Rid("r"),))
    watch.front.send(FIRST)
    watch.sent(FIRST)
    watch.compare()


def leave_unseen(watch: Refinement) -> None:
    assert watch.front is not None
    watch.front.abort(FIRST)
    watch.compare()


def test_what_the_world_allows_breaks_nothing() -> None:
    def walk(watch: Refinement) -> None:
        begin(watch)
        watch.asked(FIRST, abort=False)
        for end in (None, End.FINISH):
            row = Row(FIRST, 0 if end is None else 1, 1, end)
            watch.launched([FIRST])
            watch.landed(FIRST, row)
            watch.row_came(row)
            assert watch.front is not None
            watch.text_came(row, watch.front.receive(*row))
        assert watch.front is not None
        watch.front.abort(FIRST)
        watch.left(FIRST)
        watch.quiet()

    assert in_time(walk) == []


def test_an_abort_that_finds_its_request_over_need_not_arrive() -> None:
    def walk(watch: Refinement) -> None:
        begin(watch)
        watch.asked(FIRST, abort=False)
        watch.launched([FIRST])
        row = Row(FIRST, 0, 1, End.FINISH)
        watch.landed(FIRST, row)
        assert watch.front is not None
        watch.front.abort(FIRST)
        watch.left(FIRST)
        watch.row_came(row)
        watch.text_came(row, watch.front.receive(*row))
        watch.quiet()

    assert in_time(walk) == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda watch: watch.sent(FIRST),
        lambda watch: watch.asked(FIRST, abort=True),
        lambda watch: watch.asked(Vid(1), abort=False),
        lambda watch: watch.happened("expire", FIRST),
        lambda watch: watch.row_came(Row(FIRST, 0, 1, None)),
        lambda watch: watch.text_came(Row(FIRST, 0, 1, None), FIRST),
        lambda watch: (watch.launched([FIRST]), watch.landed(FIRST, Row(FIRST, 0, 1, None))),
        lambda watch: watch.quiet(),
        leave_unseen,
    ],
)
def test_what_it_does_not_allow_is_noticed(wrong: Callable[[Refinement], None]) -> None:
    def walk(watch: Refinement) -> None:
        begin(watch)
        wrong(watch)

    assert len(in_time(walk)) == 1


def test_nothing_of_a_dead_replica_may_be_heard() -> None:
    def walk(watch: Refinement) -> None:
        begin(watch)
        assert watch.front is not None
        watch.front.lost()
        watch.lost()
        watch.text_came(Row(FIRST, 0, 1, None), None)
        watch.text_came(Row(FIRST, 0, 1, None), FIRST)

    (broken,) = in_time(walk)
    assert broken.startswith("2: ")


# --- what is expected -------------------------------------------------------------------------------


def test_an_undisturbed_answer_is_always_the_same() -> None:
    """The answer depends on prompt and parameters alone, not on vid, deadline or what was asked before."""
    params = SamplingParams(max_new_tokens=9, temperature=1.0, sampling_seed=5)
    prompt = memoryview(bytes([7, 0, 0, 0]))
    plain = TokenizedGenerateReqInput(vid=3, floor=0, rid="a", input_ids=prompt, sampling_params=params)
    other = TokenizedGenerateReqInput(
        vid=9, floor=2, rid="b", input_ids=prompt, sampling_params=params, deadline_s=0.0
    )
    answer = Undisturbed().answer(plain)
    assert 0 < len(answer.token_ids) <= 9
    shared = Undisturbed()
    assert shared.answer(other) == shared.answer(plain) == answer


def test_a_build_is_of_the_engines_own_classes() -> None:
    for mutant in ENGINE_MUTANTS.values():
        changed = [part for part, own in zip(mutant.build, Build(), strict=True) if part is not own]
        assert len(changed) == 1, mutant.name
        assert all(issubclass(part, own) for part, own in zip(mutant.build, Build(), strict=True))
