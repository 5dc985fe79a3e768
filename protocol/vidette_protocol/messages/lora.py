"""LoRA adapters: which are loaded, loading them and letting go of them."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from vidette_protocol.messages.base import ControlOutput, ControlReq
from vidette_protocol.messages.tags import Tag


class LoRARef(Struct, array_like=True, frozen=True):
    """An adapter as it is known everywhere: a new id for each time it is loaded.

    Args:
        lora_id: 32 hexadecimal digits, by which requests name it.
        lora_name: by which callers name it.
        lora_path: where it was loaded from; None: from tensors.
        pinned: it is never evicted.
        reloadable: it can be loaded again from `lora_path` after it was evicted.
        version: counts the loads under this name.

    Raises:
        ValueError: there is no id.
    """

    lora_id: str
    lora_name: str | None = None
    lora_path: str | None = None
    pinned: bool = False
    reloadable: bool = True
    version: int = 0

    def __post_init__(self) -> None:
        if not self.lora_id:
            raise ValueError("an adapter needs an id")


class LoRAUpdateOutput(ControlOutput, tag=Tag.LORA_UPDATE_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: whether an adapter was loaded or unloaded.

    Args:
        loaded_adapters: those that are loaded now, by name.
    """

    loaded_adapters: dict[str, LoRARef] = {}  # noqa: RUF012  msgspec makes a new one each time


class LoadLoRAAdapterReqInput(ControlReq, tag=Tag.LOAD_LORA_ADAPTER, kw_only=True, frozen=True):
    """Front to scheduler: load an adapter from files.

    Args:
        lora_id: its new id.
        lora_name: by which callers name it.
        lora_path: folder of the adapter.
        pinned: never evict it.
    """

    output: ClassVar = LoRAUpdateOutput

    lora_id: str
    lora_name: str
    lora_path: str
    pinned: bool = False

    def to_ref(self) -> LoRARef:
        """Return the adapter this loads."""
        return LoRARef(self.lora_id, self.lora_name, self.lora_path, self.pinned)


class LoadLoRAAdapterFromTensorsReqInput(
    ControlReq, tag=Tag.LOAD_LORA_ADAPTER_FROM_TENSORS, kw_only=True, frozen=True
):
    """Front to scheduler: load an adapter from tensors that travel in the message or beside it.

    Args:
        lora_id: its new id.
        lora_name: by which callers name it.
        config_dict: contents of its `adapter_config.json`.
        named_tensors: tensors or pointers to some, by name, one dict for each rank.
        serialized_named_tensors: the same as safetensors files, one for each rank. In JSON they are base64.
        pinned: never evict it.
        added_tokens_config: ids of the tokens that it adds to the vocabulary.
        load_format: how tensors are named and laid out; None: as usual for adapters.
        expected_checksums: SHA-256 of each tensor's bytes, hexadecimal, by name.
    """

    output: ClassVar = LoRAUpdateOutput

    lora_id: str
    lora_name: str
    config_dict: dict[str, Any]
    named_tensors: list[dict[str, object]] | None = None
    serialized_named_tensors: list[bytes] | None = None
    pinned: bool = False
    added_tokens_config: dict[str, int] | None = None
    load_format: str | None = None
    expected_checksums: dict[str, str] | None = None

    def to_ref(self) -> LoRARef:
        """Return the adapter this loads."""
        return LoRARef(self.lora_id, self.lora_name, None, self.pinned, reloadable=False)

    def check_columns(self) -> str | None:
        """Return in a sentence what the front must not have sent, or None."""
        if (self.named_tensors is None) == (self.serialized_named_tensors is None):
            return "just one of named_tensors and serialized_named_tensors is needed"
        return None


class UnloadLoRAAdapterReqInput(ControlReq, tag=Tag.UNLOAD_LORA_ADAPTER, kw_only=True, frozen=True):
    """Front to scheduler: let go of an adapter that no request uses any more.

    Args:
        lora_id: which.
        lora_name: by which callers named it.
    """

    output: ClassVar = LoRAUpdateOutput

    lora_id: str
    lora_name: str | None = None
