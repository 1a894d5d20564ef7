"""The ledger's state as one plain, JSON-able document, and a walk of the engine's real objects that makes it.

``block_size``, ``num_blocks``, ``step``, ``in_step``, ``phase``;
``blocks``: by block id ``{ref_count, hash (16 hex digits, "" for none), token_ids}``;
``queue``: free block ids, head to tail; ``map``: hash to block id;
``seqs``: by seq_id (a string) the request's fields; ``waiting`` and ``running``: seq_ids in order.
There are no nulls in it: in patches, null means absent.
"""
from __future__ import annotations

from typing import Any

State = dict[str, Any]


def hex_hash(hash: int) -> str:
    """16 hex digits, "" for -1. JavaScript's numbers can't hold a 64-bit hash."""
    return "" if hash == -1 else f"{hash:016x}"


def sequence_state(token_ids: list[int]) -> State:
    """A request that has arrived and holds nothing yet."""
    return {"status": "WAITING", "token_ids": token_ids, "num_prompt_tokens": len(token_ids), "num_cached_tokens": 0,
            "num_scheduled_tokens": 0, "is_prefill": True, "block_table": [], "finish_reason": "",
            "num_preemptions": 0}


def block_state() -> State:
    return {"ref_count": 0, "hash": "", "token_ids": []}


def snapshot(scheduler: Any) -> State:
    """Walk the scheduler's and block manager's own objects. Independent of events, so tests can compare with it.

    Requests that have finished are not known to the scheduler any more and are left out. It reads only what the
    reference chapter names, so that it works for a learner's own block manager too.
    """
    manager = scheduler.block_manager
    return {
        "block_size": scheduler.block_size, "num_blocks": scheduler.num_blocks,
        "step": scheduler.step, "in_step": scheduler.in_step, "phase": scheduler.phase,
        "blocks": [{"ref_count": block.ref_count, "hash": hex_hash(block.hash), "token_ids": list(block.token_ids)}
                   for block in manager.blocks],
        "queue": list(manager.free_block_ids),
        "map": {hex_hash(hash): block_id for hash, block_id in manager.hash_to_block_id.items()},
        "seqs": {str(seq.seq_id): {
            **sequence_state(list(seq.token_ids)), "num_prompt_tokens": seq.num_prompt_tokens,
            "status": seq.status.name, "num_cached_tokens": seq.num_cached_tokens,
            "num_scheduled_tokens": seq.num_scheduled_tokens, "is_prefill": seq.is_prefill,
            "block_table": list(seq.block_table), "finish_reason": seq.finish_reason or "",
            "num_preemptions": seq.num_preemptions} for seq in scheduler.sequences},
        "waiting": [seq.seq_id for seq in scheduler.waiting],
        "running": [seq.seq_id for seq in scheduler.running],
    }
