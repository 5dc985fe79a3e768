from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given

from vidette_fuzz.strategies import sampling_params
from vidette_protocol.limits import Limits
from vidette_protocol.messages import SamplingParams, check_sampling
from vidette_protocol.messages.sampling import GREEDY_BELOW, MAX_SEED, normalise_sampling, own_sampling


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
        (SamplingParams(top_k=1 << 63), f"top_k is {1 << 63}; it must be -1 (all tokens) or at least 1"),
        (
            SamplingParams(min_new_tokens=-1),
            "min_new_tokens is -1; it must be from 0 to max_new_tokens, which is 128",
        ),
        (
            SamplingParams(min_new_tokens=5, max_new_tokens=4),
            "min_new_tokens is 5; it must be from 0 to max_new_tokens, which is 4",
        ),
        (
            SamplingParams(min_new_tokens=1 << 21, max_new_tokens=None),
            "min_new_tokens is 2097152; it must be from 0 to 1048576",
        ),
        (SamplingParams(min_p=-0.1), "min_p is -0.1; it must be from 0 to 1"),
        (SamplingParams(min_p=1.1), "min_p is 1.1; it must be from 0 to 1"),
        (SamplingParams(min_p=math.nan), "min_p is nan; it must be from 0 to 1"),
        (SamplingParams(frequency_penalty=2.1), "frequency_penalty is 2.1; it must be from -2 to 2"),
        (SamplingParams(frequency_penalty=math.nan), "frequency_penalty is nan; it must be from -2 to 2"),
        (SamplingParams(presence_penalty=-2.1), "presence_penalty is -2.1; it must be from -2 to 2"),
        (
            SamplingParams(repetition_penalty=0.0),
            "repetition_penalty is 0.0; it must be greater than 0 and at most 2",
        ),
        (
            SamplingParams(repetition_penalty=math.inf),
            "repetition_penalty is inf; it must be greater than 0 and at most 2",
        ),
        (SamplingParams(n=0), "n is 0; it must be from 1 to 128"),
        (SamplingParams(n=129), "n is 129; it must be from 1 to 128"),
        (SamplingParams(stream_interval=0), "stream_interval is 0; it must be from 1 to 1048576"),
        # stops
        (SamplingParams(stop=""), "stop has 0 characters; it must have 1 to 1024"),
        (SamplingParams(stop=["a", ""]), "stop[1] has 0 characters; it must have 1 to 1024"),
        (SamplingParams(stop="x" * 1025), "stop has 1025 characters; it must have 1 to 1024"),
        (SamplingParams(stop="\ud800"), "stop has '\\ud800' at 0, half a surrogate pair"),
        (SamplingParams(stop=["a"] * 33), "stop has 33 items; at most 32 are accepted"),
        (SamplingParams(stop_token_ids=[5, -1]), "stop_token_ids[1] is -1; token ids are 0 to 2147483647"),
        (
            SamplingParams(stop_token_ids=[1] * 1025),
            "stop_token_ids has 1025 items; at most 1024 are accepted",
        ),
        (SamplingParams(stop_regex=""), "stop_regex has 0 characters; it must have 1 to 256"),
        (SamplingParams(stop_regex=["a"] * 9), "stop_regex has 9 items; at most 8 are accepted"),
        (
            SamplingParams(stop_regex=["a" * 200, "b" * 200]),
            "stop_regex has 400 characters altogether; at most 256 are accepted",
        ),
        (
            SamplingParams(stop_regex=["a", "("]),
            (
                "stop_regex[1] is '(', which is not a regular expression: "
                "missing ), unterminated subpattern at position 0"
            ),
        ),
        (
            SamplingParams(stop_regex=["a", r"(a)\1"]),
            r"stop_regex[1] is '(a)\\1', which has a backreference; that is not supported",
        ),
        (
            SamplingParams(stop_regex=["a{300}", "b{300}", "b{300}"]),
            "stop_regex[1] is 'b{300}', which is too large; all patterns together may have 512 states",
        ),
        (
            SamplingParams(stop_regex="a{" + "9" * 30 + "}"),
            (
                "stop_regex is 'a{999999999999999999999999999999}', which is not a regular expression: "
                "the repetition number is too large"
            ),
        ),
        # constraints
        (SamplingParams(regex=""), "regex has 0 characters; it must have 1 to 131072"),
        (SamplingParams(ebnf="x" * 131073), "ebnf has 131073 characters; it must have 1 to 131072"),
        (
            SamplingParams(regex="a", ebnf="b"),
            "regex and ebnf are both given; an output has one constraint at most",
        ),
        (
            SamplingParams(json_schema="{}", structural_tag="{}"),
            "json_schema and structural_tag are both given; an output has one constraint at most",
        ),
        (
            SamplingParams(json_schema="{'a': 1}"),
            (
                "json_schema is \"{'a': 1}\", which is not JSON: "
                "JSON is malformed: object keys must be strings (byte 1)"
            ),
        ),
        (SamplingParams(json_schema="[]"), "json_schema is '[]'; it must be a JSON object"),
        (SamplingParams(structural_tag="1"), "structural_tag is '1'; it must be a JSON object"),
        (SamplingParams(json_schema='{"a":' * 65 + "{}" + "}" * 65), "json_schema is nested deeper than 64"),
        (
            SamplingParams(json_schema='{"a":' + "[" * 64 + "]" * 64 + "}"),
            "json_schema is nested deeper than 64",
        ),
        (SamplingParams(json_schema='{"a":' * 20000), "json_schema is nested deeper than 64"),
        # maps
        (SamplingParams(logit_bias={-1: 0.0}), "logit_bias has the token -1; token ids are 0 to 2147483647"),
        (SamplingParams(logit_bias={7: 101.0}), "logit_bias of 7 is 101.0; it must be from -100 to 100"),
        (SamplingParams(logit_bias={7: math.nan}), "logit_bias of 7 is nan; it must be from -100 to 100"),
        (
            SamplingParams(logit_bias=dict.fromkeys(range(1025), 0.0)),
            "logit_bias has 1025 items; at most 1024 are accepted",
        ),
        (
            SamplingParams(custom_params={"a": [1, [2]]}),
            (
                "custom_params of 'a' holds a list of 1; "
                "a value is a scalar, a list of scalars, or a map from text to scalars"
            ),
        ),
        (
            SamplingParams(custom_params={"a": {"b": {}}}),
            (
                "custom_params of 'a' holds of type dict; "
                "a value is a scalar, a list of scalars, or a map from text to scalars"
            ),
        ),
        (
            SamplingParams(custom_params={"a": {5: 1}}),
            "custom_params of 'a' has a key that is no text",
        ),
        (
            SamplingParams(custom_params={"a": ()}),
            (
                "custom_params of 'a' holds a list of 0; "
                "a value is a scalar, a list of scalars, or a map from text to scalars"
            ),
        ),
        (
            SamplingParams(custom_params={"a": math.inf}),
            (
                "custom_params of 'a' holds inf; "
                "a value is a scalar, a list of scalars, or a map from text to scalars"
            ),
        ),
        (
            SamplingParams(custom_params={"a": 1 << 64}),
            (
                f"custom_params of 'a' holds {1 << 64}; "
                "a value is a scalar, a list of scalars, or a map from text to scalars"
            ),
        ),
        (
            SamplingParams(custom_params={"a": ["\ud800"]}),
            "custom_params of 'a' has '\\ud800' at 0, half a surrogate pair",
        ),
        (
            SamplingParams(custom_params={"a": "x" * 16382}),
            "custom_params has more than 16384 keys, values and characters",
        ),
        (
            SamplingParams(custom_params={"a": [0] * 16384}),
            "custom_params has more than 16384 keys, values and characters",
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


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(min_new_tokens=128),
        SamplingParams(min_new_tokens=200, max_new_tokens=None),
        SamplingParams(min_p=1, frequency_penalty=-2, presence_penalty=2, repetition_penalty=2),
        SamplingParams(n=128, stream_interval=1),
        SamplingParams(stop=["x" * 1024, "é"], stop_token_ids=[], stop_regex=["a" * 256, "a" * 256]),
        SamplingParams(json_schema='{"a":' * 63 + "{}" + "}" * 63),
        SamplingParams(logit_bias={(1 << 31) - 1: -100.0}),
        SamplingParams(custom_params={"a": "x" * 16381}),
        SamplingParams(
            custom_params={"a": None, "b": [True, -(1 << 63), 0.5, "é"], "c": {"d": (1 << 64) - 1}}
        ),
    ],
)
def test_what_is_just_within_bounds_passes(params: SamplingParams) -> None:
    assert check_sampling(params) is None


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        (SamplingParams(stop_token_ids=[9]), None),
        (SamplingParams(logit_bias={9: 1.0}), None),
        (SamplingParams(stop_token_ids=[9, 10]), "stop_token_ids[1] is 10; token ids are 0 to 9"),
        (SamplingParams(logit_bias={10: 1.0}), "logit_bias has the token 10; token ids are 0 to 9"),
    ],
)
def test_tokens_are_of_the_vocabulary_where_it_is_known(params: SamplingParams, fault: str | None) -> None:
    assert check_sampling(params) is None
    assert check_sampling(params, vocab_size=10) == fault


