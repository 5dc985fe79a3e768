"""`Prompts`: texts to token ids and conversations to texts, off the loop and within a stated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel

from vidette.errors import PromptTimeout, UsageError
from vidette.front.checks import check_ids
from vidette.front.offload import Offload
from vidette.models.interface import Tokenizer
from vidette_protocol.messages import GenerateItem

T = TypeVar("T")


class Prompts:
    """What makes prompts.

    Args:
        tokenizer: text to token ids.
        offload: runs it off the loop.
        vocab_size: token ids are below it.
        timeout: seconds that one call may take, the wait for its turn included. A call that has begun goes on
            to its end, of which nobody hears, and its turn lasts as long.
    """

    def __init__(self, tokenizer: Tokenizer, offload: Offload, *, vocab_size: int, timeout: float) -> None:
        self._tokenizer = tokenizer
        self._offload = offload
        self._vocab_size = vocab_size
        self._timeout = timeout

    async def tokenise(self, item: GenerateItem) -> memoryview:
        """Return the prompt as packed int32, in a column of its own.

        Raises:
            UsageError: it has no tokens, or some that are not of the vocabulary.
            PromptTimeout: it took too long.
        """
        if item.input_ids is not None:
            ids = check_ids(item.input_ids, self._vocab_size)
            await anyio.lowlevel.checkpoint()  # so that a scope which has ended submits nothing
        else:
            text = item.text
            assert text is not None
            ids = await self._in_time("tokenised", lambda: self._tokenizer.encode(text))
            if not len(ids):
                raise UsageError("text has no tokens; a prompt has at least one", param="text")
        return ids.data.cast("B")

    async def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return a conversation as the model's template writes it.

        Raises:
            ChatTemplateError: it does not fit the template.
            PromptTimeout: it took too long.
        """
        return await self._in_time("rendered", lambda: self._tokenizer.render_chat(messages))

    async def _in_time(self, what: str, function: Callable[[], T]) -> T:
        with anyio.move_on_after(self._timeout):
            return await self._offload(function)
        raise PromptTimeout(
            f"the prompt was not {what} within {self._timeout:g} s: it is too long, or too many others wait"
        )
