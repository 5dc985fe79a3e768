"""Hypothesis strategies for every message of the protocol, and for frames that were tampered with.

`structs` follows the types of a class alone, so columns may contradict each other; `messages` gives what a
side of ours would send.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from random import Random
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from vidette_fuzz.frames import tamper
from vidette_protocol.codec import Codec
from vidette_protocol.ext import ModelData
from vidette_protocol.ids import MAX_VID, Vid
from vidette_protocol.limits import Limits
from vidette_protocol.messages import (
    AddExternalCorpusReqInput,
    BatchEmbeddingOutput,
    BatchStrOutput,
    BatchTokenIDOutput,
    BatchTokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    FinishReason,
    LoadLoRAAdapterFromTensorsReqInput,
    LoRARef,
    Message,
    SamplingParams,
    SchedulerLedger,
    Served,
    SpeculativeMetrics,
    StrRow,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
    TokenLogprobs,
    TokenRow,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromTensorReqInput,
    pack_f32,
    pack_i32,
    pack_i64,
)
from vidette_protocol.messages.bulk import ArenaCredit
from vidette_protocol.messages.columns import COLUMN, Column
from vidette_protocol.messages.multimodal import MultimodalProcessorOutput, PositionalEmbeds
from vidette_protocol.messages.pickled import PickledBytes
from vidette_protocol.messages.sampling import MAX_BIAS, MAX_SEED

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_Fields = Mapping[str, st.SearchStrategy[Any]]

INT32: Final = st.integers(-(1 << 31), (1 << 31) - 1)
"""What fits in a packed column of token ids."""
OFFSETS: Final = st.integers(0, (1 << 31) - 1)
"""Positions in an output."""


# Built once: finding out the types of fields takes longer than filling them.
_REASONS: Final = st.deferred(lambda: structs(FinishReason))
_SPECS: Final = st.deferred(lambda: structs(SpeculativeMetrics))
_LEDGERS: Final = st.deferred(lambda: structs(SchedulerLedger))


def vids() -> st.SearchStrategy[Vid]:
    """Vids of any front."""
    return st.integers(0, MAX_VID).map(Vid)


def arrays() -> st.SearchStrategy[NDArray[Any]]:
    """Small arrays of the kinds that travel."""
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(np.zeros, shapes, st.sampled_from(["<f4", "<f2", "<i8", "|u1", "|b1"]))


# --- what a side of ours sends -------------------------------------------------------------


def sampling_params() -> st.SearchStrategy[SamplingParams]:
    """Parameters that can be honoured, complete as the front sends them."""
    plain = {
        "temperature": st.floats(0, 100),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.just(-1) | st.integers(1, 1 << 20),
        "sampling_seed": st.integers(0, MAX_SEED),
        "stop": st.none() | _texts() | st.lists(_texts(), max_size=2),
        "stop_token_ids": st.none() | st.lists(OFFSETS, max_size=3),
        "stop_regex": st.none() | st.sampled_from(["[.!?]$", ["a+", "b"]]),
        "min_p": st.floats(0, 1),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0, 2, exclude_min=True),
        "logit_bias": st.none() | st.dictionaries(OFFSETS, st.floats(-MAX_BIAS, MAX_BIAS), max_size=2),
        "n": st.just(1),
        "custom_params": st.none() | st.dictionaries(st.text(max_size=4), _scalars(), max_size=2),
        "stream_interval": st.none() | st.integers(1, Limits().max_new_tokens),
        **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"), st.none()),
    }
    lengths = st.lists(st.integers(0, Limits().max_new_tokens), min_size=2, max_size=2).map(sorted)
    constraints = st.sampled_from(
        [
            {},
            {"json_schema": '{"type": "object"}'},
            {"regex": "a|b"},
            {"ebnf": 'root ::= "a"'},
            {"structural_tag": "{}"},
        ]
    )
    return st.builds(_with_bounds, structs(SamplingParams, **plain), lengths, constraints)


def _with_bounds(params: SamplingParams, lengths: list[int], constraint: dict[str, str]) -> SamplingParams:
    return msgspec.structs.replace(params, min_new_tokens=lengths[0], max_new_tokens=lengths[1], **constraint)


def _texts() -> st.SearchStrategy[str]:
    return st.text(min_size=1, max_size=8)


def _scalars() -> st.SearchStrategy[Any]:
    finite = st.floats(allow_nan=False, allow_infinity=False)
    return st.none() | st.booleans() | _PLAIN[int] | finite | st.text(max_size=8)


@st.composite
def logprobs(draw: st.DrawFn, new_tokens: int) -> TokenLogprobs:
    """Log probabilities of a row; each column may be left out.

    Args:
        draw: of Hypothesis.
        new_tokens: how many tokens the row has.
    """
    tops = draw(st.integers(0, 2))
    asked = draw(st.none() | st.lists(INT32, max_size=2))
    prompt = draw(st.integers(0, 3))
    width = 0 if asked is None else len(asked)
    columns: dict[str, memoryview | None] = {}
    for side, positions in (("output", new_tokens), ("input", prompt)):
        columns[f"{side}_token_logprobs_val"] = draw(_floats32(positions))
        present = positions if columns[f"{side}_token_logprobs_val"] is not None or side == "output" else 0
        columns[f"{side}_top_logprobs_val"] = draw(_floats32(present * tops))
        columns[f"{side}_top_logprobs_idx"] = draw(_ints32(present * tops))
        columns[f"{side}_token_ids_logprobs_val"] = draw(_floats32(present * width))
    told = prompt if columns["input_token_logprobs_val"] is not None else 0
    columns["input_token_logprobs_idx"] = draw(_ints32(told))
    columns["token_ids_logprob"] = None if asked is None else pack_i32(asked)
    return TokenLogprobs(**columns, top_logprobs_num=tops)


def _floats32(count: int) -> st.SearchStrategy[memoryview | None]:
    numbers = st.lists(st.floats(width=32), min_size=count, max_size=count)
    return st.none() | numbers.map(pack_f32)


def _ints32(count: int) -> st.SearchStrategy[memoryview | None]:
    return st.none() | st.lists(INT32, min_size=count, max_size=count).map(pack_i32)


@st.composite
def token_rows(draw: st.DrawFn) -> TokenRow:
    """Rows of a step."""
    return TokenRow(
        **draw(_rows()),
        decoded_text=draw(st.text(max_size=4)),
        held=draw(st.integers(0, 300)),
        mode=draw(st.integers(0, 7)),
    )


@st.composite
def str_rows(draw: st.DrawFn) -> StrRow:
    """Rows of a step, with their text."""
    return StrRow(**draw(_rows()), text=draw(st.text(max_size=8)))


@st.composite
def _rows(draw: st.DrawFn) -> dict[str, Any]:
    """Return what both kinds of rows have."""
    token_ids = tuple(draw(st.lists(INT32, max_size=4)))
    return {
        "vid": draw(vids()),
        "offset": draw(OFFSETS),
        "token_ids": token_ids,
        "reason": draw(st.none() | _REASONS),
        "logprobs": draw(st.none() | logprobs(len(token_ids))),
        "spec": draw(st.none() | _SPECS),
        "served": draw(st.none() | structs(Served)),
    }


def messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of one class, as a side of ours would send them.

    Args:
        cls: any message class; one that is not of this package is filled by its types.
    """
    return _MESSAGES[cls]() if cls in _MESSAGES else structs(cls)


