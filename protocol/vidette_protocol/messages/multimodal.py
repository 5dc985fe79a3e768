"""What comes of images, video and audio, and travels with a tokenised request.

Tensors and the like lie in fields of type `object`; a codec carries them with `vidette_protocol.ext`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from vidette_protocol.ext import ModelData, stack

PAD_VALUE_BASE: Final = 1_000_000
"""Pad values begin here, above every token id: no vocabulary may be larger."""

_HASH_MASK: Final = (1 << 64) - 1
_PAD_VALUES: Final = 1 << 30  # divides 2**64, so that reducing a hash leaves its pad value as it was


class Modality(Enum):
    """What an item was made from."""

    IMAGE = 1
    VIDEO = 2
    AUDIO = 3


class MultimodalInputFormat(Enum):
    """What an item holds: raw input, the output of a processor, or the embeddings themselves."""

    NORMAL = 1
    PROCESSOR_OUTPUT = 2
    PRECOMPUTED_EMBEDDING = 3


class MultimodalDataItem(Struct, kw_only=True, array_like=True, dict=True):
    """One image, video or stretch of audio.

    An attribute that is not declared here is a value of `model_specific_data`: `item.grid = (1, 2)` sets it,
    `item.grid` reads it, and it travels. What is put into `__dict__` stays in its process. A subclass is
    decoded as this class, so what is special to a model belongs into `model_specific_data`.

    Args:
        modality: what it was made from.
        hash: of its contents, for caches; kept to its low 64 bits, whenever it is set.
        pad_value: what stands for it among the token ids; see `set_pad_value`.
        offsets: first and last position of each stretch of token ids that stands for it.
        format: what it holds.
        feature: tensor, array or list of them, or a pointer to one.
        precomputed_embeddings: the same.
        keep_device_embedding: leave embeddings on their device when they are cached.
        model_specific_data: values for the model, by name; a dict is copied into a ModelData. Tuples,
            torch.Size, dtypes and devices come back as they were.
    """

    modality: Modality
    hash: int | None = None
    pad_value: int | None = None
    offsets: list[tuple[int, int]] | None = None
    format: MultimodalInputFormat = MultimodalInputFormat.NORMAL
    feature: object = None
    precomputed_embeddings: object = None
    keep_device_embedding: bool = False
    model_specific_data: ModelData = field(default_factory=ModelData)

    def __post_init__(self) -> None:
        # Neither the constructor nor the decoder goes through __setattr__.
        self.hash = self.hash
        self.model_specific_data = self.model_specific_data

    def set(self, key: str, value: object) -> None:
        """Set a declared field, or else a value of `model_specific_data`.

        Raises:
            AttributeError: it is the name of a method.
        """
        if key == "hash" and isinstance(value, int):
            value &= _HASH_MASK
        elif key == "model_specific_data" and isinstance(value, dict):
            value = ModelData(value)
        if key in self.__struct_fields__:
            super().__setattr__(key, value)
        elif any(key in cls.__dict__ for cls in type(self).__mro__):
            raise AttributeError(f"{key!r} is part of {type(self).__name__} itself")
        else:
            self.model_specific_data[key] = value

    def __setattr__(self, name: str, value: object) -> None:
        self.set(name, value)

    def __getattr__(self, name: str) -> object:
        # Asked only for what is not found otherwise; of a half-made item even a field is not.
        if name not in self.__struct_fields__ and name in self.model_specific_data:
            return self.model_specific_data[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def set_pad_value(self) -> None:
        """Derive `pad_value` from `hash`.

        Raises:
            ValueError: there is no hash yet.
        """
        if self.hash is None:
            raise ValueError("an item without a hash has no pad value")
        self.pad_value = PAD_VALUE_BASE + self.hash % _PAD_VALUES


class MultimodalProcessorOutput(Struct, kw_only=True, array_like=True, dict=True, weakref=True):
    """What a processor made of the media of one request. It can be weakly referenced.

    Attributes that are not declared here stay in their process.

    Args:
        mm_items: one for each image, video or stretch of audio.
        input_ids: packed int32, placeholders expanded; None: as the request has them.
        padded_input_ids: the same with pad values in place of placeholders.
        im_token_id: token that stands for an image; the other ids alike, for what they name.
        mrope_positions: tensor of positions in three axes.
        mrope_position_delta: tensor, what to add to a position of text.
        vision_position_ids: tensor.
        media_nums_per_sample: how many media each sample has.
        visible_frame_counts: how many frames of each video were kept.
        token_type_ids: tensor, or list of integers.
    """

    mm_items: list[MultimodalDataItem]
    input_ids: memoryview | None = None
    padded_input_ids: memoryview | None = None
    im_token_id: int | None = None
    im_start_id: int | None = None
    im_end_id: int | None = None
    slice_start_id: int | None = None
    slice_end_id: int | None = None
    video_token_id: int | None = None
    audio_token_id: int | None = None
    audio_start_id: int | None = None
    audio_end_id: int | None = None
    mrope_positions: object = None
    mrope_position_delta: object = None
    vision_position_ids: object = None
    media_nums_per_sample: list[int] | None = None
    visible_frame_counts: object = None
    token_type_ids: object = None

    def __post_init__(self) -> None:
        columns: tuple[object, ...] = (self.input_ids, self.padded_input_ids)
        for ids in columns:
            if ids is not None and (not isinstance(ids, memoryview) or ids.nbytes % 4):
                raise ValueError("token ids are packed int32; `pack_i32` packs a list")


class PositionalEmbeds(Struct, kw_only=True, array_like=True, frozen=True):
    """Embeddings that replace those of the token ids at some positions.

    Args:
        embeds: a tensor or array [N, hidden], or a list of N of [hidden], which is stacked; or a
            ShmPointer to one.
        positions: N positions in the prompt.

    Raises:
        ValueError: they do not match.
        TypeError: embeds has no shape.
    """

    embeds: object
    positions: list[int]

    def __post_init__(self) -> None:
        if isinstance(self.embeds, list):
            force_setattr(self, "embeds", stack(self.embeds))
        shape = getattr(self.embeds, "shape", None)
        if shape is None:
            raise TypeError(f"embeds is a {type(self.embeds).__name__}, not a tensor")
        if len(shape) != 2 or shape[0] != len(self.positions):
            raise ValueError(f"embeds of shape {list(shape)} for {len(self.positions)} positions")
