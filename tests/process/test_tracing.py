"""Spans with real processes: times of three clocks that are one, and a death that is an event."""

from __future__ import annotations

import os
import signal

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.process.conftest import DEADLINE
from tests.process.test_restart import RESTARTING, pid_of, read_tokens
from vidette import open_engine


@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_stages_are_in_order_and_a_death_is_an_event(dies: bool) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    params = {"max_new_tokens": 300, "ignore_eos": True}
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", tracer=provider.get_tracer("test"), **RESTARTING) as engine:
            async with engine.generate("hello", sampling_params=params) as stream:
                await read_tokens(stream, 1)
                if dies:
                    os.kill(pid_of(engine, "scheduler"), signal.SIGKILL)
                await stream.read()
    *stages, request = exporter.get_finished_spans()
    assert [stage.name for stage in stages] == ["tokenise", "queue", "prefill", "decode", "detokenise"]
    times = [time or 0 for stage in stages for time in (stage.start_time, stage.end_time)]
    assert times == sorted(times)
    assert (request.start_time or 0) <= times[0]
    assert times[-1] <= (request.end_time or 0)
    assert [event.name for event in request.events] == ["first token", "resumed"][: 1 + dies]
    if dies:
        assert dict(request.events[1].attributes or {})["vidette.resumed"] == 1
    assert request.attributes is not None
    assert request.attributes["gen_ai.usage.output_tokens"] == 300
