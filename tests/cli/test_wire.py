"""`vidette wire` reads what an engine recorded, through the real engine, and says where it went wrong."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import anyio
import pytest

from vidette import open_engine
from vidette.cli import main
from vidette.transport.capture import CaptureHead, Recorder
from vidette_protocol.codec import Codec
from vidette_protocol.messages import AbortReq, SchedulerLedger, TokenRow
from vidette_protocol.messages.catalogue import CATALOGUE
from vidette_protocol.messages.outputs import BatchTokenIDOutput

CODEC = Codec(sends=CATALOGUE, receives=CATALOGUE)
ENDLESS = {"max_new_tokens": 4000, "ignore_eos": True}


def capture(folder: Path, topology: str) -> None:
    async def use() -> None:
        async with open_engine("toy", topology=topology, capture=str(folder)) as engine:
            async with engine.generate("hello", sampling_params={"max_new_tokens": 3}, rid="first") as stream:
                await stream.read()
            async with engine.generate("more", sampling_params=ENDLESS) as stream:
                async for _ in stream:
                    break
            await engine.wait_quiet()

    anyio.run(use)


@pytest.mark.parametrize("topology", ["inline", "processes"])
def test_what_an_engine_recorded_is_read_and_right(
    topology: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(tmp_path, topology)
    assert main(["wire", "replay", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    passed = [json.loads(line) for line in printed.out.splitlines()]
    assert "2 requested, 1 aborted, 2 ended; 0 without an end, 0 faults" in printed.err
    ways = {(entry["way"], entry["class"]) for entry in passed}
    assert ways >= {
        ("front > scheduler", "TokenizedGenerateReqInput"),
        ("front > scheduler", "AbortReq"),
        ("scheduler > front", "Ready"),
        ("scheduler > detokenizer", "BatchTokenIDOutput"),
        ("detokenizer > front", "BatchStrOutput"),
    }
    assert [entry["ns"] for entry in passed] == sorted(entry["ns"] for entry in passed)
    asked = next(entry for entry in passed if entry["class"] == "TokenizedGenerateReqInput")
    assert asked["fields"]["rid"] == "first"
    assert asked["fields"]["input_ids"] == list(b"hello")
    assert main(["wire", "dump", str(tmp_path / "front-to-scheduler.vdwire")]) == 0
    assert 'rid="first"' in capsys.readouterr().out


def test_a_frame_is_decoded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    frame = CODEC.encode(AbortReq(vid=(1 << 60) + 1, floor=3))
    assert main(["wire", "decode", frame.hex()]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["AbortReq", '  vid: "1152921504606846977"']
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(frame)))
    assert main(["wire", "decode", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "AbortReq"


def test_what_is_no_frame_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wire", "decode", "93ff"]) == 1
    assert "no message of this link" in capsys.readouterr().err
    assert main(["wire", "decode", "xyz"]) == 2
    assert "'xyz' is not hexadecimal" in capsys.readouterr().err


def test_what_went_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(tmp_path, CaptureHead(sender="scheduler", receiver="detokenizer"))
    recorder.record(CODEC.encode(BatchTokenIDOutput.from_rows([TokenRow(5, 0, (1,))], SchedulerLedger())))
    recorder.record(b"\xff")
    recorder.close()
    assert main(["wire", "replay", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "vid 5 has a row at offset 0, and was never requested" in told
    assert "a frame of 1 bytes is no message of this link" in told
    assert main(["wire", "dump", str(tmp_path)]) == 1


def test_a_torn_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(tmp_path, CaptureHead(sender="front", receiver="scheduler"))
    recorder.record(CODEC.encode(AbortReq(vid=5)))
    recorder.close()
    path = tmp_path / "front-to-scheduler.vdwire"
    path.write_bytes(path.read_bytes() + b"\x09\x00")
    assert main(["wire", "dump", str(path)]) == 0
    assert "the last 2 bytes are no whole record" in capsys.readouterr().err


def test_a_folder_without_captures_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wire", "dump", str(tmp_path)]) == 2
    assert "`--capture` writes some" in capsys.readouterr().err


def test_a_folder_that_is_missing_or_in_use_is_bad_usage(tmp_path: Path) -> None:
    from vidette.errors import UsageError

    async def use(folder: Path) -> None:
        async with open_engine("toy", capture=str(folder)):
            pass

    with pytest.raises(UsageError, match="must be an existing folder"):
        anyio.run(use, tmp_path / "missing")
    (tmp_path / "scheduler-to-front.vdwire").touch()
    with pytest.raises(UsageError, match="File exists"):
        anyio.run(use, tmp_path)
