"""A headless Chromium, told what to do over pipes in its DevTools protocol, and one page in it."""

from __future__ import annotations

import base64
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.abc
import msgspec

CHROMIUM = shutil.which("chromium")
"""Where it is; None: it is not installed."""
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
CLOSING_SECONDS = 5.0
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "Delete": 46, "ArrowUp": 38, "ArrowDown": 40} | {
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "Home": 36,
}
"""Keys that are no letters, with their numbers."""


class Browser:
    """A page of a Chromium that runs.

    Attributes:
        complaints: what the page has written to the console, and errors that nobody caught.
        requested: addresses of all that it has asked for.
    """

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self._session = ""
        self._asked = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._news = anyio.Event()
        self.complaints: list[str] = []
        self.requested: list[str] = []

    async def listen(self) -> None:
        """Take what it says, until it ends."""
        said = b""
        try:
            while True:
                *messages, said = (said + await self._from.receive()).split(b"\0")
                for message in messages:
                    self._hear(msgspec.json.decode(message))
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._answers[-1] = {}
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _hear(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case None:
                self._answers[message["id"]] = message
                self._tell()
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])
            case "Log.entryAdded" if params["entry"]["level"] != "verbose":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.complaints.append(msgspec.json.encode(params).decode())
            case _:
                pass

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask something of the page, or before there is one of the browser; return the answer."""
        self._asked += 1
        number = self._asked
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        await self._to.send(msgspec.json.encode(message) + b"\0")
        while number not in self._answers:
            assert -1 not in self._answers, "the browser has ended"
            await self._news.wait()
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    async def attach(self) -> None:
        """Open a page, and hear of all it does."""
        target = (await self.ask("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.ask(f"{domain}.enable")

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        said = await self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, (script, said["exceptionDetails"])
        return said["result"].get("value")

    async def wait(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        while not await self.run(f"Boolean({script})"):  # noqa: ASYNC110  it is in another process
            await anyio.sleep(0.02)

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.ask("Page.navigate", url=url)

    async def size(self, width: int, height: int, scale: float = 1) -> None:
        """Have the page shown so large."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    async def prefer(self, scheme: Literal["light", "dark"]) -> None:
        """Have its user prefer dark pages, or light ones."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.ask("Emulation.setEmulatedMedia", features=features)

    async def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        found = msgspec.json.encode(selector).decode()
        box = await self.run(
            f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2] }})(document.querySelector({found}))"
        )
        await self.point(*box)
        for kind in ("mousePressed", "mouseReleased"):
            await self.ask(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1
            )

    async def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        await self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            number = KEYS[key]
            text = {"text": "\r"} if key == "Enter" else {}
            named = {"key": key, "code": key, "windowsVirtualKeyCode": number}
            await self.ask(
                "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **named, **text
            )
            await self.ask("Input.dispatchKeyEvent", type="keyUp", **named)

    async def write(self, text: str) -> None:
        """Have a text typed."""
        await self.ask("Input.insertText", text=text)

    async def picture(self) -> bytes:
        """Return a picture of what is shown, as PNG."""
        shot = await self.ask("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def browsing(profile: Path) -> AsyncGenerator[Browser]:
    """Run a Chromium for as long as the block.

    Args:
        profile: an empty folder, for what it keeps.
    """
    assert CHROMIUM is not None
    options = [*OPTIONS, f"--user-data-dir={profile}"]
    # It reads from descriptor 3 and writes to 4, whatever else is open.
    script = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null'
    process = await anyio.open_process(["/bin/sh", "-c", script, "sh", CHROMIUM, *options], stderr=None)
    browser = Browser(process)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(browser.listen)
            await browser.attach()
            yield browser
            tasks.cancel_scope.cancel()
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLOSING_SECONDS):
                await process.wait()
            await process.aclose()  # which kills it, if it lives still
