"""The process at the other side: what it takes is what was sent, and it never outlives this one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest
import torch

from vidette.bench import handover
from vidette.bench.handover import MEBIBYTE, Handover, bench_handover
from vidette.bench.interleave import Effort
from vidette.bench.messages import Task
from vidette.bench.peer import BYTES, Peer, PeerFailed, open_peer

SECONDS = 60.0


async def test_every_way_hands_over_the_same(effort: Effort) -> None:
    with anyio.fail_after(SECONDS):
        async with open_peer() as peer:
            results = await bench_handover(peer, effort, MEBIBYTE)
            tensor = torch.rand(100)
            ways = Handover(peer, tensor).ways
            async with peer.reading():
                for transfer in ways.values():
                    assert await transfer(verify=True) > 0
    assert len(ways) == 6
    names = [finding.name for finding in results.findings]
    assert len(names) == len(set(names)) == 2 * 4
    assert not any("no room in the arena" in note for note in results.notes)


async def test_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "checksum", lambda _: 7)
    with anyio.fail_after(SECONDS):
        async with open_peer() as peer, peer.reading():
            for transfer in Handover(peer, torch.rand(100)).ways.values():
                with pytest.raises(PeerFailed, match="not what was sent"):
                    await transfer(verify=True)


async def test_its_end_is_noticed_while_somebody_waits_for_it() -> None:
    async def wait(peer: Peer) -> None:
        await peer.tell(Task(kind="count", way=BYTES, count=1))
        os.kill(child_of(os.getpid()), signal.SIGKILL)
        await peer.done()

    with pytest.RaisesGroup(pytest.RaisesExc(PeerFailed, match="was killed by SIGKILL")):
        with anyio.fail_after(SECONDS):
            async with open_peer() as peer:
                await wait(peer)


def child_of(parent: int) -> int:
    (pid,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(pid)
