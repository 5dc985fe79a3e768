"""The main module of a child process: `python -m vidette._child ROLE SPEC`. Not for people."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import msgspec

from vidette._custom import Handlers
from vidette._groups import sole_cause
from vidette._log_lines import ChildLines, ChildText, log_what_python_says, tell
from vidette.config import EngineConfig
from vidette.errors import Error
from vidette.models import load_token_table, resolve
from vidette.transport.capture import recording
from vidette.transport.channel import Channel
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.spawn import ChildSpec, guard
from vidette_protocol.codec import Codec
from vidette_protocol.messages import Failed
from vidette_protocol.messages.catalogue import DETOKENIZER_TO_FRONT, SCHEDULER_TO_FRONT

SWITCH_INTERVAL = 0.0005
"""Seconds a thread may hold the interpreter while another waits: measured, at no cost seen, a thread that
computes in Python then delays the loop by 0.04 ms instead of 9 ms."""


def main(argv: list[str], *, codec: Codec | None = None, handlers: Handlers | None = None) -> int:
    """Run one role until its front is gone or tells it to stop; return the exit status.

    Args:
        argv: role, and ChildSpec as JSON.
        codec: as for `run_scheduler`.
        handlers: likewise.
    """
    role, spec = argv[0], msgspec.json.decode(argv[1], type=ChildSpec)
    guard(spec)
    faulthandler.enable()  # a crash says on stderr where it was
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL)
    config = msgspec.json.decode(spec.config, type=EngineConfig)
    lines = ChildLines(role, spec.incarnation) if config.log_format == "json" else ChildText(role)
    _log_to_stderr(lines)
    channels = {name: Channel(socket.socket(fileno=fd)) for name, fd in spec.links.items()}
    run: Callable[[dict[str, Channel], EngineConfig, int], Awaitable[None]]
    if role == "scheduler":
        run = partial(_scheduler, codec=codec, handlers=handlers)
    else:
        run = partial(_detokenizer, role)
    try:
        anyio.run(run, channels, config, spec.incarnation, backend=spec.backend)
    except Exception as error:  # noqa: BLE001  the last handler of the process: it reports and exits
        cause = sole_cause(error)
        tell(cause, trace=not isinstance(cause, Error))  # a bug, of ours or of what we use: say where
        _report(role, channels["front"], cause)
        return 1
    return 0


async def _scheduler(
    channels: dict[str, Channel],
    config: EngineConfig,
    incarnation: int,
    *,
    codec: Codec | None,
    handlers: Handlers | None,
) -> None:
    # Imported here: torch takes two seconds and 200 MB, and the detokenizer needs none of it.
    from vidette.scheduler.build import build_loop  # noqa: PLC0415
    from vidette.scheduler.process import run_scheduler  # noqa: PLC0415

    with recording(config.capture, sender="front", receiver="scheduler", incarnation=incarnation) as recorder:
        await run_scheduler(
            channels["front"],
            {peer: channels[peer] for peer in config.detokenizer_roles},
            config=config,
            make_loop=partial(build_loop, config),
            incarnation=incarnation,
            recorder=recorder,
            codec=codec,
            handlers=handlers,
        )


async def _detokenizer(
    role: str, channels: dict[str, Channel], config: EngineConfig, incarnation: int
) -> None:
    from vidette.detokenizer.process import run_detokenizer  # noqa: PLC0415

    with recording(config.capture, sender="scheduler", receiver=role, incarnation=incarnation) as recorder:
        await run_detokenizer(
            channels["scheduler"],
            channels["front"],
            table=load_token_table(resolve(config.model)),
            role=role,
            incarnation=incarnation,
            recorder=recorder,
        )


def _log_to_stderr(lines: logging.Formatter) -> None:
    """Write what is logged on stderr, which the front passes on, and what Python would print there."""
    logging.getLogger("vidette").setLevel(logging.INFO)  # what takes long at the start is said while it does
    handler = logging.StreamHandler()
    handler.setFormatter(lines)
    logging.basicConfig(handlers=[handler])
    log_what_python_says()


def _report(role: str, channel: Channel, error: BaseException) -> None:
    """Tell the front why, if it still listens."""
    sends = SCHEDULER_TO_FRONT if role == "scheduler" else DETOKENIZER_TO_FRONT
    link = Link(channel, Codec(sends=sends, receives=sends), role=role, peer="front")
    with contextlib.suppress(LinkClosed):
        link.post(Failed(role=role, message=f"{type(error).__name__}: {error}"))
        channel.flush_nowait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
