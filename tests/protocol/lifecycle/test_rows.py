from __future__ import annotations

import pytest

from vidette_protocol.lifecycle import End, end_of
from vidette_protocol.messages import FinishReason


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (None, None),
        (FinishReason("abort", message="the caller ended the request"), End.ABORT),
        (FinishReason("stop", matched=2), End.FINISH),
        (FinishReason("length", length=16), End.FINISH),
        (FinishReason("error", message="the model's logits are not finite"), End.FINISH),
    ],
)
def test_an_abort_is_the_answer_to_one_and_every_other_reason_is_an_end_of_its_own(
    reason: FinishReason | None, end: End | None
) -> None:
    assert end_of(reason) is end
