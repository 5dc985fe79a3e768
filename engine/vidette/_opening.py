"""What opening an engine takes: what the front has to know of a model, and the front that is made with it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, get_args

from vidette._arguments import OperationName
from vidette._ring import Ring
from vidette.config import EngineConfig
from vidette.errors import UsageError
from vidette.front.manager import TokenizerManager
from vidette.front.offload import Offload
from vidette.models import (
    ModelInfo,
    ModelSource,
    Tokenizer,
    TokenTable,
    load_token_table,
    load_tokenizer,
    read_info,
)
from vidette_protocol.messages import Ready

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from vidette._tracing import Tracing


class Loaded(NamedTuple):
    """What the front has to know of a model.

    Args:
        info: its name and sizes.
        tokenizer: text to token ids.
        table: the bytes of each token.
    """

    info: ModelInfo
    tokenizer: Tokenizer
    table: TokenTable

    def front(self, config: EngineConfig, ring: Ring, *, ready: Ready, offload: Offload) -> TokenizerManager:
        """Return the front of an engine.

        Args:
            config: what the engine is made with.
            ring: the other roles, opened.
            ready: the scheduler's Ready.
            offload: runs tokenising off the loop.
        """
        return TokenizerManager(
            ring.scheduler,
            ring.detokenizers,
            tokenizer=self.tokenizer,
            info=self.info,
            ready=ready,
            offload=offload,
            max_requests=config.max_requests,
            max_queued_tokens=config.max_queued_tokens,
            tokenise_timeout=config.tokenise_timeout,
            front_id=config.front_id,
            kv_events=config.kv_events,
        )


async def load(source: ModelSource, offload: Offload) -> Loaded:
    """Read it from a model's file, off the loop.

    Raises:
        ModelError: the file is damaged or not supported.
    """
    return Loaded(
        await offload(partial(read_info, source)),
        await offload(partial(load_tokenizer, source)),
        await offload(partial(load_token_table, source)),
    )


def check_tracer(tracer: Tracer | None) -> None:
    """Check what is to make spans.

    Raises:
        UsageError: it is no tracer, or what it takes is not installed.
    """
    if tracer is None:
        return
    try:
        from opentelemetry.trace import Tracer  # noqa: PLC0415  only whoever traces needs it
    except ImportError as error:
        raise UsageError(
            "tracer needs the package opentelemetry-api: pip install vidette[otel]", param="tracer"
        ) from error
    if not isinstance(tracer, Tracer):
        raise UsageError(
            f"tracer is {tracer!r}; it must be a tracer of OpenTelemetry, such as "
            "provider.get_tracer('mine') returns",
            param="tracer",
        )


def traced(
    manager: TokenizerManager, tracer: Tracer | None
) -> Mapping[OperationName, TokenizerManager | Tracing]:
    """Return what opens requests of each kind: the front, or what makes a span for each besides."""
    names: tuple[OperationName, ...] = get_args(OperationName)
    if tracer is None:
        return dict.fromkeys(names, manager)
    from vidette._tracing import Tracing  # noqa: PLC0415  as above

    return {name: Tracing(manager, tracer, operation=name) for name in names}
