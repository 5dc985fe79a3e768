"""The blocking facade has what the asynchronous engine has: the same names, the same parameters."""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

import vidette
from vidette import (
    EngineDraining,
    GenerateReqInput,
    LogprobsAsked,
    RequestAborted,
    SamplingParams,
    sync,
)
from vidette_protocol.messages import GetInternalStateReq, GetInternalStateReqOutput

DEADLINE = 30.0
ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}
SHORT = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
ROUTERS_SIDE = {"deliver", "fail", "heard_ids", "heard_tokens", "leave", "listen", "move", "wake", "watch"}
"""Of a stream: not for callers."""
ATTRIBUTES = {
    "Engine": set[str](),
    "Stream": {"rid", "vid", "prompt_tokens", "resumed", "served", "spec", "logprobs_asked"},
    "Group": {"streams", "n", "single"},
}
"""What the asynchronous ones have in their instances."""


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> Literal["asyncio", "trio"]:
    name: Literal["asyncio", "trio"] = request.param
    return name


@pytest.fixture(autouse=True)
def nothing_stays_frozen() -> Iterator[None]:
    """Give the garbage collector back what a test froze: it is the one of all tests."""
    yield
    gc.unfreeze()


def names(cls: type) -> set[str]:
    """Return what a class has, with what it has inherited from us."""
    ours = (each for each in cls.__mro__ if each.__module__.startswith("vidette"))
    return {name for each in ours for name in vars(each) if not name.startswith("_")}


def parameters(function: object) -> list[tuple[str, object, object]]:
    assert callable(function)
    every = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in every]


@pytest.mark.parametrize("cls", ATTRIBUTES)
def test_both_have_the_same_names_with_the_same_parameters(cls: str) -> None:
    theirs, ours = getattr(vidette, cls), getattr(sync, cls)
    assert names(theirs) - ROUTERS_SIDE | ATTRIBUTES[cls] == names(ours) | ATTRIBUTES[cls] & {"streams"}
    for name in names(theirs) & names(ours):
        if callable(getattr(theirs, name)):
            assert parameters(getattr(theirs, name)) == parameters(getattr(ours, name)), name


def test_several_answers_are_read_together_and_one_by_one(backend: Literal["asyncio", "trio"]) -> None:
    params = SamplingParams(n=2, max_new_tokens=6, sampling_seed=7, ignore_eos=True)
    request = GenerateReqInput(text=["one", "two"], sampling_params=params)
    with sync.open_engine("toy", backend=backend) as engine:
        with engine.generate_group(request, deadline_s=DEADLINE) as group:
            texts = [completion.text for completion in group.read()]
            assert (group.n, group.single, len(texts)) == (2, False, 4)
        with engine.generate_group(request) as group:
            while ready := group.wait_ready():
                for place in ready:
                    assert group.streams[place].ready
                    next(iter(group.streams[place]))
            assert all(stream.done for stream in group.streams)
            assert [stream.completion().text for stream in group.streams] == texts
        engine.wait_quiet()
        assert engine.statistics().ledgers.total() == 0


def test_all_are_ended_from_another_thread_and_nothing_new_is_taken(
    backend: Literal["asyncio", "trio"],
) -> None:
    with sync.open_engine("toy", backend=backend) as engine:
        begun = threading.Event()
        ended: list[str] = []

        def read() -> None:
            try:
                with engine.generate("x", sampling_params=ENDLESS) as stream:
                    next(iter(stream))
                    begun.set()
                    stream.read()
            except RequestAborted as error:
                ended.append(str(error))

        ends: list[Callable[[], int]] = [lambda: engine.abort_all("all of them"), lambda: engine.drain(0.01)]
        for end in ends:
            begun.clear()
            thread = threading.Thread(target=read)
            thread.start()
            assert begun.wait(DEADLINE)
            assert not engine.draining
            assert end() == 1
            thread.join(DEADLINE)
        assert "all of them" in ended[0]
        assert "cannot wait" in ended[1]
        assert engine.draining
        assert engine.statistics().draining
        with pytest.raises(EngineDraining), engine.generate("y", sampling_params=SHORT):
            pass
        assert engine.drain(DEADLINE) == 0
        engine.wait_quiet()
        assert engine.heartbeat().ledgers.total() == 0


def test_one_is_ended_by_its_name_and_nothing_is_made_during_a_pause(
    backend: Literal["asyncio", "trio"],
) -> None:
    with sync.open_engine("toy", backend=backend) as engine:
        assert engine.config.model == "toy"
        with engine.generate("x", rid="mine", sampling_params=ENDLESS) as stream:
            assert engine.abort("another") == 0
            assert engine.abort("mine", "not wanted any more") == 1
            with pytest.raises(RequestAborted, match="not wanted any more"):
                stream.read()
        engine.wait_quiet()
        with engine.generate("y", rid="yours", sampling_params=ENDLESS) as stream:
            assert [each.rid for each in engine.activity().requests] == ["yours"]
            assert engine.pause_generation(deadline_s=DEADLINE).success
            with pytest.raises(RequestAborted, match="generation is paused"):
                stream.read()
        with engine.generate("z", sampling_params=SHORT, deadline_s=DEADLINE) as stream:
            engine.heartbeat()  # the scheduler has it, and makes nothing of it
            assert not stream.ready
            assert engine.continue_generation(empty_cache=False, deadline_s=DEADLINE).success
            assert stream.read().completion_tokens == 6
        engine.wait_quiet()
        assert engine.heartbeat().ledgers.total() == 0


def test_the_rest_of_it_answers() -> None:
    with sync.open_engine("toy") as engine:
        assert isinstance(engine.control(GetInternalStateReq(id=0)), GetInternalStateReqOutput)
        engine.probe()
        with engine.generate("x", sampling_params=SHORT, deadline_s=DEADLINE) as stream:
            assert stream.read() == stream.completion()
            assert (stream.resumed, stream.completion_tokens) == (0, 6)
            assert stream.vid >= 0
            assert (stream.served.retractions, stream.spec) == (0, None)
            assert (stream.logprobs_asked, stream.logprobs, stream.prompt_logprobs) == (None, (), None)
        request = GenerateReqInput(text="x", return_logprob=True, logprob_start_len=0)
        with engine.generate(request) as stream:
            done = stream.read()
            assert stream.logprobs == done.logprobs
            assert stream.prompt_logprobs == done.prompt_logprobs
            assert stream.logprobs_asked == LogprobsAsked()
            assert [one.token_id for one in done.logprobs] == list(done.token_ids)
        assert engine.token_bytes(65) == b"A"
        assert engine.tokenize("A<eos>") == [65, 256]
        assert engine.detokenize([65, 256]) == engine.new_text().push([65, 256], last=True) == "A"
        report = engine.freeze_gc(duration_s=DEADLINE)
        assert report.front.frozen >= gc.get_freeze_count() > 0
        assert (report.scheduler, report.detokenizers) == (None, ())  # they are in this process
        assert engine.unfreeze_gc().front.frozen == gc.get_freeze_count() == 0
        engine.freeze_gc()
    assert gc.get_freeze_count() == 0  # it was given back
