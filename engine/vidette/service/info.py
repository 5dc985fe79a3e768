"""What is served and how busy it is: `/server_info`, `/model_info`, `/v1/loads`, `/metrics`.

What is told of the settings is a list of what may be told. Whatever is new among them, a secret included, is
not told until somebody adds it here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

import vidette
from vidette import Engine, EngineConfig, Statistics
from vidette.errors import UsageError
from vidette.service.errors import NotYet, shown
from vidette.service.keys import ADMIN, SHOWN, Keys
from vidette.service.limits import ServiceLimits
from vidette.service.responses import Answer, Exchange
from vidette.service.shares import ANYONE, CALLER, Shares, Use

SECTIONS: Final = ("core", "memory", "queues", "speculative", "lora", "disaggregation", "all")
"""What `/v1/loads?include=` may name."""
LOADS_QUERY: Final = frozenset({"dp_rank", "include", "format"})
"""What the query of `/v1/loads` may have."""
PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"
KEY_METRICS: Final = MappingProxyType[str, tuple[str, str, Callable[[Use], int]]](
    {
        "vidette_key_requests_live": (
            "gauge",
            "Answers that are being made, by the name of the key they were asked for with.",
            lambda use: use.live,
        ),
        "vidette_key_requests_total": (
            "counter",
            "Answers that are over, likewise.",
            lambda use: use.requests,
        ),
        "vidette_key_refused_total": (
            "counter",
            "Requests that were refused because their key had had its share.",
            lambda use: use.refused,
        ),
        "vidette_key_tokens_total": (
            "counter",
            "Tokens of prompts and answers that are over.",
            lambda use: use.tokens,
        ),
    }
)
"""What is told of each key besides the metrics of the engine: kind, text, and what reads it."""


class EngineSettings(Struct, frozen=True):
    """The fields of EngineConfig that are told: numbers and choices, and no paths."""

    topology: str
    detokenizers: int
    kv_tokens: int
    step_tokens: int
    max_running: int
    max_requests: int
    max_queued_tokens: int
    tokenise_timeout: float
    dtype: str
    threads: int | None
    start_timeout: float
    stop_timeout: float
    supervision: str
    max_restarts: int
    stall_timeout: float
    watchdog: str
    hang_timeout: float
    schedule_policy: str
    ageing_s: float
    preempt_gap: int | None
    queue_timeout: float | None
    running_timeout: float | None
    host_kv_tokens: int
    kv_events: bool
    draft_tokens: int


class ServerInfo(Struct, frozen=True):
    """What is told of a server.

    Args:
        version: of Vidette.
        model_path: the name under which the model is served; paths are not told.
        served_model_name: the same.
        max_total_tokens: most tokens of prompt and output together.
        engine: its settings.
        limits: bounds of the service.
        api_key: whether clients need a key, as "***" or null.
        admin_api_key: whether there is an admin key, likewise.
        keys: what each key has had, if whoever runs the server asks, else that of the client; without any,
            all that came.
        started: seconds since the epoch.
        internal_states: of each scheduler, in SGLang's words.
    """

    version: str
    model_path: str
    served_model_name: str
    max_total_tokens: int
    engine: EngineSettings
    limits: ServiceLimits
    api_key: str | None
    admin_api_key: str | None
    keys: tuple[Use, ...]
    started: float
    internal_states: tuple[dict[str, Any], ...]


class Info:
    """The endpoints of one engine.

    Args:
        engine: what is told of.
        limits: bounds of the service.
        keys: of the service; whether there are any is told.
        shares: of the keys; how much of them is used is told to whoever may know.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits, keys: Keys, shares: Shares) -> None:
        self._engine = engine
        self._limits = limits
        self._keys = keys
        self._shares = shares
        self._started = time.time()

    def routes(self) -> dict[str, Answer]:
        """Return what is told, by path."""
        return {
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
            "/model_info": self.model_info,
            "/get_model_info": self.model_info,
            "/v1/loads": self.loads,
            "/get_load": self.load,
            "/metrics": self.metrics,
        }

    async def server_info(self, exchange: Exchange) -> None:
        """Answer `GET /server_info`."""
        engine = self._engine
        statistics = engine.statistics()
        info = ServerInfo(
            version=vidette.__version__,
            model_path=engine.info.name,
            served_model_name=engine.info.name,
            max_total_tokens=engine.max_total_tokens,
            engine=settings_of(engine.config),
            limits=self._limits,
            api_key=SHOWN if self._keys.api else None,
            admin_api_key=None if self._keys.admin is None else SHOWN,
            keys=self._uses_for(exchange),
            started=self._started,
            internal_states=(
                {
                    "effective_max_running_requests_per_dp": statistics.max_running,
                    "memory_usage": {"token_capacity": _tokens(engine, statistics.blocks_total)},
                },
            ),
        )
        await exchange.send_json(info)

    async def model_info(self, exchange: Exchange) -> None:
        """Answer `GET /model_info`, in SGLang's words."""
        info = self._engine.info
        await exchange.send_json(
            {
                "model_path": info.name,
                "tokenizer_path": info.name,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": info.architecture,
                "architectures": [info.architecture],
                "vocab_size": info.vocab_size,
                "context_len": info.context_len,
                "max_total_tokens": self._engine.max_total_tokens,
            }
        )

    async def loads(self, exchange: Exchange) -> None:
        """Answer `GET /v1/loads`: how busy the scheduler is, as of the last it said."""
        asked = query_of(exchange, LOADS_QUERY)
        rank, sections = asked.get("dp_rank", "0"), asked.get("include", "core").split(",")
        if asked.get("format", "json") != "json":
            raise UsageError("format must be 'json'; /metrics is what Prometheus scrapes", param="format")
        unknown = [name for name in sections if name not in SECTIONS]
        if unknown:
            raise UsageError(
                f"include has {shown(unknown[0])}; it may have {', '.join(SECTIONS)}", param="include"
            )
        if not rank.isascii() or not rank.isdigit():
            raise UsageError(f"dp_rank is {shown(rank)}; it must be a number", param="dp_rank")
        loads = [] if rank.strip("0") else [self._load(sections)]  # there is but rank 0
        await exchange.send_json({"timestamp": time.time(), "version": vidette.__version__, "loads": loads})

    async def load(self, exchange: Exchange) -> None:
        """Answer `GET /get_load`, the older form."""
        statistics = self._engine.statistics()
        live = statistics.running + statistics.waiting
        used = _tokens(self._engine, statistics.ledgers.blocks)
        await exchange.send_json(
            [{"dp_rank": 0, "num_reqs": live, "num_waiting_reqs": statistics.waiting, "num_tokens": used}]
        )

    async def metrics(self, exchange: Exchange) -> None:
        """Answer `GET /metrics`: what Prometheus scrapes; requests are observed from the first time on."""
        try:
            text = self._engine.metrics()
        except UsageError as error:
            raise NotYet(str(error), code="not_installed") from error
        text += metrics_of(self._uses_for(exchange))
        await exchange.send_bytes(text.encode(), PROMETHEUS)

    def _uses_for(self, exchange: Exchange) -> tuple[Use, ...]:
        """Return what a client is told of keys: of its own, and of all if it is who runs the server."""
        if exchange.scope.get(ADMIN, True):
            return self._shares.uses()
        return (self._shares.of(exchange.scope.get(CALLER, ANYONE)).use(),)

    def _load(self, sections: list[str]) -> dict[str, Any]:
        statistics = self._engine.statistics()
        load: dict[str, Any] = {
            "dp_rank": 0,
            "num_running_reqs": statistics.running,
            "num_waiting_reqs": statistics.waiting,
            "num_used_tokens": _tokens(self._engine, statistics.ledgers.blocks),
            "max_total_num_tokens": _tokens(self._engine, statistics.blocks_total),
            "max_running_requests": statistics.max_running,
            "token_usage": round(statistics.usage, 4),
            "cache_hit_rate": round(statistics.cache_hit_rate, 4),
            "utilization": round(statistics.running / max(1, statistics.max_running), 4),
        }
        if {"memory", "all"} & set(sections):
            load["memory"] = {"kv_cache_gb": _kv_gb(self._engine, statistics)}
        if {"queues", "all"} & set(sections):
            load["queues"] = {"waiting": statistics.waiting, "queue_age_s": statistics.health.queue_age_s}
        return load


