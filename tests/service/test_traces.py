"""Spans of HTTP requests: trace context in and out, the engine's spans below, and one end for each."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.baggage import get_all
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode, Tracer, get_current_span
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

import vidette
from tests.service.driver import SECONDS, SERVERS, Call, call, request_of
from vidette.service import FrontDoor, Gate, Keys, LogSettings, Secret, build_app
from vidette.service.servers import serving
from vidette.service.sockets import bind
from vidette.service.traces import MOST_MEMBERS, Traces, parent_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NAMED = (b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())
SECRET = "a prompt nobody else reads"
SHORT = {"text": SECRET, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
ENDLESS = {"text": SECRET, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}, "stream": True}


class Traced(NamedTuple):
    engine: vidette.Engine
    app: Starlette
    tracer: Tracer
    exporter: InMemorySpanExporter

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture(scope="module")
async def opened(anyio_backend: object) -> AsyncGenerator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(1)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    async with vidette.open_engine("toy", tracer=tracer) as engine:
        yield Traced(engine, build_app(engine, tracer=tracer), tracer, exporter)


@pytest.fixture
async def traced(opened: Traced) -> AsyncGenerator[Traced]:
    await opened.engine.wait_quiet()
    opened.exporter.clear()
    yield opened
    assert not get_current_span().get_span_context().is_valid, "nothing stays current"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> str:
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


# --- one request ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_in_the_trace_that_its_client_names(traced: Traced, stream: bool) -> None:
    state = (b"tracestate", b"vendor=opaque, other=1")
    answer = await call(traced.app, "/generate", {**SHORT, "stream": stream}, headers=[NAMED, state])
    assert answer.status == 200
    names = [span.name for span in traced.spans]
    stages = ["tokenise", "queue", "prefill", "decode", "detokenise"]
    assert names == [*stages, "text_completion toy", "send", "POST /generate"]
    served, made = traced.named("POST /generate"), traced.named("text_completion toy")
    assert (parent(served), parent(made), parent(traced.named("send"))) == (PARENT, *[id_of(served)] * 2)
    assert {parent(traced.named(stage)) for stage in stages} == {id_of(made)}
    assert {f"{span.context.trace_id:032x}" for span in traced.spans if span.context} == {TRACE}
    assert served.context is not None
    assert served.context.trace_state.to_header() == "vendor=opaque,other=1"
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{id_of(served)}-01"
    assert served.kind is SpanKind.SERVER
    assert attributes(served) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "http.route": "/generate",
        "http.response.status_code": 200,
    }
    assert attributes(made)["gen_ai.request.stream"] is stream
    assert attributes(traced.named("send"))["vidette.send.blocked_s"] >= 0
    assert not any(SECRET in span.to_json() for span in traced.spans)


MESSAGES = {"model": "toy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
GENERATED = {"text": "x", "sampling_params": {"max_new_tokens": 2}}


@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/v1/chat/completions", MESSAGES, "chat"),
        ("/v1/chat/completions", {**MESSAGES, "stream": True}, "chat"),
        ("/v1/chat/completions", {**MESSAGES, "n": 2}, "chat"),
        ("/v1/chat/completions", {**MESSAGES, "n": 2, "stream": True}, "chat"),
        ("/v1/messages", MESSAGES, "chat"),
        ("/v1/responses", {"model": "toy", "input": "x", "max_output_tokens": 2}, "chat"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2, "background": True}, "chat"),
        ("/v1/completions", {"model": "toy", "prompt": "x", "max_tokens": 2}, "text_completion"),
        ("/v1/completions", {"model": "toy", "prompt": ["x", "y"], "max_tokens": 2}, "text_completion"),
        ("/generate", GENERATED, "text_completion"),
    ],
)
async def test_what_an_api_is_for_is_told(traced: Traced, path: str, body: object, operation: str) -> None:
    async with traced.app.router.lifespan_context(traced.app):
        assert (await call(traced.app, path, body)).status == 200
        await traced.engine.wait_quiet()
        while not any(span.name.endswith(" toy") for span in traced.spans):
            await anyio.lowlevel.checkpoint()
    assert attributes(traced.named(f"{operation} toy"))["gen_ai.operation.name"] == operation


async def test_one_that_names_no_trace_begins_one(traced: Traced) -> None:
    answer = await call(traced.app, "/generate", SHORT)
    served = traced.named("POST /generate")
    assert served.parent is None
    assert served.context is not None
    trace, flags = f"{served.context.trace_id:032x}", f"{served.context.trace_flags:02x}"
    assert answer.headers["traceresponse"] == f"00-{trace}-{id_of(served)}-{flags}"


async def test_what_its_client_does_not_sample_is_not_recorded(traced: Traced) -> None:
    answer = await call(
        traced.app, "/generate", SHORT, headers=[(b"traceparent", f"00-{TRACE}-{PARENT}-00".encode())]
    )
    assert traced.spans == []
    assert answer.headers["traceresponse"].startswith(f"00-{TRACE}-")
    assert answer.headers["traceresponse"].endswith("-00")


async def test_a_tracer_that_makes_no_spans_does_not_pass_its_clients_off_as_one(traced: Traced) -> None:
    app = build_app(traced.engine, tracer=NoOpTracer())
    for headers in ([], [NAMED]):
        answer = await call(app, "/generate", SHORT, headers=headers)
        assert (answer.status, "traceresponse" in answer.headers) == (200, False)


async def test_baggage_is_not_taken_in(traced: Traced) -> None:
    """It is for those behind, and there are none."""
    seen: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((dict(get_all()), get_current_span().get_span_context().is_valid))
        await JSONResponse({})(scope, receive, send)

    await call(Traces(app, traced.tracer), "/x", {}, headers=[NAMED, (b"baggage", b"user=alice")])
    assert seen == [({}, True)]


async def test_who_only_looks_is_not_traced(traced: Traced) -> None:
    for path in ("/health", "/health/ready", "/v1/models", "/metrics"):
        answer = await call(traced.app, path, method="GET", headers=[NAMED])
        assert "traceresponse" not in answer.headers
    assert traced.spans == []


async def test_the_span_around_the_app_is_the_parent_unless_another_is_named(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("around") as around:
        await call(traced.app, "/generate", SHORT)
        ours = traced.named("POST /generate")
        traced.exporter.clear()
        await call(traced.app, "/generate", SHORT, headers=[NAMED])
        theirs = traced.named("POST /generate")
    assert (ours.parent, parent(theirs)) == (around.get_span_context(), PARENT)


async def test_what_is_around_has_read_the_header_itself(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("around", context=parent_of([NAMED])) as around:
        await call(traced.app, "/generate", SHORT, headers=[NAMED])
    assert traced.named("POST /generate").parent == around.get_span_context()


async def test_no_id_of_a_response_is_in_a_span(traced: Traced) -> None:
    async with traced.app.router.lifespan_context(traced.app):
        body = {"model": "toy", "input": SECRET, "max_output_tokens": 2}
        made = await call(traced.app, "/v1/responses", body)
        begun = await call(traced.app, "/v1/responses", {**body, "background": True})
        await call(traced.app, f"/v1/responses/{begun.json()['id']}/cancel")
        await traced.engine.wait_quiet()
        while sum(span.name == "chat toy" for span in traced.spans) != 2:
            await anyio.lowlevel.checkpoint()
    assert made.status == begun.status == 200
    for span in traced.spans:
        assert made.json()["id"] not in span.to_json()
        assert begun.json()["id"] not in span.to_json()
    cancelled = traced.named("POST /v1/responses/{id}/cancel")
    assert attributes(cancelled)["http.route"] == "/v1/responses/{id}/cancel"
    roots = {id_of(span) for span in traced.spans if span.name == "POST /v1/responses"}
    assert {parent(span) for span in traced.spans if span.name == "chat toy"} == roots


# --- one connection ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "anyio_backend",
    [*SERVERS, pytest.param(("asyncio", {}), id="uvicorn on asyncio's own loop")],
    indirect=True,
)
@pytest.mark.parametrize("ahead", [False, True])
async def test_a_request_has_nothing_of_those_before_it_on_its_connection(
    traced: Traced, ahead: bool
) -> None:
    """Whether they are sent ahead, or each behind the answer to a body so long that reading it was paused."""
    prompts = ["x"] * 3 if ahead else ["x" * 300_000, "x", "x"]
    named = request_of("/tokenize", {"prompt": "x"}, b"%b: %b\r\n" % NAMED)
    requests = [*(request_of("/tokenize", {"prompt": prompt}) for prompt in prompts), named]
    gate, sock = Gate(), bind("127.0.0.1", 0)
    host, port = sock.getsockname()
    app = build_app(traced.engine, gate=gate, tracer=traced.tracer)

    def spans() -> list[ReadableSpan]:
        return [span for span in traced.spans if span.name == "POST /tokenize"]

    with anyio.fail_after(SECONDS):
        async with (
            serving(app, sock, gate=gate),
            await anyio.connect_tcp(host, port) as connection,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(read_on, connection)
            if ahead:
                await connection.send(b"".join(requests))
            for count, request in enumerate(requests, 1):
                if not ahead:
                    await connection.send(request)
                while len(spans()) < count:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert [parent(span) for span in spans()] == ["", "", "", PARENT]
    assert len({span.context.trace_id for span in spans() if span.context}) == 4


async def read_on(connection: anyio.abc.ByteReceiveStream) -> None:
    while True:
        await connection.receive()


# --- ends ----------------------------------------------------------------------------------------------


async def test_what_is_refused_is_in_the_trace(traced: Traced) -> None:
    """Unless it was for its key: else anybody could fill the queue of spans."""
    door = FrontDoor(keys=Keys((Secret("sk-1"),)))
    app = build_app(traced.engine, door=door, tracer=traced.tracer)
    for headers in ([NAMED], [NAMED, (b"authorization", b"Bearer sk-2")]):
        refused = await call(app, "/generate", SHORT, headers=headers)
        assert (refused.status, "traceresponse" in refused.headers) == (401, False)
    assert (await call(app, "/health", SHORT, headers=[NAMED])).status == 405, "it needs no key"
    assert traced.spans == []
    key = (b"authorization", b"Bearer sk-1")
    assert (await call(app, "/generate", {"text": 3}, headers=[NAMED, key])).status == 400
    assert (await call(app, "/no/such", SHORT, headers=[NAMED, key])).status == 404
    served = [span for span in traced.spans if span.name.startswith("POST")]
    assert [attributes(span)["http.response.status_code"] for span in served] == [400, 404]
    assert [span.status.status_code for span in served] == [StatusCode.UNSET] * 2
    assert [span.name for span in served] == ["POST /generate", "POST"], "no path that a client chose"


async def test_one_whose_client_leaves(traced: Traced) -> None:
    request = Call(traced.app, "/generate", ENDLESS, headers=[NAMED])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.run)
        await request.wait_sent(2)
        request.leave()
    made, served = traced.named("text_completion toy"), traced.named("POST /generate")
    assert (made.status.status_code, attributes(made)["error.type"]) == (StatusCode.ERROR, "cancelled")
    assert (served.status.status_code, attributes(served)["error.type"]) == (StatusCode.ERROR, "incomplete")
    assert attributes(made)["gen_ai.usage.output_tokens"] > 0
    assert "decode" in [span.name for span in traced.spans]


async def test_one_that_is_cancelled_with_its_server(traced: Traced) -> None:
    with anyio.CancelScope() as scope:
        request = Call(traced.app, "/generate", ENDLESS, headers=[NAMED])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            await request.wait_sent(2)
            scope.cancel()
    made, served = traced.named("text_completion toy"), traced.named("POST /generate")
    assert (made.status.status_code, attributes(made)["error.type"]) == (StatusCode.ERROR, "cancelled")
    assert (served.status.status_code, attributes(served)["error.type"]) == (StatusCode.ERROR, "incomplete")


async def test_an_app_that_fails_is_named_by_what_it_raised(traced: Traced) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError(SECRET)

    with pytest.raises(LookupError):
        await call(Traces(app, traced.tracer), "/x", {}, headers=[NAMED])
    (served,) = traced.spans
    assert (served.status.status_code, attributes(served)["error.type"]) == (StatusCode.ERROR, "LookupError")
    assert SECRET not in served.to_json()


async def test_one_that_is_ended_from_outside(traced: Traced) -> None:
    request = Call(traced.app, "/generate", {**ENDLESS, "stream": False}, headers=[NAMED])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.run)
        while not traced.engine.abort_all("all"):
            await anyio.lowlevel.checkpoint()
    assert request.status == 503
    made, served = traced.named("text_completion toy"), traced.named("POST /generate")
    assert attributes(made)["error.type"] == "RequestAborted"
    assert (attributes(served)["error.type"], served.status.status_code) == ("503", StatusCode.ERROR)


async def test_how_long_a_slow_client_blocks_is_told(traced: Traced) -> None:
    request = Call(traced.app, "/generate", {**SHORT, "stream": True}, headers=[NAMED])
    request.reads = 1
    before = traced.engine.statistics().totals.finished
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.run)
        await request.wait_sent(1)
        while traced.engine.statistics().totals.finished == before:
            await anyio.lowlevel.checkpoint()
        request.read_on()
    send = traced.named("send")
    assert send.end_time is not None
    assert send.start_time is not None
    blocked = attributes(send)["vidette.send.blocked_s"]
    assert 0 < blocked <= (send.end_time - send.start_time) / 1e9 + 1e-3


# --- logs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json"])
async def test_the_log_names_the_trace(traced: Traced, caplog: pytest.LogCaptureFixture, form: Any) -> None:
    door = FrontDoor(logs=LogSettings(requests=True, format=form))
    app = build_app(traced.engine, door=door, tracer=traced.tracer)
    with caplog.at_level(logging.INFO, "vidette.access"):
        await call(app, "/generate", {**SHORT, "rid": "mine"}, headers=[NAMED])
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vidette.access"]
    if form == "json":
        said = msgspec.json.decode(line)
        assert (said["trace_id"], said["rid"]) == (TRACE, "mine")
    else:
        assert f'rid="mine" trace_id="{TRACE}"' in line


# --- headers -------------------------------------------------------------------------------------------


def named_by(*headers: tuple[bytes, bytes]) -> tuple[str, str] | None:
    """Return trace and span that headers name."""
    context = get_current_span(parent_of(headers)).get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


@pytest.mark.parametrize(
    "value",
    [
        f"00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-ff",
        f" 00-{TRACE}-{PARENT}-01 ",
        f"01-{TRACE}-{PARENT}-01-more",
    ],
)
def test_what_is_well_formed_is_taken(value: str) -> None:
    assert named_by((b"traceparent", value.encode())) == (TRACE, PARENT)


@pytest.mark.parametrize(
    "values",
    [
        [""],
        [f"00-{TRACE}-{PARENT}"],
        [f"00-{TRACE.upper()}-{PARENT}-01"],
        [f"00-{'0' * 32}-{PARENT}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"ff-{TRACE}-{PARENT}-01"],
        [f"00-{TRACE}-{PARENT}-01-more"],
        [f"01-{TRACE}-{PARENT}-01-{'x' * 1000}"],
        [f"00-{TRACE}-{PARENT}-01"] * 2,
        [f"00-{TRACE}-{PARENT}-0é"],
    ],
)
def test_what_is_malformed_is_as_none(values: list[str]) -> None:
    assert named_by(*((b"traceparent", value.encode()) for value in values)) is None


@pytest.mark.parametrize("state", [b"=", b"a=b=c", b"A=1", b"a=1," * 200, b"a=\x00", b"\xff=1", b"a=1,a=2"])
def test_a_state_that_is_malformed_takes_nothing_else_along(
    state: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    context = get_current_span(parent_of([NAMED, (b"tracestate", state)])).get_span_context()
    assert (f"{context.trace_id:032x}", context.trace_state.to_header()) == (TRACE, "")
    assert not caplog.records, "a client cannot fill the log"


def test_a_state_may_have_many_members_and_not_more(caplog: pytest.LogCaptureFixture) -> None:
    def kept(count: int) -> int:
        state = b" , ".join(b"a%d=1" % number for number in range(count)) + b",,"
        return len(
            get_current_span(parent_of([NAMED, (b"tracestate", state)])).get_span_context().trace_state
        )

    assert (kept(MOST_MEMBERS), kept(MOST_MEMBERS + 1)) == (MOST_MEMBERS, 0)
    assert not caplog.records, "a client cannot fill the log"


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"traceparent", b"tracestate", b"host"]),
            st.one_of(
                st.binary(max_size=80),
                st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", fullmatch=True),
                st.from_regex(rb"([a-z@0-9]{1,9}=[ -~]{0,9},?){1,4}", fullmatch=True),
                st.from_regex(rb"([ \t]?[a-f][0-9]{0,2}=[0-9]{0,2}[ \t]?,){1,60}", fullmatch=True),
                st.just(NAMED[1]),
            ),
        ),
        max_size=4,
    )
)
def test_any_headers_are_read(headers: list[tuple[bytes, bytes]]) -> None:
    """They name one span or none, of a trace whose id is in the one `traceparent`, and nothing is logged."""
    heard = Heard()
    logging.getLogger("opentelemetry").addHandler(heard)
    try:
        named = named_by(*headers)
    finally:
        logging.getLogger("opentelemetry").removeHandler(heard)
    assert heard.lines == [], "a client cannot fill the log"
    parents = [value for name, value in headers if name == b"traceparent"]
    assert named is None or (len(parents) == 1 and f"-{named[0]}-{named[1]}-".encode() in parents[0])
