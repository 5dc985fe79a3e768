"""Every message, one module per theme.

- `base`      the common bases
- `tags`      the table of tags
- `columns`   the kinds of columns, and packed numbers
- `sampling`  SamplingParams
- `inputs`    GenerateReqInput, EmbeddingReqInput, and the items they are made into
- `requests`  TokenizedGenerateReqInput, TokenizedEmbeddingReqInput, their batches, AbortReq
- `sessions`  SessionParams, opening and closing sessions
- `rows`      TokenRow, StrRow, FinishReason, Served
- `outputs`   BatchTokenIDOutput, BatchStrOutput, BatchEmbeddingOutput
- `logprobs`  what a row says of log probabilities and of speculation
- `batches`   batch messages taken apart and put together
- `multimodal`  MultimodalDataItem, MultimodalProcessorOutput, PositionalEmbeds
- `control`   Hello, Ready, Failed, HeartbeatReq, FreezeGCReq, ShutdownReq
- `cache`     control of the prefix cache, its second tier, and corpora
- `weights`   control of the weights
- `lora`      LoRARef, control of adapters
- `operations`  pausing, state, profiling, logging, RPC
- `kv`        KvMetrics, KVEventBatch
- `pickled`   PickleWrapper, for a deployment that is moved over
- `bulk`      what links say to each other about shared memory
- `catalogue`  every message, by where it travels
"""

