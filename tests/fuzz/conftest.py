"""Hypothesis on a machine that others use too: how long an example took says nothing."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# What is not given here is inherited from the profile in use, which in CI is a deterministic one.
settings.register_profile("shared", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("shared")
