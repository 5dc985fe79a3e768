from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given

from vidette_fuzz.strategies import sampling_params
from vidette_protocol.limits import Limits
from vidette_protocol.messages import SamplingParams, check_sampling
from vidette_protocol.messages.sampling import GREEDY_BELOW, MAX_SEED


@given(sampling_params())
def test_what_can_be_honoured_passes(params: SamplingParams) -> None:
    """check_sampling finds nothing wrong with parameters that are all in range."""
    assert check_sampling(params) is None


def test_defaults_pass() -> None:
    assert check_sampling(SamplingParams()) is None
    assert check_sampling(SamplingParams(max_new_tokens=None)) is None


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        (SamplingParams(max_new_tokens=-1), "max_new_tokens is -1; it must be from 0 to 1048576"),
        (
            SamplingParams(max_new_tokens=(1 << 20) + 1),
            "max_new_tokens is 1048577; it must be from 0 to 1048576",
        ),
        (
            SamplingParams(temperature=-0.5),
            "temperature is -0.5; it must be a finite number, 0 (greedy) or more",
        ),
        (
            SamplingParams(temperature=math.nan),
            "temperature is nan; it must be a finite number, 0 (greedy) or more",
        ),
        (
            SamplingParams(temperature=math.inf),
            "temperature is inf; it must be a finite number, 0 (greedy) or more",
        ),
        (SamplingParams(top_p=0.0), "top_p is 0.0; it must be greater than 0 and at most 1"),
        (SamplingParams(top_p=1.5), "top_p is 1.5; it must be greater than 0 and at most 1"),
        (SamplingParams(top_p=math.nan), "top_p is nan; it must be greater than 0 and at most 1"),
        (SamplingParams(top_k=0), "top_k is 0; it must be -1 (all tokens) or at least 1"),
        (SamplingParams(top_k=-2), "top_k is -2; it must be -1 (all tokens) or at least 1"),
        (SamplingParams(sampling_seed=-1), f"sampling_seed is -1; it must be from 0 to {MAX_SEED}"),
        (
            SamplingParams(sampling_seed=MAX_SEED + 1),
            f"sampling_seed is {MAX_SEED + 1}; it must be from 0 to {MAX_SEED}",
        ),
    ],
)
def test_what_cannot_be_honoured_is_named_with_its_value(params: SamplingParams, fault: str) -> None:
    assert fault == check_sampling(params)


def test_the_bound_on_new_tokens_is_that_of_the_limits() -> None:
    params = SamplingParams(max_new_tokens=9)
    assert check_sampling(params, Limits(max_new_tokens=9)) is None
    assert check_sampling(params, Limits(max_new_tokens=8)) == "max_new_tokens is 9; it must be from 0 to 8"


@pytest.mark.parametrize(
    ("params", "greedy"),
    [
        (SamplingParams(), False),
        (SamplingParams(temperature=0.0), True),
        (SamplingParams(temperature=GREEDY_BELOW / 2), True),
        (SamplingParams(temperature=GREEDY_BELOW), False),
        (SamplingParams(top_k=1), True),
        (SamplingParams(top_k=2), False),
    ],
)
def test_greedy_is_a_cold_temperature_or_one_candidate(params: SamplingParams, greedy: bool) -> None:
    assert greedy is params.greedy


def test_a_parameter_that_is_not_known_is_refused() -> None:
    """Better than not honouring it silently."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `min_p`"):
        msgspec.json.decode(b'{"min_p": 0.1}', type=SamplingParams)


def test_only_what_differs_from_the_defaults_travels() -> None:
    assert msgspec.json.encode(SamplingParams(top_k=3)) == b'{"top_k":3}'
