"""Opening and closing sessions, as callers ask for it."""

from __future__ import annotations

import math
import uuid
from contextlib import suppress

from vidette.errors import EngineBroken, EngineClosed, Error, Overloaded, UsageError
from vidette.front.calls import Calls
from vidette_protocol.limits import Limits
from vidette_protocol.messages import CloseSessionReqInput, OpenSessionReqInput, OpenSessionReqOutput


async def open_session(
    calls: Calls,
    session_id: str | None = None,
    *,
    streaming: bool = False,
    timeout: float | None = None,
    capacity_of_str_len: int = 0,
) -> str:
    """Have the scheduler open a session; return its id. See `vidette.Engine.open_session`."""
    if timeout is not None and not 0 < timeout < math.inf:  # NaN neither
        raise UsageError(f"timeout is {timeout}; it must be more than 0, and finite", param="timeout")
    longest = Limits().rid_chars  # of what a request may name
    if session_id is not None and not 0 < len(session_id) <= longest:
        raise UsageError(
            f"session_id has {len(session_id)} characters; it must have 1 to {longest}", param="session_id"
        )
    name = uuid.uuid4().hex if session_id is None else session_id
    question = OpenSessionReqInput(
        id=0,
        session_id=name,
        capacity_of_str_len=capacity_of_str_len,
        streaming=streaming,
        timeout=timeout,
    )
    try:
        answer = await calls.control(question)
    except Error:  # nothing was sent, or what was has ended with its ring
        raise
    except BaseException:
        if session_id is None:  # nobody knows the id
            with suppress(EngineBroken, EngineClosed):  # then it has ended with the rest
                calls.tell(CloseSessionReqInput(id=0, session_id=name))
        raise
    assert isinstance(answer, OpenSessionReqOutput)  # Calls has seen to it
    if answer.full:
        raise Overloaded(answer.message)
    if not answer.success:
        raise UsageError(answer.message, param="session_id")
    return name


async def close_session(calls: Calls, session_id: str) -> None:
    """Have the scheduler close a session. See `vidette.Engine.close_session`."""
    answer = await calls.control(CloseSessionReqInput(id=0, session_id=session_id))
    if not answer.success:
        raise UsageError(answer.message, param="session_id")
