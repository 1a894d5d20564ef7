"""What users of engines like this one reported, re-enacted on the ledger, the scheduler and the front door.

The number in each name is the report's row. A row stands for its kind: where one stands for many (containers, limits,
ways to interrupt), the tests named in its docstring walk the others. Rows on models, devices, kernels and processes
are tested with the engine.
"""
from __future__ import annotations

from collections import deque

import pytest

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import BlockManager, Sequence, check_invariants
from nanovllm_edu.engine.events import BatchScheduled, BlockTaken, RequestPreempted, TokenAppended
from nanovllm_edu.errors import ConfigError, RequestError
from nanovllm_edu.fuzz.shadow import ShadowModel, next_token
from tests.ledger.helpers import Log, admit, decode, is_empty, queue, request, run, scheduler, step


def test_report_1_the_only_sequence_needs_one_more_block() -> None:
    sch = scheduler(num_kvcache_blocks=2)
    seq = request([1] * 8, 0, 4)
    sch.add(seq)
    step(sch)
    assert seq.is_finished and seq.finish_reason == "kv_exhausted" and seq.num_completion_tokens == 1
    sch.add(again := request([2] * 4, 1, 4))
    run(sch)
    assert again.finish_reason == "length" and len(again.completion_token_ids) == 4 and is_empty(sch)


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
@pytest.mark.parametrize("neighbours", [0, 1, 3])
def test_report_1_and_its_kind_outgrowing_beside_others(policy: str, neighbours: int) -> None:
    """Whoever outgrows the pool ends with what it has; the others are served whole."""
    sch = scheduler(num_kvcache_blocks=3, scheduling_policy=policy)
    big = request([1] * 6, 0, 50)
    others = [request([2, i], i + 1, 5) for i in range(neighbours)]
    for seq in (big, *others):
        sch.add(seq)
    run(sch)
    assert big.finish_reason == "kv_exhausted" and big.num_tokens == 13
    assert [(seq.finish_reason, seq.num_completion_tokens) for seq in others] == [("length", 5)] * neighbours


def test_report_2_a_prompt_larger_than_the_pool() -> None:
    sch = scheduler(num_kvcache_blocks=2)
    sch.add(fine := request([1] * 5, 0, 3))
    with pytest.raises(RequestError, match="needs 3 blocks of 4; the whole pool has 2"):
        sch.add(request([2] * 12, 1))
    run(sch)
    assert fine.finish_reason == "length" and is_empty(sch)


def test_report_3_no_endless_prefill() -> None:
    for nb in range(2, 7):
        sch = scheduler(num_kvcache_blocks=nb)
        seqs = [request([i] * 8, i, 30) for i in range(3)]
        for seq in seqs:
            sch.add(seq)
        run(sch, limit=60 * nb)
        assert all(seq.is_finished for seq in seqs) and max(seq.num_preemptions for seq in seqs) < 30


def test_report_4_a_prompt_of_whole_blocks_sent_twice() -> None:
    sch = scheduler()
    sch.add(first := request([1] * 8, 0))
    run(sch)
    sch.add(second := request([1] * 8, 1))
    sch.schedule()
    assert (second.num_cached_tokens, second.num_scheduled_tokens) == (4, 4)
    sch.postprocess([second], [next_token_of(second)], True)
    run(sch)
    assert second.completion_token_ids == first.completion_token_ids


def next_token_of(seq: Sequence) -> int:
    from tests.ledger.golden import next_token

    return next_token(seq)


@pytest.mark.parametrize("length", range(1, 17))
def test_report_4_and_its_kind_something_is_always_computed(length: int) -> None:
    sch = scheduler()
    sch.add(request(range(length), 0, 1))
    run(sch)
    sch.add(seq := request(range(length), 1, 1))
    sch.schedule()
    assert seq.num_cached_tokens == (length - 1) // 4 * 4 and seq.num_scheduled_tokens == length - seq.num_cached_tokens


def test_report_5_a_preempted_request_hits_its_own_blocks() -> None:
    sch = scheduler(num_kvcache_blocks=6)
    log = Log(sch)
    for i in range(3):
        sch.add(request([i] * 6, i, 8))
    back = 0
    while not sch.is_finished():
        seqs = sch.schedule()[0]
        for seq in seqs:
            assert seq.num_scheduled_tokens + seq.num_cached_tokens == seq.num_tokens
            assert seq.num_blocks == len(seq.block_table)
            back += seq.num_preemptions > 0 and seq.is_prefill and seq.num_cached_tokens > 0
        sch.postprocess(seqs, [3] * len(seqs), seqs[0].is_prefill)
    assert log.of(RequestPreempted) and back


