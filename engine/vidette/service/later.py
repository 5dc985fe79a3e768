"""Paths of SGLang's and OpenAI's APIs that are not served yet: each says so, and what it would be."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from vidette.service.errors import NotYet
from vidette.service.responses import Exchange

LATER: Final = MappingProxyType(
    {
        "weights that are replaced while the server runs": (
            "/update_weights_from_disk",
            "/update_weights_from_distributed",
            "/update_weights_from_tensor",
            "/update_weights_from_ipc",
            "/init_weights_update_group",
            "/destroy_weights_update_group",
            "/init_weights_send_group_for_remote_instance",
            "/send_weights_to_remote_instance",
            "/update_weight_version",
            "/get_weights_by_name",
            "/weights_checker",
        ),
        "LoRA adapters": (
            "/load_lora_adapter",
            "/load_lora_adapter_from_tensors",
            "/unload_lora_adapter",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
        ),
        "memory that is given back while the server runs": (
            "/release_memory_occupation",
            "/resume_memory_occupation",
        ),
        "embeddings, scores and ranks": (
            "/encode",
            "/classify",
            "/v1/embeddings",
            "/v1/classify",
            "/v1/score",
            "/v1/rerank",
        ),
        "audio": ("/v1/audio/transcriptions",),
        "storage behind the second tier of the cache": ("/hicache/storage-backend",),
    }
)
"""What is not served yet, and under which paths."""


class Later:
    """An endpoint that is not served yet.

    Attributes:
        what: it would serve.

    Args:
        what: it would serve.
    """

    def __init__(self, what: str) -> None:
        self.what = what

    async def answer(self, exchange: Exchange) -> None:
        """Answer that it is not served yet, whatever was asked."""
        exchange.take_body()
        raise NotYet(f"{self.what} : this is not served yet", code="not_implemented")
