"""What is said of a request besides its text: how it ended, how it was served, how speculation went."""

from __future__ import annotations

from typing import Any

import pytest

from vidette import FinishReason, Stream
from vidette.service.meta_info import Listed, LogprobsInJSON, meta_info
from vidette_protocol.ids import Vid
from vidette_protocol.messages import Served, SpeculativeMetrics, StrRow


async def ended(
    reason: FinishReason, *, served: Served | None = None, spec: SpeculativeMetrics | None = None
) -> dict[str, Any]:
    stream = Stream("mine", Vid(9), 20)
    stream.deliver(StrRow(9, 0, (65, 66), reason, "AB", served=served, spec=spec))
    await anext(stream)
    return meta_info(stream, reason, LogprobsInJSON(), 1.5)


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        (FinishReason("stop", matched=0), {"type": "stop", "matched": 0}),
        (FinishReason("stop", matched="END"), {"type": "stop", "matched": "END"}),
        (FinishReason("length", length=2), {"type": "length", "length": 2}),
        (
            FinishReason("abort", message="why", status_code=503, err_type="gone"),
            {"type": "abort", "message": "why", "status_code": 503, "err_type": "gone"},
        ),
    ],
)
async def test_each_end_has_its_own_form(reason: FinishReason, fields: dict[str, Any]) -> None:
    assert (await ended(reason))["finish_reason"] == fields


async def test_how_it_was_served_and_speculated_on() -> None:
    meta = await ended(
        FinishReason("stop", matched=0),
        served=Served(16, 6, 2, 0.25),
        spec=SpeculativeMetrics(4, 6, (1, 0, 3), 8),
    )
    del meta["finish_reason"]
    assert meta == {
        "id": "mine",
        "prompt_tokens": 20,
        "completion_tokens": 2,
        "cached_tokens": 16,
        "cached_tokens_details": {"device": 10, "host": 6},
        "num_retractions": 2,
        "resumed": 0,
        "e2e_latency": 1.5,
        "queue_time": 0.25,
        "spec_verify_ct": 4,
        "spec_num_correct_drafts": 6,
        "spec_accepted_drafts": 6,
        "spec_correct_drafts_histogram": (1, 0, 3),
        "spec_accept_histogram": (1, 0, 3),
        "spec_accept_length": 2.5,
        "spec_accept_rate": 0.75,
        "spec_num_drafts": 8,
    }


async def test_drafts_of_which_none_was_verified_have_no_length() -> None:
    meta = await ended(FinishReason("stop", matched=0), spec=SpeculativeMetrics())
    assert meta["spec_verify_ct"] == 0
    assert not {"spec_accept_length", "spec_accept_rate"} & meta.keys()


def test_a_list_is_written_as_it_grows() -> None:
    listed = Listed()
    assert (bytes(listed.raw()), listed.count) == (b"[]", 0)
    for value in (1, None, ["a"]):
        listed.add(value)
    assert (bytes(listed.raw()), listed.count) == (b'[1,null,["a"]]', 3)
