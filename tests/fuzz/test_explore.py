from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from vidette_fuzz.configurations import AFTER, BEFORE, requests
from vidette_fuzz.explore import Exploration, SavedByAnother, Search, explore
from vidette_fuzz.front_mutants import SMALL, _DeliversByRid
from vidette_fuzz.mutants import MUTANTS
from vidette_protocol.world import Bounds, Parts, World

TINY = requests(Bounds(rids=1, uses=1, tokens=1))
MEDIUM = requests(SMALL)


def ticking(step: float = 1.0) -> Callable[[], float]:
    """Return a clock that goes on by a step each time it is read."""
    ticks: Iterator[int] = count()
    return lambda: step * next(ticks)


def test_the_number_of_worlds_is_known() -> None:
    """So that a change which makes worlds unreachable, and rules hold for nothing, is noticed."""
    assert explore(TINY)[:3] == (27, 8, True)
    assert explore(MEDIUM)[:3] == (968, 23, True)


def test_what_the_vid_buys_is_reuse_without_waiting_a_round_trip() -> None:
    """Delivering by rid is wrong if a rid is reused at once, right if it waits for the acknowledgement."""
    parts = Parts(front=_DeliversByRid)
    assert explore(requests(BEFORE, parts)).violation is not None
    patient = explore(requests(AFTER, parts))
    assert patient.violation is None
    assert patient.complete


def test_a_counterexample_reads_as_a_story() -> None:
    found = explore(MUTANTS["missing-vid-check"].small).violation
    assert str(found).splitlines() == [
        "1. a client submits r1, which is vid 0",
        "2. the front sends the request of vid 0",
        "3. the caller of vid 0 leaves; an abort is sent",
        "4. a client submits r1, which is vid 1",
        "5. the request of vid 0 reaches the scheduler",
        "6. the abort of vid 0 reaches the scheduler, which says the end of vid 0 (abort)",
        "7. the end of vid 0 (abort) reaches the detokenizer",
        "8. the end of vid 0 (abort) reaches the front; the caller of vid 1 hears it",
        "broken: 3: the caller of vid 1 hears what belongs to vid 0",
        "broken: 3: the caller of vid 1 hears of an abort that it never asked for",
    ]


# --- budgets ------------------------------------------------------------------------------------------------


def test_an_exploration_stops_at_a_number_of_states() -> None:
    found = explore(MEDIUM, max_states=50)
    assert not found.complete
    assert found.violation is None
    # The world in hand is explored to its end, so there may be a few more.
    assert 50 <= found.states < 60


def test_an_exploration_stops_when_its_time_is_up() -> None:
    found = explore(MEDIUM, budget_s=20, clock=ticking())
    assert not found.complete
    assert 1 < found.states < 200


def test_a_mutant_is_not_caught_without_time() -> None:
    found = explore(MUTANTS["missing-vid-check"].small, budget_s=0, clock=ticking(0))
    assert found == Exploration(1, 0, complete=False, seconds=0.0)
    assert found.states_per_s == 0


def test_speed_is_states_by_seconds() -> None:
    assert Exploration(states=30, depth=9, complete=True, seconds=2).states_per_s == 15


# --- stopping and going on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [[1], [2, 3], [10, 100, 500], [967, 968]])
def test_a_search_that_stops_and_goes_on_finds_what_one_that_does_not_finds(stops: list[int]) -> None:
    search = Search(MEDIUM, clock=ticking(0))
    for states in stops:
        assert not search.run(max_states=states).complete
    assert search.run() == explore(MEDIUM, clock=ticking(0))
    assert search.run() == search.result


@pytest.mark.parametrize("states", [1, 2, 3, 10, 77, 300, 967])
def test_a_search_that_was_saved_goes_on_where_it_stopped(states: int, tmp_path: Path) -> None:
    one = Search(MEDIUM, clock=ticking(0))
    one.run(max_states=states)
    one.save(tmp_path / "saved", "fingerprint")
    other = Search(MEDIUM, clock=ticking(0))
    other.load(tmp_path / "saved", "fingerprint")
    assert other.result == one.result
    assert other.run(max_states=states + 50) == one.run(max_states=states + 50)
    assert other.run() == one.run() == explore(MEDIUM, clock=ticking(0))


def test_a_search_that_is_complete_stays_so(tmp_path: Path) -> None:
    one = Search(TINY)
    one.run()
    one.save(tmp_path / "saved", "")
    other = Search(TINY)
    other.load(tmp_path / "saved", "")
    assert other.result == one.result
    assert other.run().complete


def test_a_rule_that_is_broken_late_is_found_after_going_on(tmp_path: Path) -> None:
    make = MUTANTS["resume-repeats-tokens"].small
    one = Search(make)
    assert one.run(max_states=500).violation is None
    one.save(tmp_path / "saved", "")
    other = Search(make)
    other.load(tmp_path / "saved", "")
    found = other.run().violation
    assert found is not None
    straight = explore(make).violation
    assert straight is not None
    assert (found.story, found.rules) == (straight.story, straight.rules)


def test_what_another_world_has_saved_is_refused(tmp_path: Path) -> None:
    one = Search(MEDIUM)
    one.run(max_states=100)
    one.save(tmp_path / "saved", "one")
    with pytest.raises(SavedByAnother, match="another version"):
        Search(MEDIUM).load(tmp_path / "saved", "other")
    fewer = partial(World, Parts(), SMALL._replace(tokens=1))
    with pytest.raises((SavedByAnother, IndexError)):
        Search(fewer).load(tmp_path / "saved", "one")
