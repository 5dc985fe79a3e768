"""Attention over a paged pool against the reference, and its bits whatever the batch and the chunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine.kernels.native import Native, same_bits

from vidette.kernels.reference import SLOTS, PagedRows, attend, pool_shape, write_pool

Floats = NDArray[np.float32]

SOME = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**32 - 1)


class Heads(NamedTuple):
    """Numbers and widths of heads, and what is done to scores."""

    heads: int
    kv_heads: int
    dim: int
    window: int = 0
    cap: float = 0.0

    def options(self) -> dict[str, float | int]:
        return {"scale": self.dim**-0.5, "window": self.window, "cap": self.cap}


class Request(NamedTuple):
    """All of one row: queries, keys and values of each position, and blocks of the pool."""

    q: Floats
    k: Floats
    v: Floats
    table: NDArray[np.int32]


class Chunk(NamedTuple):
    """Positions of a request that one step computes; those before are in the pool."""

    request: int
    start: int
    end: int


all_heads = st.builds(
    lambda kv_heads, group, dim, window, cap: Heads(kv_heads * group, kv_heads, dim, window, cap),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 7, 16]),
    st.sampled_from([16, 48, 64, 80]),
    st.sampled_from([0, 0, 1, 5, 16, 40, 100]),
    st.sampled_from([0.0, 0.0, 3.0, 50.0]),
)
lengths_of = st.lists(st.integers(1, 150), min_size=1, max_size=4)


def some_requests(
    rng: np.random.Generator, lengths: Sequence[int], heads: Heads, *, scale: float = 1.0
) -> tuple[list[Request], NDArray[np.float16]]:
    """Make requests with blocks here and there in a pool of stale values, many of them no numbers."""
    counts = [-(-length // SLOTS) for length in lengths]
    shuffled = rng.permutation(sum(counts) + 3).astype(np.int32)
    tables = np.split(shuffled, np.cumsum(counts))

    def draw(tokens: int, num_heads: int) -> Floats:
        return rng.normal(scale=scale, size=(tokens, num_heads, heads.dim)).astype(np.float32)

    requests = [
        Request(draw(n, heads.heads), draw(n, heads.kv_heads), draw(n, heads.kv_heads), table)
        for n, table in zip(lengths, tables, strict=False)
    ]
    stale = rng.choice(np.array([0x7C00, 0x7E00, 0xFC00, 0x3C00, 0x7BFF], dtype=np.uint16), len(shuffled))
    pool = np.empty(pool_shape(len(shuffled), heads.kv_heads, heads.dim), dtype=np.float16)
    pool[:] = stale.view(np.float16)[:, None, None]
    return requests, pool


def rows_of(requests: Sequence[Request], chunks: Sequence[Chunk]) -> PagedRows:
    width = max(len(requests[chunk.request].table) for chunk in chunks)
    # Entries beyond a row's blocks name whatever block, and are not to be looked up.
    tables = np.full((len(chunks), width), -(2**20), dtype=np.int32)
    for row, chunk in enumerate(chunks):
        table = requests[chunk.request].table
        tables[row, : len(table)] = table
    positions = [np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks]
    starts = np.cumsum([0, *map(len, positions)]).astype(np.int32)
    return PagedRows(np.concatenate(positions), starts, tables)


def new_values(
    requests: Sequence[Request], chunks: Sequence[Chunk]
) -> tuple[Floats, Floats, Floats, PagedRows]:
    """Return queries, keys and values of a step, and its rows."""
    parts = [[part[c.start : c.end] for part in requests[c.request][:3]] for c in chunks]
    q, k, v = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return q, k, v, rows_of(requests, chunks)


def step(
    native: Native,
    requests: Sequence[Request],
    chunks: Sequence[Chunk],
    pool: NDArray[np.float16],
    heads: Heads,
    *,
    threads: int = 1,
) -> list[Floats]:
    """Compute one step; return the result of each chunk."""
    q, k, v, rows = new_values(requests, chunks)
    scale = heads.dim**-0.5
    out = native.attend(q, k, v, pool, rows, scale=scale, window=heads.window, cap=heads.cap, threads=threads)
    return np.split(out, rows.row_starts[1:-1])


def write_contexts(requests: Sequence[Request], chunks: Sequence[Chunk], pool: NDArray[np.float16]) -> None:
    """Write what the chunks' requests have computed before."""
    earlier = [Chunk(chunk.request, 0, chunk.start) for chunk in chunks if chunk.start]
    if earlier:
        _, k, v, rows = new_values(requests, earlier)
        write_pool(pool, k, v, rows)


