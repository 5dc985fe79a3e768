"""`Answering`: questions of a user's own, each answered by its handler in a task of the scheduler's loop."""

from __future__ import annotations

from typing import Final

import anyio
import anyio.abc
import msgspec

from vidette._custom import Handler, Handlers
from vidette.transport.link import Link
from vidette_protocol.messages import ControlReq

LONGEST_EXPLANATION: Final = 4096
"""Characters of what is said of a fault."""


class Answering:
    """Runs handlers.

    Args:
        handlers: who answers which kind of question.
        link: to whoever asks.
        tasks: what owns the handlers; they are cancelled with it.
    """

    def __init__(self, handlers: Handlers, link: Link, tasks: anyio.abc.TaskGroup) -> None:
        self._handlers = handlers
        self._link = link
        self._tasks = tasks

    def begin(self, question: ControlReq) -> bool:
        """Have a question answered, if there is a handler for it; return whether there is."""
        handler = self._handlers.get(type(question))
        if handler is None:
            return False
        self._tasks.start_soon(self._answer, handler, question)
        return True

    async def _answer(self, handler: Handler, question: ControlReq) -> None:
        late = f"{type(question).__name__} was not answered within {question.deadline_s} s"
        answer = question.output(id=question.id, success=False, message=late)
        try:
            with anyio.move_on_after(question.deadline_s):
                made = await handler(question)
                if type(made) is not question.output:
                    raise TypeError(
                        f"its handler returned a {type(made).__name__}, not a {question.output.__name__}"
                    )
                answer = msgspec.structs.replace(made, id=question.id)
                self._link.check(answer)
        except Exception as error:  # noqa: BLE001  a handler's fault is the answer, not the scheduler's end
            answer = question.output(id=question.id, success=False, message=_explain(question, error))
        self._link.post(answer)


def _explain(question: ControlReq, error: Exception) -> str:
    """Return what is said of a fault: text that can be sent, whatever the error says of itself."""
    text = f"{type(question).__name__} failed: {type(error).__name__}: {error}"
    return text[:LONGEST_EXPLANATION].encode(errors="replace").decode()
