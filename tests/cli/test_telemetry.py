"""Where spans go: what says so, what it takes, and that no program waits long for what cannot be sent."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import Tracer

from vidette import UsageError
from vidette.cli import _telemetry
from vidette.cli._telemetry import add_telemetry_options, check_endpoint, tracing


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
