"""What Prometheus scrapes: it parses, it is true, and no two engines have anything in common."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import anyio
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from vidette import Engine, GenerateReqInput, SamplingParams, UsageError, open_engine, sync
from vidette.front.observer import Observer
from vidette.metrics import CONTENT_TYPE, FAMILIES, Counter, Distribution, Gauge, Metrics, names
from vidette.testing import wait_quiescent
from vidette_protocol.messages import KvMetrics

DEADLINE = 30.0
KINDS = {Gauge: "gauge", Counter: "counter", Distribution: "histogram"}

Sample = tuple[str, frozenset[tuple[str, str]]]


def read(text: str) -> dict[Sample, float]:
    """Return every sample by its name and its labels, but for the model's."""
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == "toy"
            labels = frozenset(item for item in sample.labels.items() if item[0] != "model_name")
            assert (sample.name, labels) not in found
            found[sample.name, labels] = sample.value
    return found


def plain(text: str) -> dict[str, float]:
    """Return the samples that have no other label."""
    return {name: value for (name, labels), value in read(text).items() if not labels}


def ask(ids: Iterable[int], count: int = 8, *, log_metrics: bool = True) -> GenerateReqInput:
    params = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
    return GenerateReqInput(input_ids=list(ids), sampling_params=params, log_metrics=log_metrics)


async def serve(engine: Engine, request: GenerateReqInput) -> None:
    async with engine.generate(request) as stream:
        await stream.read()


# --- names -----------------------------------------------------------------------------------------


def test_no_name_is_given_twice() -> None:
    every = [name for family in FAMILIES for name in names(family)]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_described(family: Gauge | Counter | Distribution) -> None:
    assert family.text.endswith(".")
    assert "|" not in family.text
    for name in names(family):
        assert not name.endswith("_total")


async def test_every_family_is_told_under_all_its_names() -> None:
    async with open_engine("toy") as engine:
        told = {family.name: family for family in text_string_to_metric_families(engine.metrics())}
    expected = {name: KINDS[type(family)] for family in FAMILIES for name in names(family)}
    assert {name: family.type for name, family in told.items()} == expected
    assert all(family.documentation and family.samples for family in told.values())
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


# --- values ----------------------------------------------------------------------------------------


