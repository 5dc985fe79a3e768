"""What whoever runs the server does with it: the control endpoints, in the shape of SGLang's.

They are all `POST`, also those that SGLang answers a `GET` on: a page in a browser can have any address
fetched by a `GET`, without asking.

What was done is answered with 200 and `"success": true`. What the scheduler would not do is 409, with the
reason; what it did not answer in time is 504, and may be done yet.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from types import MappingProxyType
from typing import Final, Literal, TypeVar

import anyio
from msgspec import Struct

from vidette import Engine, GcReport, GcState
from vidette.errors import Error, UsageError
from vidette.service.access_log import LogSettings
from vidette.service.fields import FIELD_BYTES, Fields, Neutral
from vidette.service.info import query_of
from vidette.service.limits import ServiceLimits
from vidette.service.response_body import rid_of
from vidette.service.responses import Answer, Exchange
from vidette_protocol.limits import Limits
from vidette_protocol.messages import (
    ClearHiCacheReqInput,
    ControlOutput,
    ControlReq,
    FlushCacheReqInput,
    ProfileReq,
    ProfileReqOutput,
)

T = TypeVar("T", bound=Struct)

LOGGER: Final = "vidette"
"""Whose level `log_level` sets."""
FLUSH_QUERY: Final = frozenset({"timeout"})
"""What the query of `/flush_cache` may have."""
LONGEST_REASON: Final = 1024
"""Characters of the reason for an abort."""


class NotDone(UsageError):  # noqa: N818  named like the engine's errors
    """The scheduler would not do it: the state it is in does not allow it."""

    status = 409


class ControlTimeout(Error):  # noqa: N818
    """No answer to a control call came in time."""

    status = 504
    kind = "timeout_error"


class AbortBody(Struct, kw_only=True, frozen=True):
    """What to end: the request of a rid, or that of a response's id, or all."""

    rid: str | None = None
    abort_all: bool = False
    abort_message: str | None = None


class FreezeBody(Struct, kw_only=True, frozen=True):
    """For how long, or the end of it."""

    duration_s: float | None = None
    unfreeze: bool = False


class OpenBody(Struct, kw_only=True, frozen=True):
    """What session to open."""

    session_id: str | None = None
    capacity_of_str_len: int = 0
    streaming: bool = False
    timeout: float | None = None


class CloseBody(Struct, kw_only=True, frozen=True):
    """What session to close."""

    session_id: str


