"""The HTTP service: an ASGI app over one engine.

- `app`        build_app(): the routes
- `openai`     /v1/chat/completions, /v1/completions and /v1/models
- `chat`       the body of a chat request: what of it is honoured, and as what
- `completions` /v1/completions: its body, and the shape of its answers
- `asked`      what bodies of all OpenAI's APIs have in common
- `conversation` messages of every API, as a chat template takes them
- `prompts`    texts and token ids in JSON, one or a list
- `tokens`     /tokenize and /detokenize
- `response_api` /v1/responses, and what can be done with a response after that
- `response_body`, `response_shape`, `response_store` its body, its objects and events, and what is kept
- `background` what goes on when the request that began it was answered
- `anthropic`  /v1/messages and /v1/messages/count_tokens
- `anthropic_body` the bodies of these
- `usage`      what a request took, in OpenAI's words
- `native`     /generate, in the shape of SGLang's
- `meta_info`  what `/generate` says of a request besides its text
- `generation` what these two share: submit, wait, answer whole or in pieces
- `responses`  one exchange of request and answer, and the scope that ends with its client
- `bodies`     reading a body within bounds
- `fields`     JSON objects with fields that are honoured, refused or unknown
- `errors`     the one shape of every error
- `health`     /health and what is under it
- `gate`       who is being answered, and whether more are let in
- `hosts`      what a server on loopback answers to
- `control`    what whoever runs the server does: abort, flush, pause, profile, logs
- `info`       /server_info, /model_info, /v1/loads and /metrics
- `activity`   /v1/activity: what the engine is doing, as a stream
- `site`       the page at /, for people, whose files are in the folder `page`
- `openapi`    /openapi.json: the document that says what all of these take and answer
- `openapi_schema` JSON Schema of bodies and answers
- `openapi_table` what the handlers take and answer
- `later`      paths that are not served yet
- `door`       who may come in, and the middleware that sees to it
- `keys`       what clients have to know
- `shares`     how much of the engine each of them gives
- `refusals`   the answer to a request that reaches no endpoint
- `request_ids` x-request-id, in and out
- `traces`     a span for each request, and W3C trace context, in and out
- `access_log` a line for each request, without its prompt
- `log_lines`  what any line of the log looks like, as text and as JSON
- `limits`     every bound of the service
- `servers`    a server for the app, whichever runs on the event loop
- `crowds`     how many connections there may be, and what becomes of one more
- `sockets`    what servers have in common: the socket, its bounds, and TLS
- `_uvicorn`   the one on asyncio, and the one module that knows it
- `_hypercorn` the one on Trio

The service sees the engine through its public API alone.
"""

from vidette.service.access_log import LogSettings as LogSettings
from vidette.service.app import build_app as build_app
from vidette.service.door import FrontDoor as FrontDoor
from vidette.service.door import check_origins as check_origins
from vidette.service.gate import Gate as Gate
from vidette.service.hosts import LocalHosts as LocalHosts
from vidette.service.keys import Keys as Keys
from vidette.service.keys import Secret as Secret
from vidette.service.keys import read_keys as read_keys
from vidette.service.limits import ServiceLimits as ServiceLimits
from vidette.service.log_lines import JsonLines as JsonLines
from vidette.service.log_lines import TextLines as TextLines
