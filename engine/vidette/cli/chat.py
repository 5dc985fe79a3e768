"""`vidette chat`: a conversation in the terminal, with an engine of its own or with a running service.

Answers go to stdout as they come, all else to stderr. Without a terminal each line of stdin is a question.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from vidette import sync
from vidette.cli._client import KEY, key_in
from vidette.cli._options import add_backend_option, add_engine_options, add_model_option, engine_options
from vidette.cli._parser import explain
from vidette.cli._run import say
from vidette.cli._talkers import OwnEngine, Talker, open_service
from vidette.errors import EngineBroken, EngineClosed, Error, UsageError

TOPOLOGY = "inline"
HELP = (
    "Ctrl-C stops an answer, /new begins another conversation, /exit or Ctrl-D leaves; "
    "a line that ends in \\ goes on in the next"
)
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)
}
"""What a model says does not steer the terminal."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette chat`."""
    add_model_option(parser)
    parser.add_argument(
        "--url",
        metavar="URL",
        help="talk to the service there, by OpenAI's chat completions; --model is then one of its models, "
        f"its first if not given, and {KEY} in the environment its key, or the first of them (default: open "
        "an engine)",
    )
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first (default: nothing)")
    add_backend_option(parser)
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="TOKENS",
        help="most of an answer (default: as many as the context has room for)",
    )
    group.add_argument(
        "--temperature", type=float, metavar="T", help="how random answers are; 0 is greedy (default: 1)"
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="how probable those tokens are together that are sampled from (default: 1, all)",
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="the same gives the same answers (default: a random one)"
    )
    add_engine_options(parser, topology=TOPOLOGY)
    explain(
        parser,
        "vidette chat --system 'Answer in one sentence.'",
        "vidette chat --url http://127.0.0.1:8000",
        "echo 'What is a vidette?' | vidette chat --model toy",
        note=f"{HELP}. Without a terminal each line of stdin is a question.",
    )


def chat(options: argparse.Namespace) -> int:
    """Talk until the end of stdin; return 0, or without a terminal 1 if a question was not answered."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    terminal = sys.stdin.isatty()
    if terminal:
        import readline  # noqa: F401, PLC0415  from now on input() edits its line
    with _open_talker(options, terminal=terminal) as talker:
        conversation = Conversation(talker, options.system)
        if terminal:
            say(f"{talker.name} listens. {HELP}.")
        failed = _converse(conversation, terminal=terminal)
    return 1 if failed and not terminal else 0


class Asked(NamedTuple):
    """What became of a question.

    Args:
        answered: whether it was, if only in part.
        told: what to tell about it; empty if nothing.
    """

    answered: bool
    told: str


class Conversation:
    """What was said so far, and who answers.

    Args:
        talker: answers.
        system: what it is told before; None: nothing.

    Attributes:
        messages: in their order; a question that was not answered is not among them.
    """

    def __init__(self, talker: Talker, system: str | None = None) -> None:
        self.messages: list[dict[str, str]] = []
        self._talker = talker
        self._system = system
        self.begin()

    def begin(self) -> None:
        """Forget what was said, but not what was told before."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def ask(self, question: str) -> Asked:
        """Print the answer as it comes, and keep both.

        An answer that Ctrl-C stops is kept as far as it came.

        Raises:
            EngineBroken, EngineClosed: nobody answers any more.
        """
        asked = [*self.messages, {"role": "user", "content": question}]
        pieces: list[str] = []
        shown = _CONTROLS if sys.stdout.isatty() else {}

        def hear(text: str) -> None:
            pieces.append(text)
            print(text.translate(shown), end="", flush=True)

        told, answered = "", True
        try:
            reason = self._talker.answer(asked, hear)
            if reason == "length":
                told = (
                    "the answer was cut off: it has as many tokens as --max-new-tokens or the context allows"
                )
        except KeyboardInterrupt:
            told = "stopped"
        except (EngineBroken, EngineClosed):
            raise
        except Error as error:
            told, answered = _explain(error), False
        if pieces or answered:
            print(flush=True)
        if answered and (answer := "".join(pieces)):
            self.messages = [*asked, {"role": "assistant", "content": answer}]
        return Asked(answered, told)


def _explain(error: Error) -> str:
    if isinstance(error, UsageError) and error.code == "context_length_exceeded":
        return f"the conversation no longer fits into the context of the model: {error}; /new begins another"
    return f"{error}; the question was dropped"


def _converse(conversation: Conversation, *, terminal: bool) -> bool:
    """Ask what is read, until there is no more; return whether something was not answered."""
    failed = False
    while True:
        try:
            question = _read_question(terminal=terminal)
            if question is None or question.strip() == "/exit":
                return failed
            if question.strip() == "/new":
                conversation.begin()
                if terminal:
                    say("a new conversation")
            elif question.strip():
                answered, told = conversation.ask(question)
                failed = failed or not answered
                if told:
                    say(f"vidette: {told}")
        except KeyboardInterrupt:  # while nothing was being answered, or no more
            if not terminal:
                raise
            say("\n/exit or Ctrl-D leaves")


def _read_question(*, terminal: bool) -> str | None:
    """Return the next question, of as many lines as end in a backslash and one; None: there is none."""
    lines: list[str] = []
    while (line := _read_line("... " if lines else "> ", terminal=terminal)) is not None:
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])
    return "\n".join(lines) if lines else None


def _read_line(prompt: str, *, terminal: bool) -> str | None:
    if terminal:
        try:
            return input(prompt)
        except EOFError:
            print(flush=True)
            return None
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None


@contextmanager
def _open_talker(options: argparse.Namespace, *, terminal: bool) -> Generator[Talker]:
    """Connect to the service, or open an engine, while the block runs."""
    given = {
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "sampling_seed": options.seed,
    }
    sampling = {name: value for name, value in given.items() if value is not None}
    for_engine = engine_options(options)
    if options.url is None:
        if terminal:
            say("loading the model")
        with sync.open_engine(backend=options.backend, **for_engine) as engine:
            yield OwnEngine(engine, sampling)
        return
    if for_engine["topology"] == TOPOLOGY:  # as it is unless it was given
        del for_engine["topology"]
    for_engine.pop("model", None)
    if for_engine:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in for_engine)
        raise UsageError(f"{names}: options of an engine, and with --url there is none of its own")
    with open_service(options.url, options.model, sampling, key=key_in(os.environ)) as service:
        yield service
