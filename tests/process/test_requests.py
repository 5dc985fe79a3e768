"""Groups, names that are taken over, and deadlines, through a whole engine."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.process.conftest import DEADLINE, start_script
from vidette import (
    DuplicateRequest,
    GenerateReqInput,
    RequestReplaced,
    SamplingParams,
    UsageError,
    open_engine,
)
from vidette.testing import wait_quiescent

HOT: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.3, "ignore_eos": True}
ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}


async def test_a_group_is_what_its_requests_would_be_one_by_one(topology: str) -> None:
    """Two prompts, two answers to each: the same four as single requests with the same seeds."""
    prompts, n, seed = ["one", "and another"], 2, 41
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            singles = []
            for prompt in prompts:
                for answer in range(n):
                    params = {**HOT, "sampling_seed": seed + answer}
                    async with engine.generate(prompt, sampling_params=params) as stream:
                        singles.append(await stream.read())
            together = SamplingParams(**HOT, n=n, sampling_seed=seed)
            request = GenerateReqInput(text=prompts, rid="g", sampling_params=together)
            async with engine.generate_group(request) as group:
                answers = await group.read()
            assert [each.token_ids for each in answers] == [each.token_ids for each in singles]
            assert [each.text for each in answers] == [each.text for each in singles]
            assert [each.prompt_tokens for each in answers] == [each.prompt_tokens for each in singles]
            assert [each.rid for each in answers] == ["g_0", "g_1", "g_2", "g_3"]
            assert len({each.text for each in answers}) == 4
            statistics = await wait_quiescent(engine)
            assert (statistics.totals.submitted, statistics.totals.finished) == (8, 8)


async def test_a_group_that_is_left_is_gone_within_a_step(topology: str) -> None:
    params = SamplingParams(max_new_tokens=2000, ignore_eos=True, n=5)
    request = GenerateReqInput(text=["a", "b", "c"], rid="g", sampling_params=params)
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology, max_running=8) as engine:
            for _ in range(3):  # under the same name, without waiting for anything
                async with engine.generate_group(request) as group:
                    assert len(await group.wait_ready()) >= 1
                    assert engine.statistics().ledgers.front == 15
            ledgers = (await engine.heartbeat()).ledgers
            assert (ledgers.scheduler, ledgers.blocks) == (0, 0)
            await wait_quiescent(engine)
            assert engine.statistics().totals.aborted == 45


async def test_a_request_takes_the_place_of_another(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("x", rid="mine", sampling_params=ENDLESS) as first:
                await anext(first)
                with pytest.raises(DuplicateRequest):
                    async with engine.generate("y", rid="mine", sampling_params=HOT):
                        pytest.fail("the name is taken")
                async with engine.generate(
                    "y", rid="mine", sampling_params={**HOT, "sampling_seed": 3}, on_duplicate="replace"
                ) as second:
                    with pytest.raises(RequestReplaced):
                        await first.read()
                    text = (await second.read()).text
            async with engine.generate("y", sampling_params={**HOT, "sampling_seed": 3}) as stream:
                assert (await stream.read()).text == text
            statistics = await wait_quiescent(engine)
            assert (statistics.totals.finished, statistics.totals.aborted) == (2, 1)


async def test_what_to_do_with_a_duplicate_is_one_of_two_things() -> None:
    async with open_engine("toy") as engine:
        with pytest.raises(UsageError, match=r"^on_duplicate is 'ignore'; it must be 'refuse' or 'replace'"):
            engine.generate("x", on_duplicate="ignore")  # type: ignore[arg-type]


async def test_a_scope_that_is_moved_on_keeps_its_request(topology: str) -> None:
    """As an idle timeout does: a deadline that the caller's scope once had is none of the request's."""
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            params = {"max_new_tokens": 400, "ignore_eos": True, "sampling_seed": 1}
            with anyio.move_on_after(0.3) as scope:
                async with engine.generate("x", sampling_params=params) as stream:
                    scope.deadline += DEADLINE
                    assert len((await stream.read()).token_ids) == 400
            assert not scope.cancelled_caught


async def test_a_deadline_ends_what_is_computed_for_it(topology: str) -> None:
    """The front ends it, as whenever a scope is left, and not the scheduler by its own clock."""
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            with anyio.move_on_after(0.05):
                async with engine.generate("x", sampling_params=ENDLESS) as stream:
                    await stream.read()
            assert (await engine.heartbeat()).ledgers.scheduler == 0
            statistics = await wait_quiescent(engine)
            assert statistics.totals.failed == 0


STUCK = """
import time, anyio, vidette
from vidette.testing import wait_quiescent

async def main():
    async with vidette.open_engine("toy", topology={topology!r}) as engine:
        for seconds in (0.1, 1.0, 10.0):  # a busy machine may need longer to begin
            with anyio.move_on_after(seconds) as scope:
                async with engine.generate("x", sampling_params={params!r}, deadline_s=seconds) as stream:
                    await anext(stream)
                    with anyio.CancelScope(shield=True):
                        due = scope.deadline + 0.1
                        while anyio.current_time() < due + 0.2:  # this loop is stuck
                            pass
                        try:
                            await stream.read()
                        except vidette.RequestError as error:
                            print(type(error).__name__, error)
                        picture = await engine.heartbeat()
                        print(picture.ledgers.scheduler, picture.ledgers.blocks)
                        print(0 < len(stream.token_ids) < 8000)
                    break
        await wait_quiescent(engine)
        totals = engine.statistics().totals
        print(totals.failed, totals.submitted - totals.aborted)

anyio.run(main, backend={backend!r})
"""


@pytest.mark.parametrize("topology", ["inline", "processes"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_scheduler_ends_it_by_itself_while_the_front_is_stuck(topology: str, backend: str) -> None:
    """The front's loop turns no more before the deadline and the grace are over; it has aborted nothing."""
    script = start_script(STUCK.format(topology=topology, backend=backend, params=ENDLESS))
    output, errors = script.communicate(timeout=DEADLINE)
    assert errors == ""
    ended, ledgers, cut, totals = output.splitlines()
    assert ended.startswith("RequestError request ")
    assert ended.endswith(" failed: its deadline passed")
    assert (ledgers, cut, totals) == ("0 0", "True", "1 1")
