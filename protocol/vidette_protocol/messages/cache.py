"""Control of the caches: the prefix cache, its second tier, and the corpora of n-gram speculation."""

from __future__ import annotations

from typing import ClassVar

from vidette_protocol.messages.base import ControlOutput, ControlReq, Seconds
from vidette_protocol.messages.tags import Tag


class FlushCacheReqOutput(ControlOutput, tag=Tag.FLUSH_CACHE_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether the prefix cache was emptied."""


class FlushCacheReqInput(ControlReq, tag=Tag.FLUSH_CACHE, kw_only=True, frozen=True):
    """Front to scheduler: empty the prefix cache, once no request lives.

    Args:
        timeout_s: how long to wait until no request lives; None or 0: not at all, it fails at once.
    """

    output: ClassVar = FlushCacheReqOutput

    timeout_s: Seconds | None = None


class ClearHiCacheReqOutput(ControlOutput, tag=Tag.CLEAR_HICACHE_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether the second tier was emptied."""


class ClearHiCacheReqInput(ControlReq, tag=Tag.CLEAR_HICACHE, kw_only=True, frozen=True):
    """Front to scheduler: empty the second tier of the prefix cache (the hierarchical cache)."""

    output: ClassVar = ClearHiCacheReqOutput


class AddExternalCorpusReqOutput(
    ControlOutput, tag=Tag.ADD_EXTERNAL_CORPUS_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether a corpus was added.

    Args:
        loaded_token_count: how many tokens it has.
    """

    loaded_token_count: int = 0


class AddExternalCorpusReqInput(ControlReq, tag=Tag.ADD_EXTERNAL_CORPUS, kw_only=True, frozen=True):
    """Front to scheduler: draft from a corpus as well as from the request's own text.

    Args:
        corpus_id: its name; an older one of that name is replaced.
        token_chunks: packed int32 each; no draft goes over the end of one.
    """

    output: ClassVar = AddExternalCorpusReqOutput

    corpus_id: str
    token_chunks: list[memoryview]

    def check_columns(self) -> str | None:
        """Return in a sentence what the front must not have sent, or None."""
        torn = next((chunk.nbytes for chunk in self.token_chunks if chunk.nbytes % 4), None)
        return None if torn is None else f"a chunk of {torn} bytes, not of int32"


class RemoveExternalCorpusReqOutput(
    ControlOutput, tag=Tag.REMOVE_EXTERNAL_CORPUS_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: whether a corpus was removed."""


class RemoveExternalCorpusReqInput(ControlReq, tag=Tag.REMOVE_EXTERNAL_CORPUS, kw_only=True, frozen=True):
    """Front to scheduler: forget a corpus.

    Args:
        corpus_id: its name.
    """

    output: ClassVar = RemoveExternalCorpusReqOutput

    corpus_id: str


class ListExternalCorporaReqOutput(
    ControlOutput, tag=Tag.LIST_EXTERNAL_CORPORA_OUTPUT, kw_only=True, frozen=True
):
    """Scheduler to front: the corpora there are.

    Args:
        corpus_token_counts: how many tokens each has, by name.
    """

    corpus_token_counts: dict[str, int] = {}  # noqa: RUF012  msgspec makes a new one each time


class ListExternalCorporaReqInput(ControlReq, tag=Tag.LIST_EXTERNAL_CORPORA, kw_only=True, frozen=True):
    """Front to scheduler: name the corpora that there are."""

    output: ClassVar = ListExternalCorporaReqOutput
