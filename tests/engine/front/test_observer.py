"""What a front observes of requests: times by a clock that the test turns, lengths, and how they ended."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.front.conftest import ABORTED, STOP, Front, ask

from vidette import EngineBroken, GenerateReqInput, SamplingParams
from vidette.front.observer import LENGTH_BOUNDS, REQUEST_BOUNDS, Histogram, Observer
from vidette_protocol.messages import FinishReason, Served, SpeculativeMetrics, StrRow


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def seen(histogram: Histogram) -> tuple[int, object]:
    """Return how many values there were, and their sum."""
    return sum(histogram.counts), pytest.approx(histogram.total)


def observe(front: Front) -> Clock:
    clock = front.manager.observer.clock = Clock()
    front.manager.observer.start()
    return clock


@given(st.lists(st.floats(0, 1e5), max_size=20))
def test_a_value_is_in_the_first_bucket_whose_bound_it_does_not_pass(values: list[float]) -> None:
    """Summed up from below, the buckets count the values up to each bound, as Prometheus has it."""
    histogram = Histogram(REQUEST_BOUNDS)
    for value in values:
        histogram.observe(value)
    for place, bound in enumerate(histogram.bounds, start=1):
        assert sum(histogram.counts[:place]) == sum(value <= bound for value in values)
    assert sum(histogram.counts) == len(values)
    assert histogram.total == pytest.approx(sum(values))


@pytest.mark.parametrize("bounds", [REQUEST_BOUNDS, LENGTH_BOUNDS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


async def test_a_request_is_timed_from_the_call_to_its_end() -> None:
    async with Front.serving() as front:
        clock = observe(front)
        observer = front.manager.observer
        async with front.manager.generate(ask("hello")) as stream:
            clock.now += 2.0
            front.say(StrRow(stream.vid, 0, (1,), None, "a"))
            await front.heard()
            clock.now += 3.0
            front.say(StrRow(stream.vid, 1, (2, 3), None, "b"))
            await front.heard()
            clock.now += 0.5
            front.say(StrRow(stream.vid, 3, (4,), STOP, "c", served=Served(queue_s=1.5)))
            await stream.read()
        assert seen(observer.first_token) == (1, 2.0)
        assert seen(observer.next_token) == (3, 3.5)
        assert observer.next_token.counts[observer.next_token.bounds.index(2.5)] == 2, "1.5 s each"
        assert seen(observer.request) == (1, 5.5)
        assert seen(observer.queue) == (1, 1.5)
        assert (seen(observer.prompts), seen(observer.outputs)) == ((1, 5), (1, 4))
        assert (observer.prompt_tokens, observer.output_tokens) == (5, 4)
        assert observer.ended == {"stop": 1, "length": 0, "abort": 0, "error": 0}


async def test_nothing_is_observed_unless_it_is_asked_for() -> None:
    async with Front.serving() as front:
        observer = front.manager.observer
        quiet = GenerateReqInput(
            text="hello", sampling_params=SamplingParams(max_new_tokens=5), log_metrics=False
        )
        async with front.manager.generate(ask("before it is on")) as stream:
            observe(front)
            front.say(StrRow(stream.vid, 0, (1,), STOP, "a"))
            await stream.read()
        async with front.manager.generate(quiet) as stream:
            front.say(StrRow(stream.vid, 0, (1,), STOP, "a"))
            await stream.read()
        assert not any(observer.ended.values())
        assert seen(observer.first_token) == (0, 0.0)
        assert (observer.prompt_tokens, observer.output_tokens) == (0, 0)


async def test_ends_are_told_apart_and_counted_once() -> None:
    async with Front.serving() as front:
        observe(front)
        ended = front.manager.observer.ended
        async with front.manager.generate(ask()) as stream:
            pass  # left
        front.say(StrRow(stream.vid, 0, (), ABORTED, ""))
        async with front.manager.generate(ask(rid="same")):
            async with front.manager.generate(ask(rid="same"), replace=True):
                pass
        async with front.manager.generate(ask()):
            front.manager.aborts.all()
        assert (ended["abort"], ended["error"]) == (4, 0)
        async with front.manager.generate(ask()) as stream:
            front.say(StrRow(stream.vid, 0, (), FinishReason("error", message="it failed"), ""))
            await front.heard()
        assert (ended["abort"], ended["error"]) == (4, 1)
        async with front.manager.generate(ask()):
            front.manager.end(lambda: EngineBroken("it broke"))
        assert (ended["abort"], ended["error"]) == (4, 2)
        assert sum(ended.values()) == 6
        assert seen(front.manager.observer.request)[0] == 0, "none of them ended by itself"


async def test_each_answer_of_a_group_is_a_request() -> None:
    async with Front.serving() as front:
        observe(front)
        request = GenerateReqInput(text="hi", sampling_params=SamplingParams(n=3, max_new_tokens=2))
        async with front.manager.generate_group(request) as group:
            for stream in group.streams:
                front.say(StrRow(stream.vid, 0, (1, 2), FinishReason("length", length=2), "ab"))
            await group.read()
        observer = front.manager.observer
        assert observer.ended["length"] == 3
        assert (observer.prompt_tokens, observer.output_tokens) == (6, 6)


async def test_what_is_said_again_after_a_restart_is_not_counted_again() -> None:
    async with Front.serving() as front:
        clock = observe(front)
        observer = front.manager.observer
        async with front.manager.generate(ask("hello")) as stream:
            front.say(StrRow(stream.vid, 0, (1, 2), None, "ab"))
            await front.heard()
            front.manager.lose(lambda: EngineBroken("it died"))
            front.attach()
            clock.now += 4.0
            front.say(StrRow(stream.vid, 0, (1, 2), None, "ab"))
            await front.heard()
            front.say(StrRow(stream.vid, 2, (3,), STOP, "c"))
            with anyio.fail_after(10):
                await stream.read()
        assert (observer.prompt_tokens, observer.output_tokens) == (5, 3)
        assert seen(observer.first_token)[0] == 1
        assert seen(observer.next_token) == (1, 4.0)


async def test_one_whose_prompt_alone_was_asked_for_counts_with_it() -> None:
    async with Front.serving() as front:
        observe(front)
        async with front.manager.generate(ask("hello", max_new_tokens=0)) as stream:
            front.say(StrRow(stream.vid, 0, (), FinishReason("length", length=0), ""))
            await stream.read()
        observer = front.manager.observer
        assert (observer.prompt_tokens, observer.output_tokens) == (5, 0)
        assert seen(observer.first_token)[0] == 0


def test_speculation_is_counted_at_the_end() -> None:
    observer = Observer(Clock()).start()
    timing = observer.begin(True)
    assert timing is not None
    timing.finish("abort", 3, Served(), SpeculativeMetrics(7, 5, (2, 5), 9))
    timing.finish("error", 3, Served(), SpeculativeMetrics(7, 5, (2, 5), 9))
    assert (observer.drafts, observer.draft_tokens, observer.right_drafts) == (7, 9, 5)
    assert observer.ended == {"stop": 0, "length": 0, "abort": 1, "error": 0}
