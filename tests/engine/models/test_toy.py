"""The toy model: what its text depends on, and that it looks like text."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.errors import ChatTemplateError
from vidette.models import (
    BLOCK_SIZE,
    Model,
    StepPlan,
    load_model,
    load_token_table,
    load_tokenizer,
    read_info,
    resolve,
)
from vidette.models.toy import ToyModel
from vidette.models.toy_tokenizer import TOY_EOS_ID, ToyTokenizer, toy_token_table

SOURCE = resolve("toy")
PIECES = ["<eos>", "<|user|>", "<|assistant|>", "a", "é", "<", "\ud800"]
CONTEXTS = st.lists(st.integers(0, 259), min_size=1, max_size=60)


def _model(num_blocks: int = 40) -> ToyModel:
    model = ToyModel()
    model.allocate(num_blocks)
    return model


@pytest.fixture(scope="module")
def logits_of(make_plan: Callable[..., StepPlan]) -> Callable[[list[int]], torch.Tensor]:
    model = _model()

    def logits(tokens: list[int]) -> torch.Tensor:
        return model.forward(make_plan([(tokens, 0, range(4))])).logits[0]

    return logits


@given(text=st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_text_has_fewer_tokens_than_it_is_said_to_have(text: str) -> None:
    """For every text: what is told of it without tokenising it is not more than its tokens."""
    assert ToyTokenizer().fewest_tokens(text, 1000) <= len(ToyTokenizer().encode(text))
    assert ToyTokenizer().fewest_tokens("<|assistant|>" * 7, 1000) == 7
    assert ToyTokenizer().fewest_tokens("<|assistant|>" * 7, 5) == 5


def test_it_is_what_its_info_says() -> None:
    info, model, table = read_info(SOURCE), load_model(SOURCE), load_token_table(SOURCE)
    assert model.info == info
    assert info.vocab_size == len(table.token_bytes) == 260
    assert info.context_len == 8192
    assert info.eos_token_ids == {TOY_EOS_ID} <= table.special == {256, 257, 258, 259}
    assert isinstance(load_tokenizer(SOURCE), ToyTokenizer)


def test_it_reaches_the_end_of_its_context(make_plan: Callable[..., StepPlan]) -> None:
    model = _model(512)
    tokens = list(np.random.default_rng(0).integers(0, 256, 8192))
    assert torch.isfinite(model.forward(make_plan([(tokens, 0, range(512))])).logits).all()


@settings(deadline=None)
@given(tokens=CONTEXTS, data=st.data())
def test_every_token_of_the_context_counts(
    tokens: list[int], data: st.DataObject, logits_of: Callable[[list[int]], torch.Tensor]
) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    changed = data.draw(st.integers(0, 259).filter(lambda token: token != tokens[place]))
    others = [*tokens[:place], changed, *tokens[place + 1 :]]
    # 1024 states: a change may by chance lead to the same one, but not for three continuations as well.
    ends: list[list[int]] = [[], [1], [2, 3], [4, 5, 6]]
    assert any(not torch.equal(logits_of(tokens + end), logits_of(others + end)) for end in ends)


@settings(deadline=None)
@given(rows=st.lists(CONTEXTS, min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_chunks_blocks_and_company_do_not_count(
    rows: list[list[int]],
    seed: int,
    logits_of: Callable[[list[int]], torch.Tensor],
    make_plan: Callable[..., StepPlan],
) -> None:
    rng, model = random.Random(seed), _model()
    free = list(range(40))
    rng.shuffle(free)
    blocks = [[free.pop() for _ in range(-(-len(row) // BLOCK_SIZE))] for row in rows]
    done = [0] * len(rows)
    while any(start < len(row) for start, row in zip(done, rows, strict=True)):
        unfinished = [index for index, row in enumerate(rows) if done[index] < len(row)]
        chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
        chunks = []
        for index in chosen:
            end = rng.randint(done[index] + 1, len(rows[index]))
            chunks.append((rows[index][done[index] : end], done[index], blocks[index]))
            done[index] = end
        logits = model.forward(make_plan(chunks)).logits
        for index, row_logits in zip(chosen, logits, strict=True):
            assert torch.equal(row_logits, logits_of(rows[index][: done[index]]))


def test_a_wrong_block_changes_the_logits(make_plan: Callable[..., StepPlan]) -> None:
    model = _model()
    tokens = list(range(2 * BLOCK_SIZE))
    model.forward(make_plan([(tokens, 0, [3, 5])]))
    right = model.forward(make_plan([([7], len(tokens), [3, 5, 9])])).logits
    for wrong in ([5, 3, 9], [3, 4, 9], [3, 3, 9]):
        assert not torch.equal(model.forward(make_plan([([7], len(tokens), wrong)])).logits, right)
    model.forward(make_plan([([1], 0, [5])]))  # somebody else writes into a block of ours
    assert not torch.equal(model.forward(make_plan([([7], len(tokens), [3, 5, 9])])).logits, right)


def test_copied_blocks_are_as_good_as_computed_ones(make_plan: Callable[..., StepPlan]) -> None:
    model = _model()
    tokens = list(range(40))
    model.forward(make_plan([(tokens, 0, [7, 2, 9])]))
    expected = model.forward(make_plan([([5], 40, [7, 2, 9])])).logits
    copies = model.export_blocks([7, 2, 9])
    other = _model()
    other.import_blocks([4, 8], copies[:2])
    other.import_blocks([1], copies[2:])
    assert torch.equal(other.forward(make_plan([([5], 40, [4, 8, 1])])).logits, expected)
    copies[:] = 0
    assert torch.equal(model.forward(make_plan([([5], 40, [7, 2, 9])])).logits, expected)


def test_logits_only_where_they_are_wanted(make_plan: Callable[..., StepPlan]) -> None:
    model = _model()
    plan = make_plan([([1, 2, 3], 0, [0]), ([4], 0, [1])], every_logit=True)
    every = model.forward(plan).logits
    assert every.shape == (4, 260)
    some = model.forward(plan._replace(logit_tokens=np.array([3, 1], dtype=np.int32))).logits
    assert torch.equal(some, every[[3, 1]])
    assert model.forward(plan._replace(logit_tokens=np.array([], dtype=np.int32))).logits.shape == (0, 260)


def test_greedy_text_is_printable_with_ends_and_split_characters(
    generate_greedily: Callable[[Model, list[int], int], list[int]],
) -> None:
    ids = generate_greedily(_model(200), list(b"Once upon a time"), 3000)
    assert 30 < ids.count(TOY_EOS_ID) < 80
    assert sum(32 <= token < 127 for token in ids) > 0.7 * len(ids)
    table = toy_token_table()
    text = b"".join(table.token_bytes[token] for token in ids if token not in table.special).decode(
        errors="replace"
    )
    assert sum(ord(character) > 127 and character != "\ufffd" for character in text) > 50
    assert text.count("\ufffd") > 20


@given(text=st.text())
def test_text_is_spelled_in_bytes(text: str) -> None:
    table = toy_token_table()
    ids = ToyTokenizer().encode(text)
    assert ids.dtype == np.int32
    assert b"".join(table.token_bytes[token] for token in ids) == text.encode("utf-8", "replace")


def test_names_of_special_tokens_become_them() -> None:
    assert ToyTokenizer().encode("<|user|>é<eos>").tolist() == [257, 0xC3, 0xA9, 256]
    assert ToyTokenizer().encode("").tolist() == []


def test_a_conversation_is_rendered_in_roles() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert ToyTokenizer().render_chat(messages) == "<|system|>S\n<|user|>U\n<|assistant|>"


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "the conversation is empty"),
        ([{"role": "tool", "content": "x"}], "role 'tool' is not one of assistant, system, user"),
        ([{"content": "x"}], "role None is not one of"),
        ([{"role": "user"}], "the content of a user message is None, not text"),
    ],
)
def test_a_conversation_that_does_not_fit_is_refused(messages: list[dict[str, str]], fault: str) -> None:
    with pytest.raises(ChatTemplateError, match=fault):
        ToyTokenizer().render_chat(messages)
