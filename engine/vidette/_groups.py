"""Exception groups stay inside: what crosses the public API is one exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class Body:
    """What the caller's block raised, if it did; set inside the task group, read outside of it."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what passes through, and let it pass."""
        try:
            yield
        except BaseException as error:
            self.error = error
            raise


@contextmanager
def bare(body: Body) -> Iterator[None]:
    """Let out what the caller's block raised as it was raised, not in the group that our tasks made of it.

    Other errors come out alone if there is one, else together, since none of them may be lost.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        # On trio those who were cancelled meanwhile are in it as well; beside an error they say nothing.
        _, errors = group.split(anyio.get_cancelled_exc_class())
        alone = _sole(errors or group, body.error)
        if alone is group:
            raise
        # As trio does it: the context that the exception had is its own, not this unwrapping.
        context = alone.__context__
        try:
            raise alone
        finally:
            alone.__context__ = context
            del alone, context, errors, group


def sole_cause(error: BaseException) -> BaseException:
    """Return the one exception that a group stands for, or the group if it stands for several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _sole(group: BaseException, of_body: BaseException | None) -> BaseException:
    # By its leaves, since a task group takes groups apart and puts them together anew.
    if of_body is not None and _leaves(group) <= _leaves(of_body):
        return of_body
    return sole_cause(group)


def _leaves(error: BaseException) -> set[int]:
    if isinstance(error, BaseExceptionGroup):
        return set().union(*map(_leaves, error.exceptions))
    return {id(error)}