@st.composite
def _tokens_of_steps(draw: st.DrawFn) -> BatchTokenIDOutput:
    message = BatchTokenIDOutput.from_rows(draw(st.lists(token_rows(), max_size=4)), draw(_LEDGERS))
    return msgspec.structs.replace(message, sparse_rids=draw(_sparse(len(message), st.text(max_size=4))))


@st.composite
def _texts_of_steps(draw: st.DrawFn) -> BatchStrOutput:
    message = BatchStrOutput.from_rows(
        draw(st.lists(str_rows(), max_size=4)), draw(_LEDGERS), draw(_PLAIN[int])
    )
    return msgspec.structs.replace(message, sparse_rids=draw(_sparse(len(message), st.text(max_size=4))))


@st.composite
def _embeddings_of_steps(draw: st.DrawFn) -> BatchEmbeddingOutput:
    rows = draw(st.integers(0, 4))

    def listed(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=rows, max_size=rows))

    return BatchEmbeddingOutput(
        packed_vids=pack_i64(listed(vids())),
        embeddings=listed(_PLAIN[object]),
        sparse_reasons=draw(_sparse(rows, _REASONS)),
        packed_prompt_tokens=pack_i32(listed(OFFSETS)),
        packed_cached_tokens=pack_i32(listed(OFFSETS)) if draw(st.booleans()) else None,
        sparse_hidden_states=draw(_sparse(rows, arrays())),
        sparse_rids=draw(_sparse(rows, st.text(max_size=4))),
        ledger=draw(_LEDGERS),
    )


