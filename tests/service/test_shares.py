"""What each key may have of the engine: at once, in a minute, and given back whatever ends a request."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

import vidette
from tests.service.driver import SECONDS, Call, Silence, call
from vidette import UsageError
from vidette.errors import Overloaded
from vidette.service import FrontDoor, Gate, Keys, Secret, ServiceLimits, build_app
from vidette.service.errors import headers_of
from vidette.service.shares import ANYONE, Place, Share, Shares

ALICE, BOB, ROOT = ([(b"x-api-key", name)] for name in (b"sk-alice", b"sk-bob", b"sk-root"))
DOOR = FrontDoor(keys=Keys((Secret("sk-alice", "alice"), Secret("sk-bob", "bob")), Secret("sk-root")))
LONG = {"text": "x", "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}}
SHORT = {"text": "x", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}


# --- the policy --------------------------------------------------------------------------------------


class Answered:
    """What an answer took."""

    def __init__(self, prompt_tokens: int, heard_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.heard_tokens = heard_tokens


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "enter", "widen", "leave", "hand on", "bill"]),
        st.integers(0, 9),
        st.integers(1, 12),
    ),
    max_size=60,
)
BOUNDS = st.none() | st.integers(1, 8)


@given(STEPS, BOUNDS, BOUNDS, st.none() | st.integers(1, 100))
def test_no_key_has_more_than_its_share_and_all_of_it_comes_back(
    steps: list[tuple[str, int, int]], most: int | None, rate: int | None, tokens: int | None
) -> None:
    """Whatever clients do, no more live than may, no more begin than the rate gives, and none is lost."""
    now = 1000.0
    share = Share("a", lambda: now, requests=most, requests_per_minute=rate, tokens_per_minute=tokens)
    places: list[Place] = []
    live: dict[Place, int] = {}
    begun = over = refused = spent = 0
    for what, which, amount in steps:
        place = places[which % len(places)] if places else None
        if what == "wait":
            now += amount
        elif what == "enter":
            try:
                place = share.enter()
            except Overloaded:
                refused += 1
                continue
            places.append(place)
            live[place] = 1
            begun += 1
        elif place is None:
            continue
        elif what == "widen":
            more = max(0, amount - live[place])
            try:
                place.widen(amount)
            except (Overloaded, UsageError):
                refused += 1
                begun -= live[place]
                live[place] = more = 0  # it is as if it had never come in
            live[place] += more
            begun += more
        elif what == "hand on":
            other = place.hand_on()
            live[other] = live.pop(place)
            with place:  # has nothing to give back
                pass
            places[places.index(place)] = other
        elif what == "bill":
            with suppress(OSError), place.billing([Answered(amount, which)]):
                raise OSError
            spent += amount + which
        else:
            with place:
                pass
            places.remove(place)
            over += live.pop(place)
        use = share.use()
        assert (use.live, use.requests, use.refused, use.tokens) == (
            sum(live.values()),
            over,
            refused,
            spent,
        )
        assert most is None or use.live <= most
        # A minute's worth at first, what has come since, and one request that asked for more than is there.
        assert rate is None or begun <= rate + (now - 1000) * rate / 60 + 12
    for place in places:
        with place:
            pass
    assert share.use().live == 0


@given(st.integers(1, 1000), st.integers(1, 30))
def test_what_is_said_of_the_next_try_is_so(rate: int, count: int) -> None:
    """After the seconds that a refusal names there is room, and not a little earlier."""
    now = 0.0
    share = Share("a", lambda: now, requests_per_minute=rate)
    for _ in range(rate):
        share.enter()
    place = None
    for _ in range(count):
        with pytest.raises(Overloaded) as raised:
            share.enter()
        now += raised.value.retry_after * 0.9
        with pytest.raises(Overloaded):
            share.enter()
        now += raised.value.retry_after * 0.1 + 1e-6
        place = share.enter()
    assert place is not None


@given(st.integers(1, 60), st.integers(1, 90), st.integers(0, 60), st.integers(0, 300))
def test_who_waits_as_long_as_he_is_told_is_let_in(rate: int, count: int, had: int, later: int) -> None:
    """However many answers are asked for, the third try is taken if each waits for what the header says."""
    now = 0.0
    share = Share("a", lambda: now, requests_per_minute=rate)
    for _ in range(min(had, rate)):
        share.enter()
    now += later / 10
    live = share.use().live
    for _ in range(3):
        try:
            with share.enter() as place:
                place.widen(count)
                assert share.use().live == live + count
                break
        except Overloaded as error:
            assert (share.use().live, share.use().requests) == (live, 0)
            ((_, seconds),) = headers_of(error)
            now += int(seconds)
    else:
        pytest.fail("he never is")
    assert share.use().requests == count


def test_who_owes_tokens_waits_until_they_are_paid() -> None:
    now = 0.0
    share = Share("a", lambda: now, tokens_per_minute=60)
    with share.enter() as place, place.billing([Answered(100, 50)]):
        pass
    with pytest.raises(Overloaded, match="its 60 tokens a minute") as raised:
        share.enter()
    assert raised.value.retry_after == 60  # 91 in truth: nobody is told more than a minute
    now = 90.9
    with pytest.raises(Overloaded):
        share.enter()
    now = 91.1
    share.enter()


def test_what_is_asked_for_at_once_may_never_be_had() -> None:
    share = Share("a", lambda: 0.0, requests=4)
    with share.enter() as place:
        with pytest.raises(UsageError, match="5 answers are asked for at once; a key may have 4"):
            place.widen(5)
    with share.enter() as place:
        place.widen(4)
        with pytest.raises(Overloaded, match="4 requests of key 'a' live; at most 4 may"):
            share.enter()
    single = Share("b", lambda: 0.0, requests=1)
    with (
        single.enter() as place,
        pytest.raises(UsageError, match="2 answers are asked for at once; a key may have 1"),
    ):
        place.widen(2)
    assert single.use().refused == 1


def test_of_several_keys_none_may_have_more_than_half() -> None:
    for names, most in (((), None), (("a",), None), (("a", "b"), 5)):
        shares = Shares(names, ServiceLimits(), max_requests=10, clock=lambda: 0.0)
        share = shares.of((names or (ANYONE,))[0])
        for _ in range(most or 20):
            share.enter()
        if most is not None:
            with pytest.raises(Overloaded):
                share.enter()
            shares.of("b").enter()
        for _ in range(20):
            shares.of(None).enter()  # whoever runs the server


# --- in the service ----------------------------------------------------------------------------------


def served(engine: vidette.Engine, **limits: Any) -> Starlette:
    return build_app(engine, door=DOOR, limits=ServiceLimits(**limits))


async def uses_of(app: Starlette) -> dict[str, tuple[int, int, int]]:
    """Return of each key how many live, were begun and were refused."""
    told = (await call(app, "/server_info", method="GET", headers=ROOT)).json()["keys"]
    return {use["name"]: (use["live"], use["requests"], use["refused"]) for use in told}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {**LONG, "stream": True}),
        (
            "/generate",
            {"text": ["a", "b"], "stream": True, "sampling_params": {"n": 2, "max_new_tokens": 8000}},
        ),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True, "n": 4}),
    ],
)
async def test_a_key_that_has_all_it_may_is_refused_and_the_others_are_not(
    engine: vidette.Engine, path: str, body: dict[str, Any]
) -> None:
    """Answers count, not requests; once the client has left, its share is whole again."""
    many = 1 if body == {**LONG, "stream": True} else 4
    app = served(engine, key_requests=many)
    first = Call(app, path, {**body, "ignore_eos": True} if "messages" in body else body, headers=ALICE)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            await first.wait_sent(3)
            refused = await call(app, "/generate", SHORT, headers=ALICE)
            assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
            assert "'alice'" in refused.error["message"]
            assert refused.headers["retry-after"] == "1"
            for others in (BOB, ROOT):
                assert (await call(app, "/generate", SHORT, headers=others)).status == 200
            for path in ("/v1/models", "/server_info", "/metrics"):
                assert (await call(app, path, method="GET", headers=ALICE)).status == 200
            assert (await uses_of(app))["alice"] == (many, 0, 1)
            first.leave()
    assert await uses_of(app) == {"alice": (0, many, 1), "bob": (0, 1, 0)}
    assert (await call(app, "/generate", SHORT, headers=ALICE)).status == 200
    await engine.wait_quiet()


async def test_whatever_ends_a_request_gives_its_place_back(engine: vidette.Engine) -> None:
    app = served(engine, key_requests=2, body_seconds=0.01)
    gone = Call(app, "/generate", pieces=[b"{", None], headers=ALICE)
    slow = Call(app, "/generate", pieces=[b"{", Silence()], headers=ALICE)
    raising = Call(app, "/generate", {**LONG, "stream": True}, headers=ALICE)
    raising.raises = ConnectionResetError("the client is gone")
    wrong: list[tuple[str, object]] = [
        ("/generate", b"{"),
        ("/generate", {"text": ""}),
        ("/generate", {"text": "x", "sampling_params": {"n": 3}}),
        ("/generate", {"text": "x", "sampling_params": {"n": 1 << 40}}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/messages", {}),
        ("/tokenize", {}),
        ("/v1/responses", {"background": True, "input": ""}),
        ("/v1/responses", {"background": True, "input": "x", "model": "toy"}),  # nothing runs the lifespan
    ]
    for request in (gone, slow, raising, *(Call(app, path, body, headers=ALICE) for path, body in wrong)):
        await request.run()
        assert (await uses_of(app))["alice"][0] == 0, request.body
    assert slow.status == 408
    await engine.wait_quiet()


async def test_tokens_that_nobody_reads_are_counted(engine: vidette.Engine) -> None:
    app = served(engine)
    request = Call(app, "/generate", {**LONG, "stream": True}, headers=ALICE)
    request.reads = 2
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            while not (made := [live.output_tokens for live in engine.activity().requests]) or made[0] < 100:
                await anyio.lowlevel.checkpoint()
            request.leave()
    (alice, _) = (await call(app, "/server_info", method="GET", headers=ROOT)).json()["keys"]
    assert alice["tokens"] >= 100
    await engine.wait_quiet()


async def test_a_place_is_free_as_well_when_the_server_stops(engine: vidette.Engine) -> None:
    gate = Gate()
    app = build_app(engine, door=DOOR, gate=gate)
    request = Call(app, "/generate", LONG, headers=ALICE)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            while not (await engine.heartbeat()).ledgers.blocks:
                pass
            assert (await uses_of(app))["alice"][0] == 1
            gate.cancel()
    assert request.status == 503
    assert (await uses_of(app))["alice"][0] == 0
    await engine.wait_quiet()


async def test_a_response_in_the_background_keeps_its_place_until_it_ends(engine: vidette.Engine) -> None:
    app = served(engine, key_requests=1)
    body = {"model": "toy", "input": "x", "background": True, "max_output_tokens": 8000}
    async with app.router.lifespan_context(app):
        made = await call(app, "/v1/responses", body, headers=ALICE)
        assert made.status == 200, made.body
        path = f"/v1/responses/{made.json()['id']}"
        refused = await call(app, "/v1/responses", body, headers=ALICE)
        assert refused.status == 429
        # What stops it is no request of the engine.
        assert (await call(app, path + "/cancel", headers=ALICE)).status == 200
        with anyio.fail_after(SECONDS):
            while (await uses_of(app))["alice"][0]:
                await anyio.lowlevel.checkpoint()
        assert (await call(app, "/v1/responses", body, headers=ALICE)).status == 200
    assert (await uses_of(app))["alice"] == (0, 2, 1)
    await engine.wait_quiet()


async def test_turns_of_a_session_count_as_they_are_made(engine: vidette.Engine) -> None:
    app = served(engine, key_requests=1)
    session = (await call(app, "/open_session", {"capacity_of_str_len": 100}, headers=ALICE)).json()
    turn = {**SHORT, "session_params": {"id": session}}
    for _ in range(3):
        assert (await call(app, "/generate", turn, headers=ALICE)).status == 200
    await call(app, "/close_session", {"session_id": session}, headers=ALICE)
    assert (await uses_of(app))["alice"] == (0, 3, 0)


async def test_what_a_key_has_had_is_told_by_its_name(engine: vidette.Engine) -> None:
    app = served(engine)
    for headers in (ALICE, ALICE, BOB):
        assert (await call(app, "/generate", SHORT, headers=headers)).status == 200
    (alice, bob) = (await call(app, "/server_info", method="GET", headers=ROOT)).json()["keys"]
    assert alice == {"name": "alice", "live": 0, "requests": 2, "refused": 0, "tokens": 2 * bob["tokens"]}
    assert bob["tokens"] >= 3
    text = (await call(app, "/metrics", method="GET", headers=ROOT)).body.decode()
    lines = [line for line in text.splitlines() if "vidette_key_requests_total" in line]
    assert lines[1:] == [
        "# TYPE vidette_key_requests_total counter",
        'vidette_key_requests_total{key="alice"} 2',
        'vidette_key_requests_total{key="bob"} 1',
    ]
    for key in ("sk-alice", "sk-bob", "sk-root"):
        assert key not in text


@pytest.mark.parametrize("admin", [Secret("sk-root"), None], ids=["an admin key", "no admin key"])
@pytest.mark.parametrize("path", ["/server_info", "/get_server_info", "/metrics"])
async def test_a_client_is_told_of_its_own_key_alone(
    engine: vidette.Engine, path: str, admin: Secret | None
) -> None:
    """Where there is no admin key, nobody is who runs the server of several clients."""
    app = build_app(engine, door=FrontDoor(keys=Keys(DOOR.keys.api, admin)))
    for headers, other in ((ALICE, b"bob"), (BOB, b"alice")):
        answer = await call(app, path, method="GET", headers=headers)
        assert answer.status == 200
        assert headers[0][1].removeprefix(b"sk-") in answer.body
        assert other not in answer.body


@pytest.mark.parametrize(
    "keys", [Keys(), Keys((Secret("sk-root", "alice"),)), Keys((), Secret("sk-root"))], ids=repr
)
async def test_whoever_runs_the_server_is_told_of_all(engine: vidette.Engine, keys: Keys) -> None:
    app = build_app(engine, door=FrontDoor(keys=keys))
    told = (await call(app, "/server_info", method="GET", headers=ROOT)).json()["keys"]
    assert [use["name"] for use in told] == ["alice" if keys.api else ANYONE]


async def test_a_key_of_several_has_half_of_the_bodies(engine: vidette.Engine) -> None:
    """Whatever it uses them for; whoever runs the server is let in when there is no room at all."""
    app = served(engine, body_bytes=1000, all_bodies_bytes=2000, key_requests_per_minute=3)
    slow = [Call(app, "/tokenize", pieces=[b" " * 900, Silence()], headers=key) for key in (ALICE, BOB)]
    fine = b'{"text": "x", "sampling_params": {"max_new_tokens": 2}}'
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow[0].run)
            await anyio.wait_all_tasks_blocked()
            refused = await call(app, "/generate", fine.ljust(101), headers=ALICE)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.error["message"].startswith("1001 bytes of bodies of key 'alice' are being read")
            for headers, length in ((ALICE, 100), (BOB, 1000)):
                assert (await call(app, "/generate", fine.ljust(length), headers=headers)).status == 200
            tasks.start_soon(slow[1].run)
            await anyio.wait_all_tasks_blocked()
            assert (await call(app, "/generate", fine.ljust(1000), headers=ROOT)).status == 200
            assert (await uses_of(app))["alice"] == (1, 1, 1)
            for request in slow:
                request.leave()
    assert (await call(app, "/generate", fine.ljust(1000), headers=ALICE)).status == 200


async def test_a_longest_body_fits_into_half(engine: vidette.Engine) -> None:
    app = served(engine, body_bytes=1000, all_bodies_bytes=1000)
    assert (await call(app, "/generate", b'{"text": "x"}'.ljust(1000), headers=ALICE)).status == 200


async def test_without_keys_all_have_one_share(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(key_requests_per_minute=2))
    answers = [await call(app, "/generate", SHORT) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2].headers["retry-after"] == "30"
    told = (await call(app, "/server_info", method="GET")).json()["keys"]
    assert [(use["name"], use["requests"]) for use in told] == [(ANYONE, 2)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_each_key_is_told_apart(engine: vidette.Engine, order: tuple[int, ...]) -> None:
    keys = [Secret(f"sk-{place}", f"n{place}") for place in order]
    app = build_app(engine, door=FrontDoor(keys=Keys(tuple(keys))))
    first, second = ([(b"authorization", b"Bearer sk-%d" % place)] for place in (0, 1))
    assert (await call(app, "/generate", SHORT, headers=second)).status == 200
    for headers, name, count in ((first, "n0", 0), (second, "n1", 1)):
        told = (await call(app, "/server_info", method="GET", headers=headers)).json()["keys"]
        assert [(use["name"], use["requests"]) for use in told] == [(name, count)]
