"""What decoding costs is in proportion to the frame, whatever its bytes announce.

Time is not measured here, since it says as much of the machine as of the code. Counted are the instructions
of our own Python and the memory at its peak; what msgspec does inside of itself shows in the latter alone.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.protocol.conftest import ANY

from vidette_fuzz.samples import SAMPLES
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError
from vidette_protocol.messages import (
    AddExternalCorpusReqInput,
    AllBlocksCleared,
    BatchEmbeddingOutput,
    BatchStrOutput,
    BatchTokenIDOutput,
    BatchTokenizedGenerateReqInput,
    FinishReason,
    GetInternalStateReqOutput,
    Hello,
    KVEventBatch,
    LoRARef,
    LoRAUpdateOutput,
    Message,
    SamplingParams,
    SchedulerLedger,
    SpeculativeMetrics,
    StrRow,
    Tag,
    TokenizedGenerateReqInput,
    TokenLogprobs,
    TokenRow,
    UpdateWeightsFromTensorReqInput,
    pack_f32,
    pack_i32,
    pack_i64,
)
from vidette_protocol.messages.multimodal import Modality, MultimodalDataItem, MultimodalProcessorOutput

REASON = FinishReason("stop", matched=2)
LEDGER = SchedulerLedger()


def _row(vid: int) -> dict[str, Any]:
    said = TokenLogprobs(output_token_logprobs_val=pack_f32([-1.0, -2.0]))
    return {"vid": vid, "offset": 0, "token_ids": (1, 2), "reason": REASON, "logprobs": said, "spec": _SPEC}


_SPEC = SpeculativeMetrics(1, 2, (3, 4))


def _request(vid: int, **fields: Any) -> TokenizedGenerateReqInput:
    params = SamplingParams(sampling_seed=0, stop=["x"], logit_bias={1: 0.5})
    return TokenizedGenerateReqInput(
        vid=vid, rid="r", input_ids=pack_i32([1, 2]), sampling_params=params, **fields
    )


GROWING: dict[str, Callable[[int], Message]] = {
    "tokens": lambda n: BatchTokenIDOutput.from_rows(
        [TokenRow(**_row(vid), decoded_text="x") for vid in range(n)], LEDGER
    ),
    "texts": lambda n: BatchStrOutput.from_rows(
        [StrRow(**_row(vid), text="text") for vid in range(n)], LEDGER, 0
    ),
    "embeddings": lambda n: BatchEmbeddingOutput(
        packed_vids=pack_i64(range(n)),
        embeddings=[np.zeros(2, np.float32)] * n,
        sparse_reasons=[(row, REASON) for row in range(n)],
        packed_prompt_tokens=pack_i32(range(n)),
        packed_cached_tokens=pack_i32(range(n)),
        sparse_hidden_states=[(row, np.zeros(2, np.float32)) for row in range(n)],
    ),
    "prompt": lambda n: msgspec.structs.replace(_request(1), input_ids=pack_i32(range(n))),
    "requests": lambda n: BatchTokenizedGenerateReqInput(reqs=[_request(vid) for vid in range(n)]),
    "parameters": lambda n: msgspec.structs.replace(
        _request(1),
        sampling_params=SamplingParams(sampling_seed=0, custom_params={str(k): [k] for k in range(n)}),
    ),
    "media": lambda n: _request(
        1,
        image_inputs=MultimodalProcessorOutput(
            mm_items=[MultimodalDataItem(modality=Modality.IMAGE, offsets=[(1, 2)]) for _ in range(n)]
        ),
    ),
    "chunks": lambda n: AddExternalCorpusReqInput(id=1, corpus_id="c", token_chunks=[pack_i32([1])] * n),
    "events": lambda n: KVEventBatch(ts=0.0, events=[AllBlocksCleared()] * n),
    "state": lambda n: GetInternalStateReqOutput(id=1, internal_state={str(k): [{}] for k in range(n)}),
    "adapters": lambda n: LoRAUpdateOutput(id=1, loaded_adapters={str(k): LoRARef("f") for k in range(n)}),
    "tensors": lambda n: UpdateWeightsFromTensorReqInput(
        id=1, named_tensors=[{str(k): np.zeros(3, np.float32) for k in range(n)}]
    ),
    "schema": lambda n: Hello(
        version=1, fingerprint="f", role="front", pid=1, schema={str(k): b"1234" for k in range(n)}
    ),
}
"""Messages that grow with a number, in all that they may hold many of."""


# --- instructions ---------------------------------------------------------------------------------


def instructions(decode: Callable[[], object]) -> int:
    """Return how many instructions of Python something takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        decode()
    finally:
        sys.settrace(before)
    return count


def grows(cost: Callable[[int], int]) -> float:
    """Return how much steeper a cost grows from 2n to 4n than from n to 2n: 1 if linear, 2 if quadratic."""
    one, two, four = cost(40), cost(80), cost(160)
    return (four - two) / 2 / max(1, two - one)


