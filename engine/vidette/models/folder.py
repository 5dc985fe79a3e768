"""A decoder in a Hugging Face folder: config.json, generation_config.json and safetensors files.

Weights are in model.safetensors, or in the files that model.safetensors.index.json names.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidette.errors import ModelError
from vidette.models.decoder_config import DecoderConfig, decoder_info
from vidette.models.folder_config import is_tied, read_folder_config, text_config
from vidette.models.gather import TensorNames, gather_weights
from vidette.models.interface import ModelInfo
from vidette.models.json_object import JSONObject, read_json
from vidette.models.safetensors import SafetensorsFile
from vidette.models.tensors import TensorInfo
from vidette.models.weights import DecoderWeights

_CONFIG: Final = "config.json"
_GENERATION_CONFIG: Final = "generation_config.json"
_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"

_EMBEDDING: Final = "embed_tokens.weight"
_HEAD: Final = "lm_head.weight"
# Old folders have the frequencies as tensors, which nobody reads.
_FREQUENCIES: Final = ".rotary_emb.inv_freq"
_PARTS: Final = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "output": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
}
# With norms of what a layer adds, the names of its norms shift.
_PARTS_WITH_POST_NORMS: Final = _PARTS | {
    "post_attention_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "post_ffn_norm": "post_feedforward_layernorm.weight",
}


class TensorFolder:
    """The tensors of all safetensors files of a folder; the mappings live as long as it or a view.

    Args:
        path: the folder.

    Raises:
        ModelError: there are no such files, one cannot be read or is damaged, or they do not fit their index.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        self._files: dict[str, SafetensorsFile] = {}
        for name in self._file_names():
            self._add(SafetensorsFile(path / name))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, a read-only view of a mapped file.

        Raises:
            ModelError: there is no such tensor.
        """
        if name not in self._files:
            raise ModelError(f"{self.path}: there is no tensor {name!r}")
        return self._files[name].raw(name)

    def _file_names(self) -> Iterable[str]:
        if (self.path / _WEIGHTS).is_file():
            return [_WEIGHTS]
        index = self.path / _INDEX
        if not index.is_file():
            raise ModelError(f"{self.path} has neither {_WEIGHTS} nor {_INDEX}")
        weight_map = read_json(index).child("weight_map")
        names = sorted({weight_map.string(tensor) for tensor in weight_map.values})
        for name in names:
            if Path(name).name != name:
                raise ModelError(f"{index}: {name!r} is not the name of a file beside it")
        return names

    def _add(self, file: SafetensorsFile) -> None:
        for name in file.tensors:
            if name in self._files:
                raise ModelError(f"{self.path}: the tensor {name!r} is in two files")
            self._files[name] = file
        self.tensors.update(file.tensors)


def read_folder_decoder(
    path: Path, name: str, bos_token_id: int | None = None
) -> tuple[DecoderConfig, DecoderWeights, ModelInfo]:
    """Read a decoder; its matrices stay where they are, in the mapped files.

    Args:
        path: the folder.
        name: name under which the model is served.
        bos_token_id: what the tokenizer puts before every text.

    Raises:
        ModelError: as `read_folder_config`, `read_folder_info` and `TensorFolder` do; a tensor is missing,
            has another shape than the config says, or belongs to no model that we compute.
    """
    config_json = read_json(path / _CONFIG)
    config, tied = read_folder_config(config_json), is_tied(config_json)
    folder = TensorFolder(path)
    prefixes = [tensor[: -len(_EMBEDDING)] for tensor in folder.tensors if tensor.endswith(_EMBEDDING)]
    if len(prefixes) != 1:
        raise ModelError(f"{path}: there are {len(prefixes)} tensors with a name that ends in {_EMBEDDING!r}")
    head = next((tensor for tensor in folder.tensors if tensor.endswith(_HEAD)), _HEAD)
    ignored = {tensor for tensor in folder.tensors if tensor.endswith(_FREQUENCIES)}
    weights = gather_weights(
        folder,
        config,
        TensorNames(
            embedding=prefixes[0] + _EMBEDDING,
            norm=f"{prefixes[0]}norm.weight",
            head=head,
            layer=f"{prefixes[0]}layers.{{}}.",
            parts=_PARTS_WITH_POST_NORMS if config.post_norms else _PARTS,
        ),
        tied=tied,
        # Gemma's norms multiply by one more than what the folder says.
        norm_offset=1.0 if config.architecture == "gemma3" else 0.0,
        ignored=ignored | {head} if tied else ignored,
    )
    return config, weights, _info(path, config_json, config, name, bos_token_id)


def read_folder_info(path: Path, name: str, bos_token_id: int | None = None) -> ModelInfo:
    """Read what the engine has to know of a model from the folder's JSON files.

    Args:
        path: the folder.
        name: name under which the model is served.
        bos_token_id: what the tokenizer puts before every text.

    Raises:
        ModelError: as `read_folder_config` does; a token that ends an answer is not in the vocabulary.
    """
    config_json = read_json(path / _CONFIG)
    return _info(path, config_json, read_folder_config(config_json), name, bos_token_id)


def _info(
    path: Path, config_json: JSONObject, config: DecoderConfig, name: str, bos_token_id: int | None
) -> ModelInfo:
    ends = _end_tokens(path, config_json)
    outside = [token_id for token_id in ends if not 0 <= token_id < config.vocab_size]
    if outside:
        raise ModelError(
            f"{path}: eos_token_id is {outside[0]}, outside the vocabulary of {config.vocab_size} tokens"
        )
    return decoder_info(config, name, frozenset(ends), bos_token_id)


def _end_tokens(path: Path, config_json: JSONObject) -> list[int]:
    """Return the ids that end an answer: generation_config.json says first, then config.json."""
    said = [config_json, text_config(config_json)]
    if (path / _GENERATION_CONFIG).is_file():
        said.insert(0, read_json(path / _GENERATION_CONFIG))
    key = "eos_token_id"
    for config in said:
        if config.has(key):
            found = config.values[key]
            return config.integers(key) if isinstance(found, list) else [config.integer(key)]
    return []
