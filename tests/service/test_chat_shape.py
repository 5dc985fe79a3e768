"""Chunks of a chat: the quick way to write one that has nothing but text leads where the plain way does."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from vidette import Delta, Stream
from vidette.service.openai import ChatCompletion, ChatMessage, ChatShape, Choice
from vidette.service.responses import plain_event
from vidette.service.usage import UsageTold
from vidette_protocol.ids import Vid

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(name=st.text(max_size=20), model=st.text(max_size=20), texts=st.lists(TEXTS, max_size=6))
def test_a_chunk_of_text_is_the_chunk_as_msgspec_encodes_it(name: str, model: str, texts: list[str]) -> None:
    """Each text that is not empty makes one event, and it is that of the structs, byte for byte.

    Whatever the names hold, such as what the quick way looks for.
    """
    shape = ChatShape(
        name + '"content":""', model + '"content":""', usage=UsageTold(None, 2), bytes_of=lambda _: b""
    )
    stream = Stream("rid", Vid(1), 3)
    first = True
    for text in texts:
        for index in (0, 1):
            chunks = shape.pieces(stream, Delta(text, (1,), None), index)
            events = [chunk if isinstance(chunk, bytes) else plain_event(chunk) for chunk in chunks]
            if not text:
                assert events == []
                continue
            message = ChatMessage(role="assistant" if first else None, content=text)
            (event,) = events
            told = msgspec.json.decode(event.removeprefix(b"data: "), type=ChatCompletion)
            assert told.choices == (Choice(index, delta=message),)
            assert event == plain_event(told)
        first = first and not text
