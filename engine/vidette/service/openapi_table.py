"""What the handlers of the service take and answer, each in a line.

The types and tables are those that the handlers read and write with; here is only which belongs to which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct

from vidette.service import (
    activity,
    anthropic_body,
    chat,
    completions,
    control,
    native,
    response_body,
    tokens,
)
from vidette.service.activity import ActivityFeed
from vidette.service.anthropic import Anthropic, AnthropicAnswer, TokenCount
from vidette.service.asked import STREAM_OPTIONS
from vidette.service.control import Control
from vidette.service.errors import ErrorBody
from vidette.service.fields import Fields
from vidette.service.health import HealthBody, HealthChecks, UnhealthyBody
from vidette.service.info import LOADS_QUERY, PROMETHEUS, SECTIONS, Info, ServerInfo
from vidette.service.later import Later
from vidette.service.native import Native, Output
from vidette.service.openai import ChatCompletion, ModelCard, ModelList, OpenAI
from vidette.service.openapi_schema import Form, Many, Schema, Shape
from vidette.service.response_api import QUERY as RETRIEVAL
from vidette.service.response_api import Responses
from vidette.service.response_shape import Deleted, Response
from vidette.service.tokens import DetokenizeAnswer, TokenizeAnswer, Tokens

EVENTS: Final = "text/event-stream"
ANYTHING: Final[Any] = dict[str, Any]
"""An object that has no struct."""


class AnthropicDetail(Struct, frozen=True):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class AnthropicError(Struct, frozen=True, tag_field="type", tag="error"):
    """The body of an error of Anthropic's API."""

    error: AnthropicDetail


class Operation(NamedTuple):
    """What a handler takes and answers."""

    answer: Any = ANYTHING
    """Type of the answer; None: there is none, it always refuses."""
    body: Form | None = None
    """None: a body is not looked at."""
    may_be_empty: bool = False
    """Whether no body at all is as good as an empty object."""
    query: Collection[str] = ()
    """Names of what the query may have."""
    content_type: str = "application/json"
    """Of the answer; what is no JSON is text, or events."""
    unavailable: tuple[Any, ...] = ()
    """Types of the answer with 503, where it is not just that of any error."""


def _inner(**shapes: tuple[Any, ...]) -> Mapping[str, tuple[Shape, ...]]:
    return MappingProxyType(shapes)


def _told(fields: Fields[Any], answer: Any = ANYTHING, query: Collection[str] = ()) -> Operation:
    """Return the operation of a control call."""
    return Operation(answer, Form(fields), may_be_empty=True, query=query)


def _said(part: Form) -> tuple[Any, ...]:
    """Return what a message may hold."""
    return str, Many(part)


_OPTIONS: Final = Form(STREAM_OPTIONS)
_CHAT_PART: Final = Form(chat.PART, name="ChatPart")
_CHAT_MESSAGE: Final = Form(chat.MESSAGE, _inner(content=_said(_CHAT_PART)), "ChatInput")
_CHAT: Final = Form(chat.BODY, _inner(messages=(Many(_CHAT_MESSAGE),), stream_options=(_OPTIONS,)))
_PROMPTS: Final = (str, list[str], list[int], list[list[int]])
_COMPLETION: Final = Form(completions.BODY, _inner(prompt=_PROMPTS, stream_options=(_OPTIONS,)))
_ITEM_PART: Final = Form(response_body.PART, name="ItemPart")
_ITEM: Final = Form(response_body.ITEM, _inner(content=_said(_ITEM_PART)))
_RESPONSE: Final = Form(response_body.BODY, _inner(input=(str, Many(_ITEM))))
_PART: Final = Form(anthropic_body.PART, name="AnthropicPart")
_MESSAGE: Final = Form(anthropic_body.MESSAGE, _inner(content=_said(_PART)))
_TALK: Final = _inner(messages=(Many(_MESSAGE),), system=_said(_PART))
_SAMPLING: Final = Form(native.SAMPLING)
_GENERATE: Final = Form(native.fields_up_to(1), _inner(sampling_params=(_SAMPLING, Many(_SAMPLING))))
_TOKENIZE: Final = Form(tokens.TOKENIZE, _inner(prompt=(str, list[str]), messages=(Many(_CHAT_MESSAGE),)))
_DETOKENIZE: Final = Form(tokens.DETOKENIZE, _inner(tokens=(list[int], list[list[int]])))
_HEALTH: Final = Operation(HealthBody, unavailable=(UnhealthyBody, ErrorBody))