def test_what_is_not_linear_is_seen() -> None:
    def quadratic(n: int) -> int:
        return instructions(lambda: [1 for _ in range(n) for _ in range(n)])

    def linear(n: int) -> int:
        return instructions(lambda: [1 for _ in range(n)])

    assert grows(quadratic) > 1.9
    assert grows(linear) < 1.1


@pytest.mark.parametrize("name", GROWING)
def test_instructions_are_in_proportion_to_the_frame(name: str) -> None:
    """A message twice as long takes at most twice as many instructions to be decoded and checked."""

    def cost(n: int) -> int:
        frame = ANY.encode(GROWING[name](n))
        return instructions(lambda: ANY.decode(frame))

    assert grows(cost) < 1.3


# --- memory ---------------------------------------------------------------------------------------


@contextmanager
def tracing() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Hand out what tells how many bytes something takes at its peak."""
    tracemalloc.start()

    def peak_of(run: Callable[[], object]) -> int:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        run()
        return tracemalloc.get_traced_memory()[1] - before

    try:
        yield peak_of
    finally:
        tracemalloc.stop()


SMALLEST: dict[str, tuple[list[object], object]] = {
    "lists in state": ([Tag.GET_INTERNAL_STATE_OUTPUT, 1, True, ""], {"x": [[]] * 10_000}),
    "events": ([Tag.KV_EVENT_BATCH, 0.0], [["AllBlocksCleared"]] * 10_000),
    "media": (
        [Tag.TOKENIZED_GENERATE, 1, 0, "r", bytes(4), {"sampling_seed": 0}, None],
        [[[1]] * 10_000],
    ),
}
"""Messages that are mostly values of a byte or a few, by what they hold."""


@pytest.mark.parametrize("what", SMALLEST)
def test_what_is_smallest_on_the_wire_is_a_certain_number_of_times_larger_here(what: str) -> None:
    """A frame takes less than 200 times its bytes even if it is chosen to take most."""
    head, last = SMALLEST[what]
    frame = msgspec.msgpack.encode([*head, last])
    with tracing() as peak_of:
        assert peak_of(lambda: ANY.decode(frame)) < 200 * len(frame)


def decode_or_refuse(codec: Codec, frame: bytes) -> Message | None:
    try:
        return codec.decode(frame)
    except DecodeError:
        return None


@pytest.mark.parametrize("name", GROWING)
def test_memory_is_in_proportion_to_the_frame(name: str) -> None:
    """A message of any kind takes at most a certain number of times the bytes of its frame."""
    with tracing() as peak_of:

        def cost(n: int) -> int:
            frame = ANY.encode(GROWING[name](10 * n))
            peak = peak_of(lambda: ANY.decode(frame))
            assert peak < 64 * len(frame) + 16 * 1024
            return peak

        assert grows(cost) < 1.5


HUGE = {
    "array of 4 Gi": b"\xdd\xff\xff\xff\xff",
    "map of 4 Gi": b"\xdf\xff\xff\xff\xff",
    "4 GiB of bytes": b"\xc6\xff\xff\xff\xff",
    "4 GiB of text": b"\xdb\xff\xff\xff\xff",
    "4 GiB of a tensor": b"\xc9\xff\xff\xff\xff\x02",
    "4 GiB of an array": b"\xc9\xff\xff\xff\xff\x03",
    "array of 64 Ki": b"\xdc\xff\xff",
    "map of 64 Ki": b"\xde\xff\xff",
    "array of 1 Mi": b"\xdd\x00\x10\x00\x00",
}


@pytest.mark.parametrize("what", HUGE)
def test_a_length_that_is_only_announced_allocates_nothing(what: str) -> None:
    """Wherever in a frame a huge length stands, decoding takes no more than 64 KiB beside the frame."""
    refused = 0
    with tracing() as peak_of:
        for message in SAMPLES.values():
            frame = ANY.encode(message)
            for at in range(0, len(frame) + 1, 1 if len(frame) < 80 else 7):
                torn = frame[:at] + HUGE[what] + frame[at + 1 :]
                peak = peak_of(lambda torn=torn: decode_or_refuse(ANY, torn))  # type: ignore[misc]
                assert peak < len(torn) + 64 * 1024
                refused += 1
    assert refused > 2000


def test_nesting_is_bounded() -> None:
    """However deep arrays and maps lie in each other, it is a DecodeError, and takes little memory."""
    head = ANY.encode(GetInternalStateReqOutput(id=1))[:-1]
    with tracing() as peak_of:
        for deep in (b"\x91" * 100_000, b"\x81\xa0" * 100_000):
            frame = head + b"\x81\xa0" + deep
            with pytest.raises(DecodeError):
                ANY.decode(frame)
            assert peak_of(lambda frame=frame: decode_or_refuse(ANY, frame)) < 4 * len(frame)  # type: ignore[misc]
