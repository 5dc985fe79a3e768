"""Where spans go: what says so, what it takes, and that no program waits long for what cannot be sent."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import Tracer

from tests.cli.conftest import SECONDS, Commands
from tests.cli.test_serve import start
from tests.service.driver import call
from vidette import UsageError, open_engine
from vidette.cli import _telemetry
from vidette.cli._telemetry import add_telemetry_options, check_endpoint, tracing
from vidette.service import build_app


class Collector:
    """What takes spans."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.names: list[str] = []
        self.resource: dict[str, str] = {}
        self.gate = threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.gate.wait(20)
                outer.paths.append(self.path)
                message = ExportTraceServiceRequest.FromString(body)
                for each in message.resource_spans:
                    outer.resource = {pair.key: pair.value.string_value for pair in each.resource.attributes}
                    outer.names += [span.name for scope in each.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.gate.set()
        made.server.shutdown()
        thread.join()
        made.server.server_close()


def begin(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> AbstractContextManager[Tracer | None]:
    parser = argparse.ArgumentParser()
    add_telemetry_options(parser)
    return tracing(parser.parse_args(arguments), environment or {})


def test_by_itself_nothing_is_traced() -> None:
    with begin() as tracer:
        assert tracer is None


def test_spans_are_sent_before_the_block_is_left(collector: Collector) -> None:
    with begin("--otlp-endpoint", collector.url + "/") as tracer:
        assert tracer is not None
        tracer.start_span("one").end()
    assert (collector.paths, collector.names) == (["/v1/traces"], ["one"])
    assert collector.resource["service.name"] == "vidette"


def test_the_environment_says_where_and_who(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with begin(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}) as tracer:
        assert tracer is not None
        tracer.start_span("one").end()
    assert (collector.names, collector.resource["service.name"]) == (["one"], "mine")


def test_the_sampler_is_that_of_the_environment(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with begin("--otlp-endpoint", collector.url) as tracer:
        assert tracer is not None
        assert not tracer.start_span("one").is_recording()


def test_a_collector_that_hangs_delays_the_end_within_a_bound(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_telemetry, "FLUSH_SECONDS", 0.05)
    collector.gate.clear()
    with begin("--otlp-endpoint", collector.url) as tracer:
        assert tracer is not None
        tracer.start_span("one").end()
    assert collector.names == []
    collector.gate.set()
    for thread in threading.enumerate():
        if thread.name == "vidette last spans":
            thread.join(20)
    assert collector.names == ["one"]


class Silent:
    """What takes connections, and says nothing before it ends: then that it wants no spans."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.reached = threading.Event()
        self.connections: list[socket.socket] = []
        self.refuses = False
        self.thread = threading.Thread(target=self.accept)
        self.thread.start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                self.connections.append(self.listener.accept()[0])
                self.reached.set()
                if self.refuses:
                    self.refuse(self.connections[-1])

    @staticmethod
    def refuse(connection: socket.socket) -> None:
        with suppress(OSError):  # who is gone needs no answer
            connection.sendall(b"HTTP/1.1 400 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")

    def close(self) -> None:
        self.refuses = True
        for each in self.connections:
            self.refuse(each)
        for thread in threading.enumerate():
            if thread.name in ("OtelBatchSpanRecordProcessor", "vidette last spans"):
                thread.join(20)
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for each in (self.listener, *self.connections):
            each.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    """Such a one, and an exporter that waits for it ten minutes, with a queue that is full at once."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    made = Silent()
    try:
        yield made
    finally:
        made.close()


async def test_no_request_waits_for_a_collector_that_does_not_answer(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has eight spans, so that the second is more than a batch, and the fourth more than the queue."""
    monkeypatch.setattr(_telemetry, "FLUSH_SECONDS", 0.05)
    body = {"text": "x", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    with anyio.fail_after(SECONDS), begin("--otlp-endpoint", silent.url) as tracer:
        async with open_engine("toy", tracer=tracer) as engine:
            app = build_app(engine, tracer=tracer)
            for number in range(12):
                answer = await call(app, "/generate", {**body, "stream": number % 2 == 0})
                assert answer.status == 200
                assert "traceresponse" in answer.headers
                if number == 2:
                    while not silent.reached.is_set():  # noqa: ASYNC110
                        await anyio.sleep(0.005)  # a thread of the exporter reaches it
    assert len(silent.connections) == 1, "it still waits for the answer to the first batch"


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.long)])
def test_a_server_ends_though_its_collector_does_not_answer(
    vidette_command: Commands, silent: Silent, backend: str
) -> None:
    options = ("--topology", "inline", "--backend", backend, "--otlp-endpoint", silent.url)
    command, client = start(vidette_command, *options)
    with client:
        for _ in range(4):
            body = {"text": "x", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
            assert client.post("/generate", json=body).status_code == 200
        assert silent.reached.wait(SECONDS)
    command.signal(signal.SIGTERM)
    assert command.end()[:2] == (0, ""), "long before the ten minutes that the exporter would wait"


def test_a_loop_is_not_kept_waiting_while_a_batch_is_written(collector: Collector) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)  # whatever tests before this one have left
    try:
        with begin("--otlp-endpoint", collector.url):
            assert sys.getswitchinterval() == pytest.approx(_telemetry.SWITCH_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(0.004)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    "endpoint",
    ["", "127.0.0.1:4318", "grpc://x:4317", "http://", "http://x:99999", "http://x:0", "http://x/v1/traces/",
     "http://x?y", "http://x#y", "http://[::1"],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="otlp-endpoint"):
        check_endpoint(endpoint)
    with pytest.raises(UsageError, match="otlp-endpoint"), begin("--otlp-endpoint", endpoint):
        pass


@pytest.mark.parametrize("endpoint", ["http://x", "https://x:4318/", "http://x/otlp", "http://[::1]:4318"])
def test_endpoints(endpoint: str) -> None:
    check_endpoint(endpoint)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with (
        pytest.raises(UsageError, match=r"pip install vidette\[otel\]"),
        begin("--otlp-endpoint", "http://x"),
    ):
        pass
    with (
        caplog.at_level(logging.WARNING, "vidette"),
        begin(environment={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x/v1/traces"}) as tracer,
    ):
        assert tracer is None
    assert "pip install vidette[otel]" in caplog.text