async def test_what_is_told_is_what_was_done() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", max_running=3, kv_tokens=1600) as engine:
            before = plain(engine.metrics())
            assert (before["vidette_kv_blocks"], before["vllm:prompt_tokens_total"]) == (100, 0)
            await serve(engine, ask(range(40)))
            await serve(engine, ask(range(40), 10))
            await serve(engine, ask(range(40), 10, log_metrics=False))
            await engine.probe()
            async with engine.generate(ask(range(40), 400)) as stream:
                await anext(stream)
                running = plain(engine.metrics())
            statistics = await wait_quiescent(engine)
            text = engine.metrics()
    assert (running["vllm:num_requests_running"], running["sglang:num_running_reqs"]) == (1, 1)
    assert 0 < running["vllm:kv_cache_usage_perc"] == running["sglang:token_usage"] < 0.1
    assert running["vidette_requests_live"] == 1
    after = plain(text)
    for name in ("vidette_prompt_tokens_total", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total"):
        assert after[name] == 3 * 40
    assert after["vllm:generation_tokens_total"] >= 19
    assert after["vidette_decode_tokens_total"] >= after["vllm:generation_tokens_total"] + 11
    ended = {
        dict(labels)["finished_reason"]: value
        for (name, labels), value in read(text).items()
        if name == "vllm:request_success_total"
    }
    assert ended == {"stop": 0, "length": 2, "abort": 1, "error": 0}
    assert after["vllm:time_to_first_token_seconds_count"] == 3
    assert after["vllm:inter_token_latency_seconds_count"] == after["vllm:generation_tokens_total"] - 3
    assert after["vllm:e2e_request_latency_seconds_count"] == 2
    assert after["vllm:request_queue_time_seconds_count"] == 2
    assert after["vllm:request_prompt_tokens_sum"] == 80
    assert after["vllm:request_generation_tokens_sum"] == 18
    assert after["vllm:prefix_cache_queries_total"] == 4 * 40 + 1
    assert after["vllm:prefix_cache_hits_total"] == 3 * 32
    assert after["vidette_cache_hit_ratio"] == pytest.approx(96 / 161) == statistics.cache_hit_rate
    assert after["vidette_requests_submitted_total"] == 5
    assert (after["vidette_requests_aborted_total"], after["vllm:num_requests_running"]) == (1, 0)
    assert after["vidette_kv_blocks_cached"] == statistics.blocks_cached > 0
    assert (after["vidette_live"], after["vidette_ready"]) == (1, 1)
    assert statistics.kv_metrics() == KvMetrics(
        request_total_slots=3, kv_total_blocks=100, gpu_prefix_cache_hit_rate=96 / 161
    )


async def test_retractions_and_the_second_tier_are_told() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", kv_tokens=16 * 16, host_kv_tokens=16 * 16) as engine:
            async with anyio.create_task_group() as tasks:
                for start in range(4):
                    tasks.start_soon(serve, engine, ask(range(start, start + 40), 60))
            statistics = await engine.heartbeat()
            told = plain(engine.metrics())
    assert statistics.retractions == statistics.scheduler.retracted > 0
    assert told["vllm:num_preemptions_total"] == told["sglang:num_retracted_requests_total"]
    assert told["vllm:num_preemptions_total"] == statistics.retractions
    assert told["vidette_kv_blocks_host"] == statistics.blocks_host > 0


async def test_buckets_rise_to_the_count() -> None:
    async with open_engine("toy") as engine:
        engine.metrics()
        for length in (3, 30, 300):
            await serve(engine, ask(place % 250 for place in range(length)))
        samples = read(engine.metrics())
    name = "vidette_request_prompt_tokens_bucket"
    buckets = {dict(labels)["le"]: value for (each, labels), value in samples.items() if each == name}
    assert list(buckets)[-1] == "+Inf"
    assert list(buckets.values()) == sorted(buckets.values())
    assert {le: buckets[le] for le in ("2.0", "5.0", "20.0", "50.0", "200.0", "500.0", "+Inf")} == {
        "2.0": 0, "5.0": 1, "20.0": 1, "50.0": 2, "200.0": 2, "500.0": 3, "+Inf": 3,
    }  # fmt: skip


# --- one registry for each engine --------------------------------------------------------------------


async def test_two_engines_have_nothing_in_common() -> None:
    everybodys = set(prometheus_client.REGISTRY._names_to_collectors)
    async with open_engine("toy") as one, open_engine("toy") as other:
        for engine in (one, other):
            engine.metrics()
        await serve(one, ask(range(20)))
        async with open_engine("toy") as third:
            await serve(third, ask(range(20)))
            assert plain(third.metrics())["vidette_prompt_tokens_total"] == 0, "observed from here on"
        assert plain(one.metrics())["vidette_prompt_tokens_total"] == 20
        assert plain(other.metrics())["vidette_prompt_tokens_total"] == 0
        assert plain(other.metrics())["vidette_steps_total"] == 0
    assert set(prometheus_client.REGISTRY._names_to_collectors) == everybodys


async def test_a_registry_can_be_put_into_anothers() -> None:
    async with open_engine("toy") as engine:
        metrics = Metrics(engine.info.name, engine.statistics, Observer())
        theirs = prometheus_client.CollectorRegistry()
        theirs.register(metrics.registry)
        assert plain(prometheus_client.generate_latest(theirs).decode())["vidette_live"] == 1


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "vidette.metrics")
    with (
        sync.open_engine("toy") as engine,
        pytest.raises(UsageError, match=r"pip install vidette\[metrics\]"),
    ):
        engine.metrics()


def test_without_a_loop_of_ones_own() -> None:
    with sync.open_engine("toy") as engine:
        engine.metrics()
        with engine.generate(ask(range(20))) as stream:
            stream.read()
        assert plain(engine.metrics())["vidette_requests_finished_total"] == 1
