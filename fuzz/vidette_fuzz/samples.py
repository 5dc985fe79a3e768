"""One hand-written message of each kind, and of each shape where a kind has several.

They are the golden messages of the tests and what the codec fuzzer starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from vidette_protocol.codec import (
    DETOKENIZER_TO_FRONT,
    DETOKENIZER_TO_SCHEDULER,
    FRONT_TO_DETOKENIZER,
    FRONT_TO_SCHEDULER,
    SCHEDULER_TO_DETOKENIZER,
    SCHEDULER_TO_FRONT,
)
from vidette_protocol.ids import MAX_VID, make_vid
from vidette_protocol.messages import (
    PROTOCOL_VERSION,
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    Failed,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    Hello,
    Message,
    Ready,
    SamplingParams,
    SchedulerLedger,
    ShutdownReq,
    StrRow,
    TokenizedGenerateReqInput,
    TokenRow,
    pack_i32,
)

LINKS: Final[Mapping[str, tuple[type[Message], ...]]] = MappingProxyType(
    {
        "front to scheduler": FRONT_TO_SCHEDULER,
        "scheduler to front": SCHEDULER_TO_FRONT,
        "scheduler to detokenizer": SCHEDULER_TO_DETOKENIZER,
        "detokenizer to scheduler": DETOKENIZER_TO_SCHEDULER,
        "detokenizer to front": DETOKENIZER_TO_FRONT,
        "front to detokenizer": FRONT_TO_DETOKENIZER,
    }
)
"""What travels on each link, by direction."""

_LEDGER = SchedulerLedger(live=3, waiting=1, tombstones=0, blocks_used=17, steps=70_000)
_FRONT_1 = make_vid(1, 0)

SAMPLES: Final[Mapping[str, Message]] = MappingProxyType(
    {
        "hello": Hello(
            version=PROTOCOL_VERSION,
            fingerprint="0123456789abcdef",
            role="scheduler",
            pid=4711,
            incarnation=2,
        ),
        "ready": Ready(role="scheduler", max_total_tokens=8192, num_blocks=512, step_tokens=256),
        "failed": Failed(role="detokenizer", message="the tokenizer file is torn"),
        "heartbeat-asked": HeartbeatReq(id=7, floor=_FRONT_1),
        "heartbeat-answered": HeartbeatReq(id=7, floor=_FRONT_1, scheduler=_LEDGER, detokenizer_open=2),
        "freeze-gc": FreezeGCReq(id=9),
        "shutdown": ShutdownReq(),
        "abort": AbortReq(vid=make_vid(1, 5), floor=_FRONT_1),
        "abort-largest": AbortReq(vid=MAX_VID, floor=MAX_VID),
        "request": TokenizedGenerateReqInput(
            vid=make_vid(1, 5),
            floor=_FRONT_1,
            rid="chat-1",
            input_ids=pack_i32([1, 15043, 3186]),
            sampling_params=SamplingParams(
                max_new_tokens=16,
                temperature=0.7,
                top_p=0.9,
                top_k=40,
                ignore_eos=True,
                sampling_seed=(1 << 63) - 1,
            ),
        ),
        "request-of-defaults": TokenizedGenerateReqInput(
            vid=0,
            floor=0,
            rid="",
            input_ids=pack_i32([0]),
            sampling_params=SamplingParams(sampling_seed=0),
        ),
        "tokens-one-each": BatchTokenIDOutput.from_rows(
            [TokenRow(5, 0, (15043,)), TokenRow(6, 3, (2,), FinishReason("stop", matched=2))], _LEDGER
        ),
        "tokens-mixed": BatchTokenIDOutput.from_rows(
            [
                TokenRow(make_vid(1, 5), 0, (1, 2, 3)),
                TokenRow(
                    make_vid(1, 6), 0, (), FinishReason("abort", message="the caller ended the request")
                ),
                TokenRow(make_vid(1, 7), 2, (-1,), FinishReason("length", length=3)),
            ],
            _LEDGER,
        ),
        "tokens-none": BatchTokenIDOutput.from_rows([], SchedulerLedger()),
        "text-one-each": BatchStrOutput.from_rows(
            [StrRow(5, 0, (15043,), None, "Hello"), StrRow(6, 1, (29889,), None, " wörld \N{GRINNING FACE}")],
            _LEDGER,
            2,
        ),
        "text-mixed": BatchStrOutput.from_rows(
            [
                StrRow(5, 1, (1, 2), None, ""),
                StrRow(6, 2, (), FinishReason("error", message="the model's logits are not finite"), "tail"),
            ],
            _LEDGER,
            1,
        ),
        "text-none": BatchStrOutput.from_rows([], SchedulerLedger(), 0),
    }
)
"""Messages by name."""
