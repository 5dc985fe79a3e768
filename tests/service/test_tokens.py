"""`POST /tokenize` and `POST /detokenize`: texts and conversations to tokens, and back."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import call


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_a_text_becomes_tokens(app: Starlette, path: str) -> None:
    done = await call(app, path, {"prompt": "hé<eos>", "model": "toy", "return_token_strs": True})
    assert done.status == 200
    assert done.json() == {
        "tokens": [104, 195, 169, 256],
        "count": 4,
        "max_model_len": 8192,
        "token_strs": ["h", "\ufffd", "\ufffd", "<eos>"],
    }
    assert "token_strs" not in (await call(app, path, {"prompt": ""})).json()


async def test_several_texts_are_lists(app: Starlette) -> None:
    answer = (await call(app, "/tokenize", {"prompt": ["a", "bc"], "return_token_strs": True})).json()
    assert answer["tokens"] == [[97], [98, 99]]
    assert answer["count"] == [1, 2]
    assert answer["token_strs"] == [["a"], ["b", "c"]]


async def test_a_conversation_has_the_tokens_of_a_chat(app: Starlette) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    done = await call(app, "/tokenize", {"messages": messages, "add_special_tokens": False})
    chat = await call(app, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert done.json()["count"] == chat.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
async def test_tokens_become_a_text(app: Starlette, path: str) -> None:
    ids = [104, 195, 169, 256]
    assert (await call(app, path, {"tokens": ids})).json() == {"text": "hé", "prompt": "hé"}
    shown = await call(app, path, {"tokens": [ids, [], [65]], "skip_special_tokens": False})
    assert shown.json()["text"] == shown.json()["prompt"] == ["hé<eos>", "", "A"]


async def test_what_the_tokenizer_puts_in_front_can_be_left_out(
    engine: vidette.Engine, app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = engine.info._replace(bos_token_id=ord("h"))
    monkeypatch.setattr(vidette.Engine, "info", property(lambda _: info))
    for wanted, tokens in ((None, [104, 105]), (True, [104, 105]), (False, [105])):
        done = await call(app, "/tokenize", {"prompt": "hi", "add_special_tokens": wanted})
        assert done.json()["tokens"] == tokens


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
    ("/tokenize", {"prompt": [1]}, "prompt"),
    ("/tokenize", {"prompt": ["x"] * 1025}, "prompt"),
    ("/tokenize", {"prompt": "x" * ((4 << 20) + 1)}, "prompt"),
    ("/tokenize", {"prompt": "x" * 8193, "return_token_strs": True}, "prompt"),
    ("/tokenize", {"prompt": ["x" * 4097] * 2}, "prompt"),
    ("/tokenize", {"messages": [{"role": "user", "content": "x" * 8192}]}, "messages"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
     "add_special_tokens"),
    ("/tokenize", {"prompt": "x", "chat_template": "x"}, "chat_template"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "x"}, "tokens"),
    ("/detokenize", {"tokens": [260]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [[1], 2]}, "tokens"),
    ("/detokenize", {"tokens": [1] * 8193}, "tokens"),
    ("/detokenize", {"tokens": [[1] * 4097] * 2}, "tokens"),
]  # fmt: skip


async def test_as_many_tokens_as_fit_are_answered(app: Starlette) -> None:
    for prompt, count in (("x" * 8192, 8192), (["x" * 4096] * 2, [4096, 4096])):
        assert (await call(app, "/tokenize", {"prompt": prompt})).json()["count"] == count


@pytest.mark.parametrize(("path", "body", "param"), WRONG, ids=[f"{p} {str(b)[:50]}" for p, b, _ in WRONG])
async def test_what_cannot_be_honoured(app: Starlette, path: str, body: dict[str, Any], param: str) -> None:
    done = await call(app, path, body)
    assert done.status == 400
    assert done.error["param"] == param
    assert len(done.error["message"]) < 400


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_another_model_is_not_found(app: Starlette, path: str) -> None:
    body = {"model": "gpt-5", **({"prompt": "x"} if path == "/tokenize" else {"tokens": [1]})}
    assert (await call(app, path, body)).status == 404
