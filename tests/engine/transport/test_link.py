"""Messages over a channel: who may be at the other end, and what may come from there."""

from __future__ import annotations

import os
from typing import NamedTuple

import msgspec
import pytest

from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.memory import MemoryChannel
from vidette_protocol.codec import Codec, front_codec
from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.messages import (
    PROTOCOL_VERSION,
    AbortReq,
    Failed,
    FreezeGCReq,
    GetInternalStateReqOutput,
    Hello,
    Message,
    Ready,
    SamplingParams,
    ShutdownReq,
)
from vidette_protocol.messages.bulk import ArenaOffer
from vidette_protocol.messages.catalogue import FRONT_TO_SCHEDULER, SCHEDULER_TO_FRONT

FRONT = Codec(sends=FRONT_TO_SCHEDULER, receives=SCHEDULER_TO_FRONT)
SCHEDULER = Codec(sends=SCHEDULER_TO_FRONT, receives=FRONT_TO_SCHEDULER)


class Ends(NamedTuple):
    """The two ends of a link, and what is below the second."""

    front: Link
    scheduler: Link
    raw: MemoryChannel


def make_ends(*, opened: bool) -> Ends:
    left, right = MemoryChannel.pair()
    return Ends(
        Link(left, FRONT, role="front", peer="scheduler", opened=opened),
        Link(right, SCHEDULER, role="scheduler", peer="front", opened=opened),
        right,
    )


@pytest.fixture
def ends() -> Ends:
    """Before the handshake."""
    return make_ends(opened=False)


@pytest.fixture
def open_ends() -> Ends:
    """Of a link that has no handshake."""
    return make_ends(opened=True)


def hello(**changes: object) -> Hello:
    right = Hello(version=PROTOCOL_VERSION, fingerprint=FRONT.fingerprint, role="scheduler", pid=4711)
    return msgspec.structs.replace(right, **changes)


async def test_both_ends_say_who_they_are(ends: Ends) -> None:
    ends.front.post_hello()
    ends.scheduler.post_hello(incarnation=3)
    assert await ends.front.receive_hello() == hello(pid=os.getpid(), incarnation=3, schema=FRONT.schema)
    assert await ends.scheduler.receive_hello() == hello(pid=os.getpid(), role="front", schema=FRONT.schema)


async def test_somebody_else_is_refused(ends: Ends) -> None:
    ends.scheduler.post(hello(role="detokenizer"))
    with pytest.raises(
        RemoteProtocolError, match=r"^the scheduler should be at this link, but 'detokenizer' is$"
    ):
        await ends.front.receive_hello()


@pytest.mark.parametrize(
    ("changes", "theirs"),
    [
        ({"version": PROTOCOL_VERSION + 1}, f"{PROTOCOL_VERSION + 1}/{FRONT.fingerprint}"),
        ({"fingerprint": "0123456789abcdef"}, f"{PROTOCOL_VERSION}/0123456789abcdef"),
        # Whose version differs may have other roles as well: the version is what to say.
        ({"version": 0, "role": "janitor"}, f"0/{FRONT.fingerprint}"),
    ],
)
async def test_another_version_is_refused_and_both_are_named(
    ends: Ends, changes: dict[str, object], theirs: str
) -> None:
    ends.scheduler.post(hello(**changes))
    with pytest.raises(RemoteProtocolError) as caught:
        await ends.front.receive_hello()
    ours = f"this side {PROTOCOL_VERSION}/{FRONT.fingerprint}"
    assert f"speaks protocol {theirs}, {ours}" in str(caught.value)
    assert "(pid 4711)" in str(caught.value)


async def test_a_link_opens_with_hello(ends: Ends) -> None:
    ends.scheduler.post(Ready(role="scheduler"))
    with pytest.raises(RemoteProtocolError, match=r"^a link opens with Hello, not with Ready$"):
        await ends.front.receive_hello()


# Written by hand: what `pickle.dumps({"rid": "chat-1"}, protocol=4)` gives.
PICKLE = b"\x80\x04\x95\x13\0\0\0\0\0\0\0}\x94\x8c\x03rid\x94\x8c\x06chat-1\x94s."


@pytest.mark.parametrize(
    "frame",
    [
        PICKLE,
        b"",
        b"\x91\x01",  # a Hello with nothing in it
        b"GET / HTTP/1.1\r\n\r\n",
        FRONT.encode(FreezeGCReq()),  # of this link, but not in this direction
    ],
)
async def test_whatever_else_a_link_opens_with_is_refused_and_said_so(ends: Ends, frame: bytes) -> None:
    ends.raw.post(frame)
    told = f"^the scheduler did not open the link with Hello: a frame of {len(frame)} bytes is no message"
    with pytest.raises(RemoteProtocolError, match=told) as caught:
        await ends.front.receive_hello()
    assert type(caught.value) is RemoteProtocolError
    assert isinstance(caught.value.__cause__, DecodeError)


