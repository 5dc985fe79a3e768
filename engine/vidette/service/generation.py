"""What every API that generates text does: submit, wait, answer whole or in pieces."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import ClassVar, Protocol

from vidette import (
    Delta,
    Engine,
    GenerateReqInput,
    OperationName,
    RequestError,
    SamplingParams,
    Stream,
)
from vidette.service.errors import IndexedErrorBody, body_of
from vidette.service.log_lines import note_rid
from vidette.service.prompts import LIMITS
from vidette.service.responses import Exchange


class Shape(Protocol):
    """What an API makes of the answers to a request, one or several: JSON values of its own.

    An event may also be bytes, framed already: what a stream says again and again need not be encoded anew.
    """

    operation: ClassVar[OperationName]
    """What its requests are to a trace."""

    def whole(self, streams: Sequence[Stream]) -> object:
        """Return what is answered, of requests that were read to their ends."""

    def pieces(self, stream: Stream, delta: Delta, index: int) -> Iterable[object]:
        """Return the events that a delta makes; there may be none, or several.

        Args:
            stream: of the answer.
            delta: what it has added.
            index: which of the answers.
        """
        ...

    def ending(self, streams: Sequence[Stream]) -> Iterable[object]:
        """Return the events that follow once all answers have ended, each by itself."""
        ...


def answer_generation(
    exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: Shape
) -> Awaitable[None]:
    """Answer with the output of one request, in pieces if it asks for a stream.

    Raises:
        vidette.Error: the request was refused or failed.
        ClientGone: there is nobody left to answer.
    """
    answer = _answer_in_pieces if request.stream else _answer_whole
    return answer(exchange, engine, request, shape)


async def _answer_whole(exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: Shape) -> None:
    async with engine.generate(request, operation=shape.operation) as stream:
        note_rid(stream.rid)
        with exchange.place.billing([stream]):
            await stream.read()
    # Behind the block: a client that reads slowly holds nothing of the engine.
    await exchange.send_json(shape.whole([stream]))


async def _answer_in_pieces(
    exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: Shape
) -> None:
    async with engine.generate(request, operation=shape.operation) as stream:
        note_rid(stream.rid)
        with exchange.place.billing([stream]):
            # The first delta is awaited before the status is sent: what fails until then has one of its own.
            delta = await anext(stream)
            await exchange.start_events()
            # While a client is slow, what comes for it is merged into the next delta.
            while delta.finish_reason is None:
                await exchange.send_events(shape.pieces(stream, delta, 0))
                delta = await anext(stream)
    # Behind the block, as above; in one piece with what says that it is all.
    await exchange.end_events((*shape.pieces(stream, delta, 0), *shape.ending([stream])))


async def answer_group(exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: Shape) -> None:
    """Answer with the outputs of a request for several answers, in pieces if it asks for a stream.

    Whole, it is all of them, or the error of the first that failed. In pieces, one that fails is an event of
    its own, and the others go on; as not all of it came, no `[DONE]` follows then. If all fail before
    anything has come of one, the answer is the error of the first that did.

    Raises:
        vidette.Error: the request was refused or failed.
        ClientGone: there is nobody left to answer.
    """
    exchange.place.widen(answers_of(request))
    if request.stream:
        await _answer_group_in_pieces(exchange, engine, request, shape)
    else:
        async with engine.generate_group(request, operation=shape.operation) as group:
            note_rid(group.streams[0].rid)
            with exchange.place.billing(group.streams):
                await group.read()
        await exchange.send_json(shape.whole(group.streams))


async def _answer_group_in_pieces(
    exchange: Exchange, engine: Engine, request: GenerateReqInput, shape: Shape
) -> None:
    failed: list[RequestError] = []
    events: list[object] = []
    started = False
    async with engine.generate_group(request, operation=shape.operation) as group:
        note_rid(group.streams[0].rid)
        with exchange.place.billing(group.streams):
            while ready := await group.wait_ready():
                for index in ready:
                    stream = group.streams[index]
                    try:
                        delta = await anext(stream)
                    except RequestError as error:
                        failed.append(error)
                        events.append(IndexedErrorBody(body_of(error).error, index))
                        continue
                    if not started:  # the status is sent once there is something that is no error
                        started = True
                        await exchange.start_events()
                    events += shape.pieces(stream, delta, index)
                if started:
                    if not failed and all(stream.done for stream in group.streams):
                        events += shape.ending(group.streams)
                    await exchange.send_events(events)
                    events = []
    if not started:
        raise failed[0]
    await exchange.end_events(whole=not failed)


def answers_of(request: GenerateReqInput) -> int:
    """Return how many answers a request asks for; 1 if they are so many that the engine refuses it."""
    params = request.sampling_params
    if not isinstance(params, SamplingParams):
        params = params[0] if params else SamplingParams()
    if isinstance(request.text, list):
        prompts = len(request.text)
    else:
        ids = request.input_ids
        prompts = len(ids) if ids and isinstance(ids[0], list) else 1
    answers = prompts * params.n
    return answers if 0 < params.n <= LIMITS.n and 0 < answers <= LIMITS.answers else 1
