from __future__ import annotations

import copy
import gc
import weakref
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from vidette_protocol.ext import CudaIpcHandle, ExtHooks, ModelData, ShmPointer
from vidette_protocol.messages import pack_i32
from vidette_protocol.messages.multimodal import (
    PAD_VALUE_BASE,
    Modality,
    MultimodalDataItem,
    MultimodalInputFormat,
    MultimodalProcessorOutput,
    PositionalEmbeds,
)

HOOKS = ExtHooks()
encode = msgspec.msgpack.Encoder(enc_hook=HOOKS.enc_hook).encode


def decode(frame: bytes, kind: Any) -> Any:
    return msgspec.msgpack.Decoder(kind, ext_hook=HOOKS.ext_hook, dec_hook=HOOKS.dec_hook).decode(frame)


def image(**fields: Any) -> MultimodalDataItem:
    return MultimodalDataItem(modality=Modality.IMAGE, **fields)


def sent(item: MultimodalDataItem) -> MultimodalDataItem:
    """Return an item as it comes out of another process."""
    back: MultimodalDataItem = decode(encode(item), MultimodalDataItem)
    return back


# --- the wire -------------------------------------------------------------------------------------


def test_the_golden_bytes() -> None:
    """An item is an array of its fields, in this order; new ones are appended."""
    item = image(hash=7, offsets=[(1, 2)], model_specific_data={"grid": (3,)})
    assert encode(item) == bytes.fromhex(
        "99 01 07 c0 91 92 01 02 01 c0 c0 c2 81 a4 67726964 81 a9 5f5f7475706c655f5f 91 03"
    )
    assert MultimodalDataItem.__struct_fields__ == (
        "modality",
        "hash",
        "pad_value",
        "offsets",
        "format",
        "feature",
        "precomputed_embeddings",
        "keep_device_embedding",
        "model_specific_data",
    )


def test_the_order_of_fields_is_frozen() -> None:
    assert MultimodalProcessorOutput.__struct_fields__ == (
        *("mm_items", "input_ids", "padded_input_ids", "im_token_id", "im_start_id", "im_end_id"),
        *("slice_start_id", "slice_end_id", "video_token_id"),
        *("audio_token_id", "audio_start_id", "audio_end_id"),
        *("mrope_positions", "mrope_position_delta", "vision_position_ids"),
        *("media_nums_per_sample", "visible_frame_counts", "token_type_ids"),
    )
    assert PositionalEmbeds.__struct_fields__ == ("embeds", "positions")
    for kind in (MultimodalDataItem, MultimodalProcessorOutput, PositionalEmbeds):
        assert kind.__struct_config__.array_like


def test_the_numbers_of_the_enums_are_frozen() -> None:
    assert [(member.name, member.value) for member in Modality] == [("IMAGE", 1), ("VIDEO", 2), ("AUDIO", 3)]
    assert [(member.name, member.value) for member in MultimodalInputFormat] == [
        ("NORMAL", 1),
        ("PROCESSOR_OUTPUT", 2),
        ("PRECOMPUTED_EMBEDDING", 3),
    ]


def test_a_whole_output_travels_without_a_pickle() -> None:
    output = MultimodalProcessorOutput(
        mm_items=[
            image(feature=torch.ones(2, 3, dtype=torch.bfloat16), hash=5, offsets=[(0, 3), (7, 9)]),
            MultimodalDataItem(
                modality=Modality.VIDEO,
                format=MultimodalInputFormat.PRECOMPUTED_EMBEDDING,
                precomputed_embeddings=[np.zeros((1, 2), ">f4")],
            ),
        ],
        input_ids=pack_i32([1, 2]),
        im_token_id=9,
        mrope_positions=torch.arange(6).reshape(3, 2),
        media_nums_per_sample=[1, 1],
        token_type_ids=torch.tensor([0, 1]),
    )
    back = decode(encode(output), MultimodalProcessorOutput)
    left, right = back.mm_items
    assert (left.modality, left.hash, left.offsets) == (Modality.IMAGE, 5, [(0, 3), (7, 9)])
    assert torch.equal(left.feature, torch.ones(2, 3, dtype=torch.bfloat16))
    assert right.format is MultimodalInputFormat.PRECOMPUTED_EMBEDDING
    assert right.precomputed_embeddings[0].dtype == np.dtype(">f4")
    assert (bytes(back.input_ids), back.padded_input_ids) == (bytes(pack_i32([1, 2])), None)
    assert (back.im_token_id, back.media_nums_per_sample) == (9, [1, 1])
    assert back.mrope_positions.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert torch.equal(back.token_type_ids, torch.tensor([0, 1]))


@pytest.mark.parametrize("token_type_ids", [None, [0, 1, 1]])
def test_token_type_ids_need_not_be_a_tensor(token_type_ids: object) -> None:
    output = MultimodalProcessorOutput(mm_items=[], token_type_ids=token_type_ids)
    assert decode(encode(output), MultimodalProcessorOutput).token_type_ids == token_type_ids


