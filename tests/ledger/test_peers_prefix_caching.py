"""vLLM's ``test_prefix_caching.py``, re-enacted with exact block ids.

Ids start at 0 here (vLLM keeps block 0 as a null block), and a partial block goes to the tail of the free queue like
all others (vLLM puts it at the front). Each test names its row.

Left out, because what they test does not exist here:
- ``test_prefill_plp``: there are no prompt logprobs, the one reason for a request to refuse hits.
- ``test_mm_prefix_caching``, ``test_kv_cache_events_with_lora``: no images and no adapters, so a salt is the only
  thing beside tokens that enters a hash.
- ``test_cache_blocks_multi_group``, ``test_block_stored/removed_event_group_idx*``, hybrid, eagle, sliding-window and
  mamba tests: one kind of attention, one group of blocks.
- ``test_null_parent_block_hash``, ``test_masked_block_does_not_emit_empty_stored_event``: no null block; nothing is
  ever masked. That the first block's parent is -1 is in ``test_kv_cache_events``.
"""
from __future__ import annotations

import pytest

from nanovllm_edu.engine import BlockManager
from nanovllm_edu.engine.events import BlockForgotten, BlockRegistered, BlockTaken, EntryEvicted, PrefixLookup
from nanovllm_edu.errors import LedgerError
from tests.ledger.helpers import Log, admit, compute, decode, queue, refs, request, scheduler

COMMON = list(range(48))  # three blocks of 16


def pool(num_blocks: int = 10, block_size: int = 16, **options) -> BlockManager:
    return BlockManager(num_blocks, block_size, **options)


def hashed(manager: BlockManager) -> list[int]:
    return [block.block_id for block in manager.blocks if block.hash != -1]


