"""The page and its files: what is answered at `/`, and what browsers are told about it."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import Call, call
from vidette.service import FrontDoor, Keys, Secret, build_app
from vidette.service.site import FILES

FOLDER = files("vidette.service") / "page"


async def get(app: Starlette, path: str, *headers: tuple[bytes, bytes]) -> Call:
    return await call(app, path, method="GET", headers=headers)


@pytest.mark.parametrize(("path", "name"), FILES.items())
async def test_each_file_is_served_with_its_type_and_its_policy(app: Starlette, path: str, name: str) -> None:
    answer = await get(app, path)
    assert (answer.status, answer.body) == (200, (FOLDER / name).read_bytes())
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kind[name.rpartition(".")[2]])
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'self'"
    assert "frame-ancestors 'none'" in policy
    assert not any("unsafe" in rule or "http" in rule for rule in policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_all_files_of_the_folder_are_served_and_no_others() -> None:
    assert sorted(FILES.values()) == sorted(found.name for found in FOLDER.iterdir())


async def test_a_file_is_sent_again_only_if_it_has_changed(app: Starlette) -> None:
    first = await get(app, "/")
    tag = first.headers["etag"].encode()
    assert first.headers["cache-control"] == "no-cache"
    for known in (tag, b"W/" + tag, b'"other", ' + tag):
        same = await get(app, "/", (b"if-none-match", known))
        assert (same.status, same.body, same.headers["etag"].encode()) == (304, b"", tag)
        assert same.headers["content-security-policy"] == first.headers["content-security-policy"]
    for other in (b'"other"', b"", b"*,", b'"' * 5000):
        assert (await get(app, "/", (b"if-none-match", other))).status == 200
    tags = {(await get(app, path)).headers["etag"] for path in FILES}
    assert len(tags) == len(FILES)


async def test_it_needs_no_key_and_nothing_else_comes_with_it(engine: vidette.Engine) -> None:
    app = build_app(engine, door=FrontDoor(keys=Keys((Secret("sk-1"),), Secret("root"))))
    for path in FILES:
        assert (await get(app, path)).status == 200
    for path in ("/page", "/page/", "/page/index.html", "/page/../keys.py", "/page/%2e%2e/keys.py", "//"):
        assert (await get(app, path)).status == 401
    app = build_app(engine)
    for path in ("/page", "/page/", "/page/index.html", "/page/../keys.py", "/index.html"):
        assert (await get(app, path)).status == 404
    assert (await call(app, "/", b"{}")).status == 405


def test_the_page_refers_to_nothing_that_is_not_served() -> None:
    page = (FOLDER / "index.html").read_text()
    assert {f"/{name}" for name in re.findall(r'(?:src|href)="([^"#]+)"', page)} < set(FILES)
    for name in FILES.values():
        text = (FOLDER / name).read_text()
        named = re.findall(r"[a-z]+://[^\"'`\s)]+", text)
        assert set(named) <= {"http://www.w3.org/2000/svg"}, name
        assert set(re.findall(r'from "\./([a-z]+)\.js"', text)) <= {
            path.rpartition("/")[2].removesuffix(".js") for path in FILES
        }
        assert len(text.splitlines()) <= 500


@pytest.mark.parametrize(
    "way", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"]
)
def test_no_markup_is_ever_made_of_a_text(way: str) -> None:
    assert not any(way in (FOLDER / name).read_text() for name in FILES.values())


def test_nothing_in_the_page_runs_or_is_styled_from_within() -> None:
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