def _sparse(rows: int, of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[int, Any]]]:
    """Return sparse columns of a message of some rows."""
    present = st.dictionaries(st.integers(0, rows - 1), of) if rows else st.just({})
    return present.map(lambda values: sorted(values.items(), key=lambda item: item[0]))


def _prompts() -> st.SearchStrategy[memoryview]:
    return st.lists(INT32, min_size=1, max_size=8).map(pack_i32)


def _requests() -> st.SearchStrategy[TokenizedGenerateReqInput]:
    return structs(
        TokenizedGenerateReqInput,
        input_ids=_prompts(),
        sampling_params=sampling_params(),
        token_ids_logprob=st.none() | _prompts(),
        resumed_output_ids=st.none() | _prompts(),
    )


def _embedding_requests() -> st.SearchStrategy[TokenizedEmbeddingReqInput]:
    return structs(
        TokenizedEmbeddingReqInput,
        input_ids=_prompts(),
        dimensions=st.none() | st.integers(1, (1 << 63) - 1),
    )


def _several(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, min_size=1, max_size=3, unique_by=lambda request: request.vid)


@st.composite
def _broadcasts(draw: st.DrawFn) -> UpdateWeightsFromDistributedReqInput:
    tensors = draw(st.lists(st.tuples(st.text(), st.text(), st.lists(OFFSETS, max_size=3)), max_size=3))
    return draw(
        structs(
            UpdateWeightsFromDistributedReqInput,
            names=st.just([name for name, _, _ in tensors]),
            dtypes=st.just([dtype for _, dtype, _ in tensors]),
            shapes=st.just([shape for _, _, shape in tensors]),
        )
    )


def _with_tensors(cls: type[_Struct]) -> st.SearchStrategy[_Struct]:
    """Return messages that hold tensors in one of two ways."""
    named = st.lists(st.dictionaries(st.text(max_size=4), arrays(), max_size=2), max_size=2)
    files = st.lists(st.binary(max_size=16), max_size=2)
    return structs(cls, named_tensors=named, serialized_named_tensors=st.none()) | structs(
        cls, named_tensors=st.none(), serialized_named_tensors=files
    )


_MESSAGES: Final[dict[type[Message], Callable[[], st.SearchStrategy[Message]]]] = {
    TokenizedGenerateReqInput: _requests,
    TokenizedEmbeddingReqInput: _embedding_requests,
    BatchTokenizedGenerateReqInput: lambda: structs(
        BatchTokenizedGenerateReqInput, reqs=_several(_requests())
    ),
    BatchTokenizedEmbeddingReqInput: lambda: structs(
        BatchTokenizedEmbeddingReqInput, reqs=_several(_embedding_requests())
    ),
    BatchTokenIDOutput: _tokens_of_steps,
    BatchStrOutput: _texts_of_steps,
    BatchEmbeddingOutput: _embeddings_of_steps,
    AddExternalCorpusReqInput: lambda: structs(
        AddExternalCorpusReqInput, token_chunks=st.lists(_prompts(), max_size=2)
    ),
    UpdateWeightsFromDistributedReqInput: _broadcasts,
    UpdateWeightsFromTensorReqInput: lambda: _with_tensors(UpdateWeightsFromTensorReqInput),
    LoadLoRAAdapterFromTensorsReqInput: lambda: _with_tensors(LoadLoRAAdapterFromTensorsReqInput),
    ArenaCredit: lambda: structs(ArenaCredit, packed_places=_packed(Column.I64)),
}
"""Classes whose fields have to agree with each other."""


