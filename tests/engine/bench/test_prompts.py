from __future__ import annotations

from vidette.bench.prompts import WORDS, Prompts


def test_the_same_seed_gives_the_same_prompts() -> None:
    one, same, other = Prompts(1, 20, 8), Prompts(1, 20, 8), Prompts(2, 20, 8)
    assert [one.text(i) for i in range(5)] == [same.text(i) for i in range(5)]
    assert one.text(0) != other.text(0)
    assert len({one.text(i) for i in range(-5, 50)}) == 55


def test_prompts_have_their_length_and_share_what_they_are_to_share() -> None:
    prompts = Prompts(1, 40, 25)
    texts = [prompts.text(i).split() for i in range(10)]
    assert {len(words) for words in texts} == {40}
    assert len({tuple(words[:25]) for words in texts}) == 1
    assert len({tuple(words[25:]) for words in texts}) == 10
    assert set(texts[0]) <= set(WORDS)


def test_there_is_always_something_of_its_own() -> None:
    assert len(Prompts(0, 0).text(0).split()) == 1
