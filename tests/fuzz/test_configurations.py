from __future__ import annotations

import pytest

from vidette_fuzz.configurations import CONFIGURATIONS, Configuration
from vidette_fuzz.explore import explore
from vidette_fuzz.machines import kind_of
from vidette_fuzz.stepping.bounds import LoopBounds
from vidette_fuzz.stepping.world import LoopWorld
from vidette_fuzz.walks import run_walk
from vidette_protocol.world import Bounds, World

ALL = pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)


@ALL
def test_every_rule_holds_in_every_world_of_a_configuration(configuration: Configuration) -> None:
    found = explore(configuration.short)
    assert found.violation is None, str(found.violation)
    assert found.complete
    assert 200 < found.states < 50_000  # neither next to nothing nor too much for every push


@ALL
def test_a_long_run_starts_well(configuration: Configuration) -> None:
    found = explore(configuration.long, max_states=300 if configuration.heavy else 1000)
    assert found.violation is None, str(found.violation)
    assert not found.complete


@ALL
def test_every_rule_holds_in_large_worlds(configuration: Configuration) -> None:
    """No history far beyond what is explored breaks a rule, and each can be brought to its end."""
    report = run_walk(configuration.large, seconds=0, seed=1, kind=kind_of(configuration.large))
    assert report.violations == ()
    assert report.histories > 0


def test_the_configurations_are_those_that_were_agreed() -> None:
    assert {
        "core",
        "replace and groups",
        "abort all",
        "deadlines",
        "process death and resume",
        "retraction",
        "prefix",
        "speculation",
        "sessions",
        "streaming sessions",
        "overlapped",
        "overlapped pauses",
        "two schedulers and two fronts",
        "control calls",
        "arena credits",
        "slow consumers",
        "reuse before acknowledgement",
        "reuse after acknowledgement",
    } <= CONFIGURATIONS.keys()


def test_each_feature_of_a_world_of_requests_is_in_a_configuration() -> None:
    """So that a table which shrinks is noticed, and so is a bound that nothing explores."""
    every = [made for each in CONFIGURATIONS.values() if isinstance(made := each.short(), World)]
    worlds = [world for world in every if type(world) is World]
    for name, plain in Bounds()._asdict().items():
        values = {world.bounds._asdict()[name] for world in worlds}
        if name != "remembered":  # one that is forgotten at once belongs to a mutant
            assert len(values) > 1, name
        if isinstance(plain, bool):
            assert values == {True, False}, name
    assert max(world.bounds.rids for world in worlds) == 2
    assert max(world.bounds.tokens for world in worlds) == 2


def test_each_feature_of_a_step_loop_is_in_a_configuration() -> None:
    loops = [made for each in CONFIGURATIONS.values() if isinstance(made := each.short(), LoopWorld)]
    for name in set(LoopBounds._fields) - {"blocks", "prompts", "interval"}:  # those only long runs have
        assert len({loop.loop_bounds._asdict()[name] for loop in loops}) > 1, name
    assert any(loop.bounds.losses for loop in loops)
    assert any(loop.bounds.retractions for loop in loops)


def test_those_that_run_a_step_loop_are_heavy() -> None:
    assert all(each.heavy == isinstance(each.short(), LoopWorld) for each in CONFIGURATIONS.values())


def test_a_configuration_says_what_is_in_it() -> None:
    assert all(name == each.name and each.about for name, each in CONFIGURATIONS.items())
