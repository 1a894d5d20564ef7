"""The ledger's law in one function. Tests, the fuzz and the notebooks call it.

It is judged where no operation is open: inside ``deallocate`` the counts are ahead of the block table. It needs only
the attributes that the reference chapter names, so it judges a learner's own ``BlockManager`` as well.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..errors import LedgerError
from .sequence import Sequence

ARTICLES = ("pool", "tables", "map", "contents")  # of the law, in the order of the sentences


def check_invariants(block_manager: Any, sequences: Iterable[Sequence] = ()) -> None:
    """Raise LedgerError naming every violation. ``sequences`` are all that may hold blocks, in any order."""
    found = violations(block_manager, sequences)
    if found:
        raise LedgerError("the ledger breaks its law:\n" + "\n".join(f"- {sentence}" for sentence in found))


def violations(block_manager: Any, sequences: Iterable[Sequence] = ()) -> list[str]:
    """Every breach of the law as a sentence, none when it holds. O(blocks + tokens in tables)."""
    return [sentence for _, sentence in breaches(block_manager, sequences)]


def breaches(block_manager: Any, sequences: Iterable[Sequence] = ()) -> list[tuple[str, str]]:
    """Every breach with the article it breaks: ``(one of ARTICLES, sentence)``."""
    sequences = list(sequences)
    found = {"pool": _pool(block_manager), "tables": _tables(block_manager, sequences), "map": _map(block_manager),
             "contents": _contents(block_manager, sequences)}
    return [(article, sentence) for article in ARTICLES for sentence in found[article]]


def _pool(bm: Any) -> Iterable[str]:
    """Free and used partition the pool, and ref_count tells which side a block is on."""
    queued = Counter(bm.free_block_ids)
    used = set(bm.used_block_ids)
    if len(bm.free_block_ids) != queued.total():
        yield f"the free queue says it holds {len(bm.free_block_ids)} blocks, but a walk finds {queued.total()}"
    if hasattr(bm.free_block_ids, "neighbours") and list(reversed(bm.free_block_ids)) != list(bm.free_block_ids)[::-1]:
        yield "the free queue read from its tail is not the free queue read from its head"
    for block_id, times in queued.items():
        if times > 1:
            yield f"block {block_id} stands {times} times in the free queue"
    for block_id in sorted({*queued, *used} - set(range(len(bm.blocks)))):
        yield f"block {block_id} is not in the pool, which has blocks 0 to {len(bm.blocks) - 1}"
    for i, block in enumerate(bm.blocks):
        if block.block_id != i:
            yield f"the block at place {i} calls itself {block.block_id}"
        if i in queued and i in used:
            yield f"block {i} is both free and used"
        if i not in queued and i not in used:
            yield f"block {i} is neither free nor used: it is lost"
        if i in queued and block.ref_count != 0:
            yield f"block {i} is in the free queue with ref_count {block.ref_count}"
        if i in used and block.ref_count < 1:
            yield f"block {i} is used with ref_count {block.ref_count}"


def _tables(bm: Any, sequences: list[Sequence]) -> Iterable[str]:
    """ref_count is the number of tables that hold a block, and no table is longer than its sequence needs."""
    holders: Counter[int] = Counter()
    for seq in sequences:
        holders.update(set(seq.block_table))
        for block_id, times in Counter(seq.block_table).items():
            if times > 1:
                yield f"request {seq.seq_id} holds block {block_id} {times} times"
        if seq.is_finished and seq.block_table:
            yield f"request {seq.seq_id} is finished and still holds blocks {seq.block_table}"
        if len(seq.block_table) > seq.num_blocks:
            yield f"request {seq.seq_id} holds {len(seq.block_table)} blocks and needs {seq.num_blocks}"
        if seq.num_cached_tokens > seq.num_tokens:
            yield f"request {seq.seq_id} has {seq.num_cached_tokens} cached tokens of {seq.num_tokens}"
        if seq.num_cached_tokens > len(seq.block_table) * bm.block_size:
            yield (f"request {seq.seq_id} has {seq.num_cached_tokens} cached tokens in {len(seq.block_table)} blocks "
                   f"of {bm.block_size}")
    for i, block in enumerate(bm.blocks):
        if block.ref_count != holders[i]:
            yield f"block {i} has ref_count {block.ref_count}, and {holders[i]} of the given block tables hold it"


def _map(bm: Any) -> Iterable[str]:
    """Every entry of the map leads to a full block with that hash."""
    for hash, block_id in bm.hash_to_block_id.items():
        if not 0 <= block_id < len(bm.blocks):
            yield f"the map leads from {hash:016x} to block {block_id}, which is not in the pool"
            continue
        block = bm.blocks[block_id]
        if block.hash != hash:
            has = "no hash" if block.hash == -1 else f"hash {block.hash:016x}"
            yield f"the map leads from {hash:016x} to block {block_id}, which has {has}"
    for block in bm.blocks:
        if block.hash != -1 and len(block.token_ids) != bm.block_size:
            yield f"block {block.block_id} is registered with {len(block.token_ids)} tokens of {bm.block_size}"


def _contents(bm: Any, sequences: list[Sequence]) -> Iterable[str]:
    """A registered block in a table holds what the sequence says there; a block that still fills is not registered."""
    for seq in sequences:
        for i, block_id in enumerate(seq.block_table[:seq.num_blocks]):
            if not 0 <= block_id < len(bm.blocks):
                yield f"request {seq.seq_id} holds block {block_id}, which is not in the pool"
                continue
            block = bm.blocks[block_id]
            is_full = (i + 1) * bm.block_size <= seq.num_cached_tokens
            if block.hash != -1 and not is_full:
                yield f"block {block_id} is registered, but request {seq.seq_id} is still filling it"
            if block.hash != -1 and is_full and list(block.token_ids) != seq.block(i):
                yield f"block {block_id} is registered for other tokens than block {i} of request {seq.seq_id}"
            if block.ref_count > 1 and not is_full:
                yield f"block {block_id} is shared, but request {seq.seq_id} is still filling it"
