"""Hypothesis strategies for every message of the protocol, and for frames that were tampered with.

`structs` follows the types of a class alone, so columns may contradict each other; `messages` gives what a
side of ours would send.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from random import Random
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from vidette_fuzz.frames import tamper
from vidette_protocol.codec import Codec
from vidette_protocol.ids import MAX_VID, Vid
from vidette_protocol.limits import Limits
from vidette_protocol.messages import (
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    Message,
    SamplingParams,
    SchedulerLedger,
    StrRow,
    TokenizedGenerateReqInput,
    TokenRow,
    pack_i32,
)
from vidette_protocol.messages.sampling import MAX_SEED

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

INT32: Final = st.integers(-(1 << 31), (1 << 31) - 1)
"""What fits in a packed column of token ids."""
OFFSETS: Final = st.integers(0, (1 << 31) - 1)
"""Positions in an output."""


def vids() -> st.SearchStrategy[Vid]:
    """Vids of any front."""
    return st.integers(0, MAX_VID).map(Vid)


def sampling_params() -> st.SearchStrategy[SamplingParams]:
    """Parameters that can be honoured, complete as the front sends them."""
    return st.builds(
        SamplingParams,
        max_new_tokens=st.integers(0, Limits().max_new_tokens),
        temperature=st.floats(0, 100),
        top_p=st.floats(0, 1, exclude_min=True),
        top_k=st.just(-1) | st.integers(1, 1 << 20),
        ignore_eos=st.booleans(),
        sampling_seed=st.integers(0, MAX_SEED),
    )


def token_rows() -> st.SearchStrategy[TokenRow]:
    """Rows of a step."""
    return st.builds(TokenRow, **_row())


def str_rows() -> st.SearchStrategy[StrRow]:
    """Rows of a step, with their text."""
    return st.builds(StrRow, **_row(), text=st.text())


def _row() -> dict[str, st.SearchStrategy[Any]]:
    return {
        "vid": vids(),
        "offset": OFFSETS,
        "token_ids": st.lists(INT32, max_size=4).map(tuple),
        "reason": st.none() | structs(FinishReason),
    }


def messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of one class, as a side of ours would send them.

    Args:
        cls: any message class; one that is not of this package is filled by its types.
    """
    if cls is BatchTokenIDOutput:
        return st.builds(BatchTokenIDOutput.from_rows, st.lists(token_rows()), structs(SchedulerLedger))
    if cls is BatchStrOutput:
        opened = st.integers(0, 1 << 20)
        return st.builds(BatchStrOutput.from_rows, st.lists(str_rows()), structs(SchedulerLedger), opened)
    if cls is TokenizedGenerateReqInput:
        prompt = st.lists(INT32, min_size=1).map(pack_i32)
        return structs(TokenizedGenerateReqInput, input_ids=prompt, sampling_params=sampling_params())
    return structs(cls)


def structs(cls: type[_Struct], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[_Struct]:
    """Structs of one class, each field filled by its type.

    Args:
        cls: a struct class.
        fields: strategies for fields that their type says too little of.
    """
    hints = get_type_hints(cls, include_extras=True)
    for name in cls.__struct_fields__:
        if name not in fields:
            fields[name] = values(hints[name])
    return st.builds(cls, **fields)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type that a field of a message may have.

    Raises:
        TypeError: no field of ours has such a type.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        meta = args[1]
        return st.integers(min_value=meta.ge, max_value=meta.le)
    if origin is Literal:
        return st.sampled_from(args)
    if origin is Union or origin is types.UnionType:
        return st.one_of(*map(values, args))
    if origin is list:
        return st.lists(values(args[0]), max_size=4)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    raise TypeError(f"no strategy for a field of type {hint!r}")


_PLAIN: Final[dict[Any, st.SearchStrategy[Any]]] = {
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(),
    str: st.text(),
    memoryview: st.binary(max_size=64).map(memoryview),
    types.NoneType: st.none(),
}


def frames(classes: Iterable[type[Message]]) -> st.SearchStrategy[bytes]:
    """Frames of the messages of a link."""
    classes = tuple(classes)
    encode = Codec(sends=classes, receives=classes).encode
    return st.one_of(*map(messages, classes)).map(encode)


def mutated_frames(classes: Iterable[type[Message]]) -> st.SearchStrategy[bytes]:
    """Frames of the messages of a link with a few things wrong with them."""
    whole = frames(tuple(classes))
    return st.builds(_mutated, whole, st.lists(whole, max_size=2), st.integers(0, (1 << 32) - 1))


def _mutated(frame: bytes, others: list[bytes], seed: int) -> bytes:
    return tamper(frame, Random(seed), others=others)
