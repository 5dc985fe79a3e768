"""What Prometheus scrapes of an engine: `Metrics`, and the table of all names, `FAMILIES`.

Every name begins with `vidette_`. Where vLLM or SGLang has a metric of the same meaning, it is given once
more under their name, so that their dashboards work. Each engine has a registry of its own, whose values are
read from `Engine.statistics()` and from what the front has observed when somebody scrapes; none is kept up to
date meanwhile.

A counter of what the scheduler did begins again at 0 when another scheduler takes the place of one that died,
as Prometheus expects of counters.

Needs `prometheus_client`: `pip install vidette[metrics]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from vidette._statistics import Statistics
from vidette.front.observer import Histogram, Observer
from vidette.models.interface import BLOCK_SIZE

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""Of what `Metrics.render` returns, for HTTP."""
PREFIX: Final = "vidette_"

Value = float | Mapping[str, float]
"""A number, or one for each value of a label."""


class Gauge(NamedTuple):
    """What may rise and fall.

    Args:
        name: without the prefix.
        text: what it says.
        read: returns it.
        vllm: names of the same there.
        sglang: likewise.
    """

    name: str
    text: str
    read: Callable[[Statistics], float]
    vllm: tuple[str, ...] = ()
    sglang: tuple[str, ...] = ()


class Counter(NamedTuple):
    """What only rises.

    Args:
        name: without prefix and `_total`.
        text: what it says.
        read: returns it.
        label: by which it is told apart; None: it is one number.
        vllm: names of the same there, without `_total`.
        sglang: likewise.
    """

    name: str
    text: str
    read: Callable[[Statistics, Observer], Value]
    label: str | None = None
    vllm: tuple[str, ...] = ()
    sglang: tuple[str, ...] = ()


class Distribution(NamedTuple):
    """A histogram.

    Args:
        name: without the prefix.
        text: what it says.
        read: returns it.
        vllm: names of the same there.
        sglang: likewise.
    """

    name: str
    text: str
    read: Callable[[Observer], Histogram]
    vllm: tuple[str, ...] = ()
    sglang: tuple[str, ...] = ()


Family = Gauge | Counter | Distribution

