"""`python -m vidette.bench._bare`: the least that a server of streams can do.

Starlette's `StreamingResponse` on uvicorn with httptools and uvloop, as our service has them. An answer is so
many pieces, made beforehand; all answers have one at each tick of one clock, as all streams have of a model
at each step.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from vidette.service.sockets import bind, url_of


class Clock:
    """Ticks for all who wait, while anybody does."""

    def __init__(self) -> None:
        self._next: anyio.Event | None = None

    async def tick(self, seconds: float) -> None:
        """Wait for the next tick; whoever waits first says when it is."""
        if self._next is not None:
            await self._next.wait()
            return
        now = self._next = anyio.Event()
        try:
            await anyio.sleep(seconds)
        finally:
            self._next = None
            now.set()


def build_app() -> Starlette:
    """Return the app; its one route takes how many pieces, of how many bytes, every how many microseconds."""
    clock = Clock()

    async def answer(request: Request) -> StreamingResponse:
        count, size, period = map(int, (await request.body()).split())
        piece = b"data: {%b}\n\n" % (b"x" * (size - 10))

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(count):
                await clock.tick(period / 1e6)
                yield piece

        return StreamingResponse(pieces(), media_type="text/event-stream")

    return Starlette(routes=[Route("/", answer, methods=["POST"])])


def main() -> None:
    """Serve until a signal comes."""
    app = build_app()
    config = uvicorn.Config(
        app, http="httptools", loop="uvloop", ws="none", lifespan="off", log_level="error", access_log=False
    )
    with bind("127.0.0.1", 0) as sock:
        sock.listen(config.backlog)
        print(f"it serves on {url_of(sock)}", file=sys.stderr, flush=True)
        try:
            uvicorn.Server(config).run([sock])
        except KeyboardInterrupt:  # uvicorn passes the signal on once it has ended
            return


if __name__ == "__main__":
    main()
