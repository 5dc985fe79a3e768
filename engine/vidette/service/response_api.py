"""OpenAI's newer API, for text: `POST /v1/responses`, and what can be done with a response after that.

A response lives as long as the request that asked for it, unless it is made in the background: then it is a
task of the app. What is stored is in the memory of this process, and known by an id that cannot be guessed.
"""

from __future__ import annotations

import logging
import time
from urllib.parse import parse_qsl
from uuid import uuid4

import anyio
import anyio.abc
from msgspec.structs import replace

from vidette import Engine, GenerateReqInput
from vidette.errors import Error, Overloaded, UsageError, unsupported_field
from vidette.service.background import Background
from vidette.service.conversation import Conversation
from vidette.service.errors import NotYet, ResponseNotFound, shown
from vidette.service.generation import answer_generation
from vidette.service.limits import ServiceLimits
from vidette.service.openai import OpenAI
from vidette.service.response_body import (
    ResponsesRequest,
    in_words_of_responses,
    read_response,
    rid_of,
    to_respond,
)
from vidette.service.response_shape import Deleted, Response, ResponseShape, ended, failed
from vidette.service.response_store import Kept, ResponseStore
from vidette.service.responses import Exchange
from vidette.service.shares import Place

logger = logging.getLogger(__name__)

QUERY = frozenset({("stream", "false"), ("include_obfuscation", "false")})
"""What the query of a retrieval may say; it asks for nothing."""


class Responses:
    """The endpoints of one engine.

    Args:
        engine: what answers.
        limits: bounds of the service.
        openai: knows which model is served.
        background: runs what nobody waits for.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits, openai: OpenAI, background: Background) -> None:
        self._engine = engine
        self._limits = limits
        self._openai = openai
        self._background = background
        self._store = ResponseStore(limits)
        self._running: dict[str, anyio.CancelScope] = {}
        """By the ids of the responses that are made in the background."""

    async def create(self, exchange: Exchange) -> None:
        """Answer `POST /v1/responses`."""
        request, said = read_response(exchange.take_body(), self._limits)
        self._openai.check_model(request.model)
        before = [] if request.previous_response_id is None else self._conversation_of(request)
        conversation = [*before, *said]
        if len(conversation) > self._limits.messages:
            raise UsageError(
                f"the conversation has {len(conversation)} messages; at most {self._limits.messages} are "
                f"accepted",
                param="previous_response_id",
            )
        first = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
        prompt = await self._engine.render_chat([*first, *conversation])
        begun = self._begin(request)
        asked = to_respond(request, prompt, rid_of(begun.id))
        try:
            if request.background:
                queued = replace(begun, status="queued")
                await self._background.start(self._make, queued, asked, conversation, exchange.place)
                await exchange.send_json(queued)
                return

            def keep(response: Response) -> None:
                if request.store:
                    self._store.put(response, [*conversation, _message_of(response)])

            shape = ResponseShape(begun, _new_id("msg"), keep)
            exchange.error_event = shape.failure
            await answer_generation(exchange, self._engine, asked, shape)
        except NotYet:
            raise
        except UsageError as error:
            raise in_words_of_responses(error) from error

    async def retrieve(self, exchange: Exchange) -> None:
        """Answer `GET /v1/responses/{id}`."""
        for name, value in parse_qsl(exchange.query.decode("latin-1"), keep_blank_values=True):
            if (name, value) not in QUERY:
                raise unsupported_field(shown(name), (False,) if name == "stream" else ())
        await exchange.send_json(self._find(exchange.path_params["id"]).response)

    async def cancel(self, exchange: Exchange) -> None:
        """Answer `POST /v1/responses/{id}/cancel`; what it held is free within one step."""
        kept = self._find(exchange.path_params["id"])
        response = kept.response
        if not response.background:
            raise UsageError(
                f"response {response.id} was not made in the background: it ends with its connection",
                param="id",
            )
        if kept.live:
            response = replace(response, status="cancelled")
            self._store.change(response)
            self._running[response.id].cancel("the response was cancelled")
        await exchange.send_json(response)

    async def delete(self, exchange: Exchange) -> None:
        """Answer `DELETE /v1/responses/{id}`; one that is still made is cancelled."""
        name = self._find(exchange.path_params["id"]).response.id
        self._store.drop(name)
        if name in self._running:
            self._running[name].cancel("the response was deleted")
        await exchange.send_json(Deleted(name))

    async def _make(
        self,
        queued: Response,
        asked: GenerateReqInput,
        conversation: Conversation,
        place: Place,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Make a response in the background; until it is taken, what goes wrong is raised."""
        begun = replace(queued, status="in_progress")
        scope = self._running[begun.id] = anyio.CancelScope()
        taken = False
        try:
            with scope, place.hand_on() as kept:
                async with self._engine.generate(asked, operation=ResponseShape.operation) as stream:
                    self._store.put(queued, conversation)
                    taken = True
                    task_status.started()
                    with kept.billing([stream]):
                        async for delta in stream:
                            # One that was on its way comes also after the cancellation.
                            if delta.finish_reason is None and not scope.cancel_called:
                                self._store.change(begun)
                    reason = stream.completion().finish_reason
                if not scope.cancel_called:
                    response = ended(begun, stream, _new_id("msg"), reason)
                    if not self._store.put(response, [*conversation, _message_of(response)]):
                        # Whoever was given its id finds out what has become of it.
                        self._store.put(failed(begun, Overloaded("it became too long to be kept")), [])
        except Exception as error:
            if not taken:
                raise
            if not isinstance(error, Error):
                logger.exception("a response in the background failed in a way that is a bug")
            if not scope.cancel_called:
                self._store.change(failed(begun, error))
        finally:
            del self._running[begun.id]

    def _begin(self, request: ResponsesRequest) -> Response:
        """Return the response to a request as it is while it is made."""
        return Response(
            id=_new_id("resp"),
            created_at=int(time.time()),
            model=self._engine.info.name,
            status="in_progress",
            background=request.background,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            previous_response_id=request.previous_response_id,
            prompt_cache_key=request.prompt_cache_key,
            safety_identifier=request.safety_identifier,
            store=request.store,
            temperature=request.temperature,
            top_p=request.top_p,
            user=request.user,
        )

    def _conversation_of(self, request: ResponsesRequest) -> Conversation:
        """Return what was said before a request, by the response that it goes on behind."""
        name = request.previous_response_id or ""
        kept = self._store.get(name)
        if kept is None:
            raise UsageError(
                f"previous_response_id is {shown(name)}; there is no such response, or not any more",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if kept.response.status not in ("completed", "incomplete"):
            raise UsageError(
                f"previous_response_id is {name!r}, which is {kept.response.status}; only what has come to "
                f"its end can be gone on behind",
                param="previous_response_id",
            )
        return kept.conversation

    def _find(self, name: str) -> Kept:
        kept = self._store.get(name)
        if kept is None:
            raise ResponseNotFound(f"there is no response {shown(name)}, or not any more", param="id")
        return kept


def _message_of(response: Response) -> dict[str, str]:
    """Return what a response adds to its conversation."""
    return {"role": "assistant", "content": response.output[0].content[0].text}


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"