@pytest.mark.parametrize(
    "feature",
    [
        ShmPointer("psm_1", (2, 3), "float32", 7),
        CudaIpcHandle({"ipc_extra": None, "tensor_data": torch.ones(1)}, {}),
    ],
)
def test_a_feature_may_be_a_pointer_that_nobody_has_acknowledged(feature: Any) -> None:
    back: Any = sent(image(feature=feature)).feature
    assert type(back) is type(feature)
    assert not back.acknowledgement.taken


def test_an_extension_of_a_newer_sender_is_kept() -> None:
    assert sent(image(feature=Ext(77, b"new"))).feature == Ext(77, b"new")


def test_offsets_come_back_as_tuples() -> None:
    offsets = sent(image(offsets=[(0, 4), (6, 9)])).offsets
    assert offsets == [(0, 4), (6, 9)]
    assert [last - first for first, last in offsets or ()] == [4, 3]


@pytest.mark.parametrize("offsets", [[[1]], [[1, 2, 3]], [1, 2], [["a", 2]], [[1.5, 2]]])
def test_offsets_are_pairs_of_integers(offsets: object) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\[3\]"):
        decode(msgspec.msgpack.encode([1, None, None, offsets]), MultimodalDataItem)


@pytest.mark.parametrize("modality", [0, 4, "IMAGE", None])
def test_no_other_modality_is_known(modality: object) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\[0\]"):
        decode(msgspec.msgpack.encode([modality]), MultimodalDataItem)


def test_new_fields_are_appended() -> None:
    """An old writer's item takes defaults, and what a newer one appended is skipped."""
    assert decode(b"\x91\x01", MultimodalDataItem) == image()
    newer: list[object] = [1, None, None, None, 1, None, None, False, {}, "newer"]
    assert decode(msgspec.msgpack.encode(newer), MultimodalDataItem) == image()


# --- hashes ---------------------------------------------------------------------------------------


@given(value=st.integers(-(1 << 256), 1 << 256))
def test_a_hash_keeps_its_low_64_bits(value: int) -> None:
    """Made with it, given it later, or sent it: and what stands for the item stays what it was."""
    item, later = image(hash=value), image()
    later.hash = value
    assert item.hash == later.hash == value % (1 << 64)
    assert sent(item) == item
    item.set_pad_value()
    assert item.pad_value == PAD_VALUE_BASE + value % (1 << 30)


def test_a_hash_may_come_of_anything() -> None:
    value = UUID("12345678-9abc-def0-1234-56789abcdef0").int
    item = image()
    item.set("hash", value)
    assert sent(item).hash == 0x1234_5678_9ABC_DEF0


def test_a_pad_value_comes_of_a_hash() -> None:
    with pytest.raises(ValueError, match="without a hash"):
        image().set_pad_value()


# --- dynamic attributes ---------------------------------------------------------------------------


def test_what_is_not_declared_goes_to_the_data_of_the_model() -> None:
    item = image()
    item.audio_feature_lens = torch.tensor([3])
    item.set("grid", (1, 2))
    item.set("not an identifier", 1)
    assert item.model_specific_data == {
        "audio_feature_lens": torch.tensor([3]),
        "grid": (1, 2),
        "not an identifier": 1,
    }
    assert item.grid == (1, 2)
    back: Any = sent(item)
    assert back.grid == (1, 2)
    assert back.audio_feature_lens.tolist() == [3]


def test_what_is_declared_stays_a_field() -> None:
    item = image()
    item.set("feature", 1)
    item.set("pad_value", 2)
    assert (item.feature, item.pad_value) == (1, 2)
    assert not item.model_specific_data


def test_types_survive_in_the_data_of_the_model_and_so_do_dicts_that_look_like_markers() -> None:
    values: dict[str, object] = {
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "np_dtype": np.dtype("<f4"),
        "pairs": [(1, (2,)), {"at": ()}],
        "__tuple__": {"__tuple__": [1]},
        "dict": {"__torch_size__": [2, 3]},
    }
    back = sent(image(model_specific_data=values)).model_specific_data
    assert back == values
    assert type(back["size"]) is torch.Size
    assert type(back["dict"]) is dict


