"""`vidette chat`: questions from stdin, answers on stdout, with an engine of its own or a service."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

import httpx
import pytest

from tests.cli.conftest import Commands
from vidette.cli import main
from vidette.cli._talkers import OwnEngine, Service
from vidette.cli.chat import Conversation
from vidette.errors import EngineBroken, RequestError, UsageError
from vidette.sync import open_engine

TOY = ("chat", "--model", "toy", "--seed", "3", "--temperature", "0.5", "--max-new-tokens", "8")


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def typed(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return typed


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """Return the conversations that an engine of its own is asked to go on with."""
    heard: list[list[dict[str, str]]] = []
    answer = OwnEngine.answer

    def listen(
        self: OwnEngine, messages: Sequence[Mapping[str, str]], hear: Callable[[str], None]
    ) -> str | None:
        heard.append([dict(message) for message in messages])
        return answer(self, messages, hear)

    monkeypatch.setattr(OwnEngine, "answer", listen)
    return heard


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_each_line_is_a_question_of_one_conversation(
    backend: str,
    typed: Callable[[str], None],
    heard: list[list[dict[str, str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed("one\n\ntwo \\\nlines\n/new\nthree\n/exit\nfour\n")
    assert main([*TOY, "--backend", backend, "--system", "Be brief."]) == 0
    first, second, third = heard
    system = {"role": "system", "content": "Be brief."}
    assert first == [system, {"role": "user", "content": "one"}]
    answer = second[2]
    assert second == [*first, answer, {"role": "user", "content": "two \nlines"}]
    assert third == [system, {"role": "user", "content": "three"}]
    assert answer["role"] == "assistant"
    assert capsys.readouterr().out.startswith(answer["content"] + "\n")


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(
    typed: Callable[[str], None],
    heard: list[list[dict[str, str]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed("go on for ever\nand now?\n")
    said: list[str] = []

    class Impatient(io.StringIO):
        def write(self, text: str) -> int:
            said.append(text)
            if len(said) == 5:
                signal.raise_signal(signal.SIGINT)
            return len(text)

    monkeypatch.setattr(sys, "stdout", Impatient())
    engines: list[object] = []
    begin = OwnEngine.__init__

    def note(self: OwnEngine, engine: object, sampling: Mapping[str, object]) -> None:
        engines.append(engine)
        begin(self, engine, {"ignore_eos": len(said) == 0, **sampling})  # type: ignore[arg-type]

    monkeypatch.setattr(OwnEngine, "__init__", note)
    assert main([*TOY[:-1], "200"]) == 0
    first, second = heard
    assert "stopped" in capsys.readouterr().err
    assert second[:1] == first
    assert second[1]["role"] == "assistant"
    assert second[1]["content"] == "".join(said)[: len(second[1]["content"])]
    assert 0 < len(second[1]["content"]) < 100
    assert second[2:] == [{"role": "user", "content": "and now?"}]


def test_a_stopped_request_is_over() -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with open_engine("toy") as engine:
        talker = OwnEngine(engine, {"ignore_eos": True})
        with pytest.raises(KeyboardInterrupt):
            talker.answer([{"role": "user", "content": "x"}], interrupt)
        engine.wait_quiet()  # it would go on for thousands of tokens


def test_a_question_that_does_not_fit_is_dropped(
    typed: Callable[[str], None], heard: list[list[dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("hello\n" + "x" * 20_000 + "\nstill there?\n")
    assert main([*TOY]) == 1
    out, err = capsys.readouterr()
    assert "no longer fits into the context of the model: the prompt is too long" in err
    assert "/new begins another" in err
    assert [len(messages) for messages in heard] == [1, 3, 3]
    assert heard[2][-1]["content"] == "still there?"
    assert out.count("\n") >= 2


class Scripted:
    """Says what it is told to, or raises it."""

    name = "scripted"

    def __init__(self, *script: str | Exception) -> None:
        self._script = script

    def answer(self, _: Sequence[Mapping[str, str]], hear: Callable[[str], None]) -> str | None:
        for step in self._script:
            if isinstance(step, Exception):
                raise step
            hear(step)
        return "stop"


def test_who_broke_is_asked_no_more() -> None:
    with pytest.raises(EngineBroken):
        Conversation(Scripted(EngineBroken("the scheduler ended"))).ask("hello?")


def test_half_of_an_answer_that_failed_is_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(Scripted("Half", RequestError("the answer failed")), "Be brief.")
    assert conversation.ask("hello?") == (False, "the answer failed; the question was dropped")
    assert capsys.readouterr().out == "Half\n"
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]


def test_an_answer_does_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    conversation = Conversation(Scripted("a\tb\n\x1b[2J\x9b2J\rc\x7f"))
    assert conversation.ask("hello?").answered
    assert terminal.getvalue() == "a\tb\n\ufffd[2J\ufffd2J\ufffdc\ufffd\n"
    assert conversation.messages[-1]["content"] == "a\tb\n\x1b[2J\x9b2J\rc\x7f"


def test_a_running_service(
    vidette_command: Commands,
    typed: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it answers is what an engine of its own would."""
    command = vidette_command(
        "serve", "--model", "toy", "--port", "0", "--topology", "inline", "--api-key", "k"
    )
    url = command.read_until("stderr", "\n").split()[-1]
    typed("hello\nand you?\n")
    monkeypatch.setenv("VIDETTE_API_KEY", "k")
    assert main(["chat", *TOY[3:], "--url", url]) == 0
    remote = capsys.readouterr().out
    typed("hello\nand you?\n")
    assert main([*TOY]) == 0
    assert capsys.readouterr().out == remote
    typed("hello\n" + "x" * 20_000)
    assert main(["chat", *TOY[3:], "--url", f"{url}/v1/"]) == 1
    assert "no longer fits" in capsys.readouterr().err
    monkeypatch.setenv("VIDETTE_API_KEY", "alice k\nbob other\n")  # as `serve` takes it
    typed("hello\nand you?\n")
    assert main(["chat", *TOY[3:], "--url", url]) == 0
    assert capsys.readouterr().out == remote
    monkeypatch.setenv("VIDETTE_API_KEY", "wrong")
    typed("hello\n")
    assert main(["chat", "--url", url]) == 2
    assert "set VIDETTE_API_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "ftp://x"], "it must be like http://"),
        (["--url", "http://x:port"], "--url is 'http://x:port': "),
        (["--url", "http://127.0.0.1:1", "--kv-tokens", "9"], "--kv-tokens: options of an engine"),
        (["--url", "http://127.0.0.1:1", "--topology", "processes"], "--topology: options of an engine"),
    ],
)
def test_bad_usage(
    arguments: list[str], said: str, typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("")
    assert main(["chat", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_nobody_there(typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    typed("")
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1/v1/ cannot be asked" in capsys.readouterr().err


def test_a_key_is_not_shown(
    typed: Callable[[str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIDETTE_API_KEY", "gehäim")
    typed("")
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 2
    err = capsys.readouterr().err
    assert "VIDETTE_API_KEY" in err
    assert "heim" not in err


class TestOtherServices:
    """What a service may say that is not ours."""

    @staticmethod
    def ask(status: int, body: str) -> tuple[str, str | None]:
        """Return text and reason of an answer."""

        def handle(request: httpx.Request) -> httpx.Response:
            assert json.loads(request.content)["max_tokens"] == 4
            return httpx.Response(status, text=body)

        pieces: list[str] = []
        with httpx.Client(base_url="http://x/v1/", transport=httpx.MockTransport(handle)) as client:
            reason = Service(client, "m", {"max_new_tokens": 4}).answer([], pieces.append)
        return "".join(pieces), reason

    def test_pieces_and_what_is_no_piece(self) -> None:
        body = (
            ': hello\n\ndata:{"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n'
            'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":null}],"x":1}\n\n'
            'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
            'data: {"choices":[]}\n\ndata: [DONE]\n\n'
        )
        assert self.ask(200, body) == ("Hi", "stop")

    @pytest.mark.parametrize(
        ("status", "body", "said"),
        [
            (200, "", "ended before it was complete"),
            (200, "data: {\n\n", "no event"),
            (200, 'data: {"error":"full"}\n\n', "the answer failed: full"),
            (200, 'data: {"error":{"message":"full"}}\n\n', "the answer failed: full"),
            (503, "<html>", "answered 503: <html>"),
        ],
    )
    def test_failures(self, status: int, body: str, said: str) -> None:
        with pytest.raises(RequestError, match=said):
            self.ask(status, body)

    def test_a_refusal_has_its_code(self) -> None:
        with pytest.raises(UsageError, match="answered 400: too long") as raised:
            self.ask(400, '{"error":{"message":"too long","code":"context_length_exceeded"}}')
        assert raised.value.code == "context_length_exceeded"
