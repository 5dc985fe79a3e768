"""Every message class, by where it travels."""

from __future__ import annotations

from typing import Final

from vidette_protocol.messages.base import ControlOutput, ControlReq, Message
from vidette_protocol.messages.cache import (
    AddExternalCorpusReqInput,
    ClearHiCacheReqInput,
    FlushCacheReqInput,
    ListExternalCorporaReqInput,
    RemoveExternalCorpusReqInput,
)
from vidette_protocol.messages.control import Failed, FreezeGCReq, HeartbeatReq, Hello, Ready, ShutdownReq
from vidette_protocol.messages.kv import KVEventBatch, KvMetrics
from vidette_protocol.messages.lora import (
    LoadLoRAAdapterFromTensorsReqInput,
    LoadLoRAAdapterReqInput,
    UnloadLoRAAdapterReqInput,
)
from vidette_protocol.messages.operations import (
    ConfigureLoggingReq,
    ContinueGenerationReqInput,
    GetInternalStateReq,
    PauseGenerationReqInput,
    ProfileReq,
    RpcReqInput,
    SetInternalStateReq,
)
from vidette_protocol.messages.outputs import BatchEmbeddingOutput, BatchStrOutput, BatchTokenIDOutput
from vidette_protocol.messages.requests import (
    AbortReq,
    BatchTokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
)
from vidette_protocol.messages.sessions import CloseSessionReqInput, OpenSessionReqInput
from vidette_protocol.messages.weights import (
    DestroyWeightsUpdateGroupReqInput,
    InitWeightsUpdateGroupReqInput,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromIPCReqInput,
    UpdateWeightsFromTensorReqInput,
)

CONTROL: Final[tuple[type[ControlReq], ...]] = (
    FlushCacheReqInput,
    ClearHiCacheReqInput,
    AddExternalCorpusReqInput,
    RemoveExternalCorpusReqInput,
    ListExternalCorporaReqInput,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromTensorReqInput,
    UpdateWeightsFromIPCReqInput,
    InitWeightsUpdateGroupReqInput,
    DestroyWeightsUpdateGroupReqInput,
    LoadLoRAAdapterReqInput,
    LoadLoRAAdapterFromTensorsReqInput,
    UnloadLoRAAdapterReqInput,
    OpenSessionReqInput,
    CloseSessionReqInput,
    PauseGenerationReqInput,
    ContinueGenerationReqInput,
    GetInternalStateReq,
    SetInternalStateReq,
    ProfileReq,
    ConfigureLoggingReq,
    RpcReqInput,
)
"""Control messages, front to scheduler."""

CONTROL_OUTPUTS: Final[tuple[type[ControlOutput], ...]] = tuple(dict.fromkeys(cls.output for cls in CONTROL))
"""Their answers, scheduler to front."""

# What may travel on each link, by direction.
FRONT_TO_SCHEDULER: Final[tuple[type[Message], ...]] = (
    Hello,
    TokenizedGenerateReqInput,
    BatchTokenizedGenerateReqInput,
    AbortReq,
    HeartbeatReq,
    FreezeGCReq,
    ShutdownReq,
    *CONTROL,
)
SCHEDULER_TO_FRONT: Final[tuple[type[Message], ...]] = (
    Hello,
    Ready,
    Failed,
    *CONTROL_OUTPUTS,
    KVEventBatch,
)
SCHEDULER_TO_DETOKENIZER: Final[tuple[type[Message], ...]] = (
    Hello,
    BatchTokenIDOutput,
    HeartbeatReq,
    FreezeGCReq,
    ShutdownReq,
)
DETOKENIZER_TO_SCHEDULER: Final[tuple[type[Message], ...]] = (Hello,)
DETOKENIZER_TO_FRONT: Final[tuple[type[Message], ...]] = (
    Hello,
    Ready,
    Failed,
    BatchStrOutput,
    HeartbeatReq,
    FreezeGCReq,
)
FRONT_TO_DETOKENIZER: Final[tuple[type[Message], ...]] = (Hello,)

NOT_YET: Final[tuple[type[Message], ...]] = (
    TokenizedEmbeddingReqInput,
    BatchTokenizedEmbeddingReqInput,
    BatchEmbeddingOutput,
    KvMetrics,
)
"""Messages that are specified, and that no process of this engine sends yet."""

CATALOGUE: Final[tuple[type[Message], ...]] = tuple(
    dict.fromkeys(
        (
            *FRONT_TO_SCHEDULER,
            *SCHEDULER_TO_FRONT,
            *SCHEDULER_TO_DETOKENIZER,
            *DETOKENIZER_TO_SCHEDULER,
            *DETOKENIZER_TO_FRONT,
            *FRONT_TO_DETOKENIZER,
            *NOT_YET,
        )
    )
)
"""Every message of this package, each once."""
