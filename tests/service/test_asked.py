"""What the engine found wrong is said with the names that the caller used."""

from __future__ import annotations

import pytest

from vidette.errors import UsageError
from vidette.service.anthropic_body import in_words_of_anthropic
from vidette.service.asked import in_words_of


@pytest.mark.parametrize(
    ("message", "param", "told", "names"),
    [
        ("max_new_tokens is 0", "max_new_tokens", "max_tokens is 0", "max_tokens"),
        ("top_logprobs_num is 200", "top_logprobs_num", "top_logprobs is 200", "top_logprobs"),
        ("my_max_new_tokens_2 is 0", "x", "my_max_new_tokens_2 is 0", "x"),
        ("input_ids[3] is -1", "input_ids[3]", "prompt[3] is -1", "prompt[3]"),
        ("textual is no field", "textual", "textual is no field", "textual"),
        ("it is nothing", None, "it is nothing", None),
    ],
)
def test_whole_words_are_renamed(message: str, param: str | None, told: str, names: str | None) -> None:
    error = in_words_of(UsageError(message, param=param, code="c"), "prompt")
    assert (str(error), error.param, error.code) == (told, names, "c")


def test_an_item_of_a_list_is_at_fault() -> None:
    """Its place stays with the name, and words that only begin like the name stay as they are."""
    told = "stop[3] has 0 characters; stop_regex and stopping have none"
    error = in_words_of_anthropic(UsageError(told, param="stop[3]"))
    assert error.param == "stop_sequences[3]"
    assert str(error) == "stop_sequences[3] has 0 characters; stop_regex and stopping have none"