# --- whatever has the right types ----------------------------------------------------------


def structs(cls: type[_Struct], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[_Struct]:
    """Structs of one class, each field filled by its type.

    Args:
        cls: a struct class.
        fields: strategies for fields that their type says too little of.
    """
    hints = get_type_hints(cls, include_extras=True)
    known = {**_CONSTRUCTED.get(cls, {}), **fields}
    filled = {name: known[name] if name in known else values(hints[name]) for name in cls.__struct_fields__}
    return st.builds(cls, **filled)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type that a field of a message may have.

    Raises:
        TypeError: no field of ours has such a type.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(args[0], args[1])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is Union or origin is types.UnionType:
        return st.one_of(*map(values, args))
    if origin is list:
        return st.lists(values(args[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if isinstance(hint, NewType):
        return values(hint.__supertype__)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is PositionalEmbeds:
        return st.integers(0, 3).flatmap(_positional_embeds)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    raise TypeError(f"no strategy for a field of type {hint!r}")


def _annotated(hint: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Return values that are within bounds, or look like a column now and then."""
    kind = (meta.extra or {}).get(COLUMN)
    if isinstance(kind, Column):
        return values(hint) | _packed(kind) if kind in _PACKED else values(hint)
    if hint is int:
        low = int(-(1 << 63) if meta.ge is None else meta.ge) if meta.gt is None else int(meta.gt) + 1
        return st.integers(low, int((1 << 64) - 1 if meta.le is None else meta.le))
    if hint is float:
        return st.floats(min_value=meta.ge, max_value=meta.le, allow_nan=False)
    if meta == msgspec.Meta(extra=meta.extra):
        return values(hint)
    raise TypeError(f"no strategy for a field of type {hint!r} with {meta!r}")


_PACKED: Final = frozenset({Column.I32, Column.I64, Column.COUNTS, Column.TOKENS})


def _packed(kind: Column) -> st.SearchStrategy[memoryview]:
    if kind is Column.I64:
        return st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4).map(pack_i64)
    return st.lists(st.integers(0, 2) | INT32, max_size=4).map(pack_i32)


def _positional_embeds(positions: int) -> st.SearchStrategy[PositionalEmbeds]:
    rows: NDArray[np.float32] = np.zeros((positions, 2), np.float32)
    return st.builds(
        PositionalEmbeds,
        embeds=st.just(rows),
        positions=st.lists(OFFSETS, min_size=positions, max_size=positions),
    )


_JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)

_PLAIN: Final[dict[Any, st.SearchStrategy[Any]]] = {
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(),
    str: st.text(),
    bytes: st.binary(max_size=64),
    memoryview: st.binary(max_size=64).map(memoryview),
    types.NoneType: st.none(),
    Any: _JSON,
    object: _JSON | arrays(),
    ModelData: st.dictionaries(st.text(max_size=4), _JSON | arrays(), max_size=2).map(ModelData),
    PickledBytes: st.binary(max_size=16).map(PickledBytes),
}

_CONSTRUCTED: Final[dict[type, _Fields]] = {
    LoRARef: {"lora_id": st.text(min_size=1)},
    MultimodalProcessorOutput: dict.fromkeys(
        ("input_ids", "padded_input_ids"), st.none() | _packed(Column.I32)
    ),
}
"""Fields of structs that are checked when they are constructed."""


# --- frames --------------------------------------------------------------------------------


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
