"""What is told of a server: what is served and how busy it is, and never a secret."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

import vidette
from tests.service.driver import Call, call
from vidette import EngineConfig
from vidette.service import FrontDoor, Gate, Keys, Secret, build_app
from vidette.service.info import EngineSettings, settings_of

PATHS = ("/server_info", "/get_server_info", "/model_info", "/get_model_info", "/v1/loads", "/get_load")


async def get(app: Starlette, path: str, query: bytes = b"", **options: Any) -> Call:
    request = Call(app, path, method="GET", **options)
    request.scope["query_string"] = query
    return await request.run()


# --- no secret ---------------------------------------------------------------------------------------

TEXTS = [name for name, hint in get_type_hints(EngineConfig).items() if str in (hint, *get_args(hint))]
"""Fields that can hold any text."""


def full_of(secret: str) -> EngineConfig:
    """Return a configuration that has a secret in every text."""
    texts: dict[str, Any] = {name: f"/home/{secret}/{name}" for name in TEXTS}
    return EngineConfig(**texts)


def test_the_fields_that_can_hold_any_text_are_paths_and_a_device() -> None:
    assert set(TEXTS) == {"model", "draft_corpus", "capture", "device", "profile_dir"}
    assert not set(TEXTS) & set(EngineSettings.__struct_fields__)


# Begun so that it is no word of the answers': Hypothesis draws from what stands in the source as well.
@given(
    st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=12, max_size=40).map("sk-".__add__),
    st.booleans(),
)
def test_no_secret_is_told(secret: str, in_the_settings: bool) -> None:
    """Whatever text a configuration holds, and whatever the keys are, none of it is in what is told."""
    config = full_of(secret) if in_the_settings else EngineConfig()
    keys = Keys((Secret(secret),), Secret(secret + "-admin"))
    told = [
        msgspec.json.encode(settings_of(config)).decode(),
        repr(keys),
        str(keys.api),
        repr(FrontDoor(keys=keys)),
    ]
    for text in told:
        assert secret not in text


async def test_no_path_answers_with_a_secret(engine: vidette.Engine) -> None:
    secret = "sk-3f9a1c7e-do-not-tell"
    config = full_of(secret)
    fake: Any = SimpleNamespace(
        info=engine.info,
        max_total_tokens=engine.max_total_tokens,
        token_bytes=engine.token_bytes,
        statistics=engine.statistics,
        metrics=engine.metrics,
        config=config,
    )
    door = FrontDoor(
        keys=Keys((Secret(secret),), Secret(secret + "2")), cors_origins=(f"https://{secret}.example",)
    )
    app = build_app(fake, door=door)
    headers = [(b"authorization", b"Bearer " + secret.encode())]
    for path in (*PATHS, "/metrics"):
        answer = await get(app, path, headers=headers)
        assert answer.status == 200, path
        assert secret not in answer.body.decode()
        assert not any(secret in value for value in answer.headers.values())
    told = (await get(app, "/server_info", headers=headers)).json()
    assert (told["api_key"], told["admin_api_key"]) == ("***", "***")


# --- what is told ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_the_server(engine: vidette.Engine, app: Starlette, path: str) -> None:
    told = (await get(app, path)).json()
    assert told["version"] == vidette.__version__
    assert (told["model_path"], told["max_total_tokens"]) == ("toy", engine.max_total_tokens)
    assert (told["api_key"], told["admin_api_key"]) == (None, None)
    assert told["engine"]["kv_tokens"] == engine.config.kv_tokens
    assert told["limits"]["body_bytes"] == 8 * 1024 * 1024
    (state,) = told["internal_states"]
    assert state["effective_max_running_requests_per_dp"] == engine.config.max_running
    assert state["memory_usage"]["token_capacity"] == engine.config.kv_tokens


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_the_model(engine: vidette.Engine, app: Starlette, path: str) -> None:
    told = (await get(app, path)).json()
    assert (told["model_path"], told["is_generation"], told["model_type"]) == ("toy", True, "toy")
    assert told["vocab_size"] == engine.info.vocab_size


async def test_the_load(engine: vidette.Engine, app: Starlette) -> None:
    params = {"max_new_tokens": 4000, "ignore_eos": True}
    async with engine.generate("x" * 20, sampling_params=params) as stream:
        await anext(stream)
        await engine.heartbeat()
        told = (await get(app, "/v1/loads", b"include=all")).json()
        old = (await get(app, "/get_load")).json()
    (load,) = told["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 0)
    assert load["num_used_tokens"] >= 20
    assert load["num_used_tokens"] % 16 == 0
    assert load["max_total_num_tokens"] == engine.config.kv_tokens
    assert set(load) >= {"memory", "queues"}
    assert old[0]["num_reqs"] == 1
    await engine.wait_quiet()
    (load,) = (await get(app, "/v1/loads")).json()["loads"]
    assert (load["num_running_reqs"], load["num_used_tokens"], "memory" in load) == (0, 0, False)
    assert (await get(app, "/v1/loads", b"dp_rank=7")).json()["loads"] == []
    assert (await get(app, "/v1/loads", b"dp_rank=0000000007")).json()["loads"] == []
    assert len((await get(app, "/v1/loads", b"dp_rank=00")).json()["loads"]) == 1


@pytest.mark.parametrize(
    "query",
    [
        b"include=colour",
        b"dp_rank=-1",
        b"dp_rank=x",
        b"format=prometheus",
        b"colour=red",
        b"include=core&include=all",
        b"dp_rank=" + b"9" * 5000,
        b"&".join(b"a%d=1" % n for n in range(50)),
        b"include=\xff",
    ],
)
async def test_a_load_takes_no_other_query(app: Starlette, query: bytes) -> None:
    answer = await get(app, "/v1/loads", query)
    if query.startswith(b"dp_rank=9"):
        assert answer.json()["loads"] == []
    else:
        assert answer.status == 400
        assert answer.error


async def test_all_of_it_is_told_while_the_server_stops(engine: vidette.Engine) -> None:
    gate = Gate()
    app = build_app(engine, gate=gate)
    gate.close()
    for path in (*PATHS, "/metrics"):
        assert (await get(app, path)).status == 200


# --- metrics -----------------------------------------------------------------------------------------


async def test_metrics_are_what_prometheus_scrapes(engine: vidette.Engine, app: Starlette) -> None:
    await get(app, "/metrics")
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    assert (await call(app, "/generate", body)).status == 200
    answer = await get(app, "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert 'model_name="toy"' in answer.body.decode()


async def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    async with vidette.open_engine("toy") as engine:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        monkeypatch.delitem(sys.modules, "vidette.metrics", raising=False)
        answer = await get(build_app(engine), "/metrics")
    assert (answer.status, answer.error["code"]) == (501, "not_installed")
    assert "pip install vidette[metrics]" in answer.error["message"]
