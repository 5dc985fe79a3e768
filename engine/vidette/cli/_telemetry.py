"""Where spans of requests go: to whatever understands OTLP over HTTP, as `--otlp-endpoint` or OTEL_* says.

A thread of the exporter sends them, in batches, so that no event loop waits; what there is no room for is
dropped. It ends with the block that it was made for, after what is left was sent, within a bound: no program
that ends waits for a collector that is gone.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import vidette
from vidette.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables either of which stands for `--otlp-endpoint`; the exporter reads them, and others."""
PATH: Final = "/v1/traces"
"""Where spans go under an endpoint."""
FLUSH_SECONDS: Final = 1.0
"""How long the last spans may take to be sent when the program ends."""
SWITCH_SECONDS: Final = 0.0005
"""How long a thread may hold the interpreter while another waits. Writing a batch takes the exporter some
25 ms, and with Python's own 5 ms a loop is as much late then: measured, 5.2 ms at p99 instead of 0.8 ms."""
MISSING: Final = "spans need the packages of the extra otel: pip install vidette[otel]"


def add_telemetry_options(group: argparse._ActionsContainer) -> None:
    """Add the options to a group of them."""
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send a span for each request there, by OTLP over HTTP, such as http://127.0.0.1:4318 "
        f"(default: what {ENDPOINTS[0]} says)",
    )


@contextmanager
def tracing(
    options: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> Iterator[Tracer | None]:
    """Yield what makes spans, if they are to go somewhere; leaving the block sends what is left.

    Raises:
        UsageError: the endpoint is none, or what it takes is not installed.
    """
    endpoint: str | None = options.otlp_endpoint
    if endpoint is not None:
        check_endpoint(endpoint)
    elif not any(environment.get(name) for name in ENDPOINTS):
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        if endpoint is not None:
            raise UsageError(f"--otlp-endpoint: {MISSING}", param="otlp-endpoint") from error
        logger.warning("%s", MISSING)  # the environment may be meant for other programs
        yield None
        return
    named = Resource({"service.name": "vidette", "service.version": vidette.__version__})
    provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    target = None if endpoint is None else endpoint.rstrip("/") + PATH
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=target)))
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield provider.get_tracer("vidette", vidette.__version__)
    finally:
        sys.setswitchinterval(before)
        flush = threading.Thread(target=provider.shutdown, name="vidette last spans", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)


def check_endpoint(endpoint: str) -> None:
    """Check the base of a URL.

    Raises:
        UsageError: it is none.
    """
    try:
        url = urlsplit(endpoint)
        fine = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        fine = fine and not (url.query or url.fragment or url.path.rstrip("/").endswith(PATH))
    except ValueError:
        fine = False
    if not fine:
        raise UsageError(
            f"otlp-endpoint is {endpoint!r}; it must be such as http://127.0.0.1:4318, and {PATH} is added",
            param="otlp-endpoint",
        )
