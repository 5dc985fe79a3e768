"""Hand-written messages of each kind, and of each shape where a kind has several.

They are the golden messages of the tests and what the codec fuzzer starts from. What holds arrays holds
NumPy's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from vidette_fuzz.samples_control import CONTROL_SAMPLES
from vidette_fuzz.samples_requests import REQUEST_SAMPLES
from vidette_fuzz.samples_steps import STEP_SAMPLES
from vidette_protocol.messages import Message
from vidette_protocol.messages.bulk import LINK_MESSAGES
from vidette_protocol.messages.catalogue import (
    CATALOGUE,
    DETOKENIZER_TO_FRONT,
    DETOKENIZER_TO_SCHEDULER,
    FRONT_TO_DETOKENIZER,
    FRONT_TO_SCHEDULER,
    SCHEDULER_TO_DETOKENIZER,
    SCHEDULER_TO_FRONT,
)

EVERY: Final[tuple[type[Message], ...]] = (*CATALOGUE, *LINK_MESSAGES)
"""Every message that a codec of this package takes as it comes."""

LINKS: Final[Mapping[str, tuple[type[Message], ...]]] = MappingProxyType(
    {
        "front to scheduler": FRONT_TO_SCHEDULER,
        "scheduler to front": SCHEDULER_TO_FRONT,
        "scheduler to detokenizer": SCHEDULER_TO_DETOKENIZER,
        "detokenizer to scheduler": DETOKENIZER_TO_SCHEDULER,
        "detokenizer to front": DETOKENIZER_TO_FRONT,
        "front to detokenizer": FRONT_TO_DETOKENIZER,
    }
)
"""What travels on each link, by direction."""

SAMPLES: Final[Mapping[str, Message]] = MappingProxyType(
    {**CONTROL_SAMPLES, **REQUEST_SAMPLES, **STEP_SAMPLES}
)
"""Messages by name."""
