"""`Explorable`: a protocol as one value, which can be walked exhaustively or at random.

The explorer and the random walks of `vidette_fuzz` know nothing of what they walk but this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar

ActionT = TypeVar("ActionT")


class Explorable(Protocol[ActionT]):
    """A whole protocol at one moment: a value that is never changed, only followed by others."""

    def enabled(self) -> Sequence[ActionT]:
        """List everything that can happen next, in an order that depends on nothing but this value."""
        ...

    def draining(self) -> Sequence[ActionT]:
        """List those that happen by themselves, without new work: whatever they are, they come to an end."""
        ...

    def apply(self, action: ActionT, /) -> Self:
        """Return what follows when one of the enabled actions happens; what a machine raises is a fault."""
        ...

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture, always of the same length, one part for each table.

        Equal pictures have like futures and break the same rules.
        """
        ...

    def check(self) -> list[str]:
        """Return a sentence for each rule that is broken, the number of the rule first ("7: ...")."""
        ...

    def tell(self, action: ActionT, after: Any, /) -> str:
        """Return in a line what an action does, for a story; `after`, of this class, is what it leads to."""
        ...
