"""What is wrong with one request ends that one, and the step goes on with the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.engine.scheduler.conftest import Driver, FakeModel, foretell, request

from vidette.scheduler.sequence import Sequence
from vidette_protocol.messages import BatchTokenIDOutput, SpeculativeMetrics, TokenizedGenerateReqInput

pytestmark = pytest.mark.usefixtures("either_way")


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, vid: int) -> Iterator[None]:
    """Have a method of one request fail."""
    real = getattr(Sequence, name)

    def method(self: Sequence, *args: Any) -> Any:
        if self.vid == vid:
            raise KeyError("a bug")
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Sequence, name, method)
        yield


def ask(vid: int, **params: Any) -> TokenizedGenerateReqInput:
    return request(vid, [vid, 2, 3], max_new_tokens=3, **params)


@pytest.mark.parametrize("name", ["prepare", "take"])
def test_one_that_fails_ends_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    with failing(monkeypatch, name, 2):
        driver.run(*(ask(vid) for vid in (1, 2, 3)))
    assert driver.end(2) == "error"
    reason = driver.heard.ends[2]
    assert reason.message == "it failed in the step loop: KeyError: 'a bug'"
    assert (reason.status_code, reason.err_type) == (500, "internal_error")
    for vid in (1, 3):
        assert driver.heard.tokens[vid] == foretell([vid, 2, 3], ask(vid).sampling_params)[0]
    driver.assert_blocks_are_conserved()
    assert driver.ledger.blocks_used == driver.ledger.live == 0


def test_one_that_fails_when_it_goes_on_elsewhere_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    with failing(monkeypatch, "prepare", 2):
        driver.run(ask(1), ask(2, resumed=[5]))
    assert (driver.end(1), driver.end(2)) == ("length", "error")
    assert driver.ledger.live == 0


def test_of_the_drafts_behind_an_end_none_counts() -> None:
    """As many tokens are right as are told (vllm-project/vllm #56101)."""
    text = [6, 9, 7, 1, 2, 3, 4]
    prompt = [5, 6, 9, 7, 1, 2, 8, 5]
    model = FakeModel(lambda context: text[len(context) - len(prompt)])
    driver = Driver(model, draft_tokens=8)
    specs: list[SpeculativeMetrics] = []
    commands = [request(1, prompt, max_new_tokens=20, stop_token_ids=[7])]
    while driver.end(1) is None:
        for message in driver.step(*commands).messages:
            assert isinstance(message, BatchTokenIDOutput)
            specs += [row.spec for row in message.rows() if row.spec is not None]
        commands = []
    assert driver.heard.tokens[1] == [6, 9, 7]
    assert specs == [SpeculativeMetrics(1, 2, (0, 0, 1), 4)]
