"""Cancels an operation at each of its checkpoints in turn, and checks after each what it left behind.

A *checkpoint* is a moment at which the operation gives its turn to the event loop. They are counted by
stepping its coroutine by hand, so nothing is replaced or patched, and it is the same on asyncio and on trio.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio


async def sweep(
    operation: Callable[[], Awaitable[object]],
    check: Callable[[], Awaitable[object]],
    *,
    limit: int = 1000,
    stride: int = 1,
) -> int:
    """Cancel an operation at its first checkpoint, then at its second, until it completes before its turn.

    ```
    async def operation():
        async with engine.generate("hello", rid="mine") as stream:
            await stream.read()

    await sweep(operation, partial(wait_quiescent, engine))
    ```

    A cancelled scope stays cancelled: whatever the operation awaits from there on is cancelled as well,
    unless it is shielded. A checkpoint behind a shield counts, and its cancellation waits for the shield's
    end. On asyncio, what comes in the same turn as the cancellation comes first; the next checkpoint gets it.

    What an operation awaits in tasks of its own is not counted, and how often it waits for a thread or a
    process may differ from one time to the next; then the checkpoints are those of each time. It is begun
    anew for each, in this task.

    Args:
        operation: called once for each checkpoint, and once more; what it raises ends the sweep.
        check: called after each; raises if something is wrong.
        limit: most checkpoints; an operation that has more fails.
        stride: 2 leaves out every other checkpoint, and so on, where each takes long.

    Returns:
        How many checkpoints the operation had when nobody cancelled it.

    Raises:
        AssertionError: it has more than `limit`.
        Exception: what the operation or the check raised, with a note that says at which checkpoint.
    """
    for point in range(1, limit + 2, stride):
        try:
            scope = anyio.CancelScope()
            stepped = _Stepped(operation(), scope, point)
            with scope:
                await stepped
            await check()
        except Exception as error:
            error.add_note(f"the operation was to be cancelled at its checkpoint {point}")
            raise
        if stepped.count < point:
            return stepped.count
    raise AssertionError(f"the operation has more than {limit} checkpoints")


class _Stepped:
    """An operation that can be awaited once, and cancels a scope at one of its checkpoints.

    Attributes:
        count: its checkpoints so far.
    """

    def __init__(self, operation: Awaitable[object], scope: anyio.CancelScope, point: int) -> None:
        self._operation = operation
        self._scope = scope
        self._point = point
        self.count = 0

    def __await__(self) -> Generator[Any, Any, None]:
        """Pass on what the operation yields to the event loop, and what comes back."""
        inner = self._operation.__await__()
        resume: Callable[[], Any] = inner.__next__
        while True:
            try:
                waited_for = resume()
            except StopIteration:
                return
            self.count += 1
            if self.count == self._point:
                # The operation is about to wait: it is cancelled there, as if from another task.
                self._scope.cancel(f"this is checkpoint {self._point}")
            try:
                answer = yield waited_for
            except BaseException as error:  # noqa: BLE001  passed on, whatever it is
                resume = _throwing(inner, error)
            else:
                resume = _sending(inner, answer)


def _sending(inner: Generator[Any, Any, object], answer: object) -> Callable[[], Any]:
    return lambda: inner.send(answer)


def _throwing(inner: Generator[Any, Any, object], error: BaseException) -> Callable[[], Any]:
    return lambda: inner.throw(error)