@pytest.mark.parametrize("name", ["grid", "__deepcopy__", "_private", "hash_"])
def test_what_was_never_set_is_not_there(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(image(), name)


@pytest.mark.parametrize("name", ["set", "set_pad_value", "__init__", "__struct_fields__"])
def test_methods_are_not_set(name: str) -> None:
    with pytest.raises(AttributeError, match="part of MultimodalDataItem itself"):
        setattr(image(), name, 1)


def test_data_of_the_model_is_copied_from_a_dict_and_shared_as_model_data() -> None:
    values: dict[str, object] = {"a": 1}
    item = image(model_specific_data=values)
    item.b = 2
    assert values == {"a": 1}
    data = ModelData({"c": 3})
    item.model_specific_data = data
    item.d = 4
    assert data == {"c": 3, "d": 4}
    item.set("model_specific_data", {"e": 5})
    assert item.e == 5


def test_what_is_put_into_dict_stays_here() -> None:
    item = image()
    item.__dict__["scratch"] = 1
    assert vars(item)["scratch"] == 1
    assert not hasattr(sent(item), "scratch")


def test_items_are_copied() -> None:
    item = image(hash=1)
    item.grid = (1, 2)
    assert copy.copy(item) == copy.deepcopy(item) == item


# --- efficient video sampling ---------------------------------------------------------------------


class EvsItem(MultimodalDataItem, kw_only=True, array_like=True, dict=True):
    """As subclasses were: what they add would not be known to the reader."""


def test_data_of_efficient_video_sampling_lies_in_the_data_of_the_model() -> None:
    """The processor sets it, the model prunes frames and moves the placeholders: all of it travels."""
    item = EvsItem(modality=Modality.VIDEO, offsets=[(2, 9)])
    item.thw_grids = [(4, 2, 2), (2, 2, 2)]
    item.set("pre_chunked_input_ids", torch.arange(4))
    back: Any = sent(item)
    assert type(back) is MultimodalDataItem
    assert back.model_specific_data.keys() == {"thw_grids", "pre_chunked_input_ids"}
    assert back.thw_grids == [(4, 2, 2), (2, 2, 2)]

    back.set("thw_grids", [(3, 2, 2), (2, 2, 2)])
    back.offsets = [(2, 7)]
    again: Any = sent(back)
    assert (again.thw_grids, again.offsets) == ([(3, 2, 2), (2, 2, 2)], [(2, 7)])
    assert again.pre_chunked_input_ids.tolist() == [0, 1, 2, 3]


# --- output of a processor ------------------------------------------------------------------------


def test_an_output_can_be_weakly_referenced() -> None:
    ended: list[str] = []
    output = MultimodalProcessorOutput(mm_items=[])
    reference = weakref.ref(output)
    weakref.finalize(output, ended.append, "over")
    back = decode(encode(output), MultimodalProcessorOutput)
    assert weakref.ref(back)() is back
    assert reference() is output
    del output
    gc.collect()
    assert (reference(), ended) == (None, ["over"])


def test_other_attributes_of_an_output_stay_here() -> None:
    output: Any = MultimodalProcessorOutput(mm_items=[])
    output.scratch = 1
    assert not hasattr(decode(encode(output), MultimodalProcessorOutput), "scratch")


@pytest.mark.parametrize("ids", [[1, 2], memoryview(b"\1\2\3")])
def test_token_ids_are_packed(ids: Any) -> None:
    with pytest.raises(ValueError, match="pack_i32"):
        MultimodalProcessorOutput(mm_items=[], padded_input_ids=ids)


# --- embeddings by position -----------------------------------------------------------------------


@pytest.mark.parametrize("ones", [torch.ones, np.ones])
def test_embeddings_match_their_positions(ones: Any) -> None:
    embeds = PositionalEmbeds(embeds=ones((2, 3)), positions=[4, 7])
    back: Any = decode(encode(embeds), PositionalEmbeds)
    assert isinstance(back.embeds, type(ones(1)))
    assert (back.embeds.tolist(), back.positions) == ([[1.0] * 3] * 2, [4, 7])


@pytest.mark.parametrize("ones", [torch.ones, np.ones])
def test_a_list_of_embeddings_is_stacked(ones: Any) -> None:
    embeds: Any = PositionalEmbeds(embeds=[ones(3), ones(3)], positions=[4, 7]).embeds
    assert tuple(embeds.shape) == (2, 3)


def test_embeddings_may_lie_in_shared_memory() -> None:
    pointer = ShmPointer("psm_1", (2, 3), "float32")
    assert (
        decode(encode(PositionalEmbeds(embeds=pointer, positions=[1, 2])), PositionalEmbeds).embeds == pointer
    )


@pytest.mark.parametrize(
    ("embeds", "error", "fault"),
    [
        (torch.ones(3, 2), ValueError, r"embeds of shape \[3, 2\] for 2 positions"),
        (torch.ones(2), ValueError, "of shape"),
        (torch.ones(2, 1, 1), ValueError, "of shape"),
        (torch.tensor(1.0), ValueError, "of shape"),
        ([torch.ones(2), torch.ones(3)], ValueError, "equal size"),
        ([], TypeError, "neither arrays nor tensors"),
        ([[1.0], [2.0]], TypeError, "neither arrays nor tensors"),
        (None, TypeError, "not a tensor"),
    ],
)
def test_embeddings_that_do_not_match_are_refused(embeds: Any, error: type[Exception], fault: str) -> None:
    """Whether they are made here or come from elsewhere."""
    with pytest.raises(error, match=fault):
        PositionalEmbeds(embeds=embeds, positions=[4, 7])
    with pytest.raises(msgspec.ValidationError, match=fault):
        decode(encode([embeds, [4, 7]]), PositionalEmbeds)
