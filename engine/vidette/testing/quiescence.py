"""Whether an engine holds anything."""

from __future__ import annotations

import anyio

from vidette._statistics import Statistics
from vidette.api import Engine


def assert_quiescent(engine: Engine) -> None:
    """Fail unless every ledger of an engine is zero.

    Raises:
        AssertionError: with the ledgers.
    """
    ledgers = engine.statistics().ledgers
    if ledgers.total():  # not an assert statement: `python -O` must not switch it off
        raise AssertionError(f"something is still held: {ledgers}")


async def wait_quiescent(engine: Engine, *, timeout: float = 10.0) -> Statistics:
    """Wait until the end of every request has come round the ring, then ask round it once more.

    Args:
        engine: the engine.
        timeout: seconds until it has to be quiet.

    Returns:
        The picture as of then; its ledgers are zero.

    Raises:
        TimeoutError: something still lives.
        AssertionError: nothing lives, and something is held.
    """
    with anyio.fail_after(timeout):
        await engine.wait_quiet()
        statistics = await engine.heartbeat()
    assert_quiescent(engine)
    return statistics
