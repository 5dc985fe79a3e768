from __future__ import annotations

import numpy as np

from vidette.models.interface import BLOCK_SIZE
from vidette.scheduler.radix import Namespace
from vidette_fuzz.stepping.pool import ExploredCache, ExploredRadix, Memory, Read

SPACE = Namespace()
TOKENS = np.arange(2 * BLOCK_SIZE + 1, dtype=np.int32)


def cache() -> ExploredCache:
    return ExploredCache(8, ExploredRadix())


def test_what_requests_hold_and_what_is_cached_is_all_that_is_taken() -> None:
    blocks = cache()
    hold = blocks.begin(SPACE, TOKENS, len(TOKENS))
    blocks.grow(hold, len(TOKENS))
    blocks.share(hold, SPACE, TOKENS, BLOCK_SIZE)
    assert list(blocks.check([hold])) == []
    assert list(blocks.check([])) == [
        "5: 0 blocks are used by live requests, and 3 are held",
        "5: 2 blocks are neither free nor cached, and 0 are somebody's own",
    ]
    blocks.release(hold, SPACE, TOKENS, len(TOKENS))
    assert list(blocks.check([])) == []
    assert blocks.cached == 2


def test_a_block_of_two_and_one_that_is_free_are_noticed() -> None:
    blocks = cache()
    hold = blocks.begin(SPACE, TOKENS, len(TOKENS))
    blocks.grow(hold, len(TOKENS))
    assert "5: a block belongs to two" in list(blocks.check([hold, hold]))
    hold.blocks[0] = blocks.free()[0]
    assert "5: a block that a live request holds is free" in list(blocks.check([hold]))
    hold.shared = 1
    assert "5: a live request shares a block that was evicted" in list(blocks.check([hold]))


def test_a_picture_knows_what_is_cached_and_in_what_order_it_was_used() -> None:
    pictures = set()
    for order in ((0, 1), (1, 0)):
        blocks = cache()
        for first in order:
            tokens = TOKENS[:-1] + first * 100
            hold = blocks.begin(SPACE, tokens, len(tokens))
            blocks.grow(hold, len(tokens))
            blocks.release(hold, SPACE, tokens, len(tokens))
        pictures.add(blocks.explored.picture())
    assert len(pictures) == 2


def test_what_was_computed_is_remembered_until_it_is_freed() -> None:
    memory = Memory(4)
    memory.write([2, 0], BLOCK_SIZE - 1, TOKENS[BLOCK_SIZE - 1 : BLOCK_SIZE + 1])
    assert not memory.holds(Read(TOKENS[: BLOCK_SIZE + 1], [2, 0]))
    memory.write([2, 0], 0, TOKENS[:BLOCK_SIZE])
    assert memory.holds(Read(TOKENS[: BLOCK_SIZE + 1], [2, 0]))
    assert memory.holds(Read(TOKENS[:0], []))
    assert not memory.holds(Read(TOKENS[:1], []))
    memory.forget([0])
    assert not memory.holds(Read(TOKENS[: BLOCK_SIZE + 1], [2, 0]))