_SECTION: Final = f"({'|'.join(SECTIONS)})"
QUERY: Final[Mapping[str, Schema]] = MappingProxyType(
    {
        "dp_rank": {"type": "integer", "minimum": 0},
        "format": {"enum": ["json"]},
        "include": {"type": "string", "pattern": f"^{_SECTION}(,{_SECTION})*$"},
        "include_obfuscation": {"enum": ["false"]},
        "interval": {
            "type": "number",
            "minimum": activity.SHORTEST_INTERVAL,
            "maximum": activity.LONGEST_INTERVAL,
        },
        "limit": {"type": "integer", "minimum": 0, "maximum": activity.MOST_LISTED},
        "stream": {"enum": ["false"]},
        "timeout": {"type": "number", "minimum": 0},
    }
)
"""What a field of a query may be, where not any text will do."""

OPERATIONS: Final[Mapping[Callable[..., Any], Operation]] = MappingProxyType(
    {
        HealthChecks.answer: Operation(),
        HealthChecks.live: _HEALTH,
        HealthChecks.progress: _HEALTH,
        HealthChecks.ready: _HEALTH,
        Native.generate: Operation(Output | list[Output], _GENERATE),
        OpenAI.chat_completions: Operation(ChatCompletion, _CHAT),
        OpenAI.completions: Operation(completions.CompletionAnswer, _COMPLETION),
        OpenAI.list_models: Operation(ModelList),
        OpenAI.show_model: Operation(ModelCard),
        Responses.create: Operation(Response, _RESPONSE),
        Responses.retrieve: Operation(Response, query=sorted({name for name, _ in RETRIEVAL})),
        Responses.delete: Operation(Deleted),
        Responses.cancel: Operation(Response),
        Anthropic.messages: Operation(AnthropicAnswer, Form(anthropic_body.BODY, _TALK)),
        Anthropic.count_tokens: Operation(TokenCount, Form(anthropic_body.COUNT, _TALK)),
        Tokens.tokenize: Operation(TokenizeAnswer, _TOKENIZE),
        Tokens.detokenize: Operation(DetokenizeAnswer, _DETOKENIZE),
        Info.server_info: Operation(ServerInfo),
        Info.model_info: Operation(),
        Info.loads: Operation(query=LOADS_QUERY),
        Info.load: Operation(list[ANYTHING]),
        Info.metrics: Operation(str, content_type=PROMETHEUS.decode().partition(";")[0]),
        ActivityFeed.answer: Operation(query=activity.QUERY, content_type=EVENTS),
        Control.abort_request: _told(control.ABORT),
        Control.flush_cache: _told(control.NOTHING, query=control.FLUSH_QUERY),
        Control.clear_hicache: _told(control.NOTHING),
        Control.freeze_gc: _told(control.FREEZE),
        Control.pause_generation: _told(control.PAUSE),
        Control.continue_generation: _told(control.CONTINUE),
        Control.start_profile: _told(control.PROFILE),
        Control.stop_profile: _told(control.NOTHING),
        Control.configure_logging: _told(control.LOGS),
        Control.open_session: _told(control.OPEN, str),
        Control.close_session: _told(control.CLOSE),
        Later.answer: Operation(None),
    }
)
"""By what answers, whichever engine it is of."""
