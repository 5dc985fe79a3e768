"""What routers are told of a scheduler: how full it is, and which prefixes it has cached."""

from __future__ import annotations

from msgspec import Struct

from vidette_protocol.messages.base import Message
from vidette_protocol.messages.tags import Tag


class KvMetrics(Message, tag=Tag.KV_METRICS, kw_only=True, frozen=True):
    """Scheduler to whoever routes: how full it is just now.

    Args:
        request_active_slots: requests that run.
        request_total_slots: most that can run at once.
        kv_active_blocks: blocks of the KV pool that are taken.
        kv_total_blocks: blocks that there are.
        num_requests_waiting: requests that wait.
        gpu_cache_usage_perc: share of the blocks that are taken, 0 to 1.
        gpu_prefix_cache_hit_rate: share of the prompt tokens that were found in the cache, 0 to 1.
        data_parallel_rank: which scheduler says so.
    """

    request_active_slots: int = 0
    request_total_slots: int = 0
    kv_active_blocks: int = 0
    kv_total_blocks: int = 0
    num_requests_waiting: int = 0
    gpu_cache_usage_perc: float = 0.0
    gpu_prefix_cache_hit_rate: float = 0.0
    data_parallel_rank: int = 0


class BlockStored(Struct, tag="BlockStored", array_like=True, frozen=True):
    """Blocks were put into the prefix cache, one after the other.

    Args:
        block_hashes: of each block and everything before it.
        parent_block_hash: hash of the block before the first; None: they begin a prompt.
        token_ids: what they hold, `block_size` each.
        block_size: tokens of a block.
        lora_id: adapter they were computed with; None: the base model.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None


class BlockRemoved(Struct, tag="BlockRemoved", array_like=True, frozen=True):
    """Blocks were taken out of the prefix cache; all of one node of its tree at once.

    Args:
        block_hashes: as in BlockStored.
    """

    block_hashes: list[int]


class AllBlocksCleared(Struct, tag="AllBlocksCleared", array_like=True, frozen=True):
    """The prefix cache was emptied."""


class KVEventBatch(Message, tag=Tag.KV_EVENT_BATCH, kw_only=True, frozen=True):
    """Scheduler to whoever routes: what changed in the prefix cache in one step, in order.

    Args:
        ts: seconds since the epoch.
        events: what happened. Their tags are their names, and their fields are those that routers know.
        data_parallel_rank: which scheduler says so.
    """

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None
