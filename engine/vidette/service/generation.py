"""What every API that generates text does: submit, wait, answer whole or in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from vidette import Delta, Engine, GenerateReqInput, RequestError, Stream
from vidette.service.errors import IndexedErrorBody, body_of
from vidette.service.responses import Exchange


class Shape(Protocol):
    """What an API makes of the output of a request: JSON values of its own."""

    def whole(self, stream: Stream) -> object:
        """Return the answer of a request that was read to its end."""

    def pieces(self, stream: Stream, delta: Delta) -> Iterable[object]:
        """Return the events that a delta makes; there may be none, or several."""
        ...


class GroupShape(Protocol):
    """What an API makes of the outputs of a request for several answers."""

    def whole(self, stream: Stream) -> object:
        """Return one of the answers, of a request that was read to its end."""

    def piece(self, stream: Stream, delta: Delta, index: int) -> object:
        """Return the event that a delta of one of the answers makes."""


async def answer_generation(
    exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: Shape
) -> None:
    """Answer with the output of one request, in pieces if it asks for a stream.

    Raises:
        vidette.Error: the request was refused or failed.
        ClientGone: there is nobody left to answer.
    """
    if request.stream:
        await _answer_in_pieces(exchange, engine, request, shape)
    else:
        async with engine.generate(request) as stream:
            await stream.read()
        # Behind the block: a client that reads slowly holds nothing of the engine.
        await exchange.send_json(shape.whole(stream))


async def _answer_in_pieces(
    exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: Shape
) -> None:
    async with engine.generate(request) as stream:
        # The first delta is awaited before the status is sent: what fails until then has a status of its own.
        delta = await anext(stream)
        await exchange.start_events()
        await exchange.send_events(shape.pieces(stream, delta))
        # While a client is slow, what comes for it is merged into the next delta.
        async for delta in stream:
            await exchange.send_events(shape.pieces(stream, delta))
    await exchange.end_events()


async def answer_group(
    exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: GroupShape
) -> None:
    """Answer with the outputs of a request for several answers, in pieces if it asks for a stream.

    Whole, it is a list of all of them, or the error of the first that failed. In pieces, one that fails is an
    event of its own, and the others go on; as not all of it came, no `[DONE]` follows then.

    Raises:
        vidette.Error: the request was refused or failed.
        ClientGone: there is nobody left to answer.
    """
    if request.stream:
        await _answer_group_in_pieces(exchange, engine, request, shape)
    else:
        async with engine.generate_group(request) as group:
            await group.read()
        await exchange.send_json([shape.whole(stream) for stream in group.streams])


async def _answer_group_in_pieces(
    exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: GroupShape
) -> None:
    whole = True
    async with engine.generate_group(request) as group:
        ready = await group.wait_ready()
        await exchange.start_events()
        while ready:
            events: list[object] = []
            for index in ready:
                stream = group.streams[index]
                try:
                    events.append(shape.piece(stream, await anext(stream), index))
                except RequestError as error:
                    whole = False
                    events.append(IndexedErrorBody(body_of(error).error, index))
            await exchange.send_events(events)
            ready = await group.wait_ready()
    await exchange.end_events(whole=whole)