def test_report_7_an_evicted_block_leaves_no_entry() -> None:
    manager = BlockManager(3, 4)
    manager.deallocate(admit(manager, range(12)))
    assert len(manager.hash_to_block_id) == 3
    manager.deallocate(admit(manager, range(20, 32)))
    assert manager.can_allocate(request(range(12))) == 0
    assert set(manager.hash_to_block_id) == {block.hash for block in manager.blocks}


def test_report_8_twins_in_one_step_share_nothing_yet() -> None:
    sch = scheduler()
    sch.add(request([1] * 6, 0)), sch.add(request([1] * 6, 1))
    seqs, _ = sch.schedule()
    assert [(s.num_cached_tokens, s.block_table) for s in seqs] == [(0, [0, 1]), (0, [2, 3])]
    assert sch.block_manager.hash_to_block_id == {}, "registered only when its keys and values are there"
    sch.postprocess(seqs, [2, 2], True)
    assert list(sch.block_manager.hash_to_block_id.values()) == [2]


def test_report_10_a_duplicate_outlives_its_twin() -> None:
    sch = scheduler(num_kvcache_blocks=6, prefix_cache_duplicates="all")
    sch.add(a := request([1] * 5, 0, 20))
    sch.add(request([1] * 5, 1, 1))
    step(sch)
    assert a.block_table == [0, 1] and queue(sch.block_manager) == [4, 5, 3, 2]
    sch.add(request(range(10, 26), 2, 1))             # takes all four, b's among them
    step(sch)
    assert sch.block_manager.can_allocate(request([1] * 5)) == 1


class Colliding(BlockManager):
    """A and B have one hash, and so have X after A and X after B: every hash is the same."""

    @classmethod
    def compute_hash(cls, token_ids, prefix=-1):
        return 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_report_11_equal_hashes_never_share(depth: int) -> None:
    """[A, X, …] must not get the block that was computed after B, however deep the difference lies."""
    sch = scheduler(Colliding, num_kvcache_blocks=16)
    a, b, x = [1] * 4, [2] * 4, [3] * 4
    sch.add(request([*b, *x * depth, 9], 0, 1))
    run(sch)
    sch.add(seq := request([*a, *x * depth, 9], 1, 1))
    sch.schedule()
    assert seq.num_cached_tokens == 0
    assert BlockManager.compute_hash([1]) != BlockManager.compute_hash([2])


