"""vLLM's ``test_kv_cache_utils.py`` (but for the free queue: see ``test_free_queue.py``), its small files on
collisions and invariants, and tiny-llm's tests of paged caches, re-enacted.

Left out, because what they test does not exist here:
- ``test_none_hash_seed_random_for_non_crypto``: the chain has no seed, on purpose: a learner's hashes are the book's.
- ``test_generate_block_hash_extra_keys*`` but for the salt, ``test_hash_tokens_different_mm_input``: no images, no
  adapters, no prompt embeddings.
- tiny-llm's ``..._rewind``, ``..._rejects_incompatible_dtype_before_allocating_a_page``,
  ``..._paged_cache_matches_full_cache``: the ledger holds no tensors; the tests of the engine compare them.
"""
from __future__ import annotations

import struct

import pytest
import xxhash

from nanovllm_edu.engine import BlockManager, check_invariants, violations
from nanovllm_edu.engine.cache_stats import CacheStats
from nanovllm_edu.engine.events import PrefixLookup
from nanovllm_edu.errors import ConfigError, LedgerError
from nanovllm_edu.fuzz.runner import weak_hashes
from tests.ledger.helpers import Log, admit, compute, decode, queue, refs, request


def test_hash_block_tokens_and_none_hash() -> None:
    """Rows ``test_hash_block_tokens``, ``test_none_hash``, ``..._deterministic_for_crypto``: a function of the parent
    and the tokens, the same in every process; without a parent nothing stands before the tokens."""
    tokens = struct.pack("<3q", 1, 2, 2**40)
    assert BlockManager.compute_hash([1, 2, 2**40]) == xxhash.xxh64_intdigest(tokens)
    assert BlockManager.compute_hash([1, 2, 2**40], 5) == xxhash.xxh64_intdigest((5).to_bytes(8, "little") + tokens)
    assert BlockManager.compute_hash([1, 2], 0) != BlockManager.compute_hash([1, 2])
    assert BlockManager.compute_hash([2, 1]) != BlockManager.compute_hash([1, 2])


def test_request_block_hasher_and_hash_request_tokens() -> None:
    """Rows ``test_request_block_hasher``, ``test_hash_request_tokens_no_mm_inputs``: full blocks only, in a chain."""
    manager = BlockManager(4, 3)
    admit(manager, range(8))
    first = BlockManager.compute_hash([0, 1, 2])
    assert [block.hash for block in manager.blocks] == [first, BlockManager.compute_hash([3, 4, 5], first), -1, -1]
    assert manager.hash_to_block_id == {manager.blocks[0].hash: 0, manager.blocks[1].hash: 1}


def test_generate_block_hash_extra_keys_cache_salt() -> None:
    """Row of the same name: the salt stands before the first block and nowhere else."""
    manager = BlockManager(4, 2)
    seq = admit(manager, [1, 2, 3, 4], salt="tenant")
    first = BlockManager.compute_hash([1, 2], xxhash.xxh64_intdigest(b"tenant"))
    assert [manager.blocks[i].hash for i in seq.block_table] == [first, BlockManager.compute_hash([3, 4], first)]


def test_a_salt_is_not_a_block_of_tokens() -> None:
    """A salt never equals a prefix of tokens, even where its hash does."""
    class Same(BlockManager):
        @classmethod
        def compute_hash(cls, token_ids, prefix=-1):
            return 7

    manager = Same(4, 2)
    admit(manager, [1, 2, 3], salt="a")
    assert [manager.can_allocate(request([1, 2, 5], block_size=2, salt=salt)) for salt in ("a", "b", None)] == [1, 0, 0]


def test_metrics() -> None:
    """Row ``test_metrics``: the hit rate over the last five requests, 0.45, 0.25, 0.2, and empty ones ignored."""
    stats = CacheStats(window=5)
    for queries, hits in ((20, 9), (0, 0)):
        stats.observe(queries, hits)
    assert stats.hit_rate == 0.45
    stats.observe(20, 1)
    assert stats.hit_rate == 0.25
    for _ in range(5):
        stats.observe(20, 4)
    assert stats.hit_rate == 0.2 and stats.queries == 140 and stats.hits == 30 and stats.requests == 8