def metrics_of(uses: Sequence[Use]) -> str:
    """Return what each key has had, in Prometheus' text format."""
    lines: list[str] = []
    for name, (kind, text, read) in KEY_METRICS.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{key="{use.name}"}} {read(use)}' for use in uses]
    return "".join(line + "\n" for line in lines)


def settings_of(config: EngineConfig) -> EngineSettings:
    """Return what is told of a configuration."""
    given = msgspec.structs.asdict(config)
    return EngineSettings(**{name: given[name] for name in EngineSettings.__struct_fields__})


def query_of(exchange: Exchange, known: AbstractSet[str]) -> dict[str, str]:
    """Return the query of a request, each name once.

    Raises:
        UsageError: a name is not known, or there more than once.
    """
    try:
        given = parse_qs(exchange.query.decode("ascii"), keep_blank_values=True, max_num_fields=16)
    except ValueError as error:  # it is not ASCII, or has too many
        raise UsageError("the query is not valid: at most 16 fields, in ASCII") from error
    for name, values in given.items():
        if name not in known or len(values) != 1:
            raise UsageError(
                f"the query has {shown(name)}; it may have each of {', '.join(sorted(known))} once",
                param=name[:64],
            )
    return {name: value for name, (value,) in given.items()}


def _tokens(engine: Engine, blocks: int) -> int:
    """Return how many tokens blocks hold."""
    return blocks * engine.config.block_tokens


def _kv_gb(engine: Engine, statistics: Statistics) -> float:
    tokens = _tokens(engine, statistics.blocks_total)
    return round(tokens * engine.info.kv_bytes_per_token / 1e9, 4)
