"""lm-eval's `local-completions`: a small task of choices, scored by log probabilities, and one of answers.

Both are made here, tasks and questions, so that nothing is fetched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

CAPITALS = (
    ("France", "Paris"),
    ("Italy", "Rome"),
    ("Japan", "Tokyo"),
    ("Egypt", "Cairo"),
    ("Peru", "Lima"),
    ("Norway", "Oslo"),
)
CITIES = [city for _, city in CAPITALS]
TASK: dict[str, Any] = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "The capital of {{country}} is",
    "num_fewshot": 0,
}
CHOICES = {
    "task": "capitals",
    "output_type": "multiple_choice",
    "doc_to_choice": CITIES,
    "doc_to_target": "{{place}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
ANSWERS = {
    "task": "capitals_said",
    "output_type": "generate_until",
    "doc_to_target": "{{capital}}",
    "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 12, "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}


@pytest.fixture
def evaluate(url: str, model: str, tokenizer: Path, tmp_path: Path) -> Any:
    questions = tmp_path / "capitals.jsonl"
    lines = [
        json.dumps({"country": country, "capital": city, "place": place})
        for place, (country, city) in enumerate(CAPITALS)
    ]
    questions.write_text("\n".join(lines))
    for task in (CHOICES, ANSWERS):
        whole = {**TASK, **task, "dataset_kwargs": {"data_files": {"test": str(questions)}}}
        (tmp_path / f"{task['task']}.yaml").write_text(json.dumps(whole))  # JSON is YAML

    def evaluate(task: str) -> Any:
        return simple_evaluate(
            model="local-completions",
            model_args={
                "model": model,
                "base_url": f"{url}/v1/completions",
                "tokenizer_backend": "huggingface",
                "tokenizer": str(tokenizer),
                "num_concurrent": 4,
                "max_retries": 1,
            },
            tasks=[task],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            log_samples=True,
            bootstrap_iters=0,
        )

    return evaluate


def scored(native: Any, prompt: str, answer: str) -> tuple[float, bool]:
    """Return how probable an answer is, and whether it is what would be said at temperature 0."""
    before, whole = native.tokens(prompt), native.tokens(prompt + answer)
    assert whole[: len(before)] == before
    body = {
        "input_ids": whole,
        "return_logprob": True,
        "logprob_start_len": len(before),
        "top_logprobs_num": 1,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    }
    info = native.post("/generate", body)["meta_info"]
    listed = info["input_token_logprobs"][-len(whole) + len(before) :]
    best = info["input_top_logprobs"][-len(listed) :]
    assert [token for _, token, *_ in listed] == whole[len(before) :]
    greedy = all(top[0][1] == token for top, (_, token, *_) in zip(best, listed, strict=True))
    return sum(logprob for logprob, *_ in listed), greedy


def check_choices_by_log_probability(evaluate: Any, native: Any) -> None:
    result = evaluate("capitals")
    samples = result["samples"]["capitals"]
    assert len(samples) == len(CAPITALS)
    right = 0
    for sample in samples:
        country = sample["doc"]["country"]
        told = [(float(logprob), str(greedy) == "True") for ((logprob, greedy),) in sample["resps"]]
        said = [scored(native, f"The capital of {country} is", f" {city}") for city in CITIES]
        assert [logprob for logprob, _ in told] == pytest.approx([logprob for logprob, _ in said], abs=1e-4)
        assert [greedy for _, greedy in told] == [greedy for _, greedy in said]
        logprobs = [logprob for logprob, _ in said]
        right += CITIES[logprobs.index(max(logprobs))] == sample["doc"]["capital"]
    assert result["results"]["capitals"]["acc,none"] == pytest.approx(right / len(CAPITALS))
    assert right > len(CAPITALS) / 2  # it is a real model


def check_answers(evaluate: Any, native: Any) -> None:
    for sample in evaluate("capitals_said")["samples"]["capitals_said"]:
        said = native.say(f"The capital of {sample['doc']['country']} is", 12).text
        ((answer,),) = sample["resps"]
        assert answer == said.partition("\n")[0].partition(".")[0]
