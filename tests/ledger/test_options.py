"""What the ledger can do beyond the reference, each of it off by default."""
from __future__ import annotations

import pytest

from nanovllm_edu.engine import BlockManager
from nanovllm_edu.engine.cache_stats import CacheStats
from nanovllm_edu.engine.events import BatchScheduled, RequestPreempted, TokenAppended
from nanovllm_edu.errors import ConfigError, LedgerError
from tests.ledger.helpers import Log, admit, compute, is_empty, queue, request, run, scheduler, step


def test_everything_is_off_by_default() -> None:
    sch = scheduler()
    assert sch.policy == "prefill_first" and sch.max_model_len is None and sch.cache_stats is not None
    assert sch.block_manager.enable_prefix_caching and not sch.block_manager._keeps_copies


# --- prefix_cache_duplicates ---------------------------------------------------------------------------------------


def copies(count: int, num_blocks: int = 10) -> tuple[BlockManager, list]:
    """``count`` requests that computed the same block beside each other, with blocks 0, 1, 2, …"""
    manager = BlockManager(num_blocks, 2, prefix_cache_duplicates="all")
    seqs = [request([1, 1], block_size=2) for _ in range(count)]
    for seq in seqs:
        manager.allocate(seq, 0)
    for seq in seqs:
        compute(manager, seq)
    return manager, seqs


def overwrite(manager: BlockManager, block_id: int) -> None:
    """Take blocks from the head of the queue until ``block_id`` is overwritten."""
    while block_id in manager.free_block_ids:
        admit(manager, [7])


def test_all_finds_any_copy_and_the_newest_first() -> None:
    manager, seqs = copies(3)
    [hash] = manager.hash_to_block_id
    assert manager.hash_to_block_id[hash] == 2 and manager._copies == {hash: [0, 1, 2]}
    for newest, expected in ((2, 1), (1, 0)):
        manager.deallocate(seqs[newest])
        overwrite(manager, newest)
        assert manager.hash_to_block_id == {hash: expected}
    manager.deallocate(seqs[0])
    overwrite(manager, 0)
    assert manager.hash_to_block_id == {} and manager._copies == {}


def test_all_keeps_the_entry_when_an_older_copy_goes() -> None:
    manager, seqs = copies(3)
    [hash] = manager.hash_to_block_id
    manager.deallocate(seqs[1])
    overwrite(manager, 1)
    assert manager.hash_to_block_id == {hash: 2} and manager._copies == {hash: [0, 2]}


def test_all_and_a_collision_each_prefix_finds_its_own_block() -> None:
    """Two prefixes with one hash: with "all" both are found, with "last" only the newer one."""
    class Same(BlockManager):
        @classmethod
        def compute_hash(cls, token_ids, prefix=-1):
            return 3

    for duplicates, expected in (("all", [1, 1]), ("last", [0, 1])):
        manager = Same(6, 2, prefix_cache_duplicates=duplicates)
        admit(manager, [1, 1]), admit(manager, [2, 2])
        assert [manager.can_allocate(request([t, t, 5], block_size=2)) for t in (1, 2)] == expected


def test_all_forgets_every_copy_on_reset() -> None:
    manager, seqs = copies(3)
    for seq in seqs:
        manager.deallocate(seq)
    manager.reset_prefix_cache()
    assert manager.hash_to_block_id == {} and manager._copies == {}
    assert manager.can_allocate(request([1, 1, 1], block_size=2)) == 0


def test_the_same_outputs_with_all_and_with_last() -> None:
    outputs = []
    for duplicates in ("last", "all"):
        sch = scheduler(num_kvcache_blocks=6, prefix_cache_duplicates=duplicates)
        seqs = [request([1, 2, 3, 4, i % 2], i, 7) for i in range(6)]
        for seq in seqs:
            sch.add(seq)
        run(sch)
        outputs.append([seq.completion_token_ids for seq in seqs])
    assert outputs[0] == outputs[1]


# --- cache_salt ----------------------------------------------------------------------------------------------------