@pytest.mark.parametrize("mbt", range(1, 12))
def test_report_14_and_50b_chunks_compute_what_one_shot_does(mbt: int) -> None:
    """Every chunk reads up to its own end and no further: the shadow model would say what was never written."""
    sch = scheduler(max_num_batched_tokens=mbt)
    model = ShadowModel(8, 4)
    sch.add(seq := request([1, 2, 0, 1, 2, 2, 0, 1, 1, 2], 0, 5))
    ends = []
    while not sch.is_finished():
        seqs, is_prefill = sch.schedule()
        ends.append(seq.num_cached_tokens + seq.num_scheduled_tokens)
        sch.postprocess(seqs, model.run(seqs), is_prefill)
    expected = Sequence([1, 2, 0, 1, 2, 2, 0, 1, 1, 2], block_size=4)
    for _ in range(5):
        expected.append_token(next_token(expected))
    assert seq.token_ids == expected.token_ids
    chunks = -(-10 // mbt)
    assert ends[:chunks] == [min(10, mbt * (i + 1)) for i in range(chunks)]


def test_report_16_max_num_seqs_bounds_the_running() -> None:
    for policy in ("prefill_first", "mixed"):
        sch = scheduler(max_num_seqs=2, max_num_batched_tokens=3, scheduling_policy=policy)
        seqs = [request([i] * 5, i, 4) for i in range(6)]
        for seq in seqs:
            sch.add(seq)
        while not sch.is_finished():
            step(sch)
            holders = [seq.seq_id for seq in sch.sequences if seq.block_table]
            assert len(sch.running) <= 2 and len(holders) <= 2
        assert all(seq.finish_reason == "length" for seq in seqs)


def starve(policy: str, steps: int = 12) -> int:
    """One request decodes, and a new prompt arrives before every step: how many tokens it gets."""
    sch = scheduler(scheduling_policy=policy, num_kvcache_blocks=40, max_num_batched_tokens=8)
    sch.add(seq := request([1, 2], 0, 50))
    step(sch)
    for t in range(steps):
        sch.add(request([3, t % 3], t + 1, 1))
        step(sch)
    return seq.num_completion_tokens - 1


def test_report_17_arrivals_starve_a_decode_under_prefill_first_only() -> None:
    assert starve("prefill_first") == 0, "the reference's order, shown so that the lab can tell of it"
    assert starve("mixed") == 12


def test_report_21_a_block_is_taken_with_the_token_that_opens_it() -> None:
    """``len % block_size == 1``: prompt 4, block 4: no block for the fourth token, one for the fifth."""
    sch = scheduler()
    log = Log(sch)
    sch.add(seq := request([1, 2, 3, 4], 0, 6))
    step(sch)
    assert seq.num_tokens == 5 and seq.block_table == [0], "the fifth token is sampled, not computed yet"
    step(sch)
    assert seq.num_tokens == 6 and seq.block_table == [0, 1]
    for _ in range(3):
        step(sch)
    assert seq.num_tokens == 9 and seq.block_table == [0, 1] and len(log.of(BlockTaken)) == 2


def test_report_22_an_empty_prompt() -> None:
    for tokens in ([], (), range(0), iter([])):
        with pytest.raises(RequestError, match="no tokens"):
            Sequence(tokens)
    with pytest.raises(ValueError, match="no tokens"):
        Sequence("")


@pytest.mark.parametrize("count", [0, -1, -100, 0.5, None, "3", True])
def test_report_23_max_tokens_below_one(count) -> None:
    with pytest.raises(ValueError, match="max_tokens=.*at least 1"):
        SamplingParams(max_tokens=count)


def test_report_23_one_token_and_the_pool_is_free() -> None:
    sch = scheduler()
    sch.add(seq := request([1] * 9, 0, 1))
    step(sch)
    assert seq.num_completion_tokens == 1 and seq.finish_reason == "length" and is_empty(sch)


def test_report_24_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy and not SamplingParams(temperature=1).is_greedy


@pytest.mark.parametrize(("ignore_eos", "expected", "reason"), [(True, [5, 9, 6], "length"), (False, [5, 9], "eos")])
def test_report_26_ignore_eos(ignore_eos: bool, expected: list[int], reason: str) -> None:
    sch = scheduler(eos_token_ids=(9,))
    sch.add(seq := request([1], 0, 3, ignore_eos=ignore_eos))
    for token in (5, 9, 6)[:len(expected)]:
        step(sch, {0: token})
    assert (seq.completion_token_ids, seq.finish_reason) == (expected, reason) and sch.is_finished()


def test_report_27_an_interrupt_in_the_third_step() -> None:
    """The next call gets its own result alone, and the pool is free (every line: ``test_interruption.py``)."""
    sch = scheduler()
    for i in range(3):
        sch.add(request([i] * 6, i, 9))
    step(sch), step(sch)
    before = {seq.seq_id: (seq, seq.num_tokens) for seq in sch.sequences}
    sch.schedule()
    sch.recover(before)
    for i in range(3):
        sch.abort(i)
    assert is_empty(sch)
    sch.add(seq := request([7], 3, 2))
    log = Log(sch)
    run(sch)
    assert {event.seq_id for event in log.of(TokenAppended)} == {3} and seq.is_finished and is_empty(sch)


def test_report_50b_a_prompt_longer_than_the_budget() -> None:
    sch = scheduler(max_num_batched_tokens=8, max_model_len=32)
    log = Log(sch)
    sch.add(request(range(20), 0, 1))
    run(sch)
    assert [event.num_tokens for event in log.of(BatchScheduled)] == [8, 8, 4]
    for wrong in (0, -1, None):
        with pytest.raises(ConfigError, match="max_num_batched_tokens=.*at least 1"):
            scheduler(max_num_batched_tokens=wrong)


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
@pytest.mark.parametrize("nb", range(4, 10))
def test_report_54_first_come_first_served_also_after_preemption(policy: str, nb: int) -> None:
    """First tokens come in the order of arrival, and whoever is preempted comes back before those behind it."""
    sch = scheduler(num_kvcache_blocks=nb, max_num_batched_tokens=6, scheduling_policy=policy)
    log = Log(sch)
    for i in range(6):
        sch.add(request([i] * (3 + i), i, 6))
    while not sch.is_finished():
        step(sch)
        waiting = [seq.seq_id for seq in sch.waiting]
        assert waiting == sorted(waiting)
        assert deque(sorted(sch.running, key=lambda seq: seq.seq_id)) == sch.running
        check_invariants(sch.block_manager, sch.sequences)
    firsts = list(dict.fromkeys(event.seq_id for event in log.of(TokenAppended)))
    assert firsts == sorted(firsts)


def test_report_11_and_7_a_decoded_block_is_found_by_the_next_turn() -> None:
    """What a request generated is registered as it fills, so that a second turn hits it."""
    manager = BlockManager(4, 4)
    seq = admit(manager, [1, 2, 3])
    for token in (4, 5):
        decode(manager, seq, token)
    manager.deallocate(seq)
    assert manager.can_allocate(request([1, 2, 3, 4, 5, 6])) == 1
