"""The store of responses holds no more than it may, whatever becomes of what it holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from vidette.errors import Overloaded, UsageError
from vidette.service.limits import ServiceLimits
from vidette.service.response_shape import Failure, Response
from vidette.service.response_store import ResponseStore


def response(name: str, **fields: Any) -> Response:
    return Response(
        **{"id": name, "created_at": 1, "model": "toy", "status": "queued", "metadata": {}, **fields}
    )


SAID = [{"role": "user", "content": "x" * 1000}]
ONE = len(msgspec.json.encode(response("a"))) + len(msgspec.json.encode(SAID))


def test_those_that_live_are_within_the_bytes() -> None:
    store = ResponseStore(ServiceLimits(responses_bytes=2 * ONE))
    assert store.put(response("a"), SAID)
    assert store.put(response("b"), SAID)
    assert store.nbytes == 2 * ONE
    with pytest.raises(Overloaded, match="in the background"):
        store.put(response("c"), SAID)
    assert (len(store), store.nbytes) == (2, 2 * ONE)
    store.drop("a")
    assert store.put(response("c"), SAID)


def test_one_that_is_too_long_by_itself() -> None:
    """One that is to be made is refused; of one that has ended is said that it is not kept."""
    store = ResponseStore(ServiceLimits(responses_bytes=ONE - 1))
    with pytest.raises(UsageError) as raised:
        store.put(response("a"), SAID)
    assert raised.value.param == "input"
    assert not store.put(response("a", status="completed"), SAID)
    assert (len(store), store.nbytes) == (0, 0)


def test_what_changes_is_measured_again() -> None:
    """Then what is too much is forgotten, the oldest first."""
    store = ResponseStore(ServiceLimits(responses_bytes=2 * ONE + 100))
    old, new = response("a", status="completed"), response("b")
    store.put(old, SAID)
    store.put(new, SAID)
    store.change(new)
    assert len(store) == 2
    longer = replace(new, status="failed", error=Failure("x" * 300))
    store.change(longer)
    assert store.get("a") is None
    assert store.nbytes == len(msgspec.json.encode(longer)) + len(msgspec.json.encode(SAID))
    store.drop("b")
    assert store.nbytes == 0
