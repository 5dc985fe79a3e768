"""Every bound of the protocol with its default, in one table; docs/reference/limits.md lists it for users."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Bounds that hold before anything proportional to a message is allocated."""

    frame_bytes: int = 64 * 1024 * 1024
    """Longest frame a link accepts; its length is checked before the body is awaited."""
    rid_chars: int = 256
    """Longest rid."""
    text_chars: int = 4 * 1024 * 1024
    """Longest prompt, in characters, before tokenising is tried."""
    prompt_tokens: int = 1 << 20
    """Longest prompt given as token ids or embeddings, before any is looked at; the context bounds it too."""
    n: int = 128
    """Most answers to one prompt."""
    answers: int = 1024
    """Most answers to one request: its prompts times `n`."""
    name_chars: int = 1024
    """Longest name or key: of an adapter, a processor, a host, a tenant, a namespace of a cache."""
    media: int = 64
    """Most images of one prompt; of videos and of audio as many again."""
    top_logprobs: int = 128
    """Largest `top_logprobs_num`."""
    token_ids_logprob: int = 1024
    """Most tokens of one answer whose log probabilities are asked for by id."""
    logprob_bytes: int = 8 * 1024 * 1024
    """Log probabilities of one answer, of its prompt and of all that it may make, see `logprob_bytes_at`."""
    stops: int = 32
    """Most texts in `stop`."""
    stop_chars: int = 1024
    """Longest text in `stop`."""
    stop_regexes: int = 8
    """Most patterns in `stop_regex`."""
    stop_regex_chars: int = 256
    """Characters of all different patterns of a request together: compiling them costs up to 1 ms each."""
    stop_regex_states: int = 512
    """States of all of them together; repeats multiply. A character costs at most one operation for each."""
    stop_token_ids: int = 1024
    """Most tokens in `stop_token_ids`."""
    logit_bias: int = 1024
    """Most tokens in `logit_bias`."""
    constraint_chars: int = 128 * 1024
    """Longest JSON schema, regex, grammar or structural tag."""
    constraint_depth: int = 64
    """How deep a JSON schema or structural tag may be nested."""
    custom_params: int = 16384
    """Largest `custom_params`: each key and value counts one, and each character of a text."""
    max_new_tokens: int = 1 << 20
    """Largest `max_new_tokens` that can be asked for; the context bounds it further."""
    ended_remembered: int = 4096
    """How many ended vids a front remembers the end of (to tell an error from a late message)."""


def logprob_bytes_at(top: int, asked: int) -> int:
    """Return how many bytes the log probabilities of one position take: 4 for each number and each id.

    Args:
        top: how many of the most probable tokens are reported.
        asked: how many tokens were named.
    """
    return 4 * (2 + 2 * top + asked)
