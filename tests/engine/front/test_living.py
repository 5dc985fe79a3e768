"""What a front says of what lives in it, also while there is nothing to send it to."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.front.conftest import STOP, Front, ask

from vidette.errors import EngineBroken, Error
from vidette_protocol.messages import StrRow

ROLES = ("detokenizer",)


def killed() -> Error:
    return EngineBroken("the scheduler was killed by SIGKILL", role="scheduler", exit_status=-9)


async def test_one_whose_processes_died_is_held_and_keeps_its_age() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="r")) as stream:
            front.say(StrRow(stream.vid, 0, (104, 105), None, "hi"))
            await anext(stream)
            (before,) = front.manager.living.requests(9, ROLES)
            assert (before.state, before.output_tokens, before.unread_tokens) == ("running", 2, 0)
            await anyio.sleep(0.002)
            front.manager.lose(killed)
            (held,) = front.manager.living.requests(9, ROLES)
            assert (held.vid, held.state, held.resumed) == (str(stream.vid), "held", 1)
            assert held.vid != before.vid
            assert held.age_s > before.age_s
            assert (held.scheduler, held.detokenizer) == (None, None)
            front.attach()
            (again,) = front.manager.living.requests(9, ROLES)
            assert (again.state, again.scheduler, again.unread_tokens) == ("waiting", "scheduler", 0)
        assert front.manager.living.requests(0, ROLES) == ()


@pytest.mark.parametrize("left", [False, True])
async def test_what_has_ended_is_told_of_no_more(left: bool) -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            if not left:
                front.say(StrRow(stream.vid, 0, (), STOP, ""))
                await front.heard()
                assert front.manager.living.requests(9, ROLES) == ()
        if left:
            (closing,) = front.manager.living.requests(9, ROLES)
            assert (closing.state, closing.prompt_tokens) == ("closing", None)
            assert (closing.scheduler, closing.detokenizer) == ("scheduler", None)