FAMILIES: Final[tuple[Family, ...]] = (
    # --- what is held now ------------------------------------------------------------
    Gauge(
        "requests_running",
        "Requests that hold blocks and are computed.",
        lambda now: now.running,
        ("num_requests_running",),
        ("num_running_reqs",),
    ),
    Gauge(
        "requests_waiting",
        "Requests that wait to be begun, or to go on after a retraction.",
        lambda now: now.waiting,
        ("num_requests_waiting",),
        ("num_queue_reqs",),
    ),
    Gauge("requests_live", "Requests that are not over in the front.", lambda now: now.ledgers.front),
    Gauge(
        "kv_usage_ratio",
        "Share of the blocks that requests hold, 0 to 1; what is only cached is as good as free.",
        lambda now: now.usage,
        ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        ("token_usage",),
    ),
    Gauge("kv_blocks", "Blocks of the KV pool.", lambda now: now.blocks_total),
    Gauge(
        "kv_tokens",
        "Tokens that the KV pool has room for.",
        lambda now: now.blocks_total * BLOCK_SIZE,
        (),
        ("max_total_num_tokens",),
    ),
    Gauge("kv_blocks_used", "Blocks that requests hold.", lambda now: now.ledgers.blocks),
    Gauge(
        "kv_blocks_cached", "Blocks that are cached and that no request uses.", lambda now: now.blocks_cached
    ),
    Gauge("kv_blocks_host", "Blocks in the second tier of the cache.", lambda now: now.blocks_host),
    Gauge(
        "cache_hit_ratio",
        "Share of the tokens of prompts that were found in the prefix cache since the scheduler was started.",
        lambda now: now.cache_hit_rate,
    ),
    Gauge("sessions_open", "Sessions that are open.", lambda now: now.ledgers.sessions),
    Gauge(
        "queue_age_seconds",
        "How long the oldest request had waited when the scheduler was last heard.",
        lambda now: now.health.queue_age_s,
    ),
    Gauge(
        "step_seconds",
        "How long the step before took; 0 if nothing is computed.",
        lambda now: now.health.step_s,
    ),
    Gauge(
        "step_age_seconds",
        "How old the oldest question is that the step loop has not answered; 0 if none is on its way.",
        lambda now: now.step_age_s,
    ),
    Gauge("live", "1 if the engine serves, or will again by itself.", lambda now: now.health.live),
    Gauge("progress", "1 if its parts turn, and no heartbeat is overdue.", lambda now: now.health.progress),
    Gauge("ready", "1 if it would serve a request now.", lambda now: now.health.ready),
    # --- what has become of requests -----------------------------------------------------
    Counter("requests_submitted", "Requests sent to the scheduler.", lambda now, _: now.totals.submitted),
    Counter("requests_finished", "Requests that came to their own end.", lambda now, _: now.totals.finished),
    Counter(
        "requests_aborted", "Requests that their callers left before.", lambda now, _: now.totals.aborted
    ),
    Counter("requests_failed", "Requests that ended with an error.", lambda now, _: now.totals.failed),
    Counter(
        "requests_resumed",
        "How often a request went on after the death of a process.",
        lambda now, _: now.totals.resumed,
    ),
    Counter("rows_dropped", "Rows that came for callers who were gone.", lambda now, _: now.totals.dropped),
    Counter(
        "requests_ended",
        "Observed requests by how they ended: stop, length, abort, error.",
        lambda _, seen: seen.ended,
        "finished_reason",
        ("request_success",),
    ),
    Counter(
        "prompt_tokens",
        "Tokens of prompts of observed requests, those from the cache included.",
        lambda _, seen: seen.prompt_tokens,
        None,
        ("prompt_tokens",),
        ("prompt_tokens",),
    ),
    Counter(
        "generation_tokens",
        "Tokens that observed requests were given.",
        lambda _, seen: seen.output_tokens,
        None,
        ("generation_tokens",),
        ("generation_tokens",),
    ),
    Counter(
        "drafts",
        "Drafts that were verified, of observed requests that are over.",
        lambda _, seen: seen.drafts,
        None,
        ("spec_decode_num_drafts",),
    ),
    Counter(
        "draft_tokens",
        "Tokens of these drafts.",
        lambda _, seen: seen.draft_tokens,
        None,
        ("spec_decode_num_draft_tokens",),
    ),
    Counter(
        "draft_tokens_accepted",
        "Tokens of these drafts that were right.",
        lambda _, seen: seen.right_drafts,
        None,
        ("spec_decode_num_accepted_tokens",),
    ),
    # --- what the scheduler did ------------------------------------------------------------
    Counter("steps", "Steps that computed something.", lambda now, _: now.steps),
    Counter(
        "prefill_tokens",
        "Tokens that prefills computed, those of outputs after a retraction included.",
        lambda now, _: now.scheduler.prompt_tokens,
    ),
    Counter("decode_tokens", "Tokens that were made.", lambda now, _: now.scheduler.output_tokens),
    Counter(
        "prefix_cache_queries",
        "Tokens of prompts that were looked for in the prefix cache.",
        lambda now, _: now.scheduler.begun_tokens,
        None,
        ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    ),
    Counter(
        "prefix_cache_hits",
        "Tokens of them that were found.",
        lambda now, _: now.scheduler.cached_tokens,
        None,
        ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    ),
    Counter(
        "retractions",
        "How often a request's blocks were taken for others.",
        lambda now, _: now.scheduler.retracted,
        None,
        ("num_preemptions",),
        ("num_retracted_requests",),
    ),
    Counter("restarts", "How often the processes were started again.", lambda now, _: now.restarts),
    # --- how long requests take, and how long they are ----------------------------------------
    Distribution(
        "time_to_first_token_seconds",
        "From the call to the first token.",
        lambda seen: seen.first_token,
        ("time_to_first_token_seconds",),
        ("time_to_first_token_seconds",),
    ),
    Distribution(
        "inter_token_latency_seconds",
        "From one token to the next; tokens that come together share the time.",
        lambda seen: seen.next_token,
        ("inter_token_latency_seconds", "time_per_output_token_seconds"),
        ("inter_token_latency_seconds",),
    ),
    Distribution(
        "e2e_request_latency_seconds",
        "From the call to the end, of requests that ended by stop or length, as all that follow.",
        lambda seen: seen.request,
        ("e2e_request_latency_seconds",),
        ("e2e_request_latency_seconds",),
    ),
    Distribution(
        "request_queue_time_seconds",
        "How long they waited to be begun.",
        lambda seen: seen.queue,
        ("request_queue_time_seconds",),
        ("queue_time_seconds",),
    ),
    Distribution(
        "request_prompt_tokens",
        "Tokens of their prompts.",
        lambda seen: seen.prompts,
        ("request_prompt_tokens",),
        ("prompt_tokens_histogram",),
    ),
    Distribution(
        "request_generation_tokens",
        "Tokens of their outputs.",
        lambda seen: seen.outputs,
        ("request_generation_tokens",),
        ("generation_tokens_histogram",),
    ),
)
"""Everything there is, in the order in which it is told."""


