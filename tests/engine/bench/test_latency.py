"""The definitions, by a table worked out by hand and by what holds of any answers."""

from __future__ import annotations

from math import inf, isclose

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.bench.latency import Answer, Objectives, percentile, spread, summarise

ONE = Answer(
    started=10.0, pieces=[10.1, 10.3, 10.4], ended=10.5, output_tokens=5, counted=True, prompt_tokens=7
)
"""TTFT 100, gaps 200 and 100, E2EL 400 (its end does not count), TPOT 300 / 4 = 75 milliseconds."""
TWO = Answer(started=10.2, pieces=[10.6], ended=12.0, output_tokens=1, counted=True, prompt_tokens=9)
"""TTFT and E2EL 400, no gap, no TPOT."""
EMPTY = Answer(started=10.0, ended=10.2, counted=True, prompt_tokens=4)
"""Complete, and without any text."""
FAILED = Answer(started=9.0, pieces=[9.5, 9.6], ended=13.0, output_tokens=2, error="status 500: no")
"""Its times and tokens are in nothing but the duration."""


def test_one_answer() -> None:
    assert ONE.ttft == pytest.approx(0.1)
    assert ONE.e2el == pytest.approx(0.4)
    assert ONE.gaps == pytest.approx([0.2, 0.1])
    assert ONE.itl == pytest.approx(0.15)
    assert ONE.tpot == pytest.approx(0.075)


def test_what_one_piece_has_not() -> None:
    assert (TWO.itl, TWO.tpot, TWO.gaps) == (None, None, [])
    assert TWO.ttft == TWO.e2el == pytest.approx(0.4)
    assert (EMPTY.ttft, EMPTY.e2el, EMPTY.itl, EMPTY.tpot) == (None, None, None, None)


def test_a_load() -> None:
    found = summarise([ONE, TWO, EMPTY, FAILED], Objectives(ttft=0.15))
    assert found.seconds == pytest.approx(4.0)
    assert (found.requests, found.completed, found.good) == (4, 3, 1)
    assert (found.prompt_tokens, found.output_tokens, found.uncounted) == (20, 6, 0)
    assert found.errors == {"status 500: no": 1}
    assert (found.request_s, found.output_tok_s, found.goodput_s) == pytest.approx((0.75, 1.5, 0.25))
    assert found.ttft is not None
    assert msgspec.structs.astuple(found.ttft) == pytest.approx((2, 250, 250, 370, 385, 397, 400))
    assert found.itl is not None
    assert msgspec.structs.astuple(found.itl) == pytest.approx((2, 150, 150, 190, 195, 199, 200))
    assert found.tpot is not None
    assert msgspec.structs.astuple(found.tpot) == pytest.approx((1, 75, 75, 75, 75, 75, 75))
    assert found.e2el is not None
    assert found.e2el.mean == pytest.approx(400)


def test_a_load_of_which_nothing_came() -> None:
    nothing = summarise([])
    assert (nothing.requests, nothing.request_s, nothing.goodput_s, nothing.ttft) == (0, 0, 0, None)
    failed = summarise([FAILED])
    assert (failed.completed, failed.output_tok_s, failed.ttft, failed.itl) == (0, 0, None, None)


@pytest.mark.parametrize(
    ("texts", "good"),
    [
        ([], [True, True, True, False]),
        (["ttft:100.1"], [True, False, False, False]),
        (["ttft:99.9"], [False, False, False, False]),
        (["itl:150.1"], [True, True, True, False]),  # its mean gap; one piece has none
        (["itl:149.9"], [False, True, True, False]),
        (["tpot:74.9"], [False, True, True, False]),
        (["e2el:400.1"], [True, True, False, False]),
        (["ttft:400.1", "tpot:10"], [False, True, False, False]),
    ],
)
def test_objectives(texts: list[str], good: list[bool]) -> None:
    objectives = Objectives.of(texts)
    assert [objectives.met(answer) for answer in (ONE, TWO, EMPTY, FAILED)] == good


@pytest.mark.parametrize(
    "text", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:nan", "ttft:-1", "ttft:inf", "first:3"]
)
def test_no_objective(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Objectives.of([text])


def test_an_objective_is_given_once() -> None:
    with pytest.raises(ValueError, match="each once"):
        Objectives.of(["ttft:1", "ttft:2"])
    assert Objectives.of(["itl:20", "ttft:200"]) == Objectives(ttft=0.2, itl=0.02, tpot=inf, e2el=inf)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 2.5), (90, 3.7), (99, 3.97), (100, 4)])
def test_percentiles_lie_between_values_in_proportion(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], percent) == pytest.approx(value)
    assert percentile([5], percent) == 5


times = st.floats(0, 1e4, allow_subnormal=False)


@given(st.lists(times | st.none(), max_size=50))
def test_a_spread_is_in_order(seconds: list[float | None]) -> None:
    """Contract: percentiles rise, lie within the values, and None is no value."""
    values = [1e3 * value for value in seconds if value is not None]
    found = spread(seconds)
    if found is None:
        assert not values
        return
    assert found.count == len(values)
    assert min(values) <= found.p50 <= found.p90 <= found.p95 <= found.p99 <= found.most == max(values)
    assert min(values) * (1 - 1e-9) <= found.mean <= max(values) * (1 + 1e-9)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Draw an answer whose times go on."""
    started = now = draw(times)
    pieces = []
    for gap in draw(st.lists(st.floats(0, 10), max_size=6)):
        now += gap
        pieces.append(now)
    tokens = len(pieces) + draw(st.integers(0, 5)) if pieces else 0
    error = draw(st.none() | st.sampled_from(["status 500", "gone"]))
    return Answer(started, pieces, now, output_tokens=tokens, counted=draw(st.booleans()), error=error)


@given(st.lists(answers(), max_size=8))
def test_every_answer_is_counted_once_and_the_parts_make_the_whole(given_: list[Answer]) -> None:
    """Contract: sent is completed and failed; TTFT and gaps make E2EL; who came first does not matter."""
    found = summarise(given_)
    assert found.requests == len(given_) == found.completed + sum(found.errors.values())
    assert found.good == found.completed
    for answer in given_:
        if answer.ttft is not None and answer.e2el is not None:
            assert isclose(answer.ttft + sum(answer.gaps), answer.e2el, rel_tol=1e-6, abs_tol=1e-6)
    turned = summarise(given_[::-1])
    assert (turned.seconds, turned.errors, turned.ttft is None) == (
        found.seconds,
        found.errors,
        found.ttft is None,
    )
    if found.ttft is not None and turned.ttft is not None:
        assert turned.ttft.p99 == found.ttft.p99


@given(st.lists(answers(), max_size=8), times, times)
def test_stricter_objectives_are_met_by_fewer(given_: list[Answer], one: float, other: float) -> None:
    """Contract: who meets the stricter objectives meets the others."""
    low, high = sorted((one, other))
    strict, lax = (Objectives(ttft=limit, itl=limit, tpot=limit, e2el=limit) for limit in (low, high))
    for answer in given_:
        assert not strict.met(answer) or lax.met(answer)
