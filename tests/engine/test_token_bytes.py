"""The bytes that tokens stand for, for whoever shows tokens one by one."""

from __future__ import annotations

import pytest

import vidette


async def test_each_token_has_its_bytes() -> None:
    async with vidette.open_engine("toy") as engine:
        assert [engine.token_bytes(token) for token in (65, 200, 256)] == [b"A", b"\xc8", b"<eos>"]
        async with engine.generate("x", sampling_params={"max_new_tokens": 20, "ignore_eos": True}) as stream:
            done = await stream.read()
        shown = [engine.token_bytes(token) for token in done.token_ids if token < 256]
        assert b"".join(shown).decode(errors="replace") == done.text
        for token in (-1, engine.info.vocab_size):
            with pytest.raises(vidette.UsageError, match=f"^token_id is {token}; ") as caught:
                engine.token_bytes(token)
            assert caught.value.param == "token_id"


async def test_texts_become_tokens_and_tokens_texts() -> None:
    async with vidette.open_engine("toy") as engine:
        ids = await engine.tokenize("Zoë<eos>")
        assert ids == [*"Zoë".encode(), 256]
        assert engine.detokenize(ids) == "Zoë"
        assert engine.detokenize(iter(ids), skip_special_tokens=False) == "Zoë<eos>"
        assert engine.detokenize(ids[:3]) == "Zo\N{REPLACEMENT CHARACTER}"
        assert await engine.tokenize("") == []
        pieces = engine.new_text()
        assert [pieces.push([token], last=False) for token in ids] == ["Z", "o", "", "ë", ""]
        with pytest.raises(vidette.UsageError, match=r"^token_id is 260; "):
            engine.detokenize([65, 260])
        with pytest.raises(vidette.UsageError, match=r"^text has 4194305 characters; "):
            await engine.tokenize("x" * 4_194_305)
        assert engine.statistics().ledgers.total() == 0
