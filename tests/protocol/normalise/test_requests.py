"""What holds for every request, whatever its fields: the rules by themselves are in test_rules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from vidette_protocol.errors import InvalidInput
from vidette_protocol.limits import Limits
from vidette_protocol.messages import (
    EmbeddingReqInput,
    GenerateItem,
    GenerateReqInput,
    SamplingParams,
    check_sampling,
)
from vidette_protocol.messages.sampling import normalise_sampling
from vidette_protocol.normalise import (
    Normalised,
    by_prompt,
    normalise_embedding,
    normalise_generate,
    regenerate_rid,
)

LIMITS = Limits(answers=12)


def counter() -> Iterator[str]:
    number = 0
    while True:
        yield f"new{number}"
        number += 1


def run(request: GenerateReqInput) -> Normalised[GenerateItem]:
    return normalise_generate(request, new_rid=counter().__next__, limits=LIMITS)


# --- requests of all kinds -------------------------------------------------------------------

EACH: dict[str, st.SearchStrategy[Any]] = {
    "return_logprob": st.booleans(),
    "logprob_start_len": st.integers(-1, 9),
    "top_logprobs_num": st.integers(0, 9),
    "lora_path": st.none() | st.text("ab", min_size=1, max_size=3),
    "custom_logit_processor": st.none() | st.just("c"),
    "bootstrap_host": st.none() | st.just("h"),
    "bootstrap_port": st.none() | st.integers(1, 9),
    "priority": st.none() | st.integers(-3, 3),
    "extra_key": st.sampled_from(["", "k"]),
    "cache_salt": st.sampled_from(["", "s"]),
    "video_data": st.sampled_from(["v", b"w"]),
    "audio_data": st.sampled_from(["v", b"w"]),
    "image_data": st.sampled_from(["v", b"w"]),
}
"""Fields that take one value for all, or a list of one for each prompt; and one such value."""


def sampling(n: int) -> st.SearchStrategy[SamplingParams]:
    return st.builds(
        SamplingParams,
        n=st.just(n),
        temperature=st.sampled_from([0.0, 1e-9, 0.5]),
        sampling_seed=st.none() | st.integers(0, 99),
        stop=st.none() | st.just("x") | st.lists(st.sampled_from("xyz"), max_size=3),
        stop_token_ids=st.none() | st.lists(st.integers(0, 9), max_size=3),
        logit_bias=st.none() | st.dictionaries(st.integers(0, 9), st.floats(-9, 9), max_size=2),
        custom_params=st.none() | st.dictionaries(st.text("ab"), st.lists(st.integers(0, 9)), max_size=2),
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[GenerateReqInput, int, int]:
    """Requests that can be honoured, with their prompts and n."""
    prompts, n = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    listed = prompts > 1 or draw(st.booleans())

    def spread(of: st.SearchStrategy[Any]) -> Any:
        if listed and draw(st.booleans()):
            return draw(st.lists(of, min_size=prompts, max_size=prompts))
        return draw(of)

    texts = [f"p{number}" for number in range(prompts)]
    fields: dict[str, Any] = {"text": texts if listed else texts[0], "sampling_params": spread(sampling(n))}
    fields["rid"] = draw(st.sampled_from([None, "r", [f"r{number}" for number in range(prompts)]]))
    for name in draw(st.sets(st.sampled_from(sorted(EACH)))):
        fields[name] = spread(EACH[name])
    return GenerateReqInput(**fields), prompts, n


@given(requests())
def test_items_are_prompt_major_and_complete(case: tuple[GenerateReqInput, int, int]) -> None:
    """Item k is an answer to prompt k // n; there are n for each; rids are unique."""
    request, prompts, n = case
    done = run(request)
    assert done.n == n
    assert done.single is (isinstance(request.text, str) and n == 1)
    assert [item.text for item in done.items] == [f"p{number // n}" for number in range(prompts * n)]
    assert len({item.rid for item in done.items}) == prompts * n
    assert by_prompt([item.text for item in done.items], n) == [[f"p{k}"] * n for k in range(prompts)]


