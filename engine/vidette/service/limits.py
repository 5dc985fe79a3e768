"""`ServiceLimits`: every bound of the service, with its default, in one table."""

from __future__ import annotations

from msgspec import Struct


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """Bounds on what a client can make the service hold or wait for.

    Args:
        body_bytes: longest body; a longer one is refused with 413 while it is read.
        body_seconds: longest time a body may take to arrive; then 408.
        all_bodies_bytes: most bytes of bodies that are being read at once; more are refused with 429. Of
            several keys none may have more than half of it; the admin key has no bound.
        messages: most messages of a conversation.
        parts: most parts of all its messages together.
        responses: most responses that are kept for `/v1/responses`; the oldest is forgotten for a new one.
        responses_bytes: most bytes of them, and of the conversations they end, as JSON.
        health_seconds: longest time a heartbeat or a token may take that `GET /health` or a path under it
            waits for; then 503.
        control_seconds: longest time an answer to a control call may take; then 504.
        flush_seconds: longest time that `/flush_cache` may be told to wait until no request lives.
        activity_readers: most clients that read `/v1/activity` at once; more are refused with 429.
        parting_seconds: longest time the last words to a client may take whose answer the server cut short.
        key_requests: most answers that one key may have made at once; more are refused with 429. None: any
            number, and of several keys none may have more than half of the engine's `max_requests`.
        key_requests_per_minute: most answers that one key may ask for; likewise. None: any number.
        key_tokens_per_minute: most tokens of prompts and answers; likewise. None: any number.
        connections: most that are open at once; of more, health is answered, and all else is refused with
            503. The process may allow less: some of its descriptors are for other things.
        head_seconds: longest time a connection may be idle, and the head of a request may take; then it is
            closed.
        unread_seconds: longest time a client may read nothing of what waits for it; then it is cut off, and
            its request ends.
    """

    body_bytes: int = 8 * 1024 * 1024
    body_seconds: float = 60.0
    all_bodies_bytes: int = 256 * 1024 * 1024
    messages: int = 4096
    parts: int = 4096
    responses: int = 1024
    responses_bytes: int = 64 * 1024 * 1024
    health_seconds: float = 5.0
    control_seconds: float = 30.0
    flush_seconds: float = 600.0
    activity_readers: int = 32
    parting_seconds: float = 1.0
    key_requests: int | None = None
    key_requests_per_minute: int | None = None
    key_tokens_per_minute: int | None = None
    connections: int = 4096
    head_seconds: float = 5.0
    unread_seconds: float = 300.0