def test_tenants_never_share() -> None:
    sch = scheduler(num_kvcache_blocks=20)
    seqs = [request([1] * 9, i, 2, salt=salt) for i, salt in enumerate(["a", "b", None, "a", "b", None])]
    for seq in seqs:
        sch.add(seq)
        run(sch)
    assert [seq.first_hit_tokens for seq in seqs] == [0, 0, 0, 8, 8, 8]


# --- enable_prefix_caching and reset_prefix_cache ------------------------------------------------------------------


def test_caching_off_shares_nothing_and_registers_nothing() -> None:
    sch = scheduler(enable_prefix_caching=False, num_kvcache_blocks=5)
    seqs = [request([1] * 6, i, 9) for i in range(3)]
    for seq in seqs:
        sch.add(seq)
    while not sch.is_finished():
        step(sch)
        assert sch.block_manager.hash_to_block_id == {} and all(b.hash == -1 for b in sch.block_manager.blocks)
        assert max(b.ref_count for b in sch.block_manager.blocks) <= 1
    assert {seq.first_hit_tokens for seq in seqs} == {0} and is_empty(sch)


def test_an_option_that_a_manager_does_not_know() -> None:
    class Mine(BlockManager):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)

    assert scheduler(Mine).block_manager.block_size == 4
    with pytest.raises(ConfigError, match=r"\['enable_prefix_caching'\] can't be passed to Mine: .*or leave"):
        scheduler(Mine, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match=r"\['prefix_cache_duplicates'\] can't be passed to Mine"):
        scheduler(Mine, prefix_cache_duplicates="all")


def test_a_reset_is_refused_while_anybody_holds_blocks() -> None:
    sch = scheduler(max_num_batched_tokens=4)
    sch.add(request([1] * 6, 7))
    step(sch)                                         # half a prompt: it waits, and holds blocks
    with pytest.raises(LedgerError, match=r"requests \[7\] hold blocks"):
        sch.reset_prefix_cache()
    run(sch)
    order = queue(sch.block_manager)
    sch.reset_prefix_cache()
    assert queue(sch.block_manager) == order and sch.block_manager.hash_to_block_id == {}
    sch.add(seq := request([1] * 6, 8))
    run(sch)
    assert seq.first_hit_tokens == 0


# --- cache_stats ---------------------------------------------------------------------------------------------------


def test_the_hit_rate_is_that_of_the_last_thousand_requests() -> None:
    stats = CacheStats()
    stats.observe(10, 10)
    for _ in range(999):
        stats.observe(10, 0)
    assert stats.hit_rate == 1 / 1000
    stats.observe(10, 0)
    assert stats.hit_rate == 0.0 and (stats.requests, stats.queries, stats.hits) == (1001, 10010, 10)


def test_stats_of_a_run() -> None:
    sch = scheduler(num_kvcache_blocks=12)
    for i in range(4):
        sch.add(request([1] * 9, i, 1))
        run(sch)
    stats = sch.cache_stats
    assert (stats.requests, stats.queries, stats.hits, stats.hit_rate) == (4, 8, 6, 0.75)
    assert stats.preempted_requests == 0


# --- scheduling_policy="mixed" -------------------------------------------------------------------------------------


def test_mixed_decodes_come_first_and_share_the_budget() -> None:
    sch = scheduler(scheduling_policy="mixed", max_num_batched_tokens=5, num_kvcache_blocks=30)
    log = Log(sch)
    sch.add(request([1, 1], 0, 20)), sch.add(request([2, 2], 1, 20))
    step(sch)
    sch.add(request([3] * 7, 2, 20)), sch.add(request([4] * 3, 3, 20))
    batches = [[(s.seq_id, w) for s, w in widths(sch)] for _ in range(4)]
    assert batches == [
        [(0, 1), (1, 1), (2, 3)],                     # what two decodes leave goes to a chunk
        [(0, 1), (1, 1), (2, 3)],
        [(0, 1), (1, 1), (2, 1), (3, 2)],             # the rest of one prompt, and a chunk of the next
        [(0, 1), (1, 1), (2, 1), (3, 1)],
    ]
    assert max(event.num_tokens for event in log.of(BatchScheduled)) == 5
    assert [event.phase for event in log.of(BatchScheduled)] == ["prefill"] + ["mixed"] * 4


