"""The one table of tags: the first element of every message on the wire.

A tag that was given out is never given to another class, and a reserved one is kept for what it names, so
that a peer of any version can tell what it does not know. Tags from `FIRST_USER_TAG` on are a user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class Tag:
    """Tags of the messages that exist (plain integers: msgspec takes no enum here)."""

    # 1 to 15: links and processes
    HELLO: Final = 1
    READY: Final = 2
    HEARTBEAT: Final = 3
    SHUTDOWN: Final = 4
    FREEZE_GC: Final = 5
    FAILED: Final = 6
    ARENA_OFFER: Final = 7
    ARENA_CREDIT: Final = 8
    PICKLE_WRAPPER: Final = 15

    # 16 to 31: requests
    ABORT: Final = 16
    TOKENIZED_GENERATE: Final = 17
    TOKENIZED_EMBEDDING: Final = 18
    BATCH_TOKENIZED_GENERATE: Final = 19
    BATCH_TOKENIZED_EMBEDDING: Final = 20

    # 32 to 47: outputs and what is told about them
    BATCH_TOKEN_ID_OUTPUT: Final = 32
    BATCH_STR_OUTPUT: Final = 33
    BATCH_EMBEDDING_OUTPUT: Final = 34
    KV_METRICS: Final = 35
    KV_EVENT_BATCH: Final = 36

    # 48 to 63: caches
    FLUSH_CACHE: Final = 48
    FLUSH_CACHE_OUTPUT: Final = 49
    CLEAR_HICACHE: Final = 50
    CLEAR_HICACHE_OUTPUT: Final = 51
    ADD_EXTERNAL_CORPUS: Final = 52
    ADD_EXTERNAL_CORPUS_OUTPUT: Final = 53
    REMOVE_EXTERNAL_CORPUS: Final = 54
    REMOVE_EXTERNAL_CORPUS_OUTPUT: Final = 55
    LIST_EXTERNAL_CORPORA: Final = 56
    LIST_EXTERNAL_CORPORA_OUTPUT: Final = 57

    # 64 to 95: weights
    UPDATE_WEIGHT_FROM_DISK: Final = 64
    UPDATE_WEIGHT_FROM_DISK_OUTPUT: Final = 65
    UPDATE_WEIGHTS_FROM_DISTRIBUTED: Final = 66
    UPDATE_WEIGHTS_FROM_DISTRIBUTED_OUTPUT: Final = 67
    UPDATE_WEIGHTS_FROM_TENSOR: Final = 68
    UPDATE_WEIGHTS_FROM_TENSOR_OUTPUT: Final = 69
    UPDATE_WEIGHTS_FROM_IPC: Final = 70
    UPDATE_WEIGHTS_FROM_IPC_OUTPUT: Final = 71
    INIT_WEIGHTS_UPDATE_GROUP: Final = 72
    INIT_WEIGHTS_UPDATE_GROUP_OUTPUT: Final = 73
    DESTROY_WEIGHTS_UPDATE_GROUP: Final = 74
    DESTROY_WEIGHTS_UPDATE_GROUP_OUTPUT: Final = 75

    # 96 to 111: LoRA adapters
    LOAD_LORA_ADAPTER: Final = 96
    UNLOAD_LORA_ADAPTER: Final = 97
    LOAD_LORA_ADAPTER_FROM_TENSORS: Final = 98
    LORA_UPDATE_OUTPUT: Final = 99

    # 112 to 119: sessions
    OPEN_SESSION: Final = 112
    OPEN_SESSION_OUTPUT: Final = 113
    CLOSE_SESSION: Final = 114
    CLOSE_SESSION_OUTPUT: Final = 115

    # 120 to 159: operations
    PAUSE_GENERATION: Final = 120
    PAUSE_GENERATION_OUTPUT: Final = 121
    CONTINUE_GENERATION: Final = 122
    CONTINUE_GENERATION_OUTPUT: Final = 123
    GET_INTERNAL_STATE: Final = 124
    GET_INTERNAL_STATE_OUTPUT: Final = 125
    SET_INTERNAL_STATE: Final = 126
    SET_INTERNAL_STATE_OUTPUT: Final = 127
    PROFILE: Final = 128
    PROFILE_OUTPUT: Final = 129
    CONFIGURE_LOGGING: Final = 130
    CONFIGURE_LOGGING_OUTPUT: Final = 131
    RPC: Final = 132
    RPC_OUTPUT: Final = 133


RESERVED: Final[Mapping[int, str]] = MappingProxyType(
    {
        37: "LoadSnapshot",
        58: "AttachHiCacheStorageReqInput",
        59: "AttachHiCacheStorageReqOutput",
        60: "DetachHiCacheStorageReqInput",
        61: "DetachHiCacheStorageReqOutput",
        76: "InitWeightsSendGroupForRemoteInstanceReqInput",
        77: "InitWeightsSendGroupForRemoteInstanceReqOutput",
        78: "SendWeightsToRemoteInstanceReqInput",
        79: "SendWeightsToRemoteInstanceReqOutput",
        80: "UpdateWeightVersionReqInput",
        81: "UpdateWeightVersionReqOutput",
        82: "GetWeightsByNameReqInput",
        83: "GetWeightsByNameReqOutput",
        84: "ReleaseMemoryOccupationReqInput",
        85: "ReleaseMemoryOccupationReqOutput",
        86: "ResumeMemoryOccupationReqInput",
        87: "ResumeMemoryOccupationReqOutput",
        88: "CheckWeightsReqInput",
        89: "CheckWeightsReqOutput",
        90: "UpdateExpertBackupReq",
        91: "BackupDramReq",
        134: "SlowDownReqInput",
        135: "SlowDownReqOutput",
        136: "ActiveRanksOutput",
        137: "ScaleElasticEPReqInput",
        138: "ScaleElasticEPReqOutput",
        139: "ElasticScaleUpdateReq",
        140: "ExpertDistributionReq",
        141: "ExpertDistributionReqOutput",
        142: "GetLoadsReqInput",
        143: "GetLoadsReqOutput",
        144: "DumperControlReqInput",
        145: "DumperControlReqOutput",
        146: "LazyDumpTensorsReqInput",
        147: "LazyDumpTensorsReqOutput",
        148: "SetInjectDumpMetadataReqOutput",
    }
)
"""Tags kept for messages of SGLang's that have no handler here yet, by their names there."""

NEVER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "BlockReqInput": "a batch travels as one message, so nothing has to be held back around it",
        "HealthCheckOutput": "HeartbeatReq goes through every process and comes back",
        "PauseContinueBroadcastReq": "fronts are not kept alike by broadcasts; a scheduler is paused once",
        "TokenizerWorkerRegistrationReq": "a front has an id from whoever starts it, and a link of its own",
        "BeamSearchOutput": "beams are rows of a group",
    }
)
"""Messages of SGLang's that will not exist here, and why."""

FIRST_USER_TAG: Final = 256
"""The lowest tag of a user's own messages."""