def test_a_pattern_that_warns_is_no_error_of_ours() -> None:
    """What compiling a pattern warns of is an error only where all warnings are, as in these tests."""
    fault = check_sampling(SamplingParams(stop_regex="[[a]"))
    assert fault is not None
    assert fault.startswith("stop_regex is '[[a]', which is not a regular expression: Possible nested set")


@pytest.mark.parametrize(
    ("params", "written"),
    [
        (SamplingParams(), SamplingParams()),
        (SamplingParams(temperature=GREEDY_BELOW / 2), SamplingParams(temperature=0.0)),
        (SamplingParams(temperature=GREEDY_BELOW), SamplingParams(temperature=GREEDY_BELOW)),
        (SamplingParams(top_k=1), SamplingParams(top_k=1)),
        (SamplingParams(stop="x"), SamplingParams(stop=["x"])),
        (SamplingParams(stop=["y", "x", "y"]), SamplingParams(stop=["y", "x"])),
        (SamplingParams(stop=[], stop_regex=[], stop_token_ids=[]), SamplingParams()),
        (SamplingParams(stop_regex="x"), SamplingParams(stop_regex=["x"])),
        (SamplingParams(stop_token_ids=[5, 4, 5]), SamplingParams(stop_token_ids=[5, 4])),
        (SamplingParams(logit_bias={}, custom_params={}), SamplingParams()),
    ],
)
def test_there_is_one_way_of_writing(params: SamplingParams, written: SamplingParams) -> None:
    assert normalise_sampling(params) == written


