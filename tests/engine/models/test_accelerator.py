"""Devices by name, copies to them, and how a graph is captured; what needs CUDA itself is in `test_cuda`."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from vidette.errors import UsageError
from vidette.models import ModelSource, load_model
from vidette.models.accelerator import capture_on, find_device, find_dtype, send, upload
from vidette.models.decoder import Decoder
from vidette.models.device_decoder import DeviceDecoder

CPU = torch.device("cpu")


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what lets torch find so many CUDA devices."""

    def let(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    return let


@pytest.mark.parametrize(
    ("count", "name", "dtype", "found"),
    [
        (0, "auto", "auto", "cpu"),
        (0, "cpu", "int8", "cpu"),
        (2, "cpu", "auto", "cpu"),
        (2, "auto", "auto", "cuda:0"),
        (2, "auto", "float32", "cuda:0"),
        (2, "auto", "int8", "cpu"),
        (2, "cuda", "auto", "cuda:0"),
        (2, "cuda:1", "auto", "cuda:1"),
    ],
)
def test_a_device_by_name(count: int, name: str, dtype: str, found: str, devices: Any) -> None:
    devices(count)
    assert find_device(name, dtype) == torch.device(found)


@pytest.mark.parametrize(
    ("count", "name", "dtype", "message"),
    [
        (0, "cuda", "auto", "device is 'cuda', but torch"),
        (0, "cuda:1", "auto", "device is 'cuda:1', but torch"),
        (2, "cuda:2", "auto", "device is 'cuda:2'; there are 2 CUDA devices"),
        (2, "cuda", "int8", "dtype is 'int8', which device 'cuda' does not compute in"),
        (2, "gpu", "auto", "device is 'gpu'; it must be"),
        (2, "cuda:x", "auto", "device is 'cuda:x'; it must be"),
    ],
)
def test_a_device_that_is_not_there(count: int, name: str, dtype: str, message: str, devices: Any) -> None:
    devices(count)
    with pytest.raises(UsageError, match=message):
        find_device(name, dtype)


def test_the_cpu_computes_in_float32() -> None:
    assert find_dtype(CPU, "auto") == find_dtype(torch.device("cuda"), "float32") == torch.float32


def test_on_the_cpu_nothing_is_copied_that_is_there_already() -> None:
    values = torch.arange(5)
    assert upload(values, CPU) is values
    target = torch.zeros(5, dtype=torch.int64)
    assert send(values, target) is target
    assert target.tolist() == [0, 1, 2, 3, 4]


def test_where_a_model_is_loaded(tiny_llama_path: Path, devices: Any) -> None:
    source = ModelSource("tiny", tiny_llama_path)
    devices(0)
    assert isinstance(load_model(source, device="auto", dtype="float32"), Decoder)
    with pytest.raises(UsageError, match="but torch"):
        load_model(source, device="cuda")


def test_a_device_decoder_is_loaded_as_it_is_asked_for(
    tiny_llama_path: Path, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices(1)
    seen: list[Any] = []
    made = DeviceDecoder.__init__

    def init(self: DeviceDecoder, *args: Any, device: torch.device, **options: Any) -> None:
        seen.append((device, options["dtype"], options["capture"], options["ahead"], options["max_rows"]))
        made(self, *args, device=CPU, **options)

    monkeypatch.setattr(DeviceDecoder, "__init__", init)
    monkeypatch.setattr("vidette.models.accelerator.capture_on", lambda device: device)
    source, cuda = ModelSource("tiny", tiny_llama_path), torch.device("cuda", 0)
    for graphs in ("lazy", "start", "off"):
        model = load_model(source, device="auto", dtype="float32", cuda_graphs=graphs, max_running=7)
        assert isinstance(model, DeviceDecoder)
    assert seen == [
        (cuda, torch.float32, cuda, False, 7),
        (cuda, torch.float32, cuda, True, 7),
        (cuda, torch.float32, None, False, 7),
    ]


class Stream:
    """In the place of a CUDA stream."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def test_a_graph_is_captured_after_one_run_on_the_stream_of_the_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As far as one can see without CUDA: the order of calls, and that torch knows what it is called with."""
    log: list[str] = []
    own, current = Stream("own", log), Stream("current", log)
    known = inspect.signature(torch.cuda.graph.__init__)

    class Graph:
        def replay(self) -> None:
            log.append("replay")

    class Capturing:
        def __init__(self, *args: Any, **options: Any) -> None:
            bound = known.bind(self, *args, **options).arguments
            assert (bound["pool"], bound["stream"]) == ("pool", own)
            assert isinstance(bound["cuda_graph"], Graph)

        def __enter__(self) -> None:
            log.append("capture")

        def __exit__(self, *_: object) -> None:
            log.append("captured")

    def on(stream: Stream) -> AbstractContextManager[None]:
        log.append(f"on {stream.name}")
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: own)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: current)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capturing)
    replay = capture_on(torch.device("cuda", 0))(lambda: log.append("run"))
    replay()
    assert log == [
        *("own waits for current", "on own", "run", "current waits for own"),
        *("capture", "run", "captured", "replay"),
    ]
    assert "including_emulation" in inspect.signature(torch.cuda.is_bf16_supported).parameters
