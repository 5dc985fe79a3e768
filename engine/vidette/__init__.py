"""Vidette: an LLM serving engine in which a request lives exactly as long as its cancel scope.

General layout:

- `api`          open_engine(), Engine; no HTTP
- `sync`         the same for programs without an event loop
- `config`, `errors`
- `front`        admits, tokenises, routes; a request's scope ends here
- `scheduler`    computes: one synchronous StepLoop, driven by a thread
- `detokenizer`  token ids to text, a piece at a time
- `transport`    frames between processes and threads; child processes
- `models`       torch modules and the loaders of files
- `kernels`      native kernels, and how they are compiled
- `service`      the HTTP service
- `cli`          the `vidette` command
- `bench`        what `vidette bench` measures, with its baselines
- `testing`      the public test kit
- `_ring`        the two topologies: who runs where
- `metrics`      what Prometheus scrapes
- `_arguments`   what callers give, checked
- `_statistics`  a picture of an engine
- `_picture`     how it is gathered
- `_activity`    what an engine is doing, request by request
- `_loop`        the event loop in a thread that `sync` calls
- `_operations`  what whoever runs an engine does with it
- `_opening`     what opening one takes: its front, and what that has to know
- `_tracing`     spans of requests, for OpenTelemetry
- `_health`      how an engine is, and what is done about one that hangs
- `_supervisor`  what becomes of an engine when a process of it dies
- `_child`       the main module of a child process
- `child`        the same, for an engine with messages of its own
- `_log_lines`   lines of a log, as all processes write them
- `_collector`   the garbage collector of a process, frozen for a while on request
- `_freeze`      until when, and how
- `_custom`      what an engine is given of a user's own messages

What travels between these parts, and the life of a request, is `vidette_protocol`.
"""

from vidette._activity import Activity as Activity
from vidette._activity import ProcessActivity as ProcessActivity
from vidette._arguments import OperationName as OperationName
from vidette._custom import Handlers as Handlers
from vidette._health import Health as Health
from vidette._statistics import Ledgers as Ledgers
from vidette._statistics import Statistics as Statistics
from vidette.api import Engine as Engine
from vidette.api import open_engine as open_engine
from vidette.config import EngineConfig as EngineConfig
from vidette.detokenizer.incremental import IncrementalText as IncrementalText
from vidette.errors import ChatTemplateError as ChatTemplateError
from vidette.errors import DuplicateRequest as DuplicateRequest
from vidette.errors import EngineBroken as EngineBroken
from vidette.errors import EngineClosed as EngineClosed
from vidette.errors import EngineDraining as EngineDraining
from vidette.errors import Error as Error
from vidette.errors import KernelError as KernelError
from vidette.errors import ModelError as ModelError
from vidette.errors import Overloaded as Overloaded
from vidette.errors import PromptTimeout as PromptTimeout
from vidette.errors import RequestAborted as RequestAborted
from vidette.errors import RequestError as RequestError
from vidette.errors import RequestReplaced as RequestReplaced
from vidette.errors import UsageError as UsageError
from vidette.front.calls import GcReport as GcReport
from vidette.front.kv_events import KVEventStream as KVEventStream
from vidette.front.living import LiveRequest as LiveRequest
from vidette.front.logprobs import LogprobsAsked as LogprobsAsked
from vidette.front.logprobs import TokenLogprob as TokenLogprob
from vidette.front.stream import Completion as Completion
from vidette.front.stream import Delta as Delta
from vidette.front.stream import Group as Group
from vidette.front.stream import Stream as Stream
from vidette_protocol.messages import FinishReason as FinishReason
from vidette_protocol.messages import GcState as GcState
from vidette_protocol.messages import GenerateReqInput as GenerateReqInput
from vidette_protocol.messages import SamplingParams as SamplingParams

__version__ = "0.1.0"
