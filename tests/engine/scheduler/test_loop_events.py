"""What a step loop tells of its prefix cache: replayed, the events lead to what the cache holds."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from tests.engine.scheduler.conftest import Driver, foretell, request

from vidette.models import BLOCK_SIZE
from vidette.scheduler.effects import Effects
from vidette.scheduler.radix import Namespace, Node, block_hashes
from vidette_protocol.messages import AbortReq, FlushCacheReqInput, SamplingParams
from vidette_protocol.messages.kv import AllBlocksCleared, BlockRemoved, BlockStored

pytestmark = pytest.mark.usefixtures("either_way")


def replay(known: set[int], effects: Effects) -> None:
    """Do to a set of blocks what the events of a step say."""
    for event in effects.events:
        match event:
            case BlockStored(hashes, parent, tokens, size):
                assert not known & set(hashes)
                assert parent is None or parent in known
                assert (size, len(tokens)) == (BLOCK_SIZE, BLOCK_SIZE * len(hashes))
                known |= set(hashes)
            case BlockRemoved(hashes):
                assert known >= set(hashes)
                known -= set(hashes)
            case AllBlocksCleared():
                known.clear()


def held(driver: Driver) -> set[int]:
    """Return the blocks in the cache, read off its tree."""

    def below(node: Node) -> set[int]:
        return {*node.hashes}.union(*map(below, node.children.values()))

    roots = driver.loop._cache._radix._roots.values()
    return set[int]().union(*(below(child) for root in roots for child in root.children.values()))


def run(driver: Driver, known: set[int], *commands: object) -> None:
    effects = driver.step(*commands)  # type: ignore[arg-type]
    replay(known, effects)
    while effects.busy:
        effects = driver.step()
        replay(known, effects)
        assert known == held(driver)


def test_what_a_request_computed_is_stored_under_its_hashes() -> None:
    driver, known = Driver(kv_events=True), set[int]()
    prompt = [1 + place % 40 for place in range(3 * BLOCK_SIZE + 5)]
    run(driver, known, request(1, prompt, max_new_tokens=20, extra_key="mine"))
    answer, _ = foretell(prompt, SamplingParams(max_new_tokens=20, temperature=0.0))
    tokens = np.array([*prompt, *answer][:-1], dtype=np.int32)  # the last is never computed
    assert known == set(block_hashes(Namespace("mine", None), tokens))


@pytest.mark.parametrize("host_blocks", [0, 6])
def test_events_lead_to_what_the_cache_holds_while_blocks_are_short(host_blocks: int) -> None:
    driver = Driver(num_blocks=12, step_tokens=32, kv_events=True, host_blocks=host_blocks)
    known, random = set[int](), Random(5)
    beginnings = [[1 + (place * step) % 40 for place in range(40)] for step in (1, 3, 7)]
    removed = 0
    for vid in range(1, 60):
        beginning = random.choice(beginnings)[: random.randrange(1, 40)]
        prompt = [*beginning, *(random.randrange(1, 40) for _ in range(random.randrange(30)))]
        commands: list[object] = [request(vid, prompt, max_new_tokens=random.randrange(1, 60))]
        if random.random() < 0.3:
            commands.append(AbortReq(vid=vid - 1))
        effects = driver.step(*commands)  # type: ignore[arg-type]
        for _ in range(random.randrange(20)):
            replay(known, effects)
            removed += sum(isinstance(event, BlockRemoved) for event in effects.events)
            assert known == held(driver)
            effects = driver.step()
        replay(known, effects)
    run(driver, known)
    assert removed > 20
    assert driver.totals.retracted > 0
    ledger = driver.ledger
    assert len(known) == ledger.blocks_cached + ledger.blocks_host
    assert (ledger.blocks_host > 0) == (host_blocks > 0)


def test_a_flush_is_told_before_its_answer() -> None:
    driver, known = Driver(kv_events=True), set[int]()
    run(driver, known, request(1, [5] * 40))
    assert known
    effects = driver.step(FlushCacheReqInput(id=3))
    assert effects.events == (AllBlocksCleared(),)
    assert [answer.success for answer in effects.answers] == [True]


def test_nothing_is_told_unless_it_is_asked_for() -> None:
    driver = Driver()
    effects = driver.step(request(1, [5] * 40))
    while effects.busy:
        assert effects.events == ()
        effects = driver.step()


def test_the_ledger_tells_prompts_from_what_is_computed_of_them() -> None:
    driver = Driver(num_blocks=16, step_tokens=96, max_running=2)
    driver.step(request(1, [5] * 40), request(2, [6] * 40), request(3, [7] * 40))
    ledger = driver.ledger
    assert (ledger.running, ledger.waiting, ledger.live) == (2, 1, 3)
    driver.run()
    driver.run(request(4, [5] * 40))
    totals = driver.totals
    assert totals.begun_tokens == 4 * 40
    assert totals.cached_tokens == 2 * BLOCK_SIZE
    assert driver.ledger.running == 0
