"""What holds for every message: its tag, its form, its words; and which tags are kept for what."""

from __future__ import annotations

import inspect
import re

import msgspec
import pytest
from msgspec import Struct
from tests.protocol.conftest import parts_of

from vidette_fuzz.samples import EVERY, LINKS
from vidette_protocol.messages import (
    AbortReq,
    BaseBatchReq,
    BaseReq,
    BatchTokenizedGenerateReqInput,
    ControlOutput,
    ControlReq,
    LoRAUpdateOutput,
    Message,
    Tag,
)
from vidette_protocol.messages.bulk import LINK_MESSAGES
from vidette_protocol.messages.catalogue import (
    CATALOGUE,
    CONTROL,
    CONTROL_OUTPUTS,
    FRONT_TO_SCHEDULER,
    NOT_YET,
    SCHEDULER_TO_FRONT,
)
from vidette_protocol.messages.multimodal import MultimodalProcessorOutput
from vidette_protocol.messages.outputs import StepColumns
from vidette_protocol.messages.pickled import PickleWrapper
from vidette_protocol.messages.requests import BatchReqs
from vidette_protocol.messages.tags import FIRST_USER_TAG, NEVER, RESERVED
from vidette_protocol.messages.weights import WeightUpdateReq

MESSAGES: tuple[type[Message], ...] = (*EVERY, PickleWrapper)
TAGS = {name: tag for name, tag in vars(Tag).items() if name.isupper()}
NAMES = {cls.__name__ for cls in MESSAGES}


