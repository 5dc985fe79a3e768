"""What a request took, in OpenAI's words, and when it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType

from vidette import Stream
from vidette.service.asked import StreamOptions


class CachedTokens(Struct, frozen=True):
    """Tokens of a prompt that were not computed again."""

    cached_tokens: int = 0


class Usage(Struct, frozen=True):
    """What a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens = CachedTokens()


def usage_of(streams: Mapping[int, Stream], n: int) -> Usage:
    """Return what a request took, whose answers these are; each prompt counts once.

    Cached are the tokens of a prompt that were computed for none of its answers.

    Args:
        streams: by their places.
        n: answers to each prompt.
    """
    prompts: dict[int, list[Stream]] = {}
    for place, stream in streams.items():
        prompts.setdefault(place // n, []).append(stream)
    prompt = sum(max(stream.prompt_tokens for stream in group) for group in prompts.values())
    cached = sum(min(stream.served.cached_tokens for stream in group) for group in prompts.values())
    output = sum(stream.completion_tokens for stream in streams.values())
    return Usage(prompt, output, prompt + output, CachedTokens(cached))


class UsageTold:
    """The usage of one request as its chunks tell it.

    Args:
        options: what was asked for.
        n: answers to each prompt.
    """

    def __init__(self, options: StreamOptions | None, n: int) -> None:
        self._options = options or StreamOptions()
        self._n = n
        self._streams: dict[int, Stream] = {}
        """Of which something has come."""

    @property
    def in_all_chunks(self) -> bool:
        """Whether each chunk says what the request took so far."""
        return self._options.continuous_usage_stats

    def note(self, index: int, stream: Stream) -> None:
        """Note that something of an answer has come."""
        self._streams[index] = stream

    def in_chunk(self) -> Usage | UnsetType | None:
        """Return what a chunk says; null if the usage is to come, and nothing if it was not asked for."""
        if self.in_all_chunks:
            return usage_of(self._streams, self._n)
        return None if self._options.include_usage else UNSET

    def at_end(self, streams: Sequence[Stream]) -> Usage | None:
        """Return what the last chunk says; None: there is none."""
        return self.of(streams) if self._options.include_usage else None

    def of(self, streams: Sequence[Stream]) -> Usage:
        """Return the usage of all answers."""
        return usage_of(dict(enumerate(streams)), self._n)
