"""`Prompts`: texts to token ids and conversations to texts, off the loop and within a stated time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
import numpy as np
from numpy.typing import NDArray

from vidette.errors import Overloaded, PromptTimeout, UsageError
from vidette.front.checks import check_fits, check_ids
from vidette.front.offload import Offload
from vidette.models.interface import Tokenizer
from vidette_protocol.messages import GenerateItem

T = TypeVar("T")

LONG_TEXT_CHARS: Final = 65_536
"""A text or conversation that is longer counts against LONG_TEXTS_CHARS while a prompt is made of it."""
LONG_TEXTS_CHARS: Final = 16 * 1024 * 1024
"""Most characters of such texts at a time. One that is longer by itself is taken if there is no other."""


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
        self._long_chars = 0

    def check_fit(self, items: Sequence[GenerateItem], max_total_tokens: int) -> None:
        """Check that no text is so long that it cannot fit, however it is tokenised.

        Args:
            items: checked.
            max_total_tokens: most tokens of prompt and output together.

        Raises:
            UsageError: one is.
        """
        for text in {item.text for item in items if item.text is not None}:
            if len(text) * 4 >= max_total_tokens:  # else it fits if each byte is a token
                check_fits(self._tokenizer.fewest_tokens(text, max_total_tokens), max_total_tokens)

    async def tokenise(self, item: GenerateItem) -> memoryview:
        """Return the prompt as packed int32, in a column of its own.

        Raises:
            UsageError: it has no tokens, or some that are not of the vocabulary.
            Overloaded: it is long, and so are too many others of which prompts are made now.
            PromptTimeout: it took too long.
        """
        if item.input_ids is not None:
            ids = check_ids(item.input_ids, self._vocab_size)
            await anyio.lowlevel.checkpoint()  # so that a scope which has ended submits nothing
        else:
            assert item.text is not None
            ids = await self._encode(item.text)
            if not len(ids):
                raise UsageError("text has no tokens; a prompt has at least one", param="text")
            if (most := ids.max()) >= self._vocab_size:  # tokenizers may know names that models do not
                raise UsageError(
                    f"text has the token {most}; token ids of this model are 0 to {self._vocab_size - 1}",
                    param="text",
                )
        return ids.data.cast("B")

    async def ids_of(self, text: str, most_chars: int) -> list[int]:
        """Return the token ids of a text of at most so many characters; there may be none.

        Raises:
            UsageError: it is longer.
            Overloaded: as `tokenise`.
            PromptTimeout: it took too long.
        """
        if len(text) > most_chars:
            raise UsageError(
                f"text has {len(text)} characters; at most {most_chars} are accepted", param="text"
            )
        ids: list[int] = (await self._encode(text)).tolist()
        return ids

    async def _encode(self, text: str) -> NDArray[np.int32]:
        with self._counted(len(text)):
            return await self._in_time("tokenised", lambda: self._tokenizer.encode(text))

    async def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return a conversation as the model's template writes it.

        Raises:
            ChatTemplateError: it does not fit the template.
            Overloaded: as `tokenise`.
            PromptTimeout: it took too long.
        """
        with self._counted(sum(len(text) for message in messages for text in map(str, message.values()))):
            return await self._in_time("rendered", lambda: self._tokenizer.render_chat(messages))

    @contextmanager
    def _counted(self, chars: int) -> Iterator[None]:
        """Count a text while a prompt is made of it, if it is a long one."""
        if chars <= LONG_TEXT_CHARS:
            yield
            return
        if self._long_chars and self._long_chars + chars > LONG_TEXTS_CHARS:
            raise Overloaded(
                f"prompts are being made of {self._long_chars} characters, and {chars} more are given; of "
                f"texts longer than {LONG_TEXT_CHARS} at most {LONG_TEXTS_CHARS} are taken at a time"
            )
        self._long_chars += chars
        try:
            yield
        finally:
            self._long_chars -= chars

    async def _in_time(self, what: str, function: Callable[[], T]) -> T:
        with anyio.move_on_after(self._timeout):
            return await self._offload(function)
        raise PromptTimeout(
            f"the prompt was not {what} within {self._timeout:g} s: it is too long, or too many others wait"
        )
