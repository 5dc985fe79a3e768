"""`Controls`: what is asked of a step loop besides requests, and the answers that are due; pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vidette.scheduler.corpora import Corpora
from vidette.scheduler.kv_cache import KVCache
from vidette.scheduler.sessions import Sessions
from vidette_protocol.messages import (
    AddExternalCorpusReqInput,
    AddExternalCorpusReqOutput,
    ClearHiCacheReqInput,
    ClearHiCacheReqOutput,
    CloseSessionReqInput,
    ContinueGenerationReqInput,
    ContinueGenerationReqOutput,
    ControlOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    ListExternalCorporaReqInput,
    ListExternalCorporaReqOutput,
    OpenSessionReqInput,
    PauseGenerationReqInput,
    PauseGenerationReqOutput,
    RemoveExternalCorpusReqInput,
    RemoveExternalCorpusReqOutput,
)

Control = (
    OpenSessionReqInput
    | CloseSessionReqInput
    | FlushCacheReqInput
    | ClearHiCacheReqInput
    | AddExternalCorpusReqInput
    | RemoveExternalCorpusReqInput
    | ListExternalCorporaReqInput
    | PauseGenerationReqInput
    | ContinueGenerationReqInput
)
"""What only the owner of sessions, blocks and corpora can answer."""


class _Flush(NamedTuple):
    """A flush that waits until nothing lives, but not longer than until then."""

    id: int
    until: float


class Controls:
    """Answers questions: at once, or when their time has come.

    Args:
        sessions: opened and closed here.
        cache: emptied here, when nothing lives.
        corpora: of drafts.
    """

    def __init__(self, sessions: Sessions, cache: KVCache, corpora: Corpora) -> None:
        self._sessions = sessions
        self._cache = cache
        self._corpora = corpora
        self._flushes: list[_Flush] = []
        self._answers: list[ControlOutput] = []
        self.paused = False
        """Whether no step is to be taken."""

    def ask(self, question: Control, now: float) -> None:
        """Take a question."""
        match question:
            case OpenSessionReqInput():
                self._answers.append(self._sessions.open(question, now))
            case CloseSessionReqInput():
                self._answers.append(self._sessions.close(question))
            case FlushCacheReqInput():
                self._flushes.append(_Flush(question.id, now + (question.timeout_s or 0.0)))
            case ClearHiCacheReqInput():
                self._answers.append(self._clear_host(question))
            case AddExternalCorpusReqInput():
                self._answers.append(self._add_corpus(question))
            case RemoveExternalCorpusReqInput(corpus_id=name):
                found = self._corpora.remove(name)
                message = "" if found else f"there is no corpus {name!r}"
                self._answers.append(
                    RemoveExternalCorpusReqOutput(id=question.id, success=found, message=message)
                )
            case ListExternalCorporaReqInput():
                sizes = self._corpora.sizes()
                self._answers.append(ListExternalCorporaReqOutput(id=question.id, corpus_token_counts=sizes))
            case PauseGenerationReqInput(id=call):
                message = "generation was paused already" if self.paused else ""
                self.paused = True
                self._answers.append(PauseGenerationReqOutput(id=call, message=message))
            case ContinueGenerationReqInput(id=call):
                message = "" if self.paused else "generation was not paused"
                self.paused = False
                self._answers.append(ContinueGenerationReqOutput(id=call, message=message))

    def _clear_host(self, question: ClearHiCacheReqInput) -> ClearHiCacheReqOutput:
        if not self._cache.tiered:
            message = "there is no second tier: host_kv_tokens is 0"
            return ClearHiCacheReqOutput(id=question.id, success=False, message=message)
        dropped = self._cache.clear_host()
        return ClearHiCacheReqOutput(id=question.id, message=f"{dropped} blocks were dropped")

    def _add_corpus(self, question: AddExternalCorpusReqInput) -> AddExternalCorpusReqOutput:
        chunks = [np.frombuffer(chunk, dtype=np.int32) for chunk in question.token_chunks]
        try:
            size = self._corpora.add(question.corpus_id, chunks)
        except ValueError as error:
            return AddExternalCorpusReqOutput(id=question.id, success=False, message=str(error))
        return AddExternalCorpusReqOutput(id=question.id, loaded_token_count=size)

    def settle(self, now: float, live: int) -> None:
        """Do what is due.

        Args:
            now: seconds on the caller's clock.
            live: requests that live; while paused, those of them that hold blocks.
        """
        self._sessions.expire(now)
        if not self._flushes:
            return
        if not live:
            message = f"{self._cache.clear()} blocks became free"
            self._answers += [FlushCacheReqOutput(id=flush.id, message=message) for flush in self._flushes]
            self._flushes.clear()
            return
        late = [flush for flush in self._flushes if flush.until <= now]
        if late:
            message = f"{live} requests live: the cache is not emptied before they are over"
            self._answers += [
                FlushCacheReqOutput(id=each.id, success=False, message=message) for each in late
            ]
            self._flushes = [flush for flush in self._flushes if flush.until > now]

    def take_answers(self) -> list[ControlOutput]:
        """Return the answers that are due, in the order in which they became so."""
        answers, self._answers = self._answers, []
        return answers

    @property
    def due(self) -> bool:
        """Whether there are any."""
        return bool(self._answers)

    @property
    def next(self) -> float | None:
        """When `settle` has something to do, even if nothing comes; None: never."""
        times = [flush.until for flush in self._flushes]
        expiry = self._sessions.next
        return min(times if expiry is None else [*times, expiry], default=None)
