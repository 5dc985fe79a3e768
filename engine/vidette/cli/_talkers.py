"""Who answers in `vidette chat`: an engine of its own, or a service with OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from vidette.cli._client import KEY, REFUSAL_BYTES, Problem, client_options, refusal, unreachable
from vidette.errors import RequestError, UsageError

if TYPE_CHECKING:
    import httpx

    from vidette.sync import Engine

SILENT_SECONDS: Final = 600.0
"""A service that says nothing for so long has failed."""

_OPENAI_NAMES: Final = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}


class Talker(Protocol):
    """Answers a conversation.

    Attributes:
        name: of the model.
    """

    name: str

    def answer(self, messages: Sequence[Mapping[str, str]], hear: Callable[[str], None]) -> str | None:
        """Pass on the pieces of the answer as they come; return why it ended, such as "stop" or "length".

        Whatever ends this early, Ctrl-C for one, ends the request.

        Raises:
            UsageError: the messages are refused; its code says if they are too long.
            Error: the answer failed.
        """
        ...


class OwnEngine:
    """An engine in this very program.

    Args:
        engine: it is open.
        sampling: sampling parameters, by the names of `SamplingParams`.
    """

    def __init__(self, engine: Engine, sampling: Mapping[str, object]) -> None:
        self.name = engine.info.name
        self._engine = engine
        self._sampling = {"max_new_tokens": None, **sampling}

    def answer(self, messages: Sequence[Mapping[str, str]], hear: Callable[[str], None]) -> str | None:
        """See `Talker`."""
        prompt = self._engine.render_chat(messages)
        reason = None
        with self._engine.generate(prompt, sampling_params=self._sampling) as stream:
            for delta in stream:
                hear(delta.text)
                reason = delta.finish_reason or reason
        return None if reason is None else reason.type


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    error: Problem | str | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class Service:
    """A running service.

    Args:
        client: of its `/v1`.
        model: its name there; None takes the first that the service lists.
        sampling: sampling parameters, by the names of `SamplingParams`.

    Raises:
        Error: the service does not say which models it has.
    """

    def __init__(self, client: httpx.Client, model: str | None, sampling: Mapping[str, object]) -> None:
        self._client = client
        self._sampling = {_OPENAI_NAMES.get(name, name): value for name, value in sampling.items()}
        self.name = model or self._first_model()

    def answer(self, messages: Sequence[Mapping[str, str]], hear: Callable[[str], None]) -> str | None:
        """See `Talker`."""
        body = {"model": self.name, "messages": list(messages), "stream": True, **self._sampling}
        reason = None
        with self._sent("POST", "chat/completions", body) as response:
            for event in _events(response):
                if event.error is not None:
                    problem = event.error
                    said = problem if isinstance(problem, str) else problem.message
                    raise RequestError(f"the answer failed: {said}")
                for choice in event.choices[:1]:
                    hear(choice.delta.content or "")
                    reason = choice.finish_reason or reason
        return reason

    def _first_model(self) -> str:
        with self._sent("GET", "models") as response:
            try:
                models = msgspec.json.decode(response.read(), type=_Models).data
            except msgspec.DecodeError as error:
                raise RequestError(f"the list of models is none: {error}") from error
        if not models:
            raise RequestError("the service lists no model; name one with --model")
        return models[0].id

    @contextmanager
    def _sent(self, method: str, path: str, body: object = None) -> Iterator[httpx.Response]:
        """Yield an answer, whose connection ends with the block, once its status is known to be 200."""
        import httpx  # noqa: PLC0415  the other commands need no HTTP client

        try:
            with self._client.stream(method, path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response)
                yield response
        except httpx.HTTPError as error:
            raise unreachable(self._client.base_url, error) from error


@contextmanager
def open_service(
    url: str, model: str | None, sampling: Mapping[str, object], *, key: str = ""
) -> Generator[Service]:
    """Connect to a service while the block runs.

    Args:
        url: of the service, with or without `/v1`.
        model: as for `Service`.
        sampling: as for `Service`.
        key: what it wants to be told; empty: nothing.

    Raises:
        UsageError: the URL or the key cannot be one.
        Error: the service does not say which models it has.
    """
    import httpx  # noqa: PLC0415

    with httpx.Client(**client_options(url, key, silent_seconds=SILENT_SECONDS)) as client:
        yield Service(client, model, sampling)


def _events(response: httpx.Response) -> Iterator[_Event]:
    """Yield the events of a stream, up to `[DONE]`.

    Raises:
        RequestError: it ends before, or holds what is no event.
    """
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            yield msgspec.json.decode(data, type=_Event)
        except msgspec.DecodeError as error:
            raise RequestError(f"the answer holds what is no event: {error}") from error
    raise RequestError("the answer ended before it was complete")


def _refusal(response: httpx.Response) -> UsageError | RequestError:
    """Return what to raise of an answer that is none."""
    body = b""
    for piece in response.iter_bytes():
        body += piece
        if len(body) >= REFUSAL_BYTES:
            break
    return refusal(response.status_code, body, KEY)