async def test_a_side_whose_messages_have_fields_appended_is_talked_to(ends: Ends) -> None:
    class Later(AbortReq, tag=AbortReq.__struct_config__.tag, kw_only=True, frozen=True):
        why: str = "left"

    Later.__name__ = "AbortReq"
    classes = [Later if cls is AbortReq else cls for cls in FRONT_TO_SCHEDULER]
    later = Link(
        ends.front.channel,
        Codec(sends=classes, receives=SCHEDULER_TO_FRONT),
        role="front",
        peer="scheduler",
    )
    later.post_hello()
    ends.scheduler.post_hello()
    await later.receive_hello()
    await ends.scheduler.receive_hello()
    later.post(Later(vid=5, why="bored"))
    assert await ends.scheduler.receive() == AbortReq(vid=5)


READY = Ready(role="scheduler")
FAILED = Failed(role="scheduler", message="no such file")
STATE = GetInternalStateReqOutput(id=1)


@pytest.mark.parametrize(
    "said", [[FAILED], [hello(), FAILED], [hello(), READY, STATE, STATE], [hello(), READY, FAILED]]
)
async def test_whoever_is_started_says_hello_then_ready_or_that_it_failed(
    ends: Ends, said: list[Message]
) -> None:
    for message in said:
        ends.scheduler.post(message)
    assert [await ends.front.receive() for _ in said] == said


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([STATE], "a link opens with Hello, not with GetInternalStateReqOutput"),
        ([hello(), STATE], "GetInternalStateReqOutput came instead of Ready"),
        ([hello(), hello()], "Hello came instead of Ready"),
        ([hello(), READY, hello()], "Hello came after the handshake"),
        ([hello(), READY, READY], "Ready came after the handshake"),
        ([FAILED, hello()], "Hello came after Failed"),
        ([hello(), READY, FAILED, STATE], "GetInternalStateReqOutput came after Failed"),
    ],
)
async def test_what_is_out_of_turn_is_not_delivered(ends: Ends, said: list[Message], told: str) -> None:
    for message in said:
        ends.scheduler.post(message)
    assert [await ends.front.receive() for _ in said[:-1]] == said[:-1]
    with pytest.raises(RemoteProtocolError, match=f"^{told}$"):
        await ends.front.receive()


async def test_an_arena_is_not_offered_before_hello() -> None:
    ours, theirs = MemoryChannel.pair()
    codec = front_codec()
    link = Link(ours, codec, role="front", peer="scheduler")
    theirs.post(codec.mirrored().encode(ArenaOffer(nbytes=1 << 20)))
    with pytest.raises(RemoteProtocolError, match=r"^a link opens with Hello, not with ArenaOffer$"):
        await link.receive()


async def test_messages_arrive_in_order(open_ends: Ends) -> None:
    messages = [AbortReq(vid=number, floor=number // 2) for number in range(20)]
    for message in messages:
        open_ends.front.post(message)
    assert messages == [await open_ends.scheduler.receive() for _ in messages]


async def test_a_message_of_another_link_cannot_be_posted(open_ends: Ends) -> None:
    with pytest.raises(LocalProtocolError, match="Ready does not travel this way"):
        open_ends.front.post(Ready(role="front"))
    open_ends.front.post(ShutdownReq())
    assert await open_ends.scheduler.receive() == ShutdownReq()  # and nothing was sent


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02",
        FRONT.encode(FreezeGCReq()),  # of this link, but not in this direction
        SCHEDULER.encode(Ready(role="scheduler"))[:-1],
    ],
)
async def test_what_is_no_message_of_this_link_is_refused(ends: Ends, frame: bytes) -> None:
    ends.raw.post(frame)
    with pytest.raises(DecodeError, match=f"a frame of {len(frame)} bytes is no message of this link"):
        await ends.front.receive()


async def test_the_end_of_the_channel_is_the_end_of_the_link(ends: Ends) -> None:
    ends.raw.close()
    for _ in range(2):
        with pytest.raises(LinkClosed):
            await ends.front.receive_hello()
    ends.front.close()


async def test_what_an_older_end_does_not_know_is_known_here() -> None:
    """Fields of a map that ours has appended: a scheduler would refuse it, so a front must know."""
    ours, theirs = MemoryChannel.pair()
    link = Link(ours, FRONT, role="front", peer="scheduler")
    peer = Link(theirs, SCHEDULER, role="scheduler", peer="front")
    assert link.unknown_there(SamplingParams) == frozenset()
    key = "part SamplingParams"
    older = {**FRONT.schema, key: FRONT.schema[key][:-8]}
    peer.post(Hello(version=PROTOCOL_VERSION, fingerprint="older", role="scheduler", pid=1, schema=older))
    await link.receive_hello()
    assert link.unknown_there(SamplingParams) == set(SamplingParams.__struct_fields__[-2:])