@given(requests())
def test_an_item_has_the_value_of_its_prompt(case: tuple[GenerateReqInput, int, int]) -> None:
    """A list gives a prompt's value to all of its answers, and a single value holds for all."""
    request, prompts, n = case
    given_fields, items = msgspec.structs.asdict(request), run(request).items
    for name in EACH:
        value = given_fields[name]
        column = value if isinstance(value, list) else [value] * prompts
        for number, item in enumerate(items):
            expected = column[number // n]
            if name.endswith("_data"):
                expected = None if expected is None else (expected,)
            assert msgspec.structs.asdict(item)[name] == (None if expected == "" else expected)


@given(requests())
def test_what_items_ask_for_can_be_honoured_as_it_is(case: tuple[GenerateReqInput, int, int]) -> None:
    """Sampling parameters of items are checked, of one answer, in the one way of writing, and can be sent."""
    for item in run(case[0]).items:
        params = item.sampling_params
        assert params.n == 1
        assert check_sampling(params, LIMITS) is None
        assert normalise_sampling(params) is params
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def changeable(value: object) -> Iterator[list[Any] | dict[Any, Any]]:
    """Yield every list and dict within a value."""
    if isinstance(value, list | dict):
        yield value
    if isinstance(value, Struct):
        value = msgspec.structs.astuple(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from changeable(each)


@given(requests())
def test_items_share_nothing_that_can_be_changed(case: tuple[GenerateReqInput, int, int]) -> None:
    """Spoiling all lists and dicts of one item, and all of the request, leaves every other item as it was."""
    request, _, _ = case
    items = run(request).items
    before = copy.deepcopy(items)
    for spoilt in (items[0], request):
        for each in list(changeable(spoilt)):
            each.clear()
    assert items[1:] == before[1:]
    assert run(GenerateReqInput(text="x")).items[0].sampling_params == SamplingParams()


@given(requests(), st.sampled_from(sorted([*EACH, "sampling_params", "rid", "regex"])), st.integers(0, 6))
def test_no_list_of_another_length_is_accepted(
    case: tuple[GenerateReqInput, int, int], name: str, length: int
) -> None:
    """A list that has not one value for each prompt is refused, by the name of its field."""
    request, prompts, _ = case
    if length == prompts or (name.endswith("_data") and isinstance(request.text, str)):
        return
    value = msgspec.structs.asdict(request)[name]
    one = value[0] if isinstance(value, list) and value else value
    wrong = msgspec.structs.replace(request, **{name: [one] * length})
    with pytest.raises(InvalidInput) as caught:
        run(wrong)
    assert caught.value.param == name
    assert f"is a list of {length}, but there" in str(caught.value)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**3000)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=4)
    | st.binary(max_size=2)
    | st.builds(object)
    | st.builds(SamplingParams, n=st.integers(0, 2), stop=st.none() | st.text(max_size=1)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*SamplingParams.__struct_fields__, "id", "x", 1]), inner, max_size=3
        )
        | st.tuples(inner)
    ),
    max_leaves=6,
)
"""Values that a caller may put into any field."""


def some_fields(cls: type[Struct]) -> st.SearchStrategy[dict[str, Any]]:
    texts: list[dict[str, Any]] = [{}, {"text": "a"}, {"text": ["a", "b"]}]
    prompts = st.sampled_from(texts)
    others = st.dictionaries(st.sampled_from(cls.__struct_fields__), ANYTHING, max_size=4)
    return st.builds(lambda base, more: {**base, **more}, prompts, others)


def refusal_of(make: Callable[[], Normalised[Any]]) -> InvalidInput | None:
    """Return what a request was refused with, having looked at its items if it was not."""
    try:
        items = make().items
    except InvalidInput as error:
        return error
    assert 1 <= len(items) <= LIMITS.answers
    return None


@given(some_fields(GenerateReqInput))
def test_any_request_is_items_or_refused(fields: dict[str, Any]) -> None:
    """Whatever is in the fields, there are items, or InvalidInput with a field and a short sentence."""
    refusal = refusal_of(lambda: run(GenerateReqInput(**fields)))
    assert refusal is None or (refusal.param and len(str(refusal)) < 800)


