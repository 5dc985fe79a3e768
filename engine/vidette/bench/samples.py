"""What is timed: one request and one step, in our own form."""

from __future__ import annotations

import string
from random import Random
from typing import Final

from vidette_protocol.ids import make_vid
from vidette_protocol.messages import (
    FinishReason,
    SamplingParams,
    SchedulerLedger,
    TokenizedGenerateReqInput,
    TokenRow,
    pack_i32,
)

PROMPT_TOKENS: Final = 1024
PROMPT_CHARS: Final = 4096
VOCABULARY: Final = 128_000
LEDGER: Final = SchedulerLedger(live=300, waiting=44, tombstones=3, blocks_used=9000, steps=123_456)


def make_request(rng: Random) -> TokenizedGenerateReqInput:
    """Return a request of 1,024 token ids, with the text they came from and sampling parameters."""
    return TokenizedGenerateReqInput(
        vid=make_vid(3, rng.randrange(1 << 40)),
        floor=make_vid(3, 7),
        rid=f"{rng.getrandbits(128):032x}",
        input_ids=pack_i32(rng.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)),
        input_text="".join(rng.choices(string.ascii_letters + " ", k=PROMPT_CHARS)),
        sampling_params=SamplingParams(
            max_new_tokens=512,
            temperature=0.7,
            top_p=0.95,
            top_k=50,
            ignore_eos=True,
            sampling_seed=rng.getrandbits(63),
        ),
        stream=True,
    )


def make_rows(rng: Random, count: int) -> list[TokenRow]:
    """Return what a decode step has made: one token for each of its requests, and one request in 32 ends.

    Args:
        rng: what vids, positions and tokens are drawn from.
        count: how many requests, at least one.
    """
    ending = set(rng.sample(range(count), k=max(1, count // 32)))
    first = rng.randrange(1 << 40)
    return [
        TokenRow(
            vid=make_vid(3, first + row),
            offset=rng.randrange(4096),
            token_ids=(rng.randrange(VOCABULARY),),
            reason=FinishReason("stop", matched=2) if row in ending else None,
        )
        for row in range(count)
    ]
