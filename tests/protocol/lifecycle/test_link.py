"""One end of a link: a Hello first, and one only; Ready once; nothing once it failed or was closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from vidette_protocol.lifecycle import LinkMachine
from vidette_protocol.lifecycle import LinkState as State
from vidette_protocol.lifecycle.link import LINK_TABLE
from vidette_protocol.lifecycle.link import LinkEvent as Event

INPUTS: dict[Event, Callable[[LinkMachine], object]] = {
    Event.HELLO: lambda machine: machine.receive("Hello", Event.HELLO),
    Event.READY: lambda machine: machine.receive("Ready", Event.READY),
    Event.FAILED: lambda machine: machine.receive("Failed", Event.FAILED),
    Event.MESSAGE: lambda machine: machine.receive("HeartbeatReq"),
    Event.CLOSE: lambda machine: machine.close(),
}


@given(state=st.sampled_from(State), event=st.sampled_from(Event))
def test_each_input_in_each_state_is_in_the_table_or_refused(state: State, event: Event) -> None:
    """An input leads where the table says; one that is not in it changes nothing and says who is at fault."""
    machine = LinkMachine(state)
    expected = LINK_TABLE.get((state, event))
    if expected is not None:
        INPUTS[event](machine)
        assert machine.state is expected
        return
    error: type[ProtocolError] = LocalProtocolError if state is State.CLOSED else RemoteProtocolError
    with pytest.raises(error):
        INPUTS[event](machine)
    assert machine.state is state


@pytest.mark.parametrize(
    ("state", "name", "event", "told"),
    [
        (State.OPENING, "Ready", Event.READY, "a link opens with Hello, not with Ready"),
        (State.OPENING, "Failed", Event.FAILED, "a link opens with Hello, not with Failed"),
        (State.STARTING, "Ready", Event.READY, "a link opens with Hello, not with Ready"),
        (State.LOADING, "BatchStrOutput", Event.MESSAGE, "BatchStrOutput came instead of Ready"),
        (State.LOADING, "Hello", Event.HELLO, "Hello came instead of Ready"),
        (State.OPEN, "Hello", Event.HELLO, "Hello came after the handshake"),
        (State.OPEN, "Ready", Event.READY, "Ready came after the handshake"),
        (State.FAILED, "Failed", Event.FAILED, "Failed came after Failed"),
        (State.FAILED, "BatchStrOutput", Event.MESSAGE, "BatchStrOutput came after Failed"),
    ],
)
def test_what_is_refused_is_named(state: State, name: str, event: Event, told: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"^{told}$"):
        LinkMachine(state).receive(name, event)


def test_nothing_is_received_of_a_link_that_is_closed() -> None:
    with pytest.raises(LocalProtocolError, match=r"^Ready is received of a link that is closed$"):
        LinkMachine(State.CLOSED).receive("Ready", Event.READY)
