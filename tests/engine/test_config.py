"""How an engine is made: sound defaults, and refusals that name the option and show the value."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.config import MAX_DETOKENIZERS, EngineConfig, check_config
from vidette.errors import UsageError
from vidette.models import BLOCK_SIZE
from vidette_protocol.ids import MAX_FRONT_ID

NO_SOONER = (
    "hang_timeout is 3.0; it must be at least stall_timeout (4.0), since no heartbeat is missed before that"
)
TOO_MANY = (
    "max_running is 257; it must be at most step_tokens (256), so that every running request "
    "advances in each step"
)
FINITE = "it must be 0 seconds or more, and finite"
POSITIVE = "it must be more than 0 seconds, and finite"


def test_the_defaults_make_sense() -> None:
    assert check_config(EngineConfig()) == EngineConfig()


@given(kv_tokens=st.integers(1, 10_000))
def test_a_pool_has_room_for_what_was_asked_and_no_block_more(kv_tokens: int) -> None:
    """The pool is `kv_tokens`, rounded up to whole blocks."""
    blocks = EngineConfig(kv_tokens=kv_tokens).num_blocks
    assert (blocks - 1) * BLOCK_SIZE < kv_tokens <= blocks * BLOCK_SIZE


@pytest.mark.parametrize(
    "options",
    [
        {"kv_tokens": 1, "step_tokens": 1, "max_running": 1, "max_requests": 1, "threads": 1},
        {"max_running": 256},
        {"topology": "processes"},
        {"device": "cpu", "cuda_graphs": "off"},
        {"device": "cuda:12", "cuda_graphs": "start"},
        {"front_id": MAX_FRONT_ID},
        {"detokenizers": MAX_DETOKENIZERS},
        {"start_timeout": 0.0, "stop_timeout": 1e9},
        {"watchdog": "restart", "stall_timeout": 1e-9, "hang_timeout": 1e9},
        {"watchdog": "restart", "stall_timeout": 4.0, "hang_timeout": 4.0},
        {"watchdog": "report", "stall_timeout": 60.0, "hang_timeout": 3.0},
        {"supervision": "restart", "max_restarts": 0, "restart_delay": 0.0, "max_restart_delay": 0.0},
    ],
)
def test_what_is_just_within_bounds_is_accepted(options: dict[str, Any]) -> None:
    assert check_config(EngineConfig(**options)) == EngineConfig(**options)


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"kv_tokens": 0}, "kv_tokens", "kv_tokens is 0; it must be at least 1"),
        ({"step_tokens": -5}, "step_tokens", "step_tokens is -5; it must be at least 1"),
        ({"max_running": 0}, "max_running", "max_running is 0; it must be at least 1"),
        ({"max_requests": 0}, "max_requests", "max_requests is 0; it must be at least 1"),
        ({"max_queued_tokens": 0}, "max_queued_tokens", "max_queued_tokens is 0; it must be at least 1"),
        ({"max_running": 257}, "max_running", TOO_MANY),
        ({"topology": "rings"}, "topology", "topology is 'rings'; it must be 'processes' or 'inline'"),
        (
            {"supervision": "hope"},
            "supervision",
            "supervision is 'hope'; it must be 'fail' or 'restart'",
        ),
        ({"watchdog": "bark"}, "watchdog", "watchdog is 'bark'; it must be 'report' or 'restart'"),
        ({"stall_timeout": 0.0}, "stall_timeout", f"stall_timeout is 0.0; {POSITIVE}"),
        ({"hang_timeout": math.inf}, "hang_timeout", f"hang_timeout is inf; {POSITIVE}"),
        ({"hang_timeout": math.nan}, "hang_timeout", f"hang_timeout is nan; {POSITIVE}"),
        (
            {"watchdog": "restart", "hang_timeout": 3.0},
            "hang_timeout",
            NO_SOONER,
        ),
        ({"max_restarts": -1}, "max_restarts", "max_restarts is -1; it must be 0 or more"),
        ({"restart_delay": -0.1}, "restart_delay", f"restart_delay is -0.1; {FINITE}"),
        ({"max_restart_delay": math.nan}, "max_restart_delay", f"max_restart_delay is nan; {FINITE}"),
        ({"threads": 0}, "threads", "threads is 0; it must be at least 1"),
        ({"device": "cuda:"}, "device", "device is 'cuda:'; it must be 'auto', 'cpu', 'cuda' or 'cuda:N'"),
        ({"cuda_graphs": "on"}, "cuda_graphs", "cuda_graphs is 'on'; it must be 'lazy', 'start' or 'off'"),
        ({"log_format": "xml"}, "log_format", "log_format is 'xml'; it must be 'text' or 'json'"),
        (
            {"start_timeout": -1.0},
            "start_timeout",
            "start_timeout is -1.0; it must be 0 seconds or more, and finite",
        ),
        (
            {"stop_timeout": math.nan},
            "stop_timeout",
            "stop_timeout is nan; it must be 0 seconds or more, and finite",
        ),
        (
            {"stop_timeout": math.inf},
            "stop_timeout",
            "stop_timeout is inf; it must be 0 seconds or more, and finite",
        ),
        ({"detokenizers": 0}, "detokenizers", "detokenizers is 0; it must be from 1 to 16"),
        ({"detokenizers": 17}, "detokenizers", "detokenizers is 17; it must be from 1 to 16"),
        ({"front_id": -1}, "front_id", "front_id is -1; it must be from 0 to 32767"),
        ({"front_id": 32768}, "front_id", "front_id is 32768; it must be from 0 to 32767"),
    ],
)
def test_what_is_not_is_refused_by_name_and_value(options: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_config(EngineConfig(**options))
    assert message == str(caught.value)
    assert param == caught.value.param


def test_it_survives_the_command_line_of_a_child() -> None:
    config = EngineConfig(model="toy", topology="processes", threads=2, front_id=7, stop_timeout=0.5)
    assert config == msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig)


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="kv_token"):
        msgspec.convert({"kv_token": 5}, EngineConfig)
