"""What `vidette top` shows, whatever there is to show and however small the terminal is."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from vidette import Activity, Health, Ledgers, Statistics
from vidette._activity import ProcessActivity
from vidette.cli._top_view import cells_of, clean, fit, view
from vidette.front.living import LiveRequest
from vidette.front.totals import Totals
from vidette_protocol.messages import SchedulerTotals

COUNT = st.integers(0, 1 << 62)
TEXT = st.text(max_size=60)
SECONDS = st.floats(0, 1e9)
REQUEST = st.builds(
    LiveRequest,
    rid=TEXT,
    vid=st.integers(0, 30).map(str),
    state=TEXT,
    age_s=SECONDS,
    prompt_tokens=st.none() | COUNT,
    output_tokens=COUNT,
    unread_tokens=COUNT,
    cached_tokens=COUNT,
    group=st.none() | st.integers(0, 5).map(str),
    scheduler=st.none() | TEXT,
    detokenizer=st.none() | TEXT,
)
PROCESS = st.builds(
    ProcessActivity, role=TEXT, pid=COUNT, incarnation=COUNT, state=TEXT, cpu_s=SECONDS, rss_bytes=COUNT
)
STATISTICS = st.builds(
    Statistics,
    ledgers=st.builds(Ledgers, front=COUNT, scheduler=COUNT, detokenizer=COUNT, blocks=COUNT),
    totals=st.builds(Totals, finished=COUNT, aborted=COUNT, failed=COUNT),
    waiting=COUNT,
    steps=COUNT,
    processes=st.just(()),
    health=st.builds(
        Health, live=st.booleans(), progress=st.booleans(), ready=st.booleans(), reason=st.none() | TEXT
    ),
    scheduler=st.builds(SchedulerTotals, output_tokens=COUNT, prompt_tokens=COUNT, cached_tokens=COUNT),
    blocks_total=COUNT,
)
ACTIVITY = st.builds(
    Activity,
    clock_s=SECONDS,
    requests=st.lists(REQUEST, max_size=12).map(tuple),
    more=COUNT,
    processes=st.lists(PROCESS, max_size=5).map(tuple),
    block_tokens=COUNT,
    block_bytes=COUNT,
    statistics=STATISTICS,
)


@given(ACTIVITY, st.none() | ACTIVITY, st.integers(0, 200), st.integers(0, 40), TEXT)
def test_it_is_never_wider_or_higher_than_the_terminal(
    now: Activity, before: Activity | None, width: int, height: int, title: str
) -> None:
    """Whatever the pictures hold, lines fit and nothing in them steers the terminal or hides."""
    lines = view(now, before, width, height, title=title)
    assert len(lines) <= height
    for line in lines:
        assert cells_of(line.text) <= width
        assert not {unicodedata.category(sign)[0] for sign in line.text} & {"C"}


@given(TEXT, st.integers(0, 40))
def test_what_fits_is_kept_and_what_does_not_says_so(text: str, width: int) -> None:
    """A text is cut only if it is too wide, and then as late as it can be."""
    kept = fit(text, width)
    if cells_of(clean(text)) <= width:
        assert kept == clean(text)
    elif width > 0:
        assert kept.endswith("…")
        assert clean(text).startswith(kept[:-1])
        assert width - 1 <= cells_of(kept) <= width


def picture(
    *requests: LiveRequest, clock: float = 10.0, steps: int = 0, output: int = 0, more: int = 0
) -> Activity:
    return Activity(
        clock_s=clock,
        requests=requests,
        more=more,
        processes=(ProcessActivity("front", 7, 0, "running", clock / 2, 5 << 20),),
        block_tokens=16,
        block_bytes=1 << 20,
        statistics=Statistics(
            ledgers=Ledgers(front=len(requests), scheduler=0, detokenizer=0, blocks=512),
            totals=Totals(finished=3, aborted=2, failed=1),
            waiting=1,
            steps=steps,
            processes=(),
            health=Health(live=True, progress=True, ready=True),
            scheduler=SchedulerTotals(output_tokens=output, begun_tokens=100, cached_tokens=25),
            running=2,
            max_running=64,
            blocks_total=1024,
        ),
    )


def shown(*args: Activity | None, width: int = 120, height: int = 40) -> str:
    now, before = args
    assert now is not None
    return "\n".join(line.text for line in view(now, before, width, height, title="http://here"))


def test_what_it_says() -> None:
    one = LiveRequest("mine", "4", "running", 65.0, 9, 30, scheduler="scheduler", detokenizer="detokenizer-1")
    said = shown(picture(one, clock=12.0, steps=50, output=120), picture(clock=10.0, steps=30, output=20))
    assert "vidette top  http://here  ready" in said
    assert "1 live, 2 of 64 computed, 1 waiting; 3 finished, 2 left, 1 failed" in said
    assert "50/s made, 0/s of prompts; 25% of prompts cached" in said
    assert "[############............]  50%: 512 of 1024 blocks, 512 MiB" in said
    assert "10/s, the last took" in said
    assert "front                   7 running       50%     5 MiB             0" in said
    (line,) = (line for line in said.splitlines() if line.startswith("mine"))
    assert line.split() == [
        *("mine", "running", "1m05", "9", "30", "-", "0", "0"),
        *("front", ">", "scheduler", ">", "detokenizer-1"),
    ]


def test_rates_of_what_has_started_again_are_not_made_up() -> None:
    assert "-/s made" in shown(picture(clock=12.0, output=5), picture(clock=10.0, output=500))
    assert "-/s made" in shown(picture(), None)


def test_groups_are_trees_and_names_are_neutralised() -> None:
    requests = [
        LiveRequest("a\x1b[2J\x07\u202e", "1", "running", 9.0, group="1"),
        LiveRequest("alone", "2", "waiting", 8.0),
        LiveRequest("b", "3", "running", 7.0, group="1"),
        LiveRequest("名前", "4", "running", 6.0, group="1"),
    ]
    rows = shown(picture(*requests), None).splitlines()[-4:]
    assert [row.split("  ")[0] for row in rows] == ["┌ a\ufffd[2J\ufffd\ufffd", "├ b", "└ 名前", "alone"]


def test_those_for_which_there_is_no_room_are_counted() -> None:
    requests = [LiveRequest(f"r{number}", str(number), "running", 1.0) for number in range(20)]
    rows = shown(picture(*requests, more=5), None, height=14).splitlines()
    assert len(rows) == 14
    assert rows[-1] == "... and 22 more"
