"""How a value is shown, and the kinds that need more than the rules' tests say of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import InvalidInput
from vidette_protocol.limits import Limits
from vidette_protocol.values import one_of, prompt, shown, surrogate_fault


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", "'x'"),
        ("a\n\ud800", r"'a\n\ud800'"),
        ("x" * 60, repr("x" * 60)),
        ("x" * 61, repr("x" * 60) + "... (61 characters)"),
        (np.str_("x"), "'x'"),
        (None, "None"),
        (True, "True"),
        (-5, "-5"),
        ((1 << 128) - 1, str((1 << 128) - 1)),
        (1 << 128, "a number of 129 bits"),
        (float("nan"), "nan"),
        ([1, 2], "a list of 2"),
        ((), "a list of 0"),
        ({}, "of type dict"),
        (b"x", "of type bytes"),
    ],
)
def test_a_value_is_shown_briefly(value: object, expected: str) -> None:
    assert shown(value) == expected


def test_a_number_that_python_would_not_print_is_shown() -> None:
    assert shown(10**5000) == "a number of 16610 bits"


def test_showing_runs_no_code_of_the_value() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("called")

    assert shown(Loud()) == "of type Loud"
    assert shown([Loud()]) == "a list of 1"


@given(st.recursive(st.text() | st.integers() | st.floats(), st.lists, max_leaves=4))
def test_nothing_shown_is_long(value: object) -> None:
    """At most 60 characters, each of up to ten when escaped, and a few words."""
    assert len(shown(value)) < 640


@given(st.text(st.characters(codec=None), max_size=5))
def test_a_text_is_fine_just_when_it_can_be_written(value: str) -> None:
    """surrogate_fault finds nothing wrong with a text if and only if it encodes to UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        assert surrogate_fault(value) is not None
    else:
        assert surrogate_fault(value) is None


@pytest.mark.parametrize("kind", [prompt, one_of("a")])
def test_a_text_of_another_class_becomes_a_plain_one(kind: Any) -> None:
    assert type(kind(np.str_("a"), "path", Limits())) is str


def test_a_refusal_names_the_path() -> None:
    with pytest.raises(InvalidInput) as caught:
        prompt("", "text[3]", Limits())
    assert caught.value.param == "text[3]"
    assert caught.value.code is None
    assert caught.value.error_status_hint == 400
