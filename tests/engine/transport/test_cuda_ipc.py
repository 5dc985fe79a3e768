from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
import torch

from vidette.transport.cuda_ipc import GRANULE, CudaPool, CudaReader, Extents
from vidette_protocol.errors import LocalProtocolError, RemoteProtocolError
from vidette_protocol.ext import CudaIpcHandle, ExtHooks

HOOKS = ExtHooks()
encode = msgspec.msgpack.Encoder(enc_hook=HOOKS.enc_hook).encode
decode: Any = msgspec.msgpack.Decoder(ext_hook=HOOKS.ext_hook).decode

cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="memory of a CUDA device is shared only where there is one"
)


def shared(**changes: Any) -> CudaIpcHandle:
    """A handle to memory that does not exist."""
    extra = {
        "pool_handle": (0, b"handle", 4096, 0, b"counter", 0, b"event", True),
        "device_index": 0,
        "shape": (2,),
        "stride": (1,),
        "dtype": "float32",
        "recons_shape": (2,),
        "recons_dtype": "float32",
    } | changes
    return CudaIpcHandle({"ipc_extra": extra, "tensor_data": None}, {"handle": "slot-1"})


# --- which parts of a pool are lent ---------------------------------------------------------------


def test_extents_are_lent_first_fit_in_granules() -> None:
    extents = Extents(4 * GRANULE)
    assert [extents.lend(name, nbytes) for name, nbytes in (("a", 1), ("b", GRANULE + 1), ("c", 0))] == [
        0,
        GRANULE,
        3 * GRANULE,
    ]
    assert extents.lend("d", 1) is None
    assert extents.give_back("b")
    assert not extents.give_back("b")
    assert extents.lend("e", 3 * GRANULE) is None
    assert extents.lend("f", 0) == GRANULE
    assert extents.lend("g", GRANULE) == 2 * GRANULE
    assert len(extents) == 4


def test_a_pool_that_is_too_small_lends_nothing() -> None:
    assert Extents(GRANULE - 1).lend("a", 0) is None


# --- without a device -----------------------------------------------------------------------------


def test_a_tensor_that_travelled_itself_is_taken_once_and_nobody_is_told() -> None:
    handle = decode(encode(CudaIpcHandle({"ipc_extra": None, "tensor_data": torch.tensor([1, 2])}, {})))
    acknowledged: list[str] = []
    reader = CudaReader(devices=())
    assert reader.materialise(handle, "cpu", acknowledged.append).tolist() == [1, 2]
    with pytest.raises(LocalProtocolError, match="acknowledged once"):
        reader.materialise(handle, "cpu", acknowledged.append)
    assert acknowledged == []


def test_what_travelled_is_a_tensor() -> None:
    handle = CudaIpcHandle({"ipc_extra": None, "tensor_data": [1]}, {})
    with pytest.raises(RemoteProtocolError, match="a list as tensor_data"):
        CudaReader(devices=()).materialise(handle, "cpu", list[str]().append)


def test_memory_of_a_device_that_is_not_allowed_is_not_opened_but_acknowledged() -> None:
    handle = decode(encode(shared()))
    acknowledged: list[str] = []
    with pytest.raises(RemoteProtocolError, match="cuda:0, which may not be opened"):
        CudaReader(devices=["cuda:1"]).materialise(handle, "cpu", acknowledged.append)
    assert acknowledged == ["slot-1"]


def test_a_handle_that_is_not_read_is_acknowledged_all_the_same() -> None:
    reader = CudaReader(devices=())
    acknowledged: list[str] = []
    handle, copied = shared(), CudaIpcHandle({"ipc_extra": None, "tensor_data": torch.ones(1)}, {})
    for _ in range(2):
        reader.discard(handle, acknowledged.append)
        reader.discard(copied, acknowledged.append)
    assert acknowledged == ["slot-1"]
    reader.close()


# --- with one -------------------------------------------------------------------------------------

READER = """if True:
    import sys, msgspec, torch
    from vidette.transport.cuda_ipc import CudaReader
    from vidette_protocol.ext import ExtHooks
    decoder = msgspec.msgpack.Decoder(list, ext_hook=ExtHooks().ext_hook)
    reader = CudaReader(devices=["cuda:0"])
    for handle in decoder.decode(sys.stdin.buffer.read()):
        value = reader.materialise(handle, "cpu", lambda name: print(name, end=" "))
        print(value.float().sum().item(), tuple(value.shape), flush=True)
    reader.close()
"""


@cuda
def test_another_process_reads_the_memory_of_a_device() -> None:
    pool = CudaPool(1 << 20)
    values = [torch.arange(6, device="cuda:0").reshape(2, 3).T, torch.ones((), device="cuda:0").bfloat16()]
    handles = [pool.share(value) for value in values]
    done = subprocess.run(
        [sys.executable, "-c", READER], input=encode(handles), capture_output=True, timeout=100, check=True
    )
    lines = [line.split(maxsplit=2) for line in done.stdout.decode().splitlines()]
    assert lines == [[handles[0].name, "15.0", "(3, 2)"], [handles[1].name, "1.0", "()"]]
    assert all(pool.acknowledge(handle.name) for handle in handles)
    assert not pool.drop(handles[0].name)
    pool.close()


@cuda
def test_a_full_pool_sends_copies() -> None:
    pool = CudaPool(GRANULE)
    first = pool.share(torch.ones(4, device="cuda:0"))
    assert first.memory() is not None
    assert pool.share(torch.ones(4, device="cuda:0")).memory() is None
    assert pool.share(torch.ones(4)).memory() is None
    assert pool.drop(first.name)
    assert pool.share(torch.ones(4, device="cuda:0")).memory() is not None
    pool.close()
    assert pool.share(torch.ones(4, device="cuda:0")).memory() is None


@cuda
def test_a_handle_that_leads_nowhere_is_refused() -> None:
    acknowledged: list[str] = []
    with pytest.raises(RemoteProtocolError, match="cannot be opened"):
        CudaReader(devices=["cuda:0"]).materialise(shared(), "cpu", acknowledged.append)
    assert acknowledged == ["slot-1"]
