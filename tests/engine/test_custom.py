from __future__ import annotations

from typing import Any, ClassVar

import pytest

from vidette._custom import Custom, Handlers, check_codec, check_custom, check_handlers
from vidette.errors import UsageError
from vidette_protocol import Codec, front_codec, hook_custom_types
from vidette_protocol.messages import (
    ControlOutput,
    ControlReq,
    GetInternalStateReq,
    Hello,
    PickleWrapper,
)


class AskOutput(ControlOutput, tag=401, kw_only=True, frozen=True):
    """An answer."""


class Ask(ControlReq, tag=400, kw_only=True, frozen=True):
    """A question."""

    output: ClassVar = AskOutput


async def answer(question: Ask) -> AskOutput:
    return AskOutput(id=0)


CODEC = hook_custom_types(front_codec(), Ask)
HANDLERS: Handlers = {Ask: answer}


@pytest.mark.parametrize(
    "custom", [Custom(), Custom(CODEC), Custom(CODEC, HANDLERS), Custom(front_codec(), {})]
)
def test_what_goes_together_in_one_process(custom: Custom) -> None:
    assert check_custom(custom, "inline") is custom


@pytest.mark.parametrize("custom", [Custom(), Custom(CODEC, None, "my_app.child")])
def test_what_goes_together_in_several(custom: Custom) -> None:
    assert check_custom(custom, "processes") is custom


@pytest.mark.parametrize(
    ("topology", "custom", "param", "said"),
    [
        ("inline", Custom(child="my_app.child"), "child", "child is for the topology 'processes'"),
        ("inline", Custom(None, HANDLERS), "handlers", "Ask is no question of yours that the codec sends"),
        ("processes", Custom(CODEC, HANDLERS, "c"), "handlers", "handlers are given to run_child()"),
        ("processes", Custom(CODEC), "child", "codec and child go together"),
        ("processes", Custom(child="c"), "codec", "codec and child go together"),
    ],
)
def test_what_does_not_go_together(topology: Any, custom: Custom, param: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        check_custom(custom, topology)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        (Codec(sends=[Hello], receives=[Hello]), "this codec lacks messages of ours"),
        (CODEC.mirrored(), "this codec lacks messages of ours"),
        (
            Codec(sends=CODEC.sends, receives=[*CODEC.receives, PickleWrapper], allow_pickle=True),
            "no link of an engine takes a PickleWrapper",
        ),
    ],
)
def test_a_codec_that_no_front_can_use_is_refused(codec: Codec, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_codec(codec)
    with pytest.raises(UsageError, match=said):
        check_custom(Custom(codec), "inline")


def test_questions_of_ours_have_no_other_handler() -> None:
    with pytest.raises(UsageError, match="GetInternalStateReq is no question of yours"):
        check_handlers({GetInternalStateReq: answer}, CODEC)
