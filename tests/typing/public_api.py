"""What a type checker makes of the public API; checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import assert_type

import vidette
import vidette.sync
from vidette_protocol import Rid, Vid
from vidette_protocol.codec import Codec
from vidette_protocol.ids import make_vid
from vidette_protocol.lifecycle import End, FrontMachine, Row, SchedulerMachine
from vidette_protocol.messages import Message


async def the_library() -> None:
    async with vidette.open_engine("toy", topology="inline", kv_tokens=1024) as engine:
        assert_type(engine, vidette.Engine)
        assert_type(engine.statistics(), vidette.Statistics)
        assert_type(engine.statistics().ledgers.total(), int)
        assert_type(await engine.heartbeat(), vidette.Statistics)
        assert_type(engine.statistics().health, vidette.Health)
        assert_type(await engine.wait_broken(), vidette.EngineBroken)
        assert_type(await engine.render_chat([{"role": "user", "content": "hi"}]), str)
        request = engine.generate("text", sampling_params={"max_new_tokens": 1})
        assert_type(request, AbstractAsyncContextManager[vidette.Stream])
        async with request as stream:
            assert_type(stream.rid, str)
            assert_type(stream.vid, Vid)
            async for delta in stream:
                assert_type(delta, vidette.Delta)
                assert_type(delta.finish_reason, vidette.FinishReason | None)
                assert_type(delta.logprobs, tuple[vidette.TokenLogprob, ...])
            assert_type(stream.logprobs_asked, vidette.LogprobsAsked | None)
            assert_type((await stream.read()).prompt_logprobs, tuple[vidette.TokenLogprob, ...] | None)
            assert_type(engine.token_bytes(65), bytes)
            assert_type(await stream.read(), vidette.Completion)
    async with vidette.open_engine(vidette.EngineConfig(model="toy")) as engine:
        engine.generate([1, 2, 3], sampling_params=vidette.SamplingParams(temperature=0), rid="r")
        engine.generate(vidette.GenerateReqInput(text="text"))
        engine.generate("text", rid="r", on_duplicate="replace")
        engine.generate("text", on_duplicate="ignore")  # type: ignore[arg-type]
        several = engine.generate_group(vidette.GenerateReqInput(text=["one", "two"]))
        assert_type(several, AbstractAsyncContextManager[vidette.Group])
        async with several as group:
            assert_type(group.streams, tuple[vidette.Stream, ...])
            assert_type((group.n, group.single), tuple[int, bool])
            assert_type(await group.wait_ready(), tuple[int, ...])
            assert_type(await group.read(), list[vidette.Completion])
        try:
            pass
        except vidette.RequestReplaced as error:
            assert_type(error.rid, str)
        except vidette.RequestError as error:
            assert_type((error.status, error.code), tuple[int, str | None])


def the_facade() -> None:
    with vidette.sync.open_engine("toy", backend="trio") as engine:
        assert_type(engine, vidette.sync.Engine)
        with engine.generate("text", on_duplicate="refuse") as stream:
            assert_type(stream, vidette.sync.Stream)
            assert_type(stream.read(), vidette.Completion)
            for delta in stream:
                assert_type(delta, vidette.Delta)


def the_protocol(codec: Codec, front: FrontMachine, scheduler: SchedulerMachine) -> None:
    assert_type(codec.decode(b""), Message)
    assert_type(front.submit(Rid("r")), Vid)
    assert_type(front.receive(make_vid(0, 1), 0, 1, End.FINISH), Vid | None)
    assert_type(scheduler.abort(make_vid(0, 1)), Row | None)
    front.submit("a plain string")  # type: ignore[arg-type]  # a rid is made where it enters, and only there
    scheduler.abort(1)  # type: ignore[arg-type]  # nor is any integer a vid


def a_stream_is_an_async_iterator(stream: vidette.Stream) -> AsyncIterator[vidette.Delta]:
    return stream