def assert_attended(
    native: Native,
    requests: Sequence[Request],
    chunks: Sequence[Chunk],
    pool: NDArray[np.float16],
    heads: Heads,
    *,
    threads: int = 1,
    tolerance: float = 2e-5,
) -> None:
    """Check one step: results near the reference's, and a pool that has the new values and no others."""
    write_contexts(requests, chunks, pool)
    q, k, v, rows = new_values(requests, chunks)
    expected_pool = pool.copy()
    write_pool(expected_pool, k, v, rows)
    results = step(native, requests, chunks, pool, heads, threads=threads)
    assert same_bits(pool, expected_pool)
    expected = attend(
        q, pool, rows, heads.kv_heads, scale=heads.dim**-0.5, window=heads.window, cap=heads.cap
    )
    np.testing.assert_allclose(np.concatenate(results), expected, rtol=1e-5, atol=tolerance)


@SOME
@given(data=st.data(), seed=seeds, heads=all_heads, lengths=lengths_of)
def test_steps(kernels: Native, data: st.DataObject, seed: int, heads: Heads, lengths: list[int]) -> None:
    """Any mix of decodes and chunks, over blocks anywhere, is as the reference says, whatever is stale."""
    requests, pool = some_requests(np.random.default_rng(seed), lengths, heads)
    starts = [data.draw(st.just(n - 1) | st.integers(0, n - 1)) for n in lengths]
    chunks = [Chunk(i, start, n) for i, (start, n) in enumerate(zip(starts, lengths, strict=True))]
    assert_attended(kernels, requests, chunks, pool, heads, threads=data.draw(st.integers(1, 2)))


@SOME
@given(data=st.data(), seed=seeds, heads=all_heads, length=st.integers(1, 200))
def test_chunks_do_not_change_a_bit(
    kernels: Native, data: st.DataObject, seed: int, heads: Heads, length: int
) -> None:
    """A prompt has the same bits computed at once, in any chunks, one by one, on one thread or two."""
    requests, stale = some_requests(np.random.default_rng(seed), [length], heads)
    pool = stale.copy()
    [whole] = step(kernels, requests, [Chunk(0, 0, length)], pool, heads)
    cuts = data.draw(st.sets(st.integers(1, length - 1), max_size=8)) if length > 1 else set()
    borders = [0, *sorted(cuts), length]
    chunked_pool, parts = stale.copy(), []
    for start, end in pairwise(borders):
        parts += step(kernels, requests, [Chunk(0, start, end)], chunked_pool, heads, threads=2)
    assert same_bits(np.concatenate(parts), whole)
    assert same_bits(chunked_pool, pool)
    last = data.draw(st.integers(0, length - 1))
    single_pool = stale.copy()
    write_contexts(requests, [Chunk(0, last, length)], single_pool)
    for position in range(last, length):
        [one] = step(kernels, requests, [Chunk(0, position, position + 1)], single_pool, heads)
        assert same_bits(one[0], whole[position])


@SOME
@given(data=st.data(), seed=seeds, heads=all_heads, lengths=lengths_of)
def test_a_row_has_the_same_bits_in_any_batch(
    kernels: Native, data: st.DataObject, seed: int, heads: Heads, lengths: list[int]
) -> None:
    """A row's result is bitwise the same alone and among others, in any order, on any number of threads."""
    requests, stale = some_requests(np.random.default_rng(seed), lengths, heads)
    chunks = [Chunk(i, data.draw(st.integers(0, n - 1)), n) for i, n in enumerate(lengths)]
    write_contexts(requests, chunks, stale)
    alone = [step(kernels, requests, [chunk], stale.copy(), heads)[0] for chunk in chunks]
    order = data.draw(st.permutations(range(len(chunks))))
    threads = data.draw(st.integers(1, 3))
    together = step(kernels, requests, [chunks[i] for i in order], stale.copy(), heads, threads=threads)
    for place, index in enumerate(order):
        assert same_bits(together[place], alone[index])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