class PauseBody(Struct, kw_only=True, frozen=True):
    """What becomes of the requests that live."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueBody(Struct, kw_only=True, frozen=True):
    """How to go on."""

    torch_empty_cache: bool = True


class ProfileBody(Struct, kw_only=True, frozen=True):
    """What to record."""

    profile_id: str | None = None
    start_step: int | None = None
    num_steps: int | None = None
    activities: list[Literal["CPU", "GPU"]] | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None
    output_dir: str | None = None


class LogBody(Struct, kw_only=True, frozen=True):
    """What to log; what is absent stays as it is."""

    log_requests: bool | None = None
    log_requests_level: Literal[0, 1, 2, 3] | None = None
    log_requests_format: Literal["text", "json"] | None = None
    log_level: Literal["debug", "info", "warning", "error"] | None = None


class Empty(Struct, kw_only=True, frozen=True):
    """Nothing."""


def _fields(of: type[T], **refused: Neutral) -> Fields[T]:
    return Fields(of, MappingProxyType[str, Neutral](refused), field_bytes=FIELD_BYTES)


ABORT: Final = _fields(AbortBody, finished_reason=())
FREEZE: Final = _fields(FreezeBody)
OPEN: Final = _fields(OpenBody)
CLOSE: Final = _fields(CloseBody)
PAUSE: Final = _fields(PauseBody)
CONTINUE: Final = _fields(ContinueBody)
PROFILE: Final = _fields(
    ProfileBody,
    profile_by_stage=(False,),
    profile_stages=([],),
    profile_prefix=(),
    merge_profiles=(False,),
)
LOGS: Final = _fields(
    LogBody,
    dump_requests_folder=("",),
    dump_requests_threshold=(),
    crash_dump_folder=("",),
    log_requests_target=(),
)
NOTHING: Final = _fields(Empty)


class Control:
    """The endpoints of one engine.

    Args:
        engine: what is controlled.
        limits: bounds of the service.
        logs: what is logged of requests; changed here.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits, logs: LogSettings) -> None:
        self._engine = engine
        self._limits = limits
        self._logs = logs

    def admin_routes(self) -> dict[str, Answer]:
        """Return what only whoever runs the server may do, by path."""
        return {
            "/abort_request": self.abort_request,
            "/flush_cache": self.flush_cache,
            "/hicache/storage-backend/clear": self.clear_hicache,
            "/clear_hicache_storage_backend": self.clear_hicache,
            "/freeze_gc": self.freeze_gc,
            "/pause_generation": self.pause_generation,
            "/continue_generation": self.continue_generation,
            "/start_profile": self.start_profile,
            "/stop_profile": self.stop_profile,
            "/configure_logging": self.configure_logging,
        }

    def client_routes(self) -> dict[str, Answer]:
        """Return what clients do, by path."""
        return {"/open_session": self.open_session, "/close_session": self.close_session}

    async def abort_request(self, exchange: Exchange) -> None:
        """Answer `POST /abort_request`, and say whether there was one that it matched."""
        body = _read(ABORT, exchange)
        if (body.rid is None or not body.rid) and not body.abort_all:
            raise UsageError("rid must be given, or abort_all be true", param="rid")
        if body.abort_message is not None and len(body.abort_message) > LONGEST_REASON:
            raise UsageError(
                f"abort_message has {len(body.abort_message)} characters; at most {LONGEST_REASON}",
                param="abort_message",
            )
        if body.abort_all:
            ended = self._engine.abort_all(body.abort_message)
        else:
            rid = body.rid or ""
            ended = self._engine.abort(rid, body.abort_message)
            ended += self._engine.abort(rid_of(rid), body.abort_message)
        await _done(exchange, matched=ended > 0, aborted=ended)

    async def flush_cache(self, exchange: Exchange) -> None:
        """Answer `POST /flush_cache`, with `?timeout=` seconds to wait until no request lives."""
        _read(NOTHING, exchange)
        timeout = _number(query_of(exchange, FLUSH_QUERY).get("timeout", "0"), "timeout")
        if not 0 <= timeout <= self._limits.flush_seconds:
            raise UsageError(
                f"timeout is {timeout:g}; it must be from 0 to {self._limits.flush_seconds:g} s",
                param="timeout",
            )
        question = FlushCacheReqInput(id=0, timeout_s=timeout)
        await self._answer(exchange, question, self._limits.control_seconds + timeout)

    async def clear_hicache(self, exchange: Exchange) -> None:
        """Answer `POST /hicache/storage-backend/clear`: the second tier of the prefix cache."""
        _read(NOTHING, exchange)
        await self._answer(exchange, ClearHiCacheReqInput(id=0))

    async def freeze_gc(self, exchange: Exchange) -> None:
        """Answer `POST /freeze_gc`, and with `unfreeze` the opposite."""
        body = _read(FREEZE, exchange)
        with _within(self._limits.control_seconds):
            if body.unfreeze:
                report = await self._engine.unfreeze_gc()
            else:
                report = await self._engine.freeze_gc(body.duration_s)
        await _done(exchange, processes=_in_words(report))

    async def open_session(self, exchange: Exchange) -> None:
        """Answer `POST /open_session` with the id, as JSON; of an open one with 400."""
        body = _read(OPEN, exchange)
        with _within(self._limits.control_seconds):
            name = await self._engine.open_session(
                body.session_id,
                streaming=body.streaming,
                timeout=body.timeout,
                capacity_of_str_len=body.capacity_of_str_len,
            )
        await exchange.send_json(name)

    async def close_session(self, exchange: Exchange) -> None:
        """Answer `POST /close_session`."""
        body = _read(CLOSE, exchange)
        longest = Limits().rid_chars
        if len(body.session_id) > longest:
            raise UsageError(
                f"session_id has {len(body.session_id)} characters; at most {longest}", param="session_id"
            )
        with _within(self._limits.control_seconds):
            await self._engine.close_session(body.session_id)
        await _done(exchange)

    async def pause_generation(self, exchange: Exchange) -> None:
        """Answer `POST /pause_generation`."""
        body = _read(PAUSE, exchange)
        with _within(self._limits.control_seconds):
            output = await self._engine.pause_generation(body.mode)
            await self._engine.heartbeat()  # health knows it, once this is back
        await _say(exchange, output)

    async def continue_generation(self, exchange: Exchange) -> None:
        """Answer `POST /continue_generation`."""
        body = _read(CONTINUE, exchange)
        with _within(self._limits.control_seconds):
            output = await self._engine.continue_generation(empty_cache=body.torch_empty_cache)
            await self._engine.heartbeat()
        await _say(exchange, output)

    async def start_profile(self, exchange: Exchange) -> None:
        """Answer `POST /start_profile`: steps are recorded from now on."""
        body = _read(PROFILE, exchange)
        if body.output_dir is not None:
            raise UsageError(
                "output_dir is not taken from a request: traces go into the folder that the server was "
                "started with, by --profile-dir",
                param="output_dir",
            )
        question = ProfileReq(
            id=0,
            req_type="start",
            profile_id=body.profile_id,
            start_step=body.start_step,
            num_steps=body.num_steps,
            activities=body.activities,
            with_stack=bool(body.with_stack),
            record_shapes=bool(body.record_shapes),
        )
        await self._answer(exchange, question)

    async def stop_profile(self, exchange: Exchange) -> None:
        """Answer `POST /stop_profile` with the name of the trace."""
        _read(NOTHING, exchange)
        output = await self._ask(ProfileReq(id=0, req_type="stop"))
        trace = output.path if isinstance(output, ProfileReqOutput) else None
        await _say(exchange, output, trace=None if trace is None else PurePath(trace).name)

    async def configure_logging(self, exchange: Exchange) -> None:
        """Answer `POST /configure_logging` with what is logged from now on; of this process only."""
        body = _read(LOGS, exchange)
        logs = self._logs
        if body.log_requests is not None:
            logs.requests = body.log_requests
        if body.log_requests_level is not None:
            logs.level = body.log_requests_level
        if body.log_requests_format is not None:
            logs.format = body.log_requests_format
        logger = logging.getLogger(LOGGER)
        if body.log_level is not None:
            logger.setLevel(body.log_level.upper())
        level = logging.getLevelName(logger.getEffectiveLevel()).lower()
        await _done(
            exchange,
            log_requests=logs.requests,
            log_requests_level=logs.level,
            log_requests_format=logs.format,
            log_level=level,
        )

    async def _answer(self, exchange: Exchange, question: ControlReq, seconds: float | None = None) -> None:
        await _say(exchange, await self._ask(question, seconds))

    async def _ask(self, question: ControlReq, seconds: float | None = None) -> ControlOutput:
        with _within(self._limits.control_seconds if seconds is None else seconds):
            return await self._engine.control(question)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Bound the time of a call."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise ControlTimeout(
            f"the engine did not answer within {seconds:g} s; it may yet do what it was asked for"
        )


def _in_words(report: GcReport) -> dict[str, object]:
    """Return what collections took, by process."""

    def state(one: GcState | None) -> object:
        return None if one is None else {"seconds": one.seconds, "frozen": one.frozen}

    return {
        "front": state(report.front),
        "scheduler": state(report.scheduler),
        "detokenizers": [state(each) for each in report.detokenizers],
    }


def _read(fields: Fields[T], exchange: Exchange) -> T:
    """Return what a body asks for; none at all asks for nothing."""
    return fields.decode(exchange.take_body() or b"{}")


async def _done(exchange: Exchange, **rest: object) -> None:
    await exchange.send_json({"success": True, **rest})


async def _say(exchange: Exchange, output: ControlOutput, **rest: object) -> None:
    if not output.success:
        raise NotDone(output.message, code="not_done")
    told: Mapping[str, object] = {"message": output.message, **rest}
    await _done(exchange, **told)


def _number(text: str, param: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UsageError(f"{param} is no number", param=param)
    return number
