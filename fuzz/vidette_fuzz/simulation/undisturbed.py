"""`Undisturbed`: what a request is answered if nobody disturbs it, by the same code, alone and at once."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import torch

from vidette.detokenizer.detokenizer import Detokenizer
from vidette.models.toy import ToyModel
from vidette.models.toy_tokenizer import toy_token_table
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette_protocol.messages import BatchTokenIDOutput, FinishReason, TokenizedGenerateReqInput


class Answer(NamedTuple):
    """All that a request is answered; without a reason, so far."""

    token_ids: tuple[int, ...]
    text: str
    reason: FinishReason | None


class Undisturbed:
    """Answers requests one at a time, and remembers the answers."""

    def __init__(self) -> None:
        self._loop = StepLoop(
            ToyModel(),
            LoopOptions(num_blocks=64, step_tokens=1024, max_running=1),
            table=toy_token_table(),
        )
        self._detokenizer = Detokenizer(toy_token_table())
        self._asked = 0
        self._answers: dict[tuple[bytes, bytes], Answer] = {}

    def answer(self, request: TokenizedGenerateReqInput) -> Answer:
        """Return what a request is to be answered, whatever happens around it."""
        key = bytes(request.input_ids), msgspec.msgpack.encode(request.sampling_params)
        if key not in self._answers:
            self._answers[key] = self._compute(request)
        return self._answers[key]

    def _compute(self, request: TokenizedGenerateReqInput) -> Answer:
        self._asked += 1
        alone = msgspec.structs.replace(request, vid=self._asked, floor=self._asked, deadline_s=None)
        token_ids: list[int] = []
        texts: list[str] = []
        commands = [alone]
        while True:
            with torch.inference_mode():
                effects = self._loop.step(commands, 0.0)
            commands = []
            for message in effects.messages:
                assert isinstance(message, BatchTokenIDOutput)
                for row in self._detokenizer.step(message).rows():
                    token_ids += row.token_ids
                    texts.append(row.text)
                    if row.reason is not None:
                        return Answer(tuple(token_ids), "".join(texts), row.reason)