def words_of(name: str) -> str:
    """Return the name of a class as it would be in the table of tags."""
    name = re.sub(r"(ReqInput|Req)(Output)?$", r"\2", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()


# --- tags -----------------------------------------------------------------------------------------


def test_each_tag_is_given_to_just_one_class() -> None:
    given = [cls.__struct_config__.tag for cls in MESSAGES]
    assert sorted(given, key=str) == sorted(TAGS.values(), key=str)
    assert len(set(given)) == len(given)


def test_tags_are_a_users_own_from_the_first_on() -> None:
    assert all(0 < tag < FIRST_USER_TAG for tag in (*TAGS.values(), *RESERVED))


def test_what_is_kept_is_not_given_out() -> None:
    assert not set(RESERVED) & set(TAGS.values())
    assert not set(RESERVED.values()) & NAMES
    assert len(set(RESERVED.values())) == len(RESERVED)


def test_what_will_not_exist_does_not_and_why_is_said() -> None:
    assert not set(NEVER) & (NAMES | set(RESERVED.values()))
    assert all(len(why.split()) > 4 for why in NEVER.values())


@pytest.mark.parametrize("cls", MESSAGES)
def test_a_tag_is_named_after_its_class(cls: type[Message]) -> None:
    (name,) = (name for name, tag in TAGS.items() if tag == cls.__struct_config__.tag)
    letters = re.sub("_", "", name)
    spelled = re.sub("_", "", words_of(cls.__name__))
    assert letters == spelled


# --- classes --------------------------------------------------------------------------------------


def test_the_catalogue_has_each_class_once_and_all_there_are() -> None:
    def below(cls: type[Message]) -> set[type[Message]]:
        return {cls}.union(*map(below, cls.__subclasses__()))

    ours = {cls for cls in below(Message) if cls.__module__.startswith("vidette_protocol.")}
    bases = {
        Message,
        BaseReq,
        BaseBatchReq,
        BatchReqs,
        ControlReq,
        ControlOutput,
        WeightUpdateReq,
        StepColumns,
    }
    bases |= {cls for cls in ours if cls.__name__.endswith("Mixin")}
    assert ours - bases == set(MESSAGES)
    assert len(set(MESSAGES)) == len(MESSAGES)


def test_what_travels_is_in_the_catalogue() -> None:
    travels = {cls for classes in LINKS.values() for cls in classes}
    assert travels | set(NOT_YET) == set(CATALOGUE)
    assert not travels & set(NOT_YET)
    assert not set(LINK_MESSAGES) & set(CATALOGUE)
    assert set(CONTROL) <= set(FRONT_TO_SCHEDULER)
    assert set(CONTROL_OUTPUTS) <= set(SCHEDULER_TO_FRONT)
    assert {AbortReq, BatchTokenizedGenerateReqInput} <= set(FRONT_TO_SCHEDULER)


@pytest.mark.parametrize("cls", MESSAGES)
def test_every_message_is_an_immutable_array(cls: type[Message]) -> None:
    config = cls.__struct_config__
    assert config.array_like
    assert config.frozen
    assert cls.__match_args__ == ()  # by keyword only
    assert not config.forbid_unknown_fields  # else nothing could be appended
    assert not config.omit_defaults


# --- control messages -----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CONTROL)
def test_every_control_message_has_an_answer(cls: type[ControlReq]) -> None:
    answer = cls.output
    assert issubclass(answer, ControlOutput)
    assert answer in CONTROL_OUTPUTS
    if answer is not LoRAUpdateOutput:  # which answers three
        assert answer.__name__ == f"{cls.__name__.removesuffix('Input')}Output"
    assert answer(id=3) == answer(id=3, success=True, message="")
    refused = answer(id=3, success=False, message="not now")
    assert (refused.id, refused.success, refused.message) == (3, False, "not now")


def test_every_answer_answers_something() -> None:
    assert {cls.output for cls in CONTROL} == set(CONTROL_OUTPUTS)
    assert {cls for cls in CATALOGUE if issubclass(cls, ControlOutput)} == set(CONTROL_OUTPUTS)
    assert {cls for cls in CATALOGUE if issubclass(cls, ControlReq)} == set(CONTROL)


@pytest.mark.parametrize("cls", [*CONTROL, *CONTROL_OUTPUTS])
def test_control_messages_begin_alike(cls: type[Message]) -> None:
    """So that whoever does not know one can still say so with its id."""
    expected = ("id", "deadline_s") if issubclass(cls, ControlReq) else ("id", "success", "message")
    assert cls.__struct_encode_fields__[: len(expected)] == expected


# --- words ----------------------------------------------------------------------------------------

DOCUMENTED: list[type[Struct]] = sorted(
    {
        base
        for cls in {*MESSAGES, *parts_of(MESSAGES)}
        for base in cls.__mro__
        if issubclass(base, Struct) and base not in (Struct, Message)
    },
    key=lambda cls: cls.__name__,
)


def arguments_of(docstring: str) -> set[str]:
    """Return the names in the section `Args` of a docstring."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.cleandoc(docstring), re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^    (\w+): ", section.group(1), re.MULTILINE)) if section else set()


@pytest.mark.parametrize("cls", DOCUMENTED)
def test_every_field_is_documented_where_it_is_declared(cls: type[Struct]) -> None:
    assert cls.__doc__
    told = arguments_of(cls.__doc__)
    own = {name for name in cls.__struct_fields__ if name in inspect.get_annotations(cls)}
    if cls is MultimodalProcessorOutput:
        assert "the other ids alike" in cls.__doc__
        own = {name for name in own if not re.fullmatch(r"(im|slice|video|audio)_\w*id", name)} | {
            "im_token_id"
        }
    assert own <= told
    assert told <= set(cls.__struct_fields__)


@pytest.mark.parametrize("cls", MESSAGES)
def test_every_message_says_who_sends_it_and_what_for(cls: type[Message]) -> None:
    assert cls.__doc__
    first = cls.__doc__.splitlines()[0]
    assert re.match(
        r"(Front|Scheduler|Detokenizer|Scheduler or detokenizer) to "
        r"(scheduler|front|detokenizer|whoever routes|scheduler to detokenizer): "
        r"|Both ways[:,] |Round the ring[:,] |Whoever has not been moved over yet: ",
        first.replace("Round the ring like HeartbeatReq:", "Round the ring:"),
    ), first
    if issubclass(cls, ControlReq | ControlOutput):
        assert first.startswith(
            "Front to scheduler: " if issubclass(cls, ControlReq) else "Scheduler to front: "
        )


def test_arguments_are_found() -> None:
    text = """Say.

    Args:
        one: the first; has two lines
            of words: and a colon.
        two: the other.

    Raises:
        ValueError: not an argument.
    """
    assert arguments_of(text) == {"one", "two"}
    assert arguments_of("Say nothing.") == set()


def test_defaults_of_messages_are_not_shared() -> None:
    for cls in MESSAGES:
        for field in msgspec.structs.fields(cls):
            assert not isinstance(field.default, list | dict | set), f"{cls.__name__}.{field.name}"
