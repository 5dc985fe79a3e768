"""The words of the toy model: bytes, an end-of-sequence token and one token per chat role.

Kept apart from `vidette.models.toy` so that the front and the detokenizer never import torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidette.errors import ChatTemplateError
from vidette.models.interface import ModelInfo, TokenTable

TOY_NAME: Final = "toy"
TOY_EOS_ID: Final = 256
TOY_SPECIALS: Final = ("<eos>", "<|user|>", "<|assistant|>", "<|system|>")
"""Names of the special tokens; their ids follow the 256 bytes."""
TOY_VOCAB_SIZE: Final = 256 + len(TOY_SPECIALS)

_ROLES: Final = frozenset({"user", "assistant", "system"})
_SPECIAL_IDS: Final = {name: 256 + index for index, name in enumerate(TOY_SPECIALS)}
_LONGEST: Final = max(map(len, TOY_SPECIALS))
_SPLIT_SPECIALS: Final = re.compile("(" + "|".join(map(re.escape, TOY_SPECIALS)) + ")")


class ToyTokenizer:
    """UTF-8 bytes as token ids; implements `Tokenizer`."""

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return one id per UTF-8 byte, and one per name of a special token.

        Args:
            text: any string; a lone surrogate becomes "?".

        Returns:
            int32 [number of tokens].
        """
        parts: list[NDArray[np.int32]] = []
        for index, part in enumerate(_SPLIT_SPECIALS.split(text)):
            if index % 2:
                parts.append(np.array([_SPECIAL_IDS[part]], dtype=np.int32))
            else:
                raw = part.encode("utf-8", errors="replace")
                parts.append(np.frombuffer(raw, dtype=np.uint8).astype(np.int32))
        return np.concatenate(parts)

    def fewest_tokens(self, text: str, enough: int) -> int:
        """Return how many tokens a text has if it is all names of special tokens, at most `enough`."""
        return min(enough, -(-len(text) // _LONGEST))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render each message as its role's token, its content and a newline; the assistant comes next.

        Raises:
            ChatTemplateError: there is no message, or one without content or with an unknown role.
        """
        if not messages:
            raise ChatTemplateError("the conversation is empty: give at least one message")
        rendered: list[str] = []
        for message in messages:
            role, content = message.get("role"), message.get("content")
            if role not in _ROLES:
                raise ChatTemplateError(f"role {role!r} is not one of {', '.join(sorted(_ROLES))}")
            if not isinstance(content, str):
                raise ChatTemplateError(f"the content of a {role} message is {content!r}, not text")
            rendered.append(f"<|{role}|>{content}\n")
        return "".join(rendered) + "<|assistant|>"


def toy_token_table() -> TokenTable:
    """Return the bytes of each toy token."""
    token_bytes = [bytes([value]) for value in range(256)]
    token_bytes += [name.encode() for name in TOY_SPECIALS]
    return TokenTable(token_bytes=token_bytes, special=frozenset(_SPECIAL_IDS.values()))


def toy_info() -> ModelInfo:
    """Return what the engine has to know of the toy model."""
    return ModelInfo(
        name=TOY_NAME,
        architecture=TOY_NAME,
        vocab_size=TOY_VOCAB_SIZE,
        context_len=8192,
        eos_token_ids=frozenset({TOY_EOS_ID}),
        # The pool holds the token ids themselves, as int64.
        kv_bytes_per_token=8,
    )