@given(some_fields(EmbeddingReqInput))
def test_any_request_to_embed_is_items_or_refused(fields: dict[str, Any]) -> None:
    """Whatever is in the fields, there are items, or InvalidInput with a field and a short sentence."""
    request = EmbeddingReqInput(**fields)
    refusal = refusal_of(lambda: normalise_embedding(request, new_rid=counter().__next__, limits=LIMITS))
    assert refusal is None or (refusal.param and len(str(refusal)) < 800)


@pytest.mark.parametrize("field", [*GenerateReqInput.__struct_fields__, "top_k", "temperature"])
def test_a_number_too_long_to_be_shown_is_refused(field: str) -> None:
    fields: dict[str, Any] = {"text": "a", field: 10**5000}
    if field not in GenerateReqInput.__struct_fields__:
        fields = {"text": "a", "sampling_params": {field: 10**5000}}
    refusal = refusal_of(lambda: run(GenerateReqInput(**fields)))
    assert refusal is not None
    assert len(str(refusal)) < 200


# --- what costs something ------------------------------------------------------------------------


class Unread(list[Any]):
    """A list that nobody may look into."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("nobody looks")

    def __getitem__(self, index: object) -> Any:
        if index == 0:
            return "x"
        raise AssertionError("nobody looks")


@pytest.mark.parametrize("field", ["text", "sampling_params", "rid", "priority", "image_data", "regex"])
def test_nothing_is_looked_at_of_a_list_that_is_too_long(field: str) -> None:
    fields: dict[str, Any] = {"text": ["a", "b"], field: Unread(["x"] * 100)}
    with pytest.raises(InvalidInput, match=f"^{field} (has 100 prompts|is a list of 100)"):
        run(GenerateReqInput(**fields))


def test_what_is_repeated_is_checked_once() -> None:
    """Else a large schema, or patterns, would cost as often as there are prompts."""
    params = SamplingParams(stop_regex="x" * 200, json_schema="{}")
    done = run(GenerateReqInput(text=["a"] * 12, sampling_params=[params] * 12))
    assert [item.sampling_params.stop_regex for item in done.items] == [["x" * 200]] * 12


def test_no_rid_is_made_where_there_is_one_or_too_early() -> None:
    made: list[str] = []

    def new_rid() -> str:
        made.append(f"n{len(made)}")
        return made[-1]

    normalise_generate(GenerateReqInput(text="a", rid="r"), new_rid=new_rid)
    with pytest.raises(InvalidInput):
        normalise_generate(GenerateReqInput(text=["a", "b"], priority="high"), new_rid=new_rid)  # type: ignore[arg-type]
    assert not made
    normalise_generate(GenerateReqInput(text=["a", "b"]), new_rid=new_rid)
    assert made == ["n0", "n1"]


# --- rids again, and outputs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rid", "expected"), [(None, "new0"), ("r", "new0"), (["r"], ["new0"]), (("r", "s"), ["new0", "new1"])]
)
def test_a_request_goes_out_again_under_as_many_new_rids(rid: Any, expected: Any) -> None:
    rids = counter()
    request = GenerateReqInput(rid=rid, text="a", priority=3)
    again = regenerate_rid(request, lambda: next(rids))
    assert again == GenerateReqInput(rid=expected, text="a", priority=3)
    assert request.rid == rid
    assert regenerate_rid(EmbeddingReqInput(rid="r"), lambda: "s").rid == "s"


def test_outputs_come_back_by_prompt() -> None:
    assert by_prompt("abcdef", 2) == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert by_prompt((1, 2), 1) == [[1], [2]]
    assert by_prompt([], 3) == []


@pytest.mark.parametrize("n", [0, -1, 2])
def test_outputs_that_are_not_n_for_each_prompt_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"^3 outputs are not {n} for each prompt$"):
        by_prompt([1, 2, 3], n)
