"""The HTTP service: an ASGI app over one engine.

- `app`        build_app(): the routes
- `openai`     /v1/chat/completions and /v1/models
- `chat`       the body of a chat request: what of it is honoured, and as what
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
- `limits`     every bound of the service
- `_uvicorn`   a server for the app; the one module that knows asyncio

The service sees the engine through its public API alone.
"""

from vidette.service.app import build_app as build_app
from vidette.service.gate import Gate as Gate
from vidette.service.hosts import LocalHosts as LocalHosts
from vidette.service.limits import ServiceLimits as ServiceLimits
