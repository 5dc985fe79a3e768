from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from vidette_fuzz.stepping.cloning import clone
from vidette_protocol.messages import SamplingParams


class Slotted:
    __slots__ = ("inner", "never")

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Plain(Slotted):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.me = self
        self.call: Any = self.name

    def name(self) -> str:
        return "it"


class Pair(NamedTuple):
    one: int
    many: list[int]


def test_a_copy_is_independent() -> None:
    tokens = np.arange(3)
    made = Plain({"list": [1, 2], "pair": Pair(1, [2]), "tokens": tokens, "queue": deque([1]), "set": {3}})
    twin = clone(made, {})
    assert twin is not made
    assert twin.me is twin
    assert twin.call.__self__ is twin
    assert twin.inner["pair"] == Pair(1, [2])
    twin.inner["list"].append(3)
    twin.inner["pair"].many.append(3)
    twin.inner["tokens"][0] = 9
    twin.inner["queue"].append(2)
    twin.inner["set"].add(4)
    assert made.inner["list"] == [1, 2]
    assert made.inner["pair"].many == [2]
    assert tokens.tolist() == [0, 1, 2]
    assert (made.inner["queue"], made.inner["set"]) == (deque([1]), {3})


def test_what_is_shared_and_what_never_changes_is_kept() -> None:
    kept, params, fixed = [1], SamplingParams(), (1, "a")
    made = Slotted([kept, params, fixed, kept])
    twin = clone(made, {id(kept): kept})
    assert all(new is old for new, old in zip(twin.inner, made.inner, strict=True))
    assert twin.inner is not made.inner


def test_one_thing_stays_one_thing() -> None:
    one = [1]
    first, second = clone([one, one], {})
    assert first is second
    assert first is not one