def test_rows_that_are_no_numbers_touch_no_other(kernels: Native, bad: float, part: int) -> None:
    heads = Heads(4, 2, 16)
    requests, stale = some_requests(np.random.default_rng(0), [40, 70, 20], heads)
    chunks = [Chunk(0, 10, 40), Chunk(1, 69, 70), Chunk(2, 0, 20)]
    write_contexts(requests, chunks, stale)
    good = step(kernels, requests, chunks, stale.copy(), heads)
    requests[0][part][12] = bad
    results = step(kernels, requests, chunks, stale.copy(), heads)
    assert not np.isfinite(results[0][2]).any()
    assert all(np.isfinite(result).all() for result in results[1:])
    assert same_bits(results[1], good[1])
    assert same_bits(results[2], good[2])


@pytest.mark.parametrize("group", [1, 3, 4, 7])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_a_token_does_not_see_has_no_part_in_it(kernels: Native, bad: float, group: int) -> None:
    """Values that are no numbers, of later tokens or of such as left the window: the same bits."""
    heads = Heads(group, 1, 16, window=20)
    requests, stale = some_requests(np.random.default_rng(0), [70], heads)
    [good] = step(kernels, requests, [Chunk(0, 0, 70)], stale.copy(), heads)
    requests[0].v[30] = bad
    [result] = step(kernels, requests, [Chunk(0, 0, 70)], stale.copy(), heads)
    assert same_bits(result[:30], good[:30])
    assert not np.isfinite(result[30:50]).any()
    assert same_bits(result[50:], good[50:])


@pytest.mark.parametrize("heads", [Heads(2, 1, 16), Heads(2, 1, 16, window=512), Heads(3, 1, 64, cap=30.0)])
@pytest.mark.parametrize("new", [1, 2, 17])
def test_long_contexts(kernels: Native, heads: Heads, new: int) -> None:
    requests, pool = some_requests(np.random.default_rng(new), [4500, 513, 4097], heads)
    chunks = [Chunk(0, 4500 - new, 4500), Chunk(1, 513 - new, 513), Chunk(2, 4096, 4097)]
    assert_attended(kernels, requests, chunks, pool, heads, threads=2)


@pytest.mark.parametrize("window", [0, 512])
def test_a_long_prompt_in_chunks(kernels: Native, window: int) -> None:
    heads, length = Heads(2, 1, 16, window=window), 1200
    requests, stale = some_requests(np.random.default_rng(1), [length], heads)
    whole = step(kernels, requests, [Chunk(0, 0, length)], stale.copy(), heads)[0]
    pool, parts = stale.copy(), []
    for start in range(0, length, 257):
        parts += step(kernels, requests, [Chunk(0, start, min(start + 257, length))], pool, heads, threads=2)
    assert same_bits(np.concatenate(parts), whole)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 64, 65])
def test_a_window_ends_where_it_says(kernels: Native, window: int) -> None:
    # With equal scores the result is the mean of the values seen, which tells which these are.
    length, heads = 140, Heads(1, 1, 16, window=window)
    requests, pool = some_requests(np.random.default_rng(2), [length], heads)
    requests[0].q[:] = 0
    requests[0].v[:] = (np.arange(length) % 64)[:, None, None]
    [result] = step(kernels, requests, [Chunk(0, 0, length)], pool, heads)
    seen = [requests[0].v[max(0, p + 1 - window) : p + 1, 0, 0].mean() for p in range(length)]
    np.testing.assert_allclose(result[:, 0, 0], seen, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cap", [0.0, 20.0])
@pytest.mark.parametrize(("scale", "tolerance"), [(1e-4, 1e-8), (30.0, 1e-2)])
def test_flat_and_sharp_scores(kernels: Native, scale: float, tolerance: float, cap: float) -> None:
    # Sharp ones are thousands, and so inexact that weights are as well; values are about a hundred.
    heads = Heads(4, 2, 64, cap=cap)
    requests, pool = some_requests(np.random.default_rng(3), [130], heads, scale=scale)
    assert_attended(kernels, requests, [Chunk(0, 100, 130)], pool, heads, tolerance=tolerance)


@pytest.mark.parametrize("dim", [16, 32, 48, 64, 80, 96, 112, 128, 256])
def test_widths_of_heads(kernels: Native, dim: int) -> None:
    heads = Heads(6, 2, dim)
    requests, pool = some_requests(np.random.default_rng(dim), [90, 33], heads)
    assert_attended(kernels, requests, [Chunk(0, 80, 90), Chunk(1, 32, 33)], pool, heads)
