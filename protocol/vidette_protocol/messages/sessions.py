"""Sessions: several requests that share what was said before."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from vidette_protocol.messages.base import ControlOutput, ControlReq, Seconds
from vidette_protocol.messages.tags import Tag


class SessionParams(Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where in a session a request goes on. A map on the wire, as it is one in JSON.

    A streaming session always goes on behind its last request; it takes no other values than the defaults,
    but for the id, and the rid of that one.

    Args:
        id: the session; None: none.
        rid: the request to go on behind, which has come to its own end; None: begin anew.
        offset: position, in tokens, from which the prompt replaces what was there; None or 0: at the end.
        replace: what went on behind `rid` is dropped, or all there is, if that is None. A `rid` that is in
            flight is ended, and its prompt gone on with.
        drop_previous_output: leave out what `rid` has said.
    """

    id: str | None = None
    rid: str | None = None
    offset: Annotated[int, Meta(ge=0)] | None = None
    replace: bool = False
    drop_previous_output: bool = False


class OpenSessionReqOutput(ControlOutput, tag=Tag.OPEN_SESSION_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether a session was opened.

    Args:
        session_id: its id; None if it was not.
        full: whether that is because so many are open.
    """

    session_id: str | None = None
    full: bool = False


class OpenSessionReqInput(ControlReq, tag=Tag.OPEN_SESSION, kw_only=True, frozen=True):
    """Front to scheduler: open a session.

    Args:
        session_id: its id, which no open session has.
        capacity_of_str_len: how many characters are expected; recorded, for people.
        streaming: one request at a time, each appended to what was there.
        timeout: seconds without a request after which it is closed; None: never.
    """

    output: ClassVar = OpenSessionReqOutput

    session_id: str
    capacity_of_str_len: int = 0
    streaming: bool = False
    timeout: Seconds | None = None


class CloseSessionReqOutput(ControlOutput, tag=Tag.CLOSE_SESSION_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether a session was closed, or will be when its request has ended."""


class CloseSessionReqInput(ControlReq, tag=Tag.CLOSE_SESSION, kw_only=True, frozen=True):
    """Front to scheduler: close a session and free what it holds.

    Args:
        session_id: an open session.
    """

    output: ClassVar = CloseSessionReqOutput

    session_id: str