def test_metrics_empty_stats() -> None:
    """Row ``test_metrics_empty_stats``: no division by nothing."""
    stats = CacheStats()
    assert stats.hit_rate == 0.0
    stats.observe(0, 0)
    assert stats.hit_rate == 0.0 and stats.requests == 1
    stats.observe(4, 1, preempted=True)
    assert stats.hit_rate == 0.0 and (stats.queries, stats.hits) == (0, 0)
    assert (stats.preempted_requests, stats.preempted_queries, stats.preempted_hits) == (1, 4, 1)
    assert repr(stats) == ("CacheStats(0 of 0 block lookups hit in 1 requests; "
                           "after preemption 1 of 4 in 1)")


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_hash_collision_defense(depth: int) -> None:
    """Row ``test_hash_collision_defense.py``: two prompts that differ at one depth only, with every hash equal, never
    share from there on; and the entry is gone with its block, or with a reset."""
    manager = weak_hashes(BlockManager, 0)(12, 2)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    other = list(tokens)
    other[2 * depth] += 40
    admit(manager, tokens)
    log = Log(manager)
    assert manager.can_allocate(request(other, block_size=2)) == 0
    assert log.of(PrefixLookup)[-1].outcome == "collision" and log.of(PrefixLookup)[-1].block_id == 3
    seq = admit(manager, other)
    manager.deallocate(seq)
    assert manager.hash_to_block_id == {0: 8}, "one hash, one entry: that of the last registered"


def test_hash_collision_is_cleared_on_evict_and_reset() -> None:
    manager = weak_hashes(BlockManager, 0)(2, 2)
    seq = admit(manager, [1, 2, 3, 4])
    manager.deallocate(seq)
    assert manager.hash_to_block_id == {0: 1}
    admit(manager, [5])                               # overwrites block 1
    assert manager.hash_to_block_id == {}
    manager = weak_hashes(BlockManager, 0)(2, 2)
    manager.deallocate(admit(manager, [1, 2, 3, 4]))
    manager.reset_prefix_cache()
    assert manager.hash_to_block_id == {}


def test_block_pool_double_free() -> None:
    """Row ``test_block_pool_double_free.py``: a request gives its blocks up once; again, it has none to give."""
    manager = BlockManager(3, 2)
    seq = admit(manager, [1, 2, 3])
    table = list(seq.block_table)
    manager.deallocate(seq)
    manager.deallocate(seq)
    assert queue(manager) == [2, 1, 0] and refs(manager) == [0, 0, 0]
    seq.block_table = table                           # a table that outlived its blocks
    with pytest.raises(LedgerError, match=r"request \d+ gives up blocks \[0, 1\], which are free already"):
        manager.deallocate(seq)
    assert queue(manager) == [2, 1, 0] and refs(manager) == [0, 0, 0]


def test_allocate_refuses_before_it_changes_anything() -> None:
    """tiny-llm: inputs are checked, and every page rolled back, when a later write fails."""
    manager = BlockManager(4, 2)
    holder = admit(manager, [1, 2, 3])
    state = refs(manager), queue(manager), dict(manager.hash_to_block_id)
    cases = [
        (holder, 0, r"holds blocks \[0, 1\] already: deallocate it first"),
        (request([1, 2, 3], 1, block_size=2), 2, "num_cached_blocks=2 for request 1: must be from 0 to 1"),
        (request([1, 2, 3], 1, block_size=2), -1, "num_cached_blocks=-1 for request 1: must be from 0 to 1"),
        (request([9, 2, 3], 1, block_size=2), 1, "block 0 of request 1 is not in the cache"),
        (request([1, 2, 4, 4, 5], 1, block_size=2), 2, "block 1 of request 1 is not in the cache"),
        (request(range(10, 16), 1, block_size=2), 0, "request 1 needs 3 free blocks and 2 are left"),
        (request([1, 2, *range(10, 16)], 1, block_size=2), 1, "request 1 needs 3 free blocks and 2 are left"),
    ]
    for seq, hits, message in cases:
        table = list(seq.block_table)
        with pytest.raises(LedgerError, match=message):
            manager.allocate(seq, hits)
        assert (refs(manager), queue(manager), dict(manager.hash_to_block_id)) == state
        assert seq.block_table == table
    check_invariants(manager, [holder])


