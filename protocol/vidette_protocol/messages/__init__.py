"""Every message, one module per theme.

- `base`      the common base and the table of tags
- `columns`   packed integer columns
- `sampling`  SamplingParams
- `requests`  GenerateReqInput, TokenizedGenerateReqInput, AbortReq
- `outputs`   BatchTokenIDOutput, BatchStrOutput, FinishReason
- `multimodal`  MultimodalDataItem, MultimodalProcessorOutput, PositionalEmbeds
- `control`   Hello, Ready, Failed, HeartbeatReq, FreezeGCReq, ShutdownReq
"""

from vidette_protocol.messages.base import PROTOCOL_VERSION as PROTOCOL_VERSION
from vidette_protocol.messages.base import Message as Message
from vidette_protocol.messages.base import Tag as Tag
from vidette_protocol.messages.columns import pack_i32 as pack_i32
from vidette_protocol.messages.columns import pack_i64 as pack_i64
from vidette_protocol.messages.columns import view_i32 as view_i32
from vidette_protocol.messages.columns import view_i64 as view_i64
from vidette_protocol.messages.control import Failed as Failed
from vidette_protocol.messages.control import FreezeGCReq as FreezeGCReq
from vidette_protocol.messages.control import HeartbeatReq as HeartbeatReq
from vidette_protocol.messages.control import Hello as Hello
from vidette_protocol.messages.control import Ready as Ready
from vidette_protocol.messages.control import SchedulerLedger as SchedulerLedger
from vidette_protocol.messages.control import ShutdownReq as ShutdownReq
from vidette_protocol.messages.outputs import BatchStrOutput as BatchStrOutput
from vidette_protocol.messages.outputs import BatchTokenIDOutput as BatchTokenIDOutput
from vidette_protocol.messages.outputs import FinishReason as FinishReason
from vidette_protocol.messages.outputs import StrRow as StrRow
from vidette_protocol.messages.outputs import TokenRow as TokenRow
from vidette_protocol.messages.requests import AbortReq as AbortReq
from vidette_protocol.messages.requests import GenerateReqInput as GenerateReqInput
from vidette_protocol.messages.requests import TokenizedGenerateReqInput as TokenizedGenerateReqInput
from vidette_protocol.messages.sampling import SamplingParams as SamplingParams
from vidette_protocol.messages.sampling import check_sampling as check_sampling
