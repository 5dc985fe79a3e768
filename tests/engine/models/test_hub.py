"""Models of a hub: only what is read is fetched, and it is a model once all of it is there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from tests.fake_hub import COMMIT, OTHER_COMMIT, FakeHub, serving_hub, tiny_model

from vidette.errors import ModelError, UsageError
from vidette.models import (
    HubName,
    ModelSource,
    Pulled,
    load_model,
    load_token_table,
    load_tokenizer,
    parse_hub_name,
    pull_from_hub,
    pulled_models,
    resolve,
)

NAME = HubName("org/tiny")
NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""
READ = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}

Pull = Callable[..., Pulled]


@pytest.fixture
def hub() -> Generator[FakeHub]:
    with serving_hub() as hub:
        yield hub


@pytest.fixture
def pull(hub: FakeHub, tmp_path: Path) -> Pull:
    def pull(name: str = "org/tiny", pattern: str | None = None, *, endpoint: str = hub.url) -> Pulled:
        parsed = parse_hub_name(name)
        assert parsed is not None
        return pull_from_hub(parsed, pattern=pattern, directory=tmp_path, endpoint=endpoint)

    return pull


def remains(directory: Path) -> list[str]:
    """Return the names of what was left half."""
    return [path.name for path in directory.rglob("*.incomplete")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("Org-1/na.me_2", HubName("Org-1/na.me_2")),
        ("org/name@v1.0", HubName("org/name", revision="v1.0")),
        ("org/name@refs/pr/1", HubName("org/name", revision="refs/pr/1")),
        ("org/name@main", HubName("org/name")),
        ("org/name/q4.gguf", HubName("org/name", "q4.gguf")),
        ("org/name/deep/q4.gguf@v2", HubName("org/name", "deep/q4.gguf", "v2")),
        ("name", None),
        ("/org/name", None),
        ("./org/name", None),
        ("org/name/", None),
        ("org/name/file.bin", None),
        ("org/../name/x.gguf", None),
        ("org/name/../../x.gguf", None),
        ("org/na--me", None),
        ("org/name@", None),
        ("org/name/$(touch${IFS}x).gguf", None),
        ("org/name/-q.gguf", None),
        ("org/name/a\x1b[2J.gguf", None),
        ("org/name/a\N{CYRILLIC SMALL LETTER A}.gguf", None),
        ("org/name@`x`", None),
        ("org/na me", None),
    ],
)
def test_names(text: str, name: HubName | None) -> None:
    assert parse_hub_name(text) == name
    if name is not None:
        assert parse_hub_name(str(name)) == name


@pytest.mark.parametrize("shards", [1, 2])
def test_only_what_is_read_is_fetched_and_it_can_be_loaded(
    shards: int, hub: FakeHub, pull: Pull, tmp_path: Path
) -> None:
    hub.add("org/tiny", tiny_model(shards=shards))
    with pytest.raises(ModelError, match=r"no model of that name was pulled; .* `vidette pull org/tiny`"):
        resolve("org/tiny", directory=tmp_path)
    done = pull()
    weights = {"model.safetensors"}
    if shards > 1:
        names = {f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)}
        weights = {"model.safetensors.index.json", *names}
    assert {*hub.sent} == READ | weights == {path.name for path in done.path.iterdir()}
    assert len(hub.sent) == len({*hub.sent})

    hub.shutdown()  # from now on there is no network
    source = resolve("org/tiny", directory=tmp_path)
    assert source == ModelSource("org/tiny", done.path)
    assert load_model(source, dtype="float32").info.name == "org/tiny"
    spelled = load_token_table(source).token_bytes
    assert b"".join(spelled[token] for token in load_tokenizer(source).encode("A sentry.")) == b"A sentry."
    assert remains(tmp_path) == []


def test_what_is_there_is_not_fetched_again(hub: FakeHub, pull: Pull) -> None:
    hub.add("org/tiny", tiny_model())
    first = pull()
    hub.sent.clear()
    hub.asked.clear()
    assert pull() == first
    assert hub.asked == ["GET /api/models/org/tiny/revision/main"]

    hub.asked.clear()
    by_commit = pull(f"org/tiny@{COMMIT}")
    assert (by_commit.path, hub.sent) == (first.path, [])
    hub.asked.clear()
    assert pull(f"org/tiny@{COMMIT}") == by_commit
    assert hub.asked == []  # a commit does not change


def test_a_newer_revision_replaces_what_a_name_means(hub: FakeHub, pull: Pull, tmp_path: Path) -> None:
    hub.add("org/tiny", tiny_model())
    hub.add("org/tiny", tiny_model(seed=1), revision="v1", commit=OTHER_COMMIT)
    old = pull()
    pinned = pull("org/tiny@v1")
    assert pinned.path != old.path
    hub.sent.clear()
    hub.add("org/tiny", tiny_model(seed=1), revision="main", commit=OTHER_COMMIT)
    assert pull().path == pinned.path
    assert hub.sent == []  # all of it is there already
    assert resolve("org/tiny", directory=tmp_path).path == pinned.path
    assert {*pulled_models(tmp_path)} == {"org/tiny", "org/tiny@v1"}


def test_without_the_hub_what_was_pulled_is_kept(hub: FakeHub, pull: Pull, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"{NOWHERE} cannot be asked for org/tiny: .*refused; look at the"):
        pull(endpoint=NOWHERE)
    hub.add("org/tiny", tiny_model())
    done = pull()
    again = pull(endpoint=NOWHERE)
    assert (again.path, again.record) == (done.path, done.record)
    assert again.unchecked is not None
    assert "cannot be asked" in again.unchecked
    (done.path / "model.safetensors").resolve().unlink()
    with pytest.raises(ModelError, match="cannot be asked"):
        pull(endpoint=NOWHERE)


def test_what_a_hub_does_not_give_is_told_apart(hub: FakeHub, pull: Pull, tmp_path: Path) -> None:
    hub.add("org/tiny", tiny_model())
    with pytest.raises(ModelError, match=r"there is no model org/none on http.*, or it is private"):
        pull("org/none")
    with pytest.raises(ModelError, match="has no revision 'v9'"):
        pull("org/tiny@v9")
    hub.gated.add("org/tiny")
    with pytest.raises(ModelError, match=r"agree at http.*/org/tiny, and set HF_TOKEN"):
        pull()
    assert pulled_models(tmp_path) == {}


def test_weights_that_can_run_code_are_never_fetched(hub: FakeHub, pull: Pull) -> None:
    files = tiny_model()
    del files["model.safetensors"]
    hub.add("org/tiny", files)
    with pytest.raises(ModelError, match=r"has its weights in pytorch_model\.bin, .* can run code"):
        pull()
    assert hub.sent == []


@pytest.mark.parametrize("name", ["$(touch${IFS}x)", "a b", "-a", "a\x1b[2J", "../a"])
def test_files_of_odd_names_are_as_none(name: str, hub: FakeHub, pull: Pull) -> None:
    """They are written to terminals, and offered by shells."""
    hub.add("org/tiny", {f"{name}.gguf": b"", f"{name}.bin": b""})
    for pattern in (None, "*"):
        with pytest.raises((ModelError, UsageError)) as raised:
            pull(pattern=pattern)
        assert name not in str(raised.value)
    assert hub.sent == []


def test_a_model_that_cannot_be_loaded_is_refused_before_its_weights_are_fetched(
    hub: FakeHub, pull: Pull, tmp_path: Path
) -> None:
    files = tiny_model()
    config = json.loads(files["config.json"]) | {"model_type": "mamba"}
    hub.add("org/mamba", files | {"config.json": json.dumps(config).encode()})
    with pytest.raises(ModelError, match="model type 'mamba' is not supported"):
        pull("org/mamba")
    del files["tokenizer.json"]
    hub.add("org/old", files)
    with pytest.raises(ModelError, match=r"org/old has no tokenizer\.json"):
        pull("org/old")
    assert "model.safetensors" not in hub.sent
    assert pulled_models(tmp_path) == {}


@pytest.mark.parametrize("shard", ["../evil.safetensors", "pytorch_model.bin", "absent.safetensors"])
def test_an_index_names_no_other_files(shard: str, hub: FakeHub, pull: Pull) -> None:
    index = json.dumps({"weight_map": {"a": shard}}).encode()
    hub.add("org/tiny", tiny_model(shards=2) | {"model.safetensors.index.json": index})
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        pull()
    assert {*hub.sent} == READ | {"model.safetensors.index.json"}


def test_a_file_that_came_damaged_is_removed(hub: FakeHub, pull: Pull, tmp_path: Path) -> None:
    files = tiny_model()
    hub.add("org/tiny", files)
    hub.lies["model.safetensors"] = bytes(len(files["model.safetensors"]))
    with pytest.raises(
        ModelError, match=r"model\.safetensors of org/tiny came damaged and was removed: its S"
    ):
        pull()
    with pytest.raises(ModelError, match="was pulled"):
        resolve("org/tiny", directory=tmp_path)
    hub.lies.clear()
    assert pull().path.is_dir()
    assert hub.sent.count("config.json") == 1


def test_a_file_that_was_cut_off_later_is_noticed_and_mended(
    hub: FakeHub, pull: Pull, tmp_path: Path
) -> None:
    hub.add("org/tiny", tiny_model())
    weights = (pull().path / "model.safetensors").resolve()
    os.truncate(weights, 1000)
    with pytest.raises(ModelError, match=r"is not whole: .* has 1000 bytes .*`vidette pull org/tiny`"):
        resolve("org/tiny", directory=tmp_path)
    with pytest.raises(ModelError, match="came damaged"):
        pull()
    pull()
    assert resolve("org/tiny", directory=tmp_path).path is not None


def test_one_gguf_file_of_several(hub: FakeHub, pull: Pull, tiny_llama_path: Path, tmp_path: Path) -> None:
    content = tiny_llama_path.read_bytes()
    names = ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "big-00001-of-00002.gguf")
    hub.add("org/tiny-GGUF", dict.fromkeys(names, content) | {"README.md": b""})
    with pytest.raises(UsageError, match=r"which file of org/tiny-GGUF\? .*tiny-Q4_K_M\.gguf"):
        pull("org/tiny-GGUF")
    with pytest.raises(UsageError, match=r"matches '\*Q5\*'; there are big.*, tiny-Q4_K_M\.gguf"):
        pull("org/tiny-GGUF", "*Q5*")
    with pytest.raises(UsageError, match=r"has no file Q5\.gguf; there are"):
        pull("org/tiny-GGUF/Q5.gguf")
    with pytest.raises(ModelError, match="is a part of a GGUF file"):
        pull("org/tiny-GGUF", "big*")
    assert hub.sent == []
    first = pull("org/tiny-GGUF", "*Q4*")
    assert first.path.name in hub.sent
    assert resolve("org/tiny-GGUF", directory=tmp_path) == ModelSource("org/tiny-GGUF", first.path)
    second = pull("org/tiny-GGUF/tiny-Q8_0.gguf")
    with pytest.raises(ModelError, match=r"name one of org/tiny-GGUF/tiny-Q4_K_M\.gguf, org/tiny"):
        resolve("org/tiny-GGUF", directory=tmp_path)
    source = resolve("org/tiny-GGUF/tiny-Q8_0.gguf", directory=tmp_path)
    assert source == ModelSource("org/tiny-GGUF/tiny-Q8_0.gguf", second.path)
    assert load_model(source, dtype="float32").info.name == "org/tiny-GGUF/tiny-Q8_0.gguf"
    with pytest.raises(ModelError, match=r"`vidette pull org/tiny-GGUF/no\.gguf`"):
        resolve("org/tiny-GGUF/no.gguf", directory=tmp_path)


def test_what_a_killed_pull_has_left_is_removed_once_it_is_old(
    hub: FakeHub, pull: Pull, tmp_path: Path
) -> None:
    hub.add("org/tiny", tiny_model())
    blobs = (pull().path / "config.json").resolve().parent
    for name, age in (("old.1.incomplete", 7200), ("new.2.incomplete", 0)):
        (blobs / name).touch()
        os.utime(blobs / name, times=(time.time() - age,) * 2)
    pull()
    assert remains(tmp_path) == ["new.2.incomplete"]
