"""`vidette bench wire`: the codec, and how messages and tensors get to another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from vidette.bench.codecs import bench_ext, bench_request, bench_step
from vidette.bench.handover import MEBIBYTE, bench_handover
from vidette.bench.interleave import Effort
from vidette.bench.peer import open_peer
from vidette.bench.results import Results
from vidette.bench.trips import bench_flood, bench_sizes, bench_small

CHECKS: Final = (
    "rtt_100kb_us",
    "rtt_1mb_us",
    "rtt_10mb_us",
    "nested_ext_vs_prefixed_ext",
    "request_codec_vs_pickle4",
    "step32_codec_vs_pickle4",
    "step256_codec_vs_pickle4",
    "handover_8mib_copy_vs_pickle_zmq",
    "handover_8mib_inplace_vs_pickle_zmq",
    "handover_8mib_copy_vs_zmq_zerocopy",
    "small_rtt_vs_zmq_asyncio",
    "coalesced_vs_single",
)
"""What is found in any case, and first; other programs look for these names."""


def bench_codecs(effort: Effort, *, say: Callable[[str], None]) -> Results:
    """Measure what needs no other process.

    Args:
        effort: how much.
        say: told what is measured next.
    """
    say("codecs: a request, steps of 32 and of 256 rows, an array of 8 MiB")
    return bench_request(effort) + bench_step(effort, 32) + bench_step(effort, 256) + bench_ext(effort)


async def bench_links(effort: Effort, *, say: Callable[[str], None]) -> Results:
    """Measure what takes a process at the other side; on asyncio, since a baseline runs on nothing else.

    Args:
        effort: how much.
        say: told what is measured next.

    Raises:
        PeerFailed: that process did not do as it was told; in a group.
    """
    # Those of a compute library spin after their work, just where the other side would run.
    torch.set_num_threads(1)
    say("starting a process for the other side")
    async with open_peer() as peer:
        say("small messages there and back, and many of them one way")
        results = await bench_small(peer, effort)
        results += await bench_flood(peer, effort)
        say("large messages there and back")
        results += await bench_sizes(peer, effort)
        for size in (8, 1):
            say(f"handing over tensors of {size} MiB")
            results += await bench_handover(peer, effort, size * MEBIBYTE)
    return results


def in_order(results: Results) -> Results:
    """Put first what is found in any case."""
    found = {finding.name: finding for finding in results.findings}
    first = [found.pop(name) for name in CHECKS]
    return Results([*first, *found.values()], results.notes)
