"""One end of a link: a Hello first, and one only; nothing once it was closed."""

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
    Event.HELLO: lambda machine: machine.receive("Hello", hello=True),
    Event.MESSAGE: lambda machine: machine.receive("Ready", hello=False),
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


def test_what_is_refused_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^a link opens with Hello, not with Ready$"):
        LinkMachine().receive("Ready", hello=False)
    with pytest.raises(RemoteProtocolError, match=r"^a second Hello came$"):
        LinkMachine(State.OPEN).receive("Hello", hello=True)
    with pytest.raises(LocalProtocolError, match=r"^Ready is received of a link that is closed$"):
        LinkMachine(State.CLOSED).receive("Ready", hello=False)
