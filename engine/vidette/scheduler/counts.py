"""`Counts`: what a step loop has done."""

from __future__ import annotations

from msgspec import Struct

from vidette_protocol.messages import SchedulerTotals


class Counts(Struct):
    """What was done since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    """Computed by prefills, those of a retracted request's own output included."""
    cached_tokens: int = 0
    """Of prompts, found in the cache."""
    output_tokens: int = 0
    retracted: int = 0
    begun_tokens: int = 0
    """Of prompts of requests that were begun, each once."""

    def begin(self, prompt: int, found: int) -> None:
        """Note that a request is begun, so many tokens of whose prompt were found in the cache."""
        self.begun_tokens += prompt
        self.cached_tokens += found

    @property
    def totals(self) -> SchedulerTotals:
        """What of it others are told."""
        return SchedulerTotals(
            self.prompt_tokens, self.cached_tokens, self.output_tokens, self.retracted, self.begun_tokens
        )
