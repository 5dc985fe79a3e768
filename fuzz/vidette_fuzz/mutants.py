"""Every mutant: machines with a known fault each, taken from reports about engines that are in use.

Whatever checks the protocol has to catch all of them, else it checks less than it seems to. Each is a real
machine with one method changed, as little as possible; its `report` says where the fault was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from vidette_fuzz.back_mutants import BACK_MUTANTS
from vidette_fuzz.call_mutants import CALL_MUTANTS
from vidette_fuzz.credit_mutants import CREDIT_MUTANTS
from vidette_fuzz.front_mutants import FRONT_MUTANTS
from vidette_fuzz.loop_mutants import LOOP_MUTANTS
from vidette_fuzz.mutant import Mutant
from vidette_fuzz.overlap_mutants import OVERLAP_MUTANTS

MUTANTS: Final[Mapping[str, Mutant]] = MappingProxyType(
    {
        mutant.name: mutant
        for mutant in (
            *FRONT_MUTANTS,
            *BACK_MUTANTS,
            *LOOP_MUTANTS,
            *OVERLAP_MUTANTS,
            *CALL_MUTANTS,
            *CREDIT_MUTANTS,
        )
    }
)
"""Every mutant by name."""
