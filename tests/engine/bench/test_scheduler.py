"""That the loops which are timed are in the state that they are named for."""

from __future__ import annotations

import math
from statistics import median

import pytest
import torch

from vidette.bench import scheduler
from vidette.bench.scheduler import BATCHES, QUEUES, bench_scheduler


@pytest.mark.parametrize(("running", "queue"), [(1, 0), (4, 0), (3, 20)])
def test_all_that_is_to_run_decodes_and_the_others_wait(running: int, queue: int) -> None:
    with torch.inference_mode():
        loop = scheduler._loop(running, queue)
        before = loop.ledger()
        scheduler._time_steps(loop, 5)
        after = loop.ledger()
    assert (after.live, after.waiting) == (running + queue, queue)
    assert after.steps - before.steps == 5
    assert after.totals.output_tokens - before.totals.output_tokens == 5 * running
    assert after.totals.prompt_tokens == before.totals.prompt_tokens == scheduler.PROMPT * running
    assert (after.totals.cached_tokens, after.totals.retracted) == (0, 0)


def test_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "QUEUES", (2, 30))
    threads = torch.get_num_threads()
    said: list[str] = []
    results = bench_scheduler(runs=3, steps=2, say=said.append)
    assert torch.get_num_threads() == threads
    assert [finding.name for finding in results.findings] == [
        *(f"step_us_b{batch}" for batch in BATCHES),
        "queue_30_vs_2",
    ]
    for finding in results.findings:
        assert len(finding.values) == 3
        assert 0 < median(finding.values) < math.inf
    assert len(said) == 2
    assert QUEUES == (10, 10_000)
