"""What the storm command takes, and what it makes of an engine that loses count of its requests."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from vidette import open_engine
from vidette.testing.storm import main, run_storm


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--requests", "0"], "at least 1"),
        (["--cancel", "1.5"], "from 0 to 1"),
        (["--kill-every", "0"], "--kill-every is at least 1"),
        (["--kill-every", "5", "--topology", "inline"], "with --topology inline there are none"),
    ],
)
def test_bad_usage_is_told(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(options)
    assert exited.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("by", [-1, 1])
async def test_an_end_too_few_or_too_many_is_an_error(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has one end, by the engine's own count as well."""
    with anyio.fail_after(30):
        async with open_engine("toy") as engine:
            statistics = engine.statistics
            asked = 0

            def miscounting() -> object:
                nonlocal asked
                asked += 1
                picture = statistics()
                totals = picture.totals
                changed = msgspec.structs.replace(totals, finished=totals.finished + by * (asked > 1))
                return msgspec.structs.replace(picture, totals=changed)

            monkeypatch.setattr(engine, "statistics", miscounting)
            outcome = await run_storm(engine, requests=8, cancel=0)
    assert outcome.finished == 8
    assert outcome.errors == [f"the engine counts 8 requests, and {8 + by} ends of requests"]
