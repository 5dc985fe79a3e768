"""The page in a real browser, over a real model behind a real server."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import anyio.abc
import pytest

import vidette
from tests.service.driver import SERVERS, request_of
from tests.service.page.browser import CHROMIUM, Browser, browsing
from vidette.service import FrontDoor, Gate, Keys, Secret, build_app
from vidette.service.servers import serving
from vidette.service.sockets import bind, url_of
from vidette.testing import wait_quiescent

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no `chromium` (Debian's package of that name has it)"
    ),
]

MODEL = "smollm2-135m-instruct"
SECONDS = 90.0
"""How long anything may take on a busy machine."""
PICTURE = os.environ.get("VIDETTE_PICTURE")
"""Where the picture for the docs is written to, if it is to be taken; some work is done for it to show."""
WORK_SECONDS = 50.0
HOSTILE = "<img src=x onerror=document.title='taken'>"
LONG = {"stream": True, "max_tokens": 4000, "ignore_eos": True}
READY = "document.querySelector('#health')?.textContent === 'ready'"
ROWS = "[...document.querySelectorAll('#requests tr')]"


@pytest.fixture(
    scope="module",
    params=[SERVERS[0], pytest.param(SERVERS[1].values[0], id="hypercorn", marks=pytest.mark.long)],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


class Place(NamedTuple):
    """An engine, where it is served, and a browser."""

    engine: vidette.Engine
    url: str
    address: tuple[str, int]
    browser: Browser

    def row(self, rid: str) -> str:
        """Return an expression for the row of a request."""
        return f"{ROWS}.find(row => row.querySelector('.rid')?.textContent === {rid!r})"

    async def wait_sent(self, rid: str) -> None:
        """Wait until a request was sent to the scheduler."""
        while rid not in {  # noqa: ASYNC110  there is no event for it
            each.rid for each in self.engine.activity().requests if each.scheduler is not None
        }:
            await anyio.sleep(0.005)

    async def choose(self, tokens: int) -> None:
        """Have the chat ask for at most so many tokens, and for the same text each time."""
        for field, value in (("max-tokens", tokens), ("temperature", 0)):
            await self.browser.run(f"document.querySelector('#{field}').value = {value}")

    async def wait_state(self, rid: str, state: str) -> None:
        """Wait until the page says that a request is in a state."""
        await self.browser.wait(f"{self.row(rid)}?.querySelector('.state').textContent === {state!r}")


@pytest.fixture(scope="module")
async def place(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Place]:
    profile, gate, sock = tmp_path_factory.mktemp("profile"), Gate(), bind("127.0.0.1", 0)
    with anyio.fail_after(8 * SECONDS):
        async with (
            browsing(profile) as browser,
            vidette.open_engine(MODEL, topology="processes", threads=1, max_running=2) as engine,
            serving(build_app(engine, gate=gate), sock, gate=gate, drain_seconds=0),
        ):
            await browser.size(1280, 800)
            await browser.open(url_of(sock))
            await browser.wait(READY)
            yield Place(engine, url_of(sock), sock.getsockname(), browser)
            await browser.open("about:blank")  # so that the server need not wait for it
            check_quiet(browser, url_of(sock))


def check_quiet(browser: Browser, url: str) -> None:
    """Check that nothing went wrong in the page, and that it asked its own server and nobody else."""
    assert browser.complaints == []
    assert {asked for asked in browser.requested if not asked.startswith(url)} == set()
    assert f"{url}/page/page.js" in browser.requested


class Client:
    """A client of the service, and what it was sent by the end."""

    def __init__(self, place: Place, rid: str, **body: Any) -> None:
        messages = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
        self._request = request_of("/v1/chat/completions", {"messages": messages, "rid": rid, **LONG, **body})
        self._place = place
        self.rid = rid
        self.text = b""
        self.ended = anyio.Event()

    async def run(self) -> None:
        """Read the answer to its end."""
        async with await anyio.connect_tcp(*self._place.address) as stream:
            await stream.send(self._request)
            while not self.text.endswith(b"0\r\n\r\n"):
                self.text += await stream.receive()
        self.ended.set()


@asynccontextmanager
async def clients(place: Place, *rids: str) -> AsyncGenerator[list[Client]]:
    """Have clients wait for long answers, for as long as the block; they come in this order."""
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            started = [Client(place, rid) for rid in rids]
            for client in started:
                tasks.start_soon(client.run)
                await place.wait_sent(client.rid)
            for rid in rids:
                await place.browser.wait(place.row(rid))
            yield started
            tasks.cancel_scope.cancel()
        await place.engine.wait_quiet()


async def test_what_lives_is_a_tree_and_a_hostile_name_is_a_text(place: Place) -> None:
    async with clients(place, "story-1", HOSTILE, "story-3"):
        await place.wait_state(HOSTILE, "running")
        await place.wait_state("story-3", "waiting")  # two may run
        scopes = await place.browser.run(
            f"(at => {ROWS}.slice(at + 1, at + 4).map(row => [...row.cells].map(cell => cell.textContent)))"
            f"({ROWS}.indexOf({place.row('story-3')}))"
        )
        assert scopes == [
            ["front", "waits for the first token"],
            ["scheduler", "queued, or computes the prompt"],
            ["detokenizer", "nothing to hold yet"],
        ]
        assert await place.browser.run("document.images.length") == 0
        assert await place.browser.run("document.title") == "Vidette"
        memory = await place.browser.run("document.querySelector('#memory .legend').textContent")
        assert all(role in memory for role in ("front", "scheduler", "detokenizer"))
        await place.browser.wait("Number(document.querySelector('#tokens .figure').textContent) > 0")
        drawn = await place.browser.run("document.querySelector('#tokens .curve').getAttribute('d')")
        assert drawn.startswith("M")
        assert "L" in drawn


async def test_the_button_ends_a_request_and_its_client_hears_it(place: Place) -> None:
    async with clients(place, "kept", "unwanted") as (kept, unwanted):
        await place.wait_state("unwanted", "running")
        await place.browser.click(".cancel[aria-label='Cancel unwanted']")
        await unwanted.ended.wait()
        assert b"cancelled on the page" in unwanted.text
        await place.wait_state("unwanted", "over")
        assert await place.browser.run("document.querySelector('#news').textContent") == "Cancelled unwanted."
        await place.wait_state("kept", "running")
        assert not kept.ended.is_set()
        assert [request.rid for request in place.engine.activity().requests] == ["kept"]
        await place.browser.point(640, 4)  # as long as somebody points at them, rows stay


async def test_the_tree_works_by_keyboard_alone(place: Place) -> None:
    browser = place.browser
    focused = "document.activeElement"
    async with clients(place, "one", "two") as (one, two):
        await place.wait_state("two", "running")
        await browser.run("document.querySelector('#fold').focus()")
        await browser.press("Tab")
        assert await browser.run(f"{focused}.matches('#requests tr[aria-level=\"1\"]')")
        await browser.press("Home")
        while await browser.run(f"{focused} !== {place.row('one')}"):
            await browser.press("ArrowDown")
        await browser.press("ArrowLeft")
        assert await browser.run(f"{focused}.getAttribute('aria-expanded')") == "false"
        await browser.press("ArrowDown")
        assert await browser.run(f"{focused} === {place.row('two')}")  # its scopes are folded away
        await browser.press("ArrowRight")
        assert await browser.run(f"{focused}.cells[0].textContent") == "front"
        await browser.press("ArrowLeft", "Delete")
        await two.ended.wait()
        await place.wait_state("two", "over")
        await browser.press("ArrowUp", "Tab")
        assert await browser.run(f"{focused}.getAttribute('aria-label')") == "Cancel one"
        await browser.press("Enter")
        await one.ended.wait()


async def test_a_conversation_is_answered_in_pieces_and_stopped_by_a_key(place: Place) -> None:
    browser, log = place.browser, "document.querySelector('#log')"
    with anyio.fail_after(SECONDS):
        await browser.open(place.url)
        await browser.wait(READY)
        await place.choose(tokens=24)
        await browser.press("Tab")
        assert await browser.run("document.activeElement.className") == "skip"
        await browser.press("Enter")
        assert await browser.run("document.activeElement.id") == "prompt"
        await browser.write(f"Say this again: {HOSTILE}")
        await browser.press("Enter")
        await browser.wait(f"/tokens, the first after/.test({log}.textContent)")
        said = await browser.run(f"[...{log}.querySelectorAll('.said')].map(said => said.textContent)")
        assert said[0] == f"Say this again: {HOSTILE}"
        assert len(said) == 2
        assert said[1]
        assert await browser.run("document.images.length") == 0

        await browser.click("#clear")
        assert await browser.run(f"{log}.textContent") == ""
        await place.choose(tokens=4000)
        await browser.write("Tell me a long story about a lighthouse.")
        await browser.press("Enter")
        await browser.wait(f"{log}.querySelector('.said.assistant')?.textContent.length > 20")
        aborted = place.engine.statistics().totals.aborted
        await browser.press("Escape")
        await browser.wait(f"{log}.lastChild.textContent === 'Stopped.'")
        await wait_quiescent(place.engine, timeout=SECONDS)
        assert place.engine.statistics().totals.aborted == aborted + 1
        assert await browser.run("document.querySelector('#send').disabled") is False


async def test_it_is_light_or_dark_as_its_reader_prefers(place: Place) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        await place.browser.prefer(scheme)
        ground = await place.browser.run("getComputedStyle(document.body).backgroundColor")
        grounds.append(max(int(part) for part in ground.strip("rgb()").split(",")))
    assert grounds[0] > 200
    assert grounds[1] < 50
    await place.browser.prefer("light")


async def work(place: Place, name: str, *lengths: int) -> None:
    """Ask for one answer after the other."""
    for number, tokens in enumerate(lengths):
        await Client(place, f"{name}-{number}", max_tokens=tokens).run()


async def test_its_picture(place: Place) -> None:
    browser = place.browser
    if PICTURE is not None:  # something has happened, and something was said
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, place, "report", 300, 60, 500, 200, 400, 150, 300)
            await anyio.sleep(WORK_SECONDS / 8)
            tasks.start_soon(work, place, "summary", 200, 400, 100, 300)
            await anyio.sleep(WORK_SECONDS / 4)
        await place.choose(tokens=128)
        await browser.click("#clear")
        question = "What is the capital of France? Answer in one short sentence."
        for text in (question, "And what is it known for?"):
            await browser.write(text)
            await browser.press("Enter")
            await browser.wait("document.querySelector('#log').lastChild.matches('.took')")
            await anyio.sleep(WORK_SECONDS / 20)
        await browser.run("document.activeElement.blur()")
    await browser.wait("document.querySelector('#requests .over') === null")  # what was over is forgotten
    async with clients(place, "report-2291", "summary-of-the-week", "nightly-eval-7"):
        if PICTURE is not None:
            await anyio.sleep(WORK_SECONDS / 6)
        picture = await browser.picture()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 200_000
    if PICTURE is not None:
        await anyio.Path(PICTURE).write_bytes(picture)


async def test_a_server_with_a_key_is_watched_with_it(place: Place) -> None:
    gate, sock, browser = Gate(), bind("127.0.0.1", 0), place.browser
    keys = Keys((Secret("sk-client"),), Secret("sk-root"))
    app = build_app(place.engine, gate=gate, door=FrontDoor(keys=keys))
    check_quiet(browser, place.url)
    with anyio.fail_after(SECONDS):
        async with serving(app, sock, gate=gate, drain_seconds=0):
            news = "document.querySelector('#news')?.textContent"
            await browser.open(url_of(sock))
            await browser.wait(f"{news} === 'This server needs a key.'")
            for key, says in (("sk-wrong", "That key is wrong."), ("sk-client", "That needs the admin key.")):
                await browser.run("document.querySelector('#key').focus()")
                await browser.write(key)
                await browser.press("Enter")
                await browser.wait(f"{news} === {says!r}")
            await browser.write("sk-root")
            await browser.press("Enter")
            await browser.wait(READY)
            assert await browser.run("Object.keys(localStorage).length") == 0
            # Refusals are in the console, whatever a page does with them.
            assert [said for said in browser.complaints if "401" not in said and "403" not in said] == []
            await browser.open(place.url)
            await browser.wait(READY)
            browser.complaints.clear()
            browser.requested = [url for url in browser.requested if not url.startswith(url_of(sock))]
