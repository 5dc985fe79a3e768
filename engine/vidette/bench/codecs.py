"""Encoding and decoding in one process: ours against the forms to beat.

What is timed is a message object to bytes and these bytes to a message object again; ours includes every
check that a decoder makes of what came off a wire. The objects are made before. In ours, token ids are packed
from the tokenizer on, and columns are what a scheduler can keep; in the baselines both are lists. What the
step loop keeps today are rows, so `step32_rows_vs_pickle4` has ours go from rows to rows, which takes packing
and unpacking as well, against the same baseline, from its lists to its lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from vidette.bench.baselines import PICKLE_4, PICKLE_5, Coder, PickleCodec, StructCodec
from vidette.bench.documented import document_request, document_step, slim_step
from vidette.bench.interleave import Effort, time_calls
from vidette.bench.messages import Load
from vidette.bench.results import OURS, Results, compare
from vidette.bench.samples import LEDGER, make_request, make_rows
from vidette_protocol.codec import Codec
from vidette_protocol.ext import ExtCode
from vidette_protocol.messages import BatchTokenIDOutput
from vidette_protocol.messages.catalogue import FRONT_TO_SCHEDULER, SCHEDULER_TO_DETOKENIZER

BULK_BYTES: Final = 8 * 1024 * 1024
SHARE: Final = 8
"""One turn for so many of those of small messages, which are shorter."""


def bench_request(effort: Effort) -> Results:
    """Time a request of 1,024 token ids, 4 kB of text and sampling parameters."""
    request = make_request(effort.rng)
    documented = document_request(request)
    lists, arrays = StructCodec(documented, arrays=False), StructCodec(documented, arrays=True)
    candidates = {
        OURS: _trip(Codec(sends=FRONT_TO_SCHEDULER, receives=FRONT_TO_SCHEDULER), request),
        "pickle4": _trip(PickleCodec(PICKLE_4), documented),
        "pickle5": _trip(PickleCodec(PICKLE_5), documented),
        "msgspec_lists": _trip(lists, lists.message),
        "msgspec_arrays": _trip(arrays, arrays.message),
    }
    return compare("request_codec", time_calls(candidates, effort))


def bench_step(effort: Effort, count: int) -> Results:
    """Time a step message of so many rows."""
    rows = make_rows(effort.rng, count)
    message, documented = BatchTokenIDOutput.from_rows(rows, LEDGER), document_step(rows)
    codec = Codec(sends=SCHEDULER_TO_DETOKENIZER, receives=SCHEDULER_TO_DETOKENIZER)
    lists = StructCodec(documented, arrays=False)

    def rows_to_rows() -> object:
        decoded = codec.decode(codec.encode(BatchTokenIDOutput.from_rows(rows, LEDGER)))
        assert isinstance(decoded, BatchTokenIDOutput)
        return decoded.rows()

    candidates = {
        OURS: _trip(codec, message),
        "pickle4": _trip(PickleCodec(PICKLE_4), documented),
        "pickle5": _trip(PickleCodec(PICKLE_5), documented),
        "pickle4_slim": _trip(PickleCodec(PICKLE_4), slim_step(rows)),
        "msgspec_lists": _trip(lists, lists.message),
        "rows": rows_to_rows,
    }
    samples = time_calls(candidates, effort)
    from_rows = {OURS: samples.pop("rows"), "pickle4": samples["pickle4"]}
    return compare(f"step{count}_codec", samples) + compare(f"step{count}_rows", from_rows)


def bench_ext(effort: Effort) -> Results:
    """Time 8 MiB in an extension: nested ones, as others had them, against the flat layout."""
    load = Load(body=np.frombuffer(effort.rng.randbytes(BULK_BYTES), np.float32))
    candidates = {
        OURS: _trip(Codec(sends=[Load], receives=[Load]), load),
        "nested": _trip(NestedExtCodec(), load),
    }
    seconds = time_calls(candidates, effort.share(SHARE))
    return compare("ext_8mib", seconds, name="nested_ext_vs_prefixed_ext")


class NestedExtCodec:
    """An array as an extension whose bytes are MessagePack once more, one level deep."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_array)
        self._decoder = msgspec.msgpack.Decoder(Load, ext_hook=self._decode_array)
        self._inner = msgspec.msgpack.Decoder(tuple[tuple[int, ...], str, bytes])

    def encode(self, message: Load) -> bytes:
        """Return the bytes of a message."""
        return self._encoder.encode(message)

    def decode(self, frame: bytes) -> Load:
        """Return the message of bytes; its array is read-only, which spares a copy."""
        return self._decoder.decode(frame)

    def _encode_array(self, value: Any) -> Ext:
        inner = (value.shape, value.dtype.str, value.tobytes())
        return Ext(ExtCode.NDARRAY, msgspec.msgpack.encode(inner))

    def _decode_array(self, code: int, data: memoryview) -> object:
        assert code == ExtCode.NDARRAY
        shape, dtype, raw = self._inner.decode(data)
        return np.frombuffer(raw, dtype).reshape(shape)


def _trip(codec: Coder, message: object) -> Callable[[], object]:
    encode, decode = codec.encode, codec.decode
    return lambda: decode(encode(message))