from vidette_protocol.messages.base import PROTOCOL_VERSION as PROTOCOL_VERSION
from vidette_protocol.messages.base import BaseBatchReq as BaseBatchReq
from vidette_protocol.messages.base import BaseReq as BaseReq
from vidette_protocol.messages.base import ControlOutput as ControlOutput
from vidette_protocol.messages.base import ControlReq as ControlReq
from vidette_protocol.messages.base import Message as Message
from vidette_protocol.messages.batches import BatchLayout as BatchLayout
from vidette_protocol.messages.cache import AddExternalCorpusReqInput as AddExternalCorpusReqInput
from vidette_protocol.messages.cache import AddExternalCorpusReqOutput as AddExternalCorpusReqOutput
from vidette_protocol.messages.cache import ClearHiCacheReqInput as ClearHiCacheReqInput
from vidette_protocol.messages.cache import ClearHiCacheReqOutput as ClearHiCacheReqOutput
from vidette_protocol.messages.cache import FlushCacheReqInput as FlushCacheReqInput
from vidette_protocol.messages.cache import FlushCacheReqOutput as FlushCacheReqOutput
from vidette_protocol.messages.cache import ListExternalCorporaReqInput as ListExternalCorporaReqInput
from vidette_protocol.messages.cache import ListExternalCorporaReqOutput as ListExternalCorporaReqOutput
from vidette_protocol.messages.cache import RemoveExternalCorpusReqInput as RemoveExternalCorpusReqInput
from vidette_protocol.messages.cache import RemoveExternalCorpusReqOutput as RemoveExternalCorpusReqOutput
from vidette_protocol.messages.columns import pack_f32 as pack_f32
from vidette_protocol.messages.columns import pack_i32 as pack_i32
from vidette_protocol.messages.columns import pack_i64 as pack_i64
from vidette_protocol.messages.columns import view_f32 as view_f32
from vidette_protocol.messages.columns import view_i32 as view_i32
from vidette_protocol.messages.columns import view_i64 as view_i64
from vidette_protocol.messages.control import Failed as Failed
from vidette_protocol.messages.control import FreezeGCReq as FreezeGCReq
from vidette_protocol.messages.control import GcState as GcState
from vidette_protocol.messages.control import HeartbeatReq as HeartbeatReq
from vidette_protocol.messages.control import Hello as Hello
from vidette_protocol.messages.control import Ready as Ready
from vidette_protocol.messages.control import SchedulerLedger as SchedulerLedger
from vidette_protocol.messages.control import SchedulerTotals as SchedulerTotals
from vidette_protocol.messages.control import ShutdownReq as ShutdownReq
from vidette_protocol.messages.inputs import EmbeddingItem as EmbeddingItem
from vidette_protocol.messages.inputs import EmbeddingReqInput as EmbeddingReqInput
from vidette_protocol.messages.inputs import GenerateItem as GenerateItem
from vidette_protocol.messages.inputs import GenerateReqInput as GenerateReqInput
from vidette_protocol.messages.kv import AllBlocksCleared as AllBlocksCleared
from vidette_protocol.messages.kv import BlockRemoved as BlockRemoved
from vidette_protocol.messages.kv import BlockStored as BlockStored
from vidette_protocol.messages.kv import KVEventBatch as KVEventBatch
from vidette_protocol.messages.kv import KvMetrics as KvMetrics
from vidette_protocol.messages.logprobs import (
    SpeculativeDecodingMetricsMixin as SpeculativeDecodingMetricsMixin,
)
from vidette_protocol.messages.logprobs import SpeculativeMetrics as SpeculativeMetrics
from vidette_protocol.messages.logprobs import TokenLogprobs as TokenLogprobs
from vidette_protocol.messages.lora import (
    LoadLoRAAdapterFromTensorsReqInput as LoadLoRAAdapterFromTensorsReqInput,
)
from vidette_protocol.messages.lora import LoadLoRAAdapterReqInput as LoadLoRAAdapterReqInput
from vidette_protocol.messages.lora import LoRARef as LoRARef
from vidette_protocol.messages.lora import LoRAUpdateOutput as LoRAUpdateOutput
from vidette_protocol.messages.lora import UnloadLoRAAdapterReqInput as UnloadLoRAAdapterReqInput
from vidette_protocol.messages.operations import ConfigureLoggingReq as ConfigureLoggingReq
from vidette_protocol.messages.operations import ConfigureLoggingReqOutput as ConfigureLoggingReqOutput
from vidette_protocol.messages.operations import ContinueGenerationReqInput as ContinueGenerationReqInput
from vidette_protocol.messages.operations import ContinueGenerationReqOutput as ContinueGenerationReqOutput
from vidette_protocol.messages.operations import GetInternalStateReq as GetInternalStateReq
from vidette_protocol.messages.operations import GetInternalStateReqOutput as GetInternalStateReqOutput
from vidette_protocol.messages.operations import PauseGenerationReqInput as PauseGenerationReqInput
from vidette_protocol.messages.operations import PauseGenerationReqOutput as PauseGenerationReqOutput
from vidette_protocol.messages.operations import ProfileReq as ProfileReq
from vidette_protocol.messages.operations import ProfileReqOutput as ProfileReqOutput
from vidette_protocol.messages.operations import RpcReqInput as RpcReqInput
from vidette_protocol.messages.operations import RpcReqOutput as RpcReqOutput
from vidette_protocol.messages.operations import SaveRemoteModel as SaveRemoteModel
from vidette_protocol.messages.operations import SaveShardedModel as SaveShardedModel
from vidette_protocol.messages.operations import SetInternalStateReq as SetInternalStateReq
from vidette_protocol.messages.operations import SetInternalStateReqOutput as SetInternalStateReqOutput
from vidette_protocol.messages.outputs import BatchEmbeddingOutput as BatchEmbeddingOutput
from vidette_protocol.messages.outputs import BatchStrOutput as BatchStrOutput
from vidette_protocol.messages.outputs import BatchTokenIDOutput as BatchTokenIDOutput
from vidette_protocol.messages.pickled import PickleWrapper as PickleWrapper
from vidette_protocol.messages.requests import AbortReq as AbortReq
from vidette_protocol.messages.requests import (
    BatchTokenizedEmbeddingReqInput as BatchTokenizedEmbeddingReqInput,
)
from vidette_protocol.messages.requests import (
    BatchTokenizedGenerateReqInput as BatchTokenizedGenerateReqInput,
)
from vidette_protocol.messages.requests import TokenizedEmbeddingReqInput as TokenizedEmbeddingReqInput
from vidette_protocol.messages.requests import TokenizedGenerateReqInput as TokenizedGenerateReqInput
from vidette_protocol.messages.rows import FinishReason as FinishReason
from vidette_protocol.messages.rows import Served as Served
from vidette_protocol.messages.rows import StrRow as StrRow
from vidette_protocol.messages.rows import TokenRow as TokenRow
from vidette_protocol.messages.sampling import SamplingParams as SamplingParams
from vidette_protocol.messages.sampling import TextMode as TextMode
from vidette_protocol.messages.sampling import check_sampling as check_sampling
from vidette_protocol.messages.sessions import CloseSessionReqInput as CloseSessionReqInput
from vidette_protocol.messages.sessions import CloseSessionReqOutput as CloseSessionReqOutput
from vidette_protocol.messages.sessions import OpenSessionReqInput as OpenSessionReqInput
from vidette_protocol.messages.sessions import OpenSessionReqOutput as OpenSessionReqOutput
from vidette_protocol.messages.sessions import SessionParams as SessionParams
from vidette_protocol.messages.tags import Tag as Tag
from vidette_protocol.messages.weights import (
    DestroyWeightsUpdateGroupReqInput as DestroyWeightsUpdateGroupReqInput,
)
from vidette_protocol.messages.weights import (
    DestroyWeightsUpdateGroupReqOutput as DestroyWeightsUpdateGroupReqOutput,
)
from vidette_protocol.messages.weights import InitWeightsUpdateGroupReqInput as InitWeightsUpdateGroupReqInput
from vidette_protocol.messages.weights import (
    InitWeightsUpdateGroupReqOutput as InitWeightsUpdateGroupReqOutput,
)
from vidette_protocol.messages.weights import UpdateWeightFromDiskReqInput as UpdateWeightFromDiskReqInput
from vidette_protocol.messages.weights import UpdateWeightFromDiskReqOutput as UpdateWeightFromDiskReqOutput
from vidette_protocol.messages.weights import (
    UpdateWeightsFromDistributedReqInput as UpdateWeightsFromDistributedReqInput,
)
from vidette_protocol.messages.weights import (
    UpdateWeightsFromDistributedReqOutput as UpdateWeightsFromDistributedReqOutput,
)
from vidette_protocol.messages.weights import UpdateWeightsFromIPCReqInput as UpdateWeightsFromIPCReqInput
from vidette_protocol.messages.weights import UpdateWeightsFromIPCReqOutput as UpdateWeightsFromIPCReqOutput
from vidette_protocol.messages.weights import (
    UpdateWeightsFromTensorReqInput as UpdateWeightsFromTensorReqInput,
)
from vidette_protocol.messages.weights import (
    UpdateWeightsFromTensorReqOutput as UpdateWeightsFromTensorReqOutput,
)
