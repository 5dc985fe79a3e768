"""A hub on loopback, which answers what huggingface_hub asks, and a model for it that is tiny and whole."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"
LARGE = (".safetensors", ".gguf", ".bin")
"""Files of which a hub tells the SHA-256."""


class FakeHub(ThreadingHTTPServer):
    """The hub.

    Attributes:
        repos: files by name, by repository and revision; a revision is a name and a commit.
        gated: repositories that want agreement first.
        asked: method and path of what was asked for.
        sent: names of files whose contents were sent, or begun to be.
        stalls: a file whose second half waits for `go_on`.
        stalled: set once it waits.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[tuple[str, str], Mapping[str, bytes]]] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        self.sent: list[str] = []
        self.stalls: str | None = None
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self.lies: dict[str, bytes] = {}
        """What is sent instead of the contents of a file."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(
        self, repo: str, files: Mapping[str, bytes], *, revision: str = "main", commit: str = COMMIT
    ) -> None:
        """Have a repository, or another revision of it."""
        self.repos.setdefault(repo, {})[revision, commit] = files

    def find(self, repo: str, revision: str) -> tuple[str, Mapping[str, bytes]] | None:
        """Return the commit and the files of a revision."""
        for (name, commit), files in reversed(self.repos[repo].items()):
            if revision in (name, commit):
                return commit, files
        return None


@contextmanager
def serving_hub() -> Generator[FakeHub]:
    """Run a hub while the block runs."""
    with FakeHub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.go_on.set()
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._tell(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._send_file(match[1], match[2], match[3])
        else:
            self._refuse(404, "EntryNotFound")

    def _look(self, repo: str, revision: str) -> tuple[str, Mapping[str, bytes]] | None:
        if repo not in self.server.repos:
            self._refuse(404, "RepoNotFound")
        elif (found := self.server.find(repo, revision)) is None:
            self._refuse(404, "RevisionNotFound")
        else:
            return found
        return None

    def _tell(self, repo: str, revision: str) -> None:
        if (found := self._look(repo, revision)) is None:
            return
        commit, files = found
        siblings: list[dict[str, Any]] = []
        for name, content in files.items():
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "0" * 40}
            if name.endswith(LARGE):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        body = json.dumps({"id": repo, "sha": commit, "private": False, "siblings": siblings}).encode()
        self._begin(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)

    def _send_file(self, repo: str, revision: str, name: str) -> None:
        if (found := self._look(repo, revision)) is None:
            return
        commit, files = found
        if repo in self.server.gated or name not in files:
            self._refuse(*((404, "EntryNotFound") if name not in files else (403, "GatedRepo")))
            return
        etag = hashlib.sha256(files[name]).hexdigest()
        content = self.server.lies.get(name, files[name])
        self._begin(200, len(content), {"ETag": f'"{etag}"', "X-Repo-Commit": commit})
        if self.command == "HEAD":
            return
        self.server.sent.append(name)
        half = len(content) // 2 if name == self.server.stalls else len(content)
        self.wfile.write(content[:half])
        if half < len(content):
            self.wfile.flush()
            self.server.stalled.set()
            self.server.go_on.wait()
            self.wfile.write(content[half:])

    def _refuse(self, status: int, code: str) -> None:
        self._begin(status, 0, {"X-Error-Code": code, "X-Error-Message": code})

    def _begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 256,
}


def tiny_model(*, shards: int = 1, seed: int = 0) -> dict[str, bytes]:
    """Return the files of a repository: what is read of a model, and what is not."""
    files = dict.fromkeys(("README.md", "pytorch_model.bin", "consolidated.safetensors"), b"never fetched")
    files["config.json"] = json.dumps(CONFIG).encode()
    files["generation_config.json"] = b'{"eos_token_id": 256}'
    files["tokenizer.json"] = _tokenizer()
    files["tokenizer_config.json"] = b'{"eos_token": "<end>"}'
    files["chat_template.jinja"] = b"{% for message in messages %}{{ message.content }}{% endfor %}"
    tensors = _tensors(np.random.default_rng(seed))
    if shards == 1:
        return files | {"model.safetensors": save(tensors)}
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        files[name] = save(part)
        weight_map |= dict.fromkeys(part, name)
    return files | {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write the files of a repository into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _tokenizer() -> bytes:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {sign: number for number, sign in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer.to_str().encode()


def _tensors(random: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    hidden, ffn, half = 32, 48, 16
    shapes = {
        "model.embed_tokens.weight": (257, hidden),
        "model.norm.weight": (hidden,),
        "model.layers.0.input_layernorm.weight": (hidden,),
        "model.layers.0.post_attention_layernorm.weight": (hidden,),
        "model.layers.0.self_attn.q_proj.weight": (hidden, hidden),
        "model.layers.0.self_attn.k_proj.weight": (half, hidden),
        "model.layers.0.self_attn.v_proj.weight": (half, hidden),
        "model.layers.0.self_attn.o_proj.weight": (hidden, hidden),
        "model.layers.0.mlp.gate_proj.weight": (ffn, hidden),
        "model.layers.0.mlp.up_proj.weight": (ffn, hidden),
        "model.layers.0.mlp.down_proj.weight": (hidden, ffn),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
