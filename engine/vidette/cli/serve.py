"""`vidette serve`: the HTTP service.

Exit status: 0 after SIGINT or SIGTERM once it serves, also if requests had to be ended or processes killed; 1
when the engine breaks for good, 2 for bad usage; 128 and the signal's number when a signal ends it before it
serves, or a second one while it stops: that one waits for nothing.
"""

from __future__ import annotations

import argparse
import math
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from vidette.api import Engine, open_engine
from vidette.cli._front_door import (
    add_front_door_options,
    begin_metrics,
    front_door,
    logging_to_stderr,
    service_limits,
)
from vidette.cli._options import add_backend_option, add_engine_options, add_model_option, engine_options
from vidette.cli._parser import explain
from vidette.cli._run import Stop, run
from vidette.cli._telemetry import add_telemetry_options, tracing
from vidette.errors import EngineBroken, UsageError

if TYPE_CHECKING:
    import ssl

    from opentelemetry.trace import Tracer
    from starlette.types import ASGIApp

    from vidette.service import FrontDoor, ServiceLimits


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette serve`."""
    add_model_option(parser)
    address = parser.add_argument_group("address")
    address.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="address to serve on (default: 127.0.0.1)"
    )
    address.add_argument(
        "--port", type=int, default=8000, metavar="PORT", help="0 takes any that is free (default: 8000)"
    )
    address.add_argument(
        "--allow-remote",
        action="store_true",
        help="allow a --host that other machines can reach although there is no --api-key; anybody there can "
        "then use the model",
    )
    address.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="serve HTTPS, with this PEM certificate (default: HTTP)",
    )
    address.add_argument(
        "--tls-key",
        type=Path,
        metavar="FILE",
        help="its private key (default: in the file of the certificate)",
    )
    add_front_door_options(parser)
    add_engine_options(parser, topology="processes")
    add_telemetry_options(parser.add_argument_group("traces"))
    _add_ends(parser.add_argument_group("when something goes wrong"))
    add_backend_option(parser)
    explain(
        parser,
        "vidette serve",
        "vidette serve --model path/to/model.gguf --port 8080 --max-running 16",
        "VIDETTE_API_KEY=... vidette serve --host 0.0.0.0",
        note="Exit status: 0 after SIGINT or SIGTERM, 1 when the engine breaks for good, 2 for bad usage.",
    )


def _add_ends(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--drain-seconds",
        type=seconds,
        default=5.0,
        metavar="SECONDS",
        help="how long running requests may go on after a signal (default: 5)",
    )
    group.add_argument(
        "--stop-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long the processes may take to end after that, before they are killed (default: 5)",
    )
    group.add_argument(
        "--supervision",
        choices=("restart", "fail"),
        default="restart",
        help="what happens when a process dies: both are started again and requests go on, or the service "
        "ends (default: restart)",
    )
    group.add_argument(
        "--watchdog",
        choices=("restart", "report"),
        default="restart",
        help="what happens when a process hangs: both are killed, and --supervision decides what then, or "
        "only the log tells of it (default: restart)",
    )
    group.add_argument(
        "--hang-timeout",
        type=float,
        metavar="SECONDS",
        help="how long that takes, at least 4; ten times as long while they compute or wait for a device "
        "(default: 30)",
    )


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal comes or the engine breaks; return the exit status."""
    # Imported here: the other subcommands need no web server.
    from vidette.service.sockets import bind, tls_context  # noqa: PLC0415

    if not 0 <= options.port < 1 << 16:
        raise UsageError(f"port is {options.port}; it must be from 0 to 65535", param="port")
    if options.tls_key is not None and options.tls_cert is None:
        raise UsageError("--tls-key needs --tls-cert, the certificate that it belongs to", param="tls-key")
    tls = tls_context(options.tls_cert, options.tls_key) if options.tls_cert is not None else None
    door, limits = front_door(options), service_limits(options)
    allow_remote = options.allow_remote or bool(door.keys.api)
    # Before the model is loaded: a port that is taken shows at once.
    with (
        bind(options.host, options.port, allow_remote=allow_remote) as sock,
        logging_to_stderr(as_json=options.log_format == "json") as tell,
        tracing(options) as tracer,
    ):
        serving = partial(
            _serve, options, sock=sock, tls=tls, door=door, limits=limits, tracer=tracer, tell=tell
        )
        return run(serving, backend=options.backend, uvloop=True)


def seconds(text: str) -> float:
    """Return a number of seconds given on the command line."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more seconds")
    return number


async def _serve(
    options: argparse.Namespace,
    stop: Stop,
    *,
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    door: FrontDoor,
    limits: ServiceLimits,
    tracer: Tracer | None,
    tell: Callable[[str], None],
) -> int:
    from vidette.service import Gate, LocalHosts, build_app  # noqa: PLC0415
    from vidette.service.servers import serving  # noqa: PLC0415
    from vidette.service.sockets import url_of  # noqa: PLC0415

    settings = engine_options(options)
    async with open_engine(tracer=tracer, log_format=options.log_format, **settings) as engine:
        gate = Gate()
        begin_metrics(engine)
        service = build_app(engine, limits=limits, gate=gate, door=door, tracer=tracer)
        app: ASGIApp = service
        if not options.allow_remote and not door.keys.api:
            app = LocalHosts(app)
        async with (
            service.router.lifespan_context(service),  # what is made in the background ends with the server
            serving(
                app,
                sock,
                gate=gate,
                limits=limits,
                drain_seconds=options.drain_seconds,
                drain=engine.drain,
                tls=tls,
            ),
        ):
            stop.defer()
            tell(f"vidette serves {engine.info.name} on {url_of(sock, tls=tls is not None)}")
            if door.keys.lacks_admin:
                tell("there are several keys and no --admin-api-key: nobody may watch, pause, flush or abort")
            broken = await _wait_end(engine, stop)
    if broken is not None:
        raise broken
    return 0


async def _wait_end(engine: Engine, stop: Stop) -> EngineBroken | None:
    """Wait for a signal, or for the engine to break; return what broke it."""
    broken: EngineBroken | None = None
    async with anyio.create_task_group() as tasks:

        async def wait_broken() -> None:
            nonlocal broken
            broken = await engine.wait_broken()
            tasks.cancel_scope.cancel("the engine broke")

        tasks.start_soon(wait_broken)
        await stop.asked.wait()
        tasks.cancel_scope.cancel("asked to stop")
    return broken
