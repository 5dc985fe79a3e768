"""Control of the weights: replaced while the engine runs, from where they are."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from vidette_protocol.messages.base import ControlOutput, ControlReq
from vidette_protocol.messages.tags import Tag

Count = Annotated[int, Meta(ge=0)]


class WeightUpdateReq(ControlReq, kw_only=True, frozen=True):
    """Base of what replaces weights.

    Args:
        flush_cache: empty the prefix cache afterwards, whose contents come from the old weights.
        abort_all_requests: end every request before; else those that live go on with the new weights.
        weight_version: name of the new weights, reported with every answer; None: the name stays.
        load_format: how tensors are named and laid out; None: as the model was loaded.
        torch_empty_cache: give cached memory back to the device afterwards.
    """

    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    load_format: str | None = None
    torch_empty_cache: bool = False


class UpdateWeightFromDiskReqOutput(
    ControlOutput, tag=Tag.UPDATE_WEIGHT_FROM_DISK_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether the weights were replaced.

    Args:
        num_paused_requests: how many requests waited meanwhile.
    """

    num_paused_requests: Count = 0


class UpdateWeightFromDiskReqInput(
    WeightUpdateReq, tag=Tag.UPDATE_WEIGHT_FROM_DISK, kw_only=True, frozen=True
):
    """Front to scheduler: load weights of the same architecture from files.

    Args:
        model_path: folder or file.
        is_async: go on generating while files are read.
        keep_pause: stay paused afterwards.
        recapture_cuda_graph: record graphs anew.
        token_step: number of the trainer's step, reported with every token made since.
        manifest: what is known of the tensors, by name; handed to the loader.
    """

    output: ClassVar = UpdateWeightFromDiskReqOutput

    model_path: str
    is_async: bool = False
    keep_pause: bool = False
    recapture_cuda_graph: bool = False
    token_step: Count = 0
    manifest: dict[str, Any] | None = None


class UpdateWeightsFromDistributedReqOutput(
    ControlOutput, tag=Tag.UPDATE_WEIGHTS_FROM_DISTRIBUTED_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether the weights were replaced."""


class UpdateWeightsFromDistributedReqInput(
    WeightUpdateReq, tag=Tag.UPDATE_WEIGHTS_FROM_DISTRIBUTED, kw_only=True, frozen=True
):
    """Front to scheduler: receive tensors that a trainer broadcasts to a group.

    Args:
        names: of the tensors, in the order of the broadcasts.
        dtypes: as many.
        shapes: as many.
        group_name: a group made by InitWeightsUpdateGroupReqInput.
    """

    output: ClassVar = UpdateWeightsFromDistributedReqOutput

    names: list[str]
    dtypes: list[str]
    shapes: list[list[Count]]
    group_name: str = "weight_update_group"

    def check_columns(self) -> str | None:
        """Return in a sentence what the front must not have sent, or None."""
        if not len(self.names) == len(self.dtypes) == len(self.shapes):
            return f"{len(self.names)} names, {len(self.dtypes)} dtypes, {len(self.shapes)} shapes"
        return None


class UpdateWeightsFromTensorReqOutput(
    ControlOutput, tag=Tag.UPDATE_WEIGHTS_FROM_TENSOR_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether the weights were replaced."""


class UpdateWeightsFromTensorReqInput(
    WeightUpdateReq, tag=Tag.UPDATE_WEIGHTS_FROM_TENSOR, kw_only=True, frozen=True
):
    """Front to scheduler: take over tensors that travel in the message or beside it.

    Args:
        named_tensors: tensors or pointers to some, by name, one dict for each rank.
        serialized_named_tensors: the same as safetensors files, one for each rank. In JSON they are base64.
        disable_draft_model: leave the draft model of speculative decoding as it is.
    """

    output: ClassVar = UpdateWeightsFromTensorReqOutput

    named_tensors: list[dict[str, object]] | None = None
    serialized_named_tensors: list[bytes] | None = None
    disable_draft_model: bool = False

    def check_columns(self) -> str | None:
        """Return in a sentence what the front must not have sent, or None."""
        if (self.named_tensors is None) == (self.serialized_named_tensors is None):
            return "just one of named_tensors and serialized_named_tensors is needed"
        return None


class UpdateWeightsFromIPCReqOutput(
    ControlOutput, tag=Tag.UPDATE_WEIGHTS_FROM_IPC_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether the weights were replaced."""


class UpdateWeightsFromIPCReqInput(
    WeightUpdateReq, tag=Tag.UPDATE_WEIGHTS_FROM_IPC, kw_only=True, frozen=True
):
    """Front to scheduler: fetch tensors from the memory of a checkpoint server on the same machine.

    Args:
        zmq_handles: path of the socket to ask, by the id of the device.
    """

    output: ClassVar = UpdateWeightsFromIPCReqOutput

    zmq_handles: dict[str, str]


class InitWeightsUpdateGroupReqOutput(
    ControlOutput, tag=Tag.INIT_WEIGHTS_UPDATE_GROUP_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether the group was joined."""


class InitWeightsUpdateGroupReqInput(
    ControlReq, tag=Tag.INIT_WEIGHTS_UPDATE_GROUP, kw_only=True, frozen=True
):
    """Front to scheduler: join a trainer's group, to receive weights.

    Args:
        master_address: host that keeps the group.
        master_port: its port.
        rank_offset: first rank of this engine in the group.
        world_size: how many ranks the group has.
        group_name: name to call it by later.
        backend: how tensors travel in it.
    """

    output: ClassVar = InitWeightsUpdateGroupReqOutput

    master_address: str
    master_port: Annotated[int, Meta(ge=1, le=65535)]
    rank_offset: Count
    world_size: Annotated[int, Meta(ge=1)]
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class DestroyWeightsUpdateGroupReqOutput(
    ControlOutput, tag=Tag.DESTROY_WEIGHTS_UPDATE_GROUP_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether the group was left."""


class DestroyWeightsUpdateGroupReqInput(
    ControlReq, tag=Tag.DESTROY_WEIGHTS_UPDATE_GROUP, kw_only=True, frozen=True
):
    """Front to scheduler: leave a trainer's group.

    Args:
        group_name: the name it was joined by.
    """

    output: ClassVar = DestroyWeightsUpdateGroupReqOutput

    group_name: str = "weight_update_group"