class Metrics:
    """The metrics of one engine; made by `Engine.metrics()`.

    Args:
        model: its name, the label `model_name` of everything.
        statistics: returns a picture of the engine.
        observer: of its front; started here.

    Attributes:
        registry: of this engine alone.
    """

    def __init__(self, model: str, statistics: Callable[[], Statistics], observer: Observer) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Reader(model, statistics, observer.start()))

    def render(self) -> str:
        """Return all of it in Prometheus' text format; where the engine's loop runs."""
        return generate_latest(self.registry).decode()


class _Reader(Collector):
    """Reads everything when somebody scrapes."""

    def __init__(self, model: str, statistics: Callable[[], Statistics], observer: Observer) -> None:
        self._model = model
        self._statistics = statistics
        self._observer = observer

    def collect(self) -> Iterator[Metric]:
        """Yield every family under each of its names."""
        now = self._statistics()
        for family in FAMILIES:
            for name in names(family):
                yield self._metric(family, name, now)

    def _metric(self, family: Family, name: str, now: Statistics) -> Metric:
        labels = ["model_name"]
        match family:
            case Gauge():
                gauge = GaugeMetricFamily(name, family.text, labels=labels)
                gauge.add_metric([self._model], float(family.read(now)))
                return gauge
            case Counter():
                value = family.read(now, self._observer)
                if not isinstance(value, Mapping):
                    counter = CounterMetricFamily(name, family.text, labels=labels)
                    counter.add_metric([self._model], value)
                    return counter
                assert family.label is not None
                counter = CounterMetricFamily(name, family.text, labels=[*labels, family.label])
                for case, count in value.items():
                    counter.add_metric([self._model, case], count)
                return counter
            case Distribution():
                values = family.read(self._observer)
                histogram = HistogramMetricFamily(name, family.text, labels=labels)
                histogram.add_metric([self._model], _buckets(values), sum_value=values.total)
                return histogram


def names(family: Family) -> list[str]:
    """Return every name of a family: ours, vLLM's, SGLang's; without `_total`."""
    return [
        PREFIX + family.name,
        *(f"vllm:{name}" for name in family.vllm),
        *(f"sglang:{name}" for name in family.sglang),
    ]


def _buckets(values: Histogram) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each with all that are smaller."""
    buckets: list[tuple[str, float]] = []
    count = 0
    for bound, more in zip((*map(str, values.bounds), "+Inf"), values.counts, strict=True):
        count += more
        buckets.append((bound, count))
    return buckets
