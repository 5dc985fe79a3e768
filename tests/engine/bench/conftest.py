"""What tests of the benchmarks share: little work, and the one backend that all baselines run on."""

from __future__ import annotations

import pytest

from vidette.bench.interleave import Effort


@pytest.fixture
def anyio_backend() -> str:
    """A baseline is `zmq.asyncio`, so the benchmark itself runs on asyncio."""
    return "asyncio"


@pytest.fixture
def effort() -> Effort:
    return Effort.seeded(0, runs=2, turns=2)
