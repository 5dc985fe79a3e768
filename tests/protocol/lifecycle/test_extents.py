"""Stretches of an arena: no two overlap, none is lost, and all of a message are taken or none."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import LocalProtocolError
from vidette_protocol.lifecycle.extents import GRANULE, Extents, whole

PAGES = 24


class Model:
    """One flag a page, and the same first-fit rule, tried page by page."""

    def __init__(self) -> None:
        self.taken = [False] * PAGES

    def take(self, sizes: list[int]) -> list[int] | None:
        before, starts = list(self.taken), []
        for size in sizes:
            pages = whole(size) // GRANULE
            fits = (at for at in range(PAGES - pages + 1) if not any(self.taken[at : at + pages]))
            start = next(fits, None)
            if start is None:
                self.taken = before
                return None
            self.taken[start : start + pages] = [True] * pages
            starts.append(start * GRANULE)
        return starts

    def give(self, start: int, nbytes: int) -> None:
        first = start // GRANULE
        for page in range(first, first + whole(nbytes) // GRANULE):
            assert self.taken[page]
            self.taken[page] = False

    def gaps(self) -> list[tuple[int, int]]:
        gaps, at = [], 0
        while at < PAGES:
            end = at
            while end < PAGES and not self.taken[end]:
                end += 1
            if end > at:
                gaps.append((at * GRANULE, (end - at) * GRANULE))
            at = end + 1
        return gaps


SIZES = st.lists(
    st.one_of(
        st.integers(0, 7 * GRANULE), st.integers(0, 7).map(lambda n: n * GRANULE), st.just(PAGES * GRANULE)
    ),
    min_size=1,
    max_size=4,
)


@given(steps=st.lists(st.one_of(SIZES, st.integers(0, 9)), max_size=40))
def test_it_does_what_a_map_of_pages_does(steps: list[list[int] | int]) -> None:
    """Extents never overlap, all of a message are taken or none, gaps join, and free bytes are conserved."""
    extents, model = Extents(PAGES * GRANULE), Model()
    held: list[tuple[int, int]] = []
    for step in steps:
        if isinstance(step, list):
            starts = extents.take(step)
            assert model.take(step) == starts
            held += zip(starts or [], step, strict=False)
        elif held:
            start, nbytes = held.pop(step % len(held))
            extents.give(start, nbytes)
            model.give(start, nbytes)
        assert model.gaps() == extents.gaps
        assert extents.free + sum(whole(nbytes) for _, nbytes in held) == PAGES * GRANULE
        assert extents.free == sum(length for _, length in extents.gaps)
    Random(0).shuffle(held)
    for start, nbytes in held:
        extents.give(start, nbytes)
    assert extents.gaps == [(0, PAGES * GRANULE)]


@given(sizes=SIZES, start=st.integers(-2, PAGES + 1), pages=st.integers(1, 5))
def test_what_is_not_taken_cannot_be_given_back(sizes: list[int], start: int, pages: int) -> None:
    """Giving back what is not wholly taken, or not there, is refused and changes nothing."""
    extents, model = Extents(PAGES * GRANULE), Model()
    extents.take(sizes)
    model.take(sizes)
    taken = [False, False, *model.taken, *[False] * 10][start + 2 : start + 2 + pages]
    before = extents.gaps
    if all(taken):
        extents.give(start * GRANULE, pages * GRANULE)
        assert extents.free == sum(length for _, length in before) + pages * GRANULE
    else:
        with pytest.raises(LocalProtocolError, match="are not taken"):
            extents.give(start * GRANULE, pages * GRANULE)
        assert extents.gaps == before


def test_an_extent_begins_at_a_granule() -> None:
    extents = Extents(4 * GRANULE)
    assert extents.take([1, GRANULE, GRANULE + 1]) == [0, GRANULE, 2 * GRANULE]
    with pytest.raises(LocalProtocolError):
        extents.give(1, 1)


@pytest.mark.parametrize("nbytes", [0, -GRANULE, 1, GRANULE + 1])
def test_memory_has_whole_granules(nbytes: int) -> None:
    with pytest.raises(ValueError, match="no whole number of granules"):
        Extents(nbytes)


def test_a_granule_may_be_of_any_length() -> None:
    extents = Extents(3, 1)
    assert extents.take([1, 2]) == [0, 1]
    assert extents.take([1]) is None
    extents.give(1, 2)
    assert extents.gaps == [(1, 2)]


def test_a_copy_goes_its_own_way() -> None:
    extents = Extents(3, 1)
    extents.take([2])
    twin = extents.copy()
    assert (twin.nbytes, twin.free, twin.gaps) == (3, 1, [(2, 1)])
    twin.give(0, 2)
    assert (extents.free, twin.free) == (1, 3)
    assert twin.take([3]) == [0]


def test_what_does_not_fit_for_the_gaps_leaves_nothing_taken() -> None:
    extents = Extents(5, 1)
    assert extents.take([2, 1, 2]) == [0, 2, 3]
    extents.give(0, 2)
    extents.give(3, 2)
    assert extents.take([1, 3]) is None
    assert (extents.free, extents.gaps) == (4, [(0, 2), (3, 2)])
    assert extents.take([3]) is None
