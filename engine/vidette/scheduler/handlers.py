"""`Answering`: questions of a user's own, each answered by its handler in a task of the scheduler's loop."""

from __future__ import annotations

import anyio
import anyio.abc
import msgspec

from vidette._custom import Handler, Handlers
from vidette.transport.link import Link
from vidette_protocol.messages import ControlReq


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
        try:
            with anyio.move_on_after(question.deadline_s):  # after which nobody waits any more
                answer = await handler(question)
                if type(answer) is not question.output:
                    raise TypeError(
                        f"its handler returned a {type(answer).__name__}, not a {question.output.__name__}"
                    )
                self._link.post(msgspec.structs.replace(answer, id=question.id))
        except Exception as error:  # noqa: BLE001  a handler's fault is the answer, not the scheduler's end
            message = f"{type(question).__name__} failed: {type(error).__name__}: {error}"
            self._link.post(question.output(id=question.id, success=False, message=message))