def test_append_refuses_when_the_pool_is_empty() -> None:
    manager = BlockManager(2, 2)
    seq, other = admit(manager, [1, 2]), admit(manager, [3, 4])
    seq.append_token(5)
    assert not manager.can_append(seq) and not manager.can_append(seq)
    with pytest.raises(LedgerError, match="the free queue is empty"):
        manager.may_append(seq)
    assert seq.block_table == [0]
    manager.deallocate(other)
    assert manager.can_append(seq)
    manager.may_append(seq)
    assert seq.block_table == [0, 1]


def test_reuses_freed_pages() -> None:
    """tiny-llm ``..._reuses_freed_pages``: the longest unused block first."""
    manager = BlockManager(4, 2)
    first = admit(manager, [1, 2, 3])
    manager.deallocate(first)
    assert admit(manager, [7, 8, 9, 7, 8]).block_table == [2, 3, 1]


def test_can_append_counts_a_block_only_at_a_boundary() -> None:
    manager = BlockManager(3, 4)
    seq, _ = admit(manager, [1, 2, 3]), admit(manager, [5] * 8)
    decode(manager, seq, 4)
    assert seq.block_table == [0], "the block's last slot"
    seq.append_token(5)
    assert not manager.can_append(seq)


def test_a_shared_block_goes_back_with_its_last_holder() -> None:
    manager = BlockManager(6, 2)
    seqs = [admit(manager, [1, 2, i]) for i in (3, 4, 5)]
    assert [seq.block_table for seq in seqs] == [[0, 1], [0, 2], [0, 3]] and refs(manager)[0] == 3
    for seq, expected in zip(seqs, ([4, 5, 1], [4, 5, 1, 2], [4, 5, 1, 2, 3, 0]), strict=True):
        manager.deallocate(seq)
        assert queue(manager) == expected
        check_invariants(manager, seqs)
    assert manager.used_block_ids == set()


def test_revived_from_the_head_the_middle_and_the_tail() -> None:
    manager = BlockManager(6, 2)
    seqs = [admit(manager, [i, i]) for i in range(6)]
    for seq in seqs:
        manager.deallocate(seq)
    for i, expected in ((0, [2, 3, 4, 5]), (3, [4, 5]), (5, [])):
        head = queue(manager)
        seq = request([i, i, 9], block_size=2)
        manager.allocate(seq, manager.can_allocate(seq))
        assert seq.block_table == [i, next(b for b in head if b != i)]
        assert queue(manager) == expected


@pytest.mark.parametrize(("num_blocks", "block_size", "duplicates", "message"), [
    (0, 4, "last", "num_blocks=0: a pool needs at least one block"),
    (-3, 4, "last", "num_blocks=-3"),
    (4, 1, "last", "block_size=1: must be at least 2"),
    (4, 0, "all", "block_size=0"),
    (4, 4, "first", "prefix_cache_duplicates='first': must be 'last' or 'all'"),
])
def test_impossible_pools_are_refused(num_blocks, block_size, duplicates, message) -> None:
    with pytest.raises(ConfigError, match=message):
        BlockManager(num_blocks, block_size, prefix_cache_duplicates=duplicates)
    BlockManager(1, 2)


def test_kv_cache_invariants() -> None:
    """Row ``test_kv_cache_invariants.py``: a sound pool breaks no law (what breaks it: ``test_invariants.py``)."""
    manager = BlockManager(5, 2)
    assert violations(manager) == []
    seqs = [admit(manager, [1, 2, 3]), admit(manager, [1, 2, 4])]
    compute(manager, seqs[0])
    assert violations(manager, seqs) == []


def test_the_chain_up_to_any_block_at_once() -> None:
    """The prefix that ends with a late block is there without the earlier ones having been asked for."""
    manager = BlockManager(4, 2)
    seq = request([1, 2, 3, 4, 5, 6], block_size=2)
    late = manager._prefixes.of(seq, 2)
    assert late.token_ids == (5, 6) and late.parent is manager._prefixes.of(seq, 1)
    assert late.parent.parent is manager._prefixes.of(seq, 0) and late.parent.parent.parent is None
    assert late.parent_hash == late.parent.hash and late.parent.parent.parent_hash == -1
