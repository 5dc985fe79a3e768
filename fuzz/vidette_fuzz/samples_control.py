"""Samples of how links open, and of every control message and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from vidette_protocol.ext import ShmPointer
from vidette_protocol.ids import make_vid
from vidette_protocol.messages import (
    PROTOCOL_VERSION,
    AddExternalCorpusReqInput,
    AddExternalCorpusReqOutput,
    ClearHiCacheReqInput,
    ClearHiCacheReqOutput,
    CloseSessionReqInput,
    CloseSessionReqOutput,
    ConfigureLoggingReq,
    ConfigureLoggingReqOutput,
    ContinueGenerationReqInput,
    ContinueGenerationReqOutput,
    DestroyWeightsUpdateGroupReqInput,
    DestroyWeightsUpdateGroupReqOutput,
    Failed,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    FreezeGCReq,
    GcState,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    HeartbeatReq,
    Hello,
    InitWeightsUpdateGroupReqInput,
    InitWeightsUpdateGroupReqOutput,
    ListExternalCorporaReqInput,
    ListExternalCorporaReqOutput,
    LoadLoRAAdapterFromTensorsReqInput,
    LoadLoRAAdapterReqInput,
    LoRARef,
    LoRAUpdateOutput,
    Message,
    OpenSessionReqInput,
    OpenSessionReqOutput,
    PauseGenerationReqInput,
    PauseGenerationReqOutput,
    ProfileReq,
    ProfileReqOutput,
    Ready,
    RemoveExternalCorpusReqInput,
    RemoveExternalCorpusReqOutput,
    RpcReqInput,
    RpcReqOutput,
    SaveRemoteModel,
    SaveShardedModel,
    SchedulerLedger,
    SetInternalStateReq,
    SetInternalStateReqOutput,
    ShutdownReq,
    UnloadLoRAAdapterReqInput,
    UpdateWeightFromDiskReqInput,
    UpdateWeightFromDiskReqOutput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromDistributedReqOutput,
    UpdateWeightsFromIPCReqInput,
    UpdateWeightsFromIPCReqOutput,
    UpdateWeightsFromTensorReqInput,
    UpdateWeightsFromTensorReqOutput,
    pack_i32,
    pack_i64,
)
from vidette_protocol.messages.bulk import ArenaCredit, ArenaOffer

_LEDGER = SchedulerLedger(live=3, waiting=1, tombstones=0, blocks_used=17, steps=70_000)
_FRONT_1 = make_vid(1, 0)
_LORA_ID = "0123456789abcdef0123456789abcdef"

_LINKS: Final[dict[str, Message]] = {
    "hello": Hello(
        version=PROTOCOL_VERSION,
        fingerprint="0123456789abcdef",
        role="scheduler",
        pid=4711,
        incarnation=2,
    ),
    "hello-with-schema": Hello(
        version=PROTOCOL_VERSION,
        fingerprint="0123456789abcdef",
        role="front",
        pid=1,
        schema={"AbortReq": bytes(range(20)), "ShutdownReq": b"tag "},
    ),
    "ready": Ready(role="scheduler", max_total_tokens=8192, num_blocks=512, step_tokens=256),
    "failed": Failed(role="detokenizer", message="the tokenizer file is torn"),
    "heartbeat-asked": HeartbeatReq(id=7, floor=_FRONT_1),
    "heartbeat-answered": HeartbeatReq(id=7, floor=_FRONT_1, scheduler=_LEDGER, detokenizer_open=2),
    "freeze-gc": FreezeGCReq(id=9),
    "freeze-gc-answered": FreezeGCReq(
        id=9, duration_s=60.0, scheduler=GcState(0.25, 210_000), detokenizer=GcState(0.125, 90_000)
    ),
    "unfreeze-gc": FreezeGCReq(id=10, unfreeze=True),
    "shutdown": ShutdownReq(),
    "arena-offer": ArenaOffer(nbytes=1 << 30),
    "arena-credit": ArenaCredit(packed_places=pack_i64([0, 1 << 40])),
}

_CACHES: Final[dict[str, Message]] = {
    "flush-cache": FlushCacheReqInput(id=1, deadline_s=10.0, timeout_s=2.5),
    "flush-cache-at-once": FlushCacheReqInput(id=2),
    "flush-cache-output": FlushCacheReqOutput(id=1),
    "flush-cache-output-refused": FlushCacheReqOutput(id=2, success=False, message="3 requests live"),
    "clear-hicache": ClearHiCacheReqInput(id=3),
    "clear-hicache-output": ClearHiCacheReqOutput(id=3),
    "add-corpus": AddExternalCorpusReqInput(
        id=4, corpus_id="laws", token_chunks=[pack_i32([1, 2, 3]), pack_i32([])]
    ),
    "add-corpus-output": AddExternalCorpusReqOutput(id=4, loaded_token_count=3),
    "remove-corpus": RemoveExternalCorpusReqInput(id=5, corpus_id="laws"),
    "remove-corpus-output": RemoveExternalCorpusReqOutput(id=5),
    "list-corpora": ListExternalCorporaReqInput(id=6),
    "list-corpora-output": ListExternalCorporaReqOutput(id=6, corpus_token_counts={"laws": 3, "": 0}),
    "list-corpora-output-none": ListExternalCorporaReqOutput(id=6),
}

_WEIGHTS: Final[dict[str, Message]] = {
    "weights-from-disk": UpdateWeightFromDiskReqInput(
        id=7,
        deadline_s=600.0,
        flush_cache=False,
        abort_all_requests=True,
        weight_version="step-1000",
        load_format="safetensors",
        torch_empty_cache=True,
        model_path="weights/1000",
        is_async=True,
        keep_pause=True,
        recapture_cuda_graph=True,
        token_step=1000,
        manifest={"embed": {"shape": [2, 3], "dtype": "bfloat16"}, "checked": True},
    ),
    "weights-from-disk-output": UpdateWeightFromDiskReqOutput(id=7, num_paused_requests=3),
    "weights-from-distributed": UpdateWeightsFromDistributedReqInput(
        id=8, names=["a", "b"], dtypes=["float32", "int8"], shapes=[[2, 3], []], group_name="trainer"
    ),
    "weights-from-distributed-output": UpdateWeightsFromDistributedReqOutput(id=8),
    "weights-from-tensor": UpdateWeightsFromTensorReqInput(
        id=9,
        named_tensors=[
            {"a": np.arange(3, dtype=np.float32), "b": ShmPointer("vd-2", (2,), "float16")},
            {},
        ],
        disable_draft_model=True,
    ),
    "weights-from-tensor-serialized": UpdateWeightsFromTensorReqInput(
        id=10, serialized_named_tensors=[b"\2\0\0\0\0\0\0\0{}", b""]
    ),
    "weights-from-tensor-output": UpdateWeightsFromTensorReqOutput(id=9),
    "weights-from-ipc": UpdateWeightsFromIPCReqInput(id=11, zmq_handles={"GPU-0": "ipc:///run/w0.sock"}),
    "weights-from-ipc-output": UpdateWeightsFromIPCReqOutput(id=11),
    "init-weights-group": InitWeightsUpdateGroupReqInput(
        id=12,
        master_address="trainer-0",
        master_port=29500,
        rank_offset=1,
        world_size=9,
        group_name="trainer",
        backend="gloo",
    ),
    "init-weights-group-output": InitWeightsUpdateGroupReqOutput(id=12),
    "destroy-weights-group": DestroyWeightsUpdateGroupReqInput(id=13, group_name="trainer"),
    "destroy-weights-group-output": DestroyWeightsUpdateGroupReqOutput(id=13),
}

_ADAPTERS: Final[dict[str, Message]] = {
    "load-lora": LoadLoRAAdapterReqInput(
        id=14, lora_id=_LORA_ID, lora_name="poet", lora_path="adapters/poet", pinned=True
    ),
    "load-lora-from-tensors": LoadLoRAAdapterFromTensorsReqInput(
        id=15,
        lora_id=_LORA_ID,
        lora_name="poet",
        config_dict={"r": 8, "target_modules": ["q_proj", "v_proj"]},
        named_tensors=[{"q_proj.lora_A": np.zeros((8, 2), dtype=np.float32)}],
        pinned=True,
        added_tokens_config={"<verse>": 32_100},
        load_format="flat",
        expected_checksums={"q_proj.lora_A": "00" * 32},
    ),
    "load-lora-from-tensors-serialized": LoadLoRAAdapterFromTensorsReqInput(
        id=16, lora_id=_LORA_ID, lora_name="", config_dict={}, serialized_named_tensors=[]
    ),
    "unload-lora": UnloadLoRAAdapterReqInput(id=17, lora_id=_LORA_ID, lora_name="poet"),
    "lora-output": LoRAUpdateOutput(
        id=14,
        loaded_adapters={
            "poet": LoRARef(_LORA_ID, "poet", "adapters/poet", pinned=True, reloadable=False, version=2),
            "bare": LoRARef("f" * 32),
        },
    ),
}

_SESSIONS: Final[dict[str, Message]] = {
    "open-session": OpenSessionReqInput(
        id=18, session_id="talk", capacity_of_str_len=4096, streaming=True, timeout=300.0
    ),
    "open-session-output": OpenSessionReqOutput(id=18, session_id="talk"),
    "open-session-output-refused": OpenSessionReqOutput(id=18, success=False, message="it is open"),
    "open-session-output-full": OpenSessionReqOutput(id=18, success=False, message="no room", full=True),
    "close-session": CloseSessionReqInput(id=19, session_id="talk"),
    "close-session-output": CloseSessionReqOutput(id=19),
}

_OPERATIONS: Final[dict[str, Message]] = {
    "pause": PauseGenerationReqInput(id=20, mode="retract"),
    "pause-output": PauseGenerationReqOutput(id=20),
    "continue": ContinueGenerationReqInput(id=21, torch_empty_cache=False),
    "continue-output": ContinueGenerationReqOutput(id=21),
    "get-state": GetInternalStateReq(id=22, deadline_s=1.0),
    "get-state-output": GetInternalStateReqOutput(
        id=22, internal_state={"step_tokens": 256, "load": [0.5, None], "by": {"name": "x"}}
    ),
    "set-state": SetInternalStateReq(id=23, server_args={"max_running": 8, "threshold": 0.5}),
    "set-state-output": SetInternalStateReqOutput(id=23),
    "profile-start": ProfileReq(
        id=24,
        req_type="start",
        output_dir="traces",
        profile_id="slow",
        start_step=100,
        num_steps=5,
        activities=["CPU", "GPU"],
        profile_by_stage=True,
        with_stack=True,
        record_shapes=True,
    ),
    "profile-stop": ProfileReq(id=25, req_type="stop"),
    "profile-output": ProfileReqOutput(id=25, path="traces/slow-0.json.gz"),
    "configure-logging": ConfigureLoggingReq(
        id=26, log_level="debug", log_requests=True, log_requests_level=3, log_requests_format="json"
    ),
    "configure-logging-output": ConfigureLoggingReqOutput(id=26),
    "rpc-save-sharded": RpcReqInput(
        id=27, call=SaveShardedModel(path="out", pattern="{rank}-{part}.safetensors", max_size=1 << 32)
    ),
    "rpc-save-remote": RpcReqInput(id=28, call=SaveRemoteModel(url="s3://weights/1")),
    "rpc-output": RpcReqOutput(id=28, success=False, message="no such store"),
}

CONTROL_SAMPLES: Final[Mapping[str, Message]] = MappingProxyType(
    {**_LINKS, **_CACHES, **_WEIGHTS, **_ADAPTERS, **_SESSIONS, **_OPERATIONS}
)
"""Messages by name."""
