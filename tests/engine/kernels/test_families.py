"""Small models of every family: the native kernels compute what torch computes of the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import torch
from tests.engine.kernels.native import Part, make_plan
from tests.engine.models.families import (
    FAMILIES,
    VOCAB_SIZE,
    WRITTEN,
    make_model,
    paged_logits,
    write_model,
)

from vidette.kernels.build import NoCompiler, compile_kernels
from vidette.kernels.library import Kernels, load_kernels
from vidette.kernels.native import NativeDecoder
from vidette.models import Model, ModelInfo, StepPlan
from vidette.models.decoder import Decoder
from vidette.models.decoder_config import Activation, DecoderConfig
from vidette.models.load import read_decoder
from vidette.models.weights import DecoderWeights

SIZES: Final = {"head_dim": 16, "hidden_size": 40, "intermediate_size": 56, "initializer_range": 0.15}
"""Heads that the kernels take; neither width is one of whole tiles."""
TOLERANCE: Final = 0.07
"""Of the logits' relative error: 8 bits for weights and activations make it 0.021 to 0.035."""

Decoded = tuple[DecoderConfig, DecoderWeights]


class Read(NamedTuple):
    """A model as it was read, and its logits as torch computes them."""

    config: DecoderConfig
    weights: DecoderWeights
    info: ModelInfo
    logits: torch.Tensor


@pytest.fixture(scope="module")
def native() -> Kernels:
    """The kernels of this machine alone: what is asked here is what they are told."""
    try:
        return load_kernels(compile_kernels())
    except NoCompiler as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread: small products take longer on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Read]:
    """Return a function that reads the model of a family, from a folder or a GGUF file."""
    pytest.importorskip("transformers")
    models: dict[str, Any] = {}
    made: dict[tuple[str, str], Read] = {}

    def get(name: str, kind: str = "folder") -> Read:
        if name not in models:
            models[name] = make_model(name, **SIZES)
        if (name, kind) not in made:
            path = tmp_path_factory.mktemp(name)
            if kind == "folder":
                models[name].save_pretrained(path)
            else:
                path = write_model(path / "model.gguf", models[name], [f"<{i}>" for i in range(VOCAB_SIZE)])
            config, weights, info = read_decoder(path, name)
            made[name, kind] = Read(config, weights, info, logits_of(Decoder(config, weights, info)))
        return made[name, kind]

    return get


def plan_of(chunks: Sequence[tuple[list[int], int, list[int]]], *, every_logit: bool) -> StepPlan:
    return make_plan([Part(*chunk) for chunk in chunks], all_logits=every_logit)


def logits_of(model: Model) -> torch.Tensor:
    return paged_logits(model, plan_of)


def error_of(kernels: Kernels, read: Read, config: DecoderConfig, weights: DecoderWeights) -> float:
    """Return how far the kernels' logits of a decoder are from those of what was read, relatively."""
    decoder = NativeDecoder(kernels, config, weights, read.info, threads=1)
    difference = logits_of(decoder) - read.logits
    decoder.close()
    return float(difference.norm() / read.logits.norm())


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "folder") for name in FAMILIES), *((name, "gguf") for name in WRITTEN)],
)
def test_logits_are_those_of_torch(name: str, kind: str, native: Kernels, read: Callable[..., Read]) -> None:
    """Two sequences in chunks and single tokens, far past the window."""
    model = read(name, kind)
    assert model.config.head_dim == 16
    assert error_of(native, model, model.config, model.weights) < TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_every_mistake_would_be_seen(name: str, native: Kernels, read: Callable[..., Read]) -> None:
    """With one thing wrong in what the kernels are told, logits are further off than is allowed."""
    model = read(name)
    errors = {
        what: error_of(native, model, *wrong) for what, wrong in mistakes(model.config, model.weights).items()
    }
    assert {what: error for what, error in errors.items() if not error > TOLERANCE} == {}


def mistakes(config: DecoderConfig, weights: DecoderWeights) -> Mapping[str, Decoded]:
    """Return what one might take a decoder for, and it is not."""
    kinds = len(config.rope_frequencies)
    configs = {
        "order of rotated pairs": config._replace(interleaved_rope=not config.interleaved_rope),
        "frequencies": config._replace(rope_frequencies=config.rope_frequencies * np.float32(0.75)),
        "query scale": config._replace(query_scale=config.query_scale * 1.25),
        "activation": config._replace(activation=Activation(1 - config.activation)),
    }
    if kinds > 1:
        configs["kinds"] = config._replace(rope_kinds=tuple(kinds - 1 - kind for kind in config.rope_kinds))
        configs["one kind"] = config._replace(rope_kinds=(0,) * config.num_layers)
    if any(config.windows):
        configs["no windows"] = config._replace(windows=(0,) * config.num_layers)
    if len(set(config.windows)) > 1:
        configs["windows of others"] = config._replace(windows=(*config.windows[1:], config.windows[0]))
        configs["windows of all"] = config._replace(windows=(max(config.windows),) * config.num_layers)
    if config.embedding_scale != 1:
        configs["embedding scale"] = config._replace(embedding_scale=1.0)
    if 0 < config.logit_softcap < 10:  # with others these logits are hardly capped
        configs["softcap"] = config._replace(logit_softcap=0.0)
    exchanged = {"norms": ("attention_norm", "ffn_norm"), "gate and up": ("gate", "up")}
    if config.qkv_bias:
        exchanged["biases"] = ("key_bias", "value_bias")
    if config.qk_norm:
        exchanged["norms of heads"] = ("query_norm", "key_norm")
    if config.post_norms:
        exchanged["norms of what is added"] = ("post_attention_norm", "post_ffn_norm")
    others = {what: _exchange(weights, *names) for what, names in exchanged.items()}
    if config.qkv_bias:
        others["no biases"] = _without(weights, "query_bias", "key_bias", "value_bias")
    if weights.head is not None:
        others["head"] = weights._replace(head=None)
    return {what: (wrong, weights) for what, wrong in configs.items()} | {
        what: (config, wrong) for what, wrong in others.items()
    }


def _exchange(weights: DecoderWeights, first: str, second: str) -> DecoderWeights:
    """Give each of two parts of every layer the other's place."""
    layers = []
    for layer in weights.layers:
        parts = layer._asdict()
        layers.append(layer._replace(**{first: parts[second], second: parts[first]}))
    return weights._replace(layers=layers)


def _without(weights: DecoderWeights, *names: str) -> DecoderWeights:
    """Leave parts out of every layer."""
    gone: dict[str, Any] = dict.fromkeys(names)
    return weights._replace(layers=[layer._replace(**gone) for layer in weights.layers])