def widths(sch) -> list:
    seqs, is_prefill = sch.schedule()
    assert is_prefill
    found = [(seq, seq.num_scheduled_tokens) for seq in seqs]
    half = [seq for seq in sch.waiting if seq.block_table]
    assert len(half) <= 1 and half == [seq for seq in sch.waiting][:len(half)], "one half-prefilled, at the head"
    sch.postprocess(seqs, [0] * len(seqs), is_prefill)
    return found


def test_mixed_with_more_running_than_budget() -> None:
    """The budget bounds decodes too; the oldest go first, and prompts wait."""
    sch = scheduler(scheduling_policy="mixed", max_num_batched_tokens=2, num_kvcache_blocks=30)
    for i in range(3):
        sch.add(request([i], i, 3))
    log = Log(sch)
    run(sch)
    assert max(event.num_tokens for event in log.of(BatchScheduled)) == 2
    assert is_empty(sch)


def steady(policy: str) -> tuple[list[int], int]:
    """Ten steps of steady arrivals: how many tokens the first request had after each, and prompts served."""
    sch = scheduler(scheduling_policy=policy, max_num_batched_tokens=4, num_kvcache_blocks=50)
    sch.add(seq := request([1], 0, 30))
    step(sch)
    log, tokens = Log(sch), []
    for t in range(10):
        sch.add(request([2, 3, 4], t + 1, 1))
        step(sch)
        tokens.append(seq.num_completion_tokens - 1)
    return tokens, len({event.seq_id for event in log.of(TokenAppended)} - {0})


def test_starvation_of_decodes_under_steady_arrivals() -> None:
    """Report 17: shown for "prefill_first", excluded for "mixed", where prompts are served as well."""
    assert steady("prefill_first") == ([0] * 10, 10)
    assert steady("mixed") == (list(range(1, 11)), 10)


def test_mixed_preempts_a_half_prefilled_request_first() -> None:
    """It is newer than all that run, and nothing that it gave out is lost: it stays at the head of the line."""
    sch = scheduler(scheduling_policy="mixed", max_num_batched_tokens=4, num_kvcache_blocks=5)
    log = Log(sch)
    sch.add(request([1, 1, 1], 0, 9))
    step(sch)
    sch.add(half := request([2] * 13, 1, 1))
    step(sch)
    assert half.block_table == [1, 2, 3, 4] and half.num_cached_tokens == 3 and list(sch.waiting) == [half]
    seqs = step(sch)
    [event] = log.of(RequestPreempted)
    assert (event.seq_id, event.for_seq_id, event.status_before, event.running_prev) == (1, 0, "WAITING", None)
    assert [seq.seq_id for seq in seqs] == [0], "the freed blocks are not taken back in the same step"
    assert half.block_table == [] and half.num_cached_tokens == 0 and list(sch.waiting) == [half]
    run(sch)
    assert half.finish_reason == "length" and is_empty(sch)


@pytest.mark.parametrize("num_blocks", [5, 7, 9, 30])
@pytest.mark.parametrize("budget", [1, 3, 8, 64])
def test_mixed_gives_the_same_outputs(num_blocks: int, budget: int) -> None:
    outputs = []
    for policy in ("prefill_first", "mixed"):
        sch = scheduler(scheduling_policy=policy, num_kvcache_blocks=num_blocks, max_num_batched_tokens=budget)
        seqs = [request([1, 2, 3, 4, i % 3, i], i, 4 + i) for i in range(6)]
        for i, seq in enumerate(seqs):
            sch.add(seq)
            if i % 2:
                step(sch)
        run(sch)
        assert is_empty(sch)
        outputs.append([(seq.completion_token_ids, seq.finish_reason) for seq in seqs])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("policy", ["", "fcfs", None, "MIXED"])
def test_another_policy_is_refused(policy) -> None:
    with pytest.raises(ConfigError, match="scheduling_policy=.*must be 'prefill_first' or 'mixed'"):
        scheduler(scheduling_policy=policy)
