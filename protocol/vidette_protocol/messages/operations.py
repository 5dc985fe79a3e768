"""Control of a running scheduler: pausing it, looking into it, and what is done rarely."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import Struct

from vidette_protocol.messages.base import ControlOutput, ControlReq
from vidette_protocol.messages.tags import Tag


class PauseGenerationReqOutput(ControlOutput, tag=Tag.PAUSE_GENERATION_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether it is paused now."""


class PauseGenerationReqInput(ControlReq, tag=Tag.PAUSE_GENERATION, kw_only=True, frozen=True):
    """Front to scheduler: take no step until ContinueGenerationReqInput; control messages are answered.

    Args:
        mode: what becomes of the requests that live. "abort": they end; "retract": they wait and hold no
            blocks, so that weights and caches can be replaced; "in_place": they stay as they are.
    """

    output: ClassVar = PauseGenerationReqOutput

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueGenerationReqOutput(
    ControlOutput, tag=Tag.CONTINUE_GENERATION_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether it goes on."""


class ContinueGenerationReqInput(ControlReq, tag=Tag.CONTINUE_GENERATION, kw_only=True, frozen=True):
    """Front to scheduler: go on after a pause.

    Args:
        torch_empty_cache: give cached memory back to the device first.
    """

    output: ClassVar = ContinueGenerationReqOutput

    torch_empty_cache: bool = True


class GetInternalStateReqOutput(ControlOutput, tag=Tag.GET_INTERNAL_STATE_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: its state.

    Args:
        internal_state: by name; scalars, lists and maps only, and never a secret.
    """

    internal_state: dict[str, Any] = {}  # noqa: RUF012  msgspec makes a new one each time


class GetInternalStateReq(ControlReq, tag=Tag.GET_INTERNAL_STATE, kw_only=True, frozen=True):
    """Front to scheduler: tell your settings and what you hold."""

    output: ClassVar = GetInternalStateReqOutput


class SetInternalStateReqOutput(ControlOutput, tag=Tag.SET_INTERNAL_STATE_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether the settings were changed; either all of them or none."""


class SetInternalStateReq(ControlReq, tag=Tag.SET_INTERNAL_STATE, kw_only=True, frozen=True):
    """Front to scheduler: change settings that may change while it runs.

    Args:
        server_args: new values by name; one that may not change fails the whole message.
    """

    output: ClassVar = SetInternalStateReqOutput

    server_args: dict[str, float | int]


class ProfileReqOutput(ControlOutput, tag=Tag.PROFILE_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether recording was begun or ended.

    Args:
        path: file of the trace, once it is written.
    """

    path: str | None = None


class ProfileReq(ControlReq, tag=Tag.PROFILE, kw_only=True, frozen=True):
    """Front to scheduler: begin or end recording what the steps spend their time on.

    Args:
        req_type: "start" or "stop".
        output_dir: folder for the trace; None: the engine's.
        profile_id: part of its name.
        start_step: number of the step to begin with; None: the next.
        num_steps: how many steps to record; None: until "stop".
        activities: what to record, "CPU" and "GPU"; None: both, as far as there are.
        profile_by_stage: one trace for prefill and one for decode.
        with_stack: record where in the source it was.
        record_shapes: record the shapes of tensors.
    """

    output: ClassVar = ProfileReqOutput

    req_type: Literal["start", "stop"]
    output_dir: str | None = None
    profile_id: str | None = None
    start_step: int | None = None
    num_steps: int | None = None
    activities: list[Literal["CPU", "GPU"]] | None = None
    profile_by_stage: bool = False
    with_stack: bool = False
    record_shapes: bool = False


class ConfigureLoggingReqOutput(ControlOutput, tag=Tag.CONFIGURE_LOGGING_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether it logs so from now on."""


class ConfigureLoggingReq(ControlReq, tag=Tag.CONFIGURE_LOGGING, kw_only=True, frozen=True):
    """Front to scheduler: change what is logged; None leaves a setting as it is.

    Args:
        log_level: "debug", "info", "warning" or "error".
        log_requests: log the beginning and the end of each request.
        log_requests_level: how much of each: 0 names and lengths, up to 3 everything.
        log_requests_format: "text" or "json".
    """

    output: ClassVar = ConfigureLoggingReqOutput

    log_level: Literal["debug", "info", "warning", "error"] | None = None
    log_requests: bool | None = None
    log_requests_level: Literal[0, 1, 2, 3] | None = None
    log_requests_format: Literal["text", "json"] | None = None


class SaveShardedModel(Struct, tag="SaveShardedModel", array_like=True, kw_only=True, frozen=True):
    """Write the weights as they are in memory, one file for each rank.

    Args:
        path: folder to write to.
        pattern: name of the files, with `{rank}` and `{part}`; None: the usual one.
        max_size: largest file, in bytes; None: one file for each rank.
    """

    path: str
    pattern: str | None = None
    max_size: int | None = None


class SaveRemoteModel(Struct, tag="SaveRemoteModel", array_like=True, kw_only=True, frozen=True):
    """Write the weights as they are in memory to a store elsewhere.

    Args:
        url: address of the store.
    """

    url: str


class RpcReqOutput(ControlOutput, tag=Tag.RPC_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether a call was carried out."""


class RpcReqInput(ControlReq, tag=Tag.RPC, kw_only=True, frozen=True):
    """Front to scheduler: do one of few things, each a type of its own; nothing is called by a name.

    Args:
        call: what to do.
    """

    output: ClassVar = RpcReqOutput

    call: SaveShardedModel | SaveRemoteModel