@given(sampling_params())
def test_writing_again_changes_nothing(params: SamplingParams) -> None:
    """normalise_sampling is idempotent, keeps what is asked for, and survives the wire."""
    written = normalise_sampling(params)
    assert normalise_sampling(written) is written
    assert check_sampling(written) is None
    assert written.greedy is params.greedy
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=SamplingParams) == written
    for field in ("top_p", "n", "sampling_seed", "regex", "max_new_tokens", "min_p", "no_stop_trim"):
        assert msgspec.structs.asdict(written)[field] == msgspec.structs.asdict(params)[field]


def test_a_copy_of_ones_own_shares_no_list_and_no_map() -> None:
    params = SamplingParams(
        stop=["a"],
        stop_token_ids=[1],
        stop_regex=["b"],
        logit_bias={1: 2.0},
        custom_params={"c": [1], "d": 2},
    )
    own = own_sampling(params)
    before = msgspec.msgpack.encode(params)
    for part in (own.stop, own.stop_token_ids, own.stop_regex, own.logit_bias, own.custom_params):
        assert isinstance(part, list | dict)
        for value in part.values() if isinstance(part, dict) else ():
            if isinstance(value, list):
                value.clear()
        part.clear()
    assert msgspec.msgpack.encode(params) == before
    plain = SamplingParams(temperature=0.5)
    assert own_sampling(plain) is plain


def test_a_parameter_that_is_not_known_is_refused() -> None:
    """Better than not honouring it silently."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `temprature`"):
        msgspec.json.decode(b'{"temprature": 0.1}', type=SamplingParams)


def test_only_what_differs_from_the_defaults_travels() -> None:
    assert msgspec.json.encode(SamplingParams(top_k=3)) == b'{"top_k":3}'
