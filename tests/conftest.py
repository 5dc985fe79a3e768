"""Of every test: each async test runs on asyncio and on trio, and Hypothesis is patient."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Read by huggingface_hub when it is imported: otherwise it asks the real hub for things of no use here.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

# How long an example takes says how busy the machine is. What is not given is inherited from the profile in
# use, which in CI is a deterministic one.
settings.register_profile("shared", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("shared")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run every async test on both backends."""
    backend: str = request.param
    return backend