def test_prefill() -> None:
    """Row ``test_prefill``."""
    manager = pool()
    first = admit(manager, COMMON + [100] * 7)
    assert first.block_table == [0, 1, 2, 3] and hashed(manager) == [0, 1, 2]
    assert manager.blocks[3].hash == -1 and manager.blocks[3].token_ids == []

    second = request(COMMON + [200] * 5, block_size=16)
    assert manager.can_allocate(second) == 3
    manager.allocate(second, 3)
    assert second.block_table == [0, 1, 2, 4] and second.num_cached_tokens == 48
    assert refs(manager)[:5] == [2, 2, 2, 1, 1] and queue(manager) == [5, 6, 7, 8, 9]
    compute(manager, second)

    manager.deallocate(first)
    assert refs(manager)[:5] == [1, 1, 1, 0, 1] and queue(manager) == [5, 6, 7, 8, 9, 3]
    manager.deallocate(second)
    assert queue(manager) == [5, 6, 7, 8, 9, 3, 4, 2, 1, 0]

    third = admit(manager, COMMON + [300] * 6)
    assert third.block_table == [0, 1, 2, 5] and refs(manager) == [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert queue(manager) == [6, 7, 8, 9, 3, 4]
    manager.deallocate(third)
    order = [6, 7, 8, 9, 3, 4, 5, 2, 1, 0]
    assert queue(manager) == order

    stranger = request([400] * 160, block_size=16)
    assert manager.can_allocate(stranger) == 0
    manager.allocate(stranger, 0)
    assert stranger.block_table == order, "a miss evicts in exactly the order of the queue"
    assert queue(manager) == [] and manager.hash_to_block_id == {} and hashed(manager) == []
    ends = manager.free_block_ids
    assert ends._head.next_free is ends._tail and ends._tail.prev_free is ends._head


def test_decode() -> None:
    """Row ``test_decode``: tokens in the tail take no block; the token that opens a block takes one."""
    manager = pool()
    seq = admit(manager, range(55))
    for token in range(4):
        decode(manager, seq, token)
    assert seq.block_table == [0, 1, 2, 3] and hashed(manager) == [0, 1, 2] and queue(manager)[0] == 4
    for token in range(15):
        decode(manager, seq, token)
    assert seq.block_table == [0, 1, 2, 3, 4] and hashed(manager) == [0, 1, 2, 3]
    assert manager.blocks[4].hash == -1 and manager.blocks[3].token_ids == seq.block(3)


def test_evict() -> None:
    """Row ``test_evict``."""
    manager = pool()
    long = admit(manager, range(5 * 16 + 7))
    short = admit(manager, range(500, 548))
    assert (long.block_table, short.block_table) == ([0, 1, 2, 3, 4, 5], [6, 7, 8])
    manager.deallocate(long)
    manager.deallocate(short)
    assert queue(manager) == [9, 5, 4, 3, 2, 1, 0, 8, 7, 6]
    again = admit(manager, range(2 * 16 + 3))
    assert again.block_table == [0, 1, 9] and len(manager.free_block_ids) == 7
    assert queue(manager) == [5, 4, 3, 2, 8, 7, 6]


def test_hash_block_correct_reuse() -> None:
    """Row ``test_hash_block_correct_reuse``."""
    manager = pool(1)
    seq = admit(manager, range(16))
    assert hashed(manager) == [0]
    manager.deallocate(seq)
    assert hashed(manager) == [0], "freed, and still to be found"
    admit(manager, range(15))
    assert hashed(manager) == [] and manager.hash_to_block_id == {} and manager.blocks[0].token_ids == []


def test_computed_blocks_not_evicted() -> None:
    """Row ``test_computed_blocks_not_evicted``: the hit stands at the head of the queue and is not taken as new."""
    manager = pool(2)
    first, second = admit(manager, range(16)), admit(manager, range(16, 32))
    manager.deallocate(first)
    manager.deallocate(second)
    assert queue(manager) == [0, 1]
    third = admit(manager, range(32))
    assert third.block_table == [0, 1]


def test_basic_prefix_caching_disabled() -> None:
    """Row ``test_basic_prefix_caching_disabled``."""
    manager = pool(4, 4, enable_prefix_caching=False)
    first = admit(manager, range(10))
    assert first.block_table == [0, 1, 2] and manager.hash_to_block_id == {} and hashed(manager) == []
    manager.deallocate(first)
    log = Log(manager)
    second = admit(manager, range(16))
    assert second.block_table == [3, 2, 1, 0] and log.of(PrefixLookup) == []
    assert manager.can_allocate(request(range(4))) == -1


def test_cache_blocks() -> None:
    """Row ``test_cache_blocks``: registered from the start, then from the middle."""
    manager = pool(5, 4)
    seq = request(range(14))
    manager.allocate(seq, manager.can_allocate(seq))
    seq.num_scheduled_tokens = 11
    manager.hash_blocks(seq)
    assert len(manager.hash_to_block_id) == 2 and hashed(manager) == [0, 1]
    seq.num_cached_tokens, seq.num_scheduled_tokens = 11, 3
    manager.hash_blocks(seq)
    assert len(manager.hash_to_block_id) == 3 and hashed(manager) == [0, 1, 2]
    assert [manager.blocks[i].token_ids for i in range(3)] == [seq.block(i) for i in range(3)]


def test_cache_key_salting() -> None:
    """Row ``test_cache_key_salting``: the salt enters the first block's hash; the rest follows from the chain."""
    manager = pool(20)
    first = admit(manager, COMMON + [1], salt="a")
    assert manager.can_allocate(request(COMMON + [1], salt="a", block_size=16)) == 3
    assert manager.can_allocate(request(COMMON + [1], salt="b", block_size=16)) == 0
    assert manager.can_allocate(request(COMMON + [1], block_size=16)) == 0
    plain = admit(manager, COMMON + [1])
    assert manager.blocks[0].hash != manager.blocks[plain.block_table[0]].hash
    for parent, block in zip(first.block_table, first.block_table[1:3], strict=False):
        assert manager.blocks[block].hash == BlockManager.compute_hash(
            manager.blocks[block].token_ids, manager.blocks[parent].hash)


def test_prefill_not_enough_free_blocks_with_computed_blocks() -> None:
    """Row of the same name: a denied request leaves no trace on the blocks that it hits."""
    manager = pool(10)
    shared = admit(manager, COMMON)
    others = admit(manager, range(500, 580))
    assert (shared.block_table, others.block_table) == ([0, 1, 2], [3, 4, 5, 6, 7])
    manager.deallocate(shared)
    before = refs(manager), queue(manager), dict(manager.hash_to_block_id)
    assert before[1] == [8, 9, 2, 1, 0]
    denied = request(COMMON + [7] * 48, block_size=16)
    assert manager.can_allocate(denied) == -1, "three hits are free: they cost a free block each"
    assert (refs(manager), queue(manager), dict(manager.hash_to_block_id)) == before
    assert denied.block_table == [] and denied.num_cached_tokens == 0
    assert manager.can_allocate(request(COMMON + [7] * 32, block_size=16)) == 3


def test_reset_prefix_cache() -> None:
    """Row ``test_reset_prefix_cache``."""
    manager = pool()
    seq = admit(manager, range(55))
    with pytest.raises(LedgerError, match=r"4 blocks are in use \(\[0, 1, 2, 3\]"):
        manager.reset_prefix_cache()
    assert len(manager.hash_to_block_id) == 3
    manager.deallocate(seq)
    order = queue(manager)
    manager.reset_prefix_cache()
    assert manager.hash_to_block_id == {} and hashed(manager) == [] and queue(manager) == order
    assert all(block.token_ids == [] and block.prefix is None for block in manager.blocks)
    assert manager.can_allocate(request(range(55), block_size=16)) == 0


def test_prefix_cache_stats_disabled() -> None:
    """Row ``test_prefix_cache_stats_disabled``."""
    assert scheduler(enable_prefix_caching=False).cache_stats is None
    assert scheduler().cache_stats is not None


def twins(manager: BlockManager) -> tuple:
    """Two requests that computed the same block at the same time."""
    seqs = [request([1, 1, 1, 1, i]) for i in (2, 3)]
    for seq in seqs:
        assert manager.can_allocate(seq) == 0
        manager.allocate(seq, 0)
    for seq in seqs:
        compute(manager, seq)
    return tuple(seqs)


def test_maybe_evict_cached_block() -> None:
    """Row ``test_maybe_evict_cached_block``, under ``prefix_cache_duplicates="all"``: the newest copy goes, an older
    one is found; then that one goes, and nothing is."""
    manager = pool(6, 4, prefix_cache_duplicates="all")
    first, second = twins(manager)
    assert (first.block_table, second.block_table) == ([0, 1], [2, 3])
    assert list(manager.hash_to_block_id.values()) == [2]
    manager.deallocate(second)                        # queue 4 5 3 2
    filler = admit(manager, range(10, 26))            # takes 4 5 3 2
    assert filler.block_table == [4, 5, 3, 2]
    assert manager.can_allocate(request([1, 1, 1, 1, 9])) == -1 and 0 in manager.hash_to_block_id.values()
    manager.deallocate(first)
    assert manager.can_allocate(request([1, 1, 1, 1, 9])) == 1
    manager.deallocate(filler)                        # queue 1 0 2 3 5 4
    admit(manager, range(30, 38))
    assert manager.can_allocate(request([1, 1, 1, 1, 9])) == 0 and manager._copies.keys() == {
        block.hash for block in manager.blocks if block.hash != -1}


def test_a_shadowed_duplicate_is_not_found_by_default() -> None:
    """The same as ``test_maybe_evict_cached_block`` with ``"last"``: the one entry dies with the newest copy."""
    manager = pool(6, 4)
    first, second = twins(manager)
    manager.deallocate(second)
    admit(manager, range(10, 26))
    manager.deallocate(first)
    assert manager.can_allocate(request([1, 1, 1, 1, 9])) == 0
    assert manager.blocks[0].hash != -1, "registered, and no entry leads to it"


def test_block_lookup_cache_single_block_per_key() -> None:
    """Row of the same name: insert, get and pop of the map; an older duplicate does not take the newer one's entry."""
    manager = pool(6, 4)
    first, second = twins(manager)
    [hash] = manager.hash_to_block_id
    assert hash == BlockManager.compute_hash([1, 1, 1, 1])
    assert manager.hash_to_block_id == {hash: 2}
    manager.deallocate(first)                         # queue 4 5 1 0
    other = admit(manager, range(10, 26))             # overwrites 0
    assert other.block_table == [4, 5, 1, 0] and manager.hash_to_block_id[hash] == 2
    assert manager.can_allocate(request([1, 1, 1, 1])) == -1
    manager.deallocate(other)
    assert manager.can_allocate(request([1, 1, 1, 1, 5])) == 1


@pytest.mark.parametrize("count", [2, 3, 10])
def test_kv_cache_events(count: int) -> None:
    """Row ``test_kv_cache_events[2,3,10]``: what is stored, removed and cleared is told, block by block."""
    manager = pool(count, 16)
    log = Log(manager)
    seq = admit(manager, range(count * 16))
    stored = log.of(BlockRegistered)
    assert [event.block_id for event in stored] == list(range(count))
    assert [t for event in stored for t in event.token_ids] == list(range(count * 16))
    assert [event.parent_hash for event in stored] == [-1, *(event.hash for event in stored[:-1])]
    assert all(event.hash_before == -1 and event.token_ids_before == () and event.block_id_before is None
               for event in stored)

    manager.deallocate(seq)
    log.events.clear()
    seq = admit(manager, range(1000, 1000 + count * 16))
    hashes = [event.hash for event in stored][::-1]
    assert [event.hash for event in log.of(EntryEvicted)] == hashes
    assert [event.block_id_after for event in log.of(EntryEvicted)] == [None] * count
    assert [(e.block_id, e.hash_before) for e in log.of(BlockTaken)] == list(
        zip(range(count - 1, -1, -1), hashes, strict=True))
    assert len(log.of(BlockRegistered)) == count

    manager.deallocate(seq)
    log.events.clear()
    manager.reset_prefix_cache()
    assert sorted(e.block_id for e in log.of(BlockForgotten)) == list(range(count))
    assert len(log.of(EntryEvicted)) == count


def test_emit_cached_block_events() -> None:
    """Rows ``test_emit_cached_block_events``, ``_zero_cached`` and ``_disabled``: lookups say what they found, change
    nothing, and are silent when caching is off."""
    manager = pool(6, 4)
    admit(manager, range(9))
    before = refs(manager), queue(manager), dict(manager.hash_to_block_id)
    log = Log(manager)
    assert manager.can_allocate(request([*range(8), 9, 9, 9, 9, 9])) == 2
    assert [(e.logical, e.outcome, e.block_id) for e in log.events] == [
        (0, "hit_used", 0), (1, "hit_used", 1), (2, "miss", None)]
    log.events.clear()
    assert manager.can_allocate(request(range(8))) == 1
    assert [(e.logical, e.outcome, e.block_id, e.hash) for e in log.events][1] == (1, "last_block", None, -1)
    assert log.events[1].token_ids == (4, 5, 6, 7) and log.events[1].parent_hash == log.events[0].hash
    log.events.clear()
    assert manager.can_allocate(request([7])) == 0
    assert [(e.outcome, e.parent_hash) for e in log.events] == [("last_block", -1)]
    assert (refs(manager), queue(manager), dict(manager.hash_to_block_id)) == before
    off = pool(6, 4, enable_prefix_caching=False)
    silent = Log(off)
    off.can_allocate(request(range(9)))
    assert silent.events == []
