"""Chat templates: Jinja from a model file, rendered in a sandbox with a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from jinja2.exceptions import TemplateError

from vidette.errors import ChatTemplateError
from vidette.models._sandbox import compile_template

MAX_OUTPUT_CHARS: Final = 4_000_000
"""Most characters of a rendered conversation by default; far above any context length."""
MAX_STEPS: Final = 200_000
"""Most loop rounds and calls of one rendering by default."""


class ChatTemplate:
    """A compiled chat template. Safe to use from any thread.

    Args:
        source: Jinja text, as transformers writes it.
        special_tokens: variables such as `bos_token` that the template may use.
        max_output_chars: most characters of output, and of any text built on the way.
        max_steps: most loop rounds and calls of one rendering.

    Raises:
        ChatTemplateError: the source does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        max_output_chars: int = MAX_OUTPUT_CHARS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        try:
            self._template = compile_template(source, max_chars=max_output_chars, max_steps=max_steps)
        except (TemplateError, RecursionError, SyntaxError) as exc:
            raise ChatTemplateError(f"the chat template does not compile: {exc}") from exc
        self._special_tokens = dict(special_tokens)
        self._max_output_chars = max_output_chars

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation, ending where the assistant's answer begins.

        Args:
            messages: each with the keys its template asks for, usually "role" and "content".

        Raises:
            ChatTemplateError: the template refuses these messages, fails on them, or exceeds its budget.
        """
        if not messages:
            raise ChatTemplateError("the conversation is empty: give at least one message")
        variables = {
            **self._special_tokens,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
        }
        parts: list[str] = []
        left = self._max_output_chars
        try:
            # Piece by piece, so that a template without end stops at the limit.
            for part in self._template.generate(variables):
                left -= len(part)
                if left < 0:
                    raise ChatTemplateError(
                        f"the chat template writes more than {self._max_output_chars} characters"
                    )
                parts.append(part)
        except ChatTemplateError:
            raise
        except TemplateError as exc:
            # A refusal of the template's own (`raise_exception`), of the sandbox, or an undefined variable.
            raise ChatTemplateError(f"the chat template refuses these messages: {exc}") from exc
        except Exception as exc:
            # A template is a program of somebody else: it may raise anything.
            problem = f"{type(exc).__name__}: {exc}"
            raise ChatTemplateError(f"the chat template fails on these messages: {problem}") from exc
        return "".join(parts)
