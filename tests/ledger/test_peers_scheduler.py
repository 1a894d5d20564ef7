"""vLLM's ``test_scheduler.py``, its tests of unservable requests, and tiny-llm's of chunked prefill, re-enacted.

Left out, because what they test does not exist here:
- ``test_schedule_concurrent_batches``: one step at a time; a batch's tokens are in before the next is scheduled.
- ``test_check_stop_min_tokens``: there is no ``min_tokens``.
- the priority scheduling tests, ``test_schedule_prefills_gating``, ``test_throttle_*``: first come, first served is
  the only order; nothing holds prefills back.
- ``test_scheduler_reset_prefix_cache`` with ``reset_running_requests=True``: a reset refuses while blocks are in use.
- ``test_schedule_concurrent_partial_requests``' threshold per request: there is the step's budget alone, so its
  numbers change (1024/1024/352 in place of 400/400/224), and only "mixed" cuts more than the first prompt.
"""
from __future__ import annotations

import pytest

from nanovllm_edu.engine import SequenceStatus
from nanovllm_edu.engine.events import BatchScheduled, PrefixLookup, RequestPreempted, RequestRefused, TokenAppended
from nanovllm_edu.errors import LedgerError, RequestError
from tests.ledger.helpers import Log, is_empty, queue, request, run, scheduler, step


def big(**options):
    return scheduler(**{"num_kvcache_blocks": 200, "kvcache_block_size": 16, "max_num_batched_tokens": 1024,
                        **options})


def long(count: int, seq_id: int, **options):
    return request([seq_id + 1] * count, seq_id, block_size=16, **options)


def widths(seqs) -> list[tuple[int, int]]:
    return [(seq.seq_id, seq.num_scheduled_tokens) for seq in seqs]


def test_add_requests() -> None:
    """Rows ``test_add_requests`` and ``test_get_num_unfinished_requests``, and ``test_request_queue``."""
    sch = big()
    for i in range(10):
        sch.add(long(10, i))
        assert len(sch.waiting) == len(sch.sequences) == i + 1 and not sch.is_finished()
    assert [seq.seq_id for seq in sch.waiting] == list(range(10))
    for i in range(10):
        sch.abort(i)
        assert len(sch.sequences) == 9 - i
    assert sch.is_finished()


def test_finish_request() -> None:
    """Row ``test_finish_request``: waiting or running, out of its queue at once; a second time there is none."""
    sch = big(max_num_seqs=2)
    for i in range(3):
        sch.add(long(10, i))
    step(sch)
    assert sch.abort(0).finish_reason == "aborted" and [seq.seq_id for seq in sch.running] == [1]
    assert sch.abort(2).status is SequenceStatus.FINISHED and not sch.waiting
    assert sch.abort(2) is None and sch.abort(77) is None
    assert queue(sch.block_manager)[-1] == 0 and sch.sequences == [sch.running[0]]


@pytest.mark.parametrize("caching", [True, False])
def test_schedule(caching: bool) -> None:
    """Row ``test_schedule``: all ten at once, whole, in order."""
    sch = big(enable_prefix_caching=caching)
    for i in range(10):
        sch.add(long(30, i))
    seqs, is_prefill = sch.schedule()
    assert widths(seqs) == [(i, 30) for i in range(10)] and is_prefill and not sch.waiting
    assert list(sch.running) == seqs and all(seq.status is SequenceStatus.RUNNING for seq in seqs)
    assert [seq.block_table for seq in seqs] == [[2 * i, 2 * i + 1] for i in range(10)]
    assert sch.phase == "prefill" and sch.step == 1 and sch.in_step


def test_schedule_concurrent_partial_requests() -> None:
    """Row of the same name: only the prompt at the head is cut; "mixed" fills the budget."""
    sch = big()
    for i in range(3):
        sch.add(long(800, i))
    assert widths(sch.schedule()[0]) == [(0, 800)], "the second would not fit whole, and it is not the first"
    sch = big(scheduling_policy="mixed")
    for i in range(3):
        sch.add(long(800, i))
    seqs, is_prefill = sch.schedule()
    assert widths(seqs) == [(0, 800), (1, 224)] and is_prefill
    sch.postprocess(seqs, [5] * 2, is_prefill)
    seqs, is_prefill = sch.schedule()
    assert widths(seqs) == [(0, 1), (1, 576), (2, 447)] and sch.phase == "mixed"
    sch.postprocess(seqs, [5] * 3, is_prefill)
    assert widths(sch.schedule()[0]) == [(0, 1), (1, 1), (2, 353)]


def test_schedule_order() -> None:
    """Row ``test_schedule_order``: nobody skips ahead of a long request that does not fit in this step."""
    sch = big()
    for i, length in enumerate((800, 800, 10)):
        sch.add(long(length, i))
    assert widths(sch.schedule()[0]) == [(0, 800)]
    assert [seq.seq_id for seq in sch.waiting] == [1, 2]


def test_schedule_order_by_the_pool() -> None:
    """The same where blocks, not tokens, are short."""
    sch = scheduler(num_kvcache_blocks=4)
    for i, length in enumerate((9, 8, 2)):
        sch.add(request([i] * length, i))
    assert widths(step(sch)) == [(0, 0)] and [seq.seq_id for seq in sch.waiting] == [1, 2]


def test_a_prompt_that_fills_the_budget_exactly() -> None:
    sch = scheduler(max_num_batched_tokens=6)
    sch.add(request([1] * 6, 0))
    sch.add(request([2], 1))
    assert widths(sch.schedule()[0]) == [(0, 6)] and [seq.seq_id for seq in sch.waiting] == [1]
    sch = scheduler(max_num_batched_tokens=6)
    sch.add(request([1] * 4, 0))
    sch.add(request([2] * 2, 1))
    assert widths(sch.schedule()[0]) == [(0, 4), (1, 2)]
    sch = scheduler(max_num_batched_tokens=6)
    sch.add(request([1] * 4, 0))
    sch.add(request([2] * 3, 1))
    assert widths(sch.schedule()[0]) == [(0, 4)]


@pytest.mark.parametrize(("options", "params", "tokens", "expected", "reason"), [
    ({"eos_token_ids": (9,)}, {"ignore_eos": False}, [5, 9, 7], [5, 9], "eos"),
    ({"eos_token_ids": 9}, {"ignore_eos": False}, [5, 9, 7], [5, 9], "eos"),
    ({"eos_token_ids": {8, 9}}, {"ignore_eos": False}, [8], [8], "eos"),
    ({"eos_token_ids": None}, {"ignore_eos": False, "max_tokens": 3}, [9, 0, 7], [9, 0, 7], "length"),
    ({}, {"stop_token_ids": [42]}, [5, 42, 7], [5, 42], "stop"),
    ({"eos_token_ids": (42,)}, {"ignore_eos": True, "stop_token_ids": [42]}, [5, 42], [5, 42], "stop"),
    ({"eos_token_ids": (42,)}, {"ignore_eos": False, "stop_token_ids": [42]}, [42], [42], "eos"),
    ({}, {"max_tokens": 2}, [5, 6, 7], [5, 6], "length"),
    ({"eos_token_ids": (6,)}, {"max_tokens": 2, "ignore_eos": False}, [5, 6, 7], [5, 6], "eos"),
    ({"eos_token_ids": (9,)}, {"max_tokens": 4, "ignore_eos": True}, [5, 9, 9, 7], [5, 9, 9, 7], "length"),
    ({"max_model_len": 6}, {"max_tokens": 50}, [5, 6, 7], [5, 6, 7], "length"),
    ({"num_kvcache_blocks": 1}, {"max_tokens": 50}, [5, 6], [5, 6], "kv_exhausted"),
])
def test_stop_via_update_from_output(options, params, tokens, expected, reason) -> None:
    """Row ``test_stop_via_update_from_output``. The token that stops a request is kept in ``token_ids``."""
    sch = scheduler(**options)
    seq = request([1, 2, 3], 0, **params)
    sch.add(seq)
    for token in tokens:
        assert not seq.is_finished
        step(sch, {0: token})
        if seq.is_finished:
            break
    assert seq.completion_token_ids == expected and seq.finish_reason == reason
    assert is_empty(sch) and seq.status is SequenceStatus.FINISHED and seq.block_table == []


def test_preempt_during_execution() -> None:
    """Row ``test_preempt_during_execution``: the newer request gives way; the token it has stays with it."""
    sch = scheduler(num_kvcache_blocks=4)
    log = Log(sch)
    sch.add(request([1] * 8, 0, 4))
    sch.add(request([2] * 7, 1, 4))
    step(sch, {0: 10, 1: 20})
    first, second = sch.running
    seqs, _ = sch.schedule()
    assert [seq.seq_id for seq in seqs] == [0] and log.of(RequestPreempted)[0].seq_id == 1
    assert first.block_table == [0, 1, 3], "the victim gives its last block first, but it is the head that is taken"
    assert second.status is SequenceStatus.WAITING and second.token_ids == [2] * 7 + [20]
    assert second.num_preemptions == 1 and second.is_prefill and second.num_cached_tokens == 0
    sch.postprocess(seqs, [11], False)
    run(sch)
    assert len(second.completion_token_ids) == 4 and second.completion_token_ids[0] == 20 and is_empty(sch)


def preempting():
    """Two requests, of which the second is preempted once, and hits its own block when it comes back."""
    sch = scheduler(num_kvcache_blocks=5)
    sch.add(request([1] * 7, 0, 3))
    sch.add(request([2] * 8, 1, 6))
    return sch


def test_preemption_re_records_prefix_cache_query() -> None:
    """Rows ``test_preemption_re_records_prefix_cache_query`` and ``..._counted_once_for_retried_then_scheduled_...``:
    counted when admitted, apart after a preemption, and once however often it was tried in vain."""
    sch = preempting()
    sch.add(request([3] * 12, 2, 1))                  # waits for blocks: looked up in many steps
    log = Log(sch)
    run(sch)
    [preempted] = log.of(RequestPreempted)
    stats = sch.cache_stats
    assert preempted.seq_id == 1 and stats.preempted_requests == 1
    assert (stats.requests, stats.queries, stats.hits) == (3, 1 + 1 + 2, 0)
    assert (stats.preempted_queries, stats.preempted_hits) == (2, 2)
    assert len([e for e in log.of(PrefixLookup) if e.seq_id == 2]) > 2, "it was tried again and again"


def test_prefix_cache_stats_not_recorded_when_caching_disabled() -> None:
    """Row of the same name."""
    sch = scheduler(enable_prefix_caching=False)
    sch.add(request([1] * 9, 0))
    run(sch)
    assert sch.cache_stats is None and sch.block_manager.hash_to_block_id == {}


def test_scheduler_reset_prefix_cache() -> None:
    """Row ``test_scheduler_reset_prefix_cache``: refused while a request holds blocks, and it says which."""
    sch = scheduler(num_kvcache_blocks=5)
    for i in range(3):
        sch.add(request([i] * 8, i))
    step(sch)
    with pytest.raises(LedgerError, match=r"requests \[0, 1\] hold blocks.*Let them finish, or abort them"):
        sch.reset_prefix_cache()
    sch.abort(0), sch.abort(1)
    assert len(sch.block_manager.hash_to_block_id) == 4
    sch.reset_prefix_cache()
    assert sch.block_manager.hash_to_block_id == {} and [seq.seq_id for seq in sch.waiting] == [2]
    run(sch)


def test_memory_leak() -> None:
    """Row ``test_memory_leak`` with ``assert_scheduler_empty``."""
    sch = scheduler(num_kvcache_blocks=12, max_num_batched_tokens=16)
    for i in range(20):
        sch.add(request([i % 3] * (i % 9 + 1), i, i % 6 + 1))
    run(sch)
    assert is_empty(sch)


def test_unservable_requests() -> None:
    """Row ``test_kv_pool_unservable_requests.py``: past the pool, refused at the door; at the bound, it runs to the
    bound and stops there, never preempted."""
    sch = scheduler(num_kvcache_blocks=3)
    log = Log(sch)
    with pytest.raises(RequestError, match=r"has 13 tokens and needs 4 blocks of 4; the whole pool has 3: shorten it "
                                           r"to 12 tokens, or raise num_kvcache_blocks"):
        sch.add(request([1] * 13, 0))
    assert [(e.seq_id, e.num_tokens) for e in log.of(RequestRefused)] == [(0, 13)] and sch.is_finished()
    seq = request([1] * 11, 1, 50)
    sch.add(seq)
    run(sch)
    assert seq.finish_reason == "kv_exhausted" and seq.num_tokens == 13 and seq.num_preemptions == 0
    whole = request([2] * 12, 2, 50)
    sch.add(whole)
    run(sch)
    assert whole.finish_reason == "kv_exhausted" and whole.num_completion_tokens == 1


def test_output_counts_every_sampled_token_once() -> None:
    """Row ``test_output.py``: what the events tell of a request is what it holds in the end."""
    sch = preempting()
    log = Log(sch)
    seqs = list(sch.waiting)
    run(sch)
    for seq in seqs:
        told = [event.token_id for event in log.of(TokenAppended) if event.seq_id == seq.seq_id]
        assert told == seq.completion_token_ids and seq.finish_reason == "length"


def test_chunked_prefill_bounds_work_and_advances_cache() -> None:
    """tiny-llm's row, and ``..._finishes_a_lone_multi_chunk_prefill``: no token is sampled before the last chunk."""
    sch = scheduler(max_num_batched_tokens=3)
    log = Log(sch)
    seq = request([1, 2, 3, 4, 5, 6, 7, 8], 0, 2)
    sch.add(seq)
    for width, cached in ((3, 3), (3, 6), (2, 8)):
        assert step(sch) == [seq] and log.of(BatchScheduled)[-1].num_tokens == width
        assert seq.num_cached_tokens == cached and seq.block_table == [0, 1]
        assert seq.num_completion_tokens == (cached == 8)
        assert (seq.status is SequenceStatus.RUNNING) == (cached == 8)
    run(sch)
    assert seq.finish_reason == "length"


def test_prefill_eos_without_decode() -> None:
    """tiny-llm's row: a request may end with its first token."""
    sch = scheduler(eos_token_ids=(9,))
    seq = request([1, 2, 3, 4], 0, ignore_eos=False)
    sch.add(seq)
    step(sch, {0: 9})
    assert seq.finish_reason == "eos" and seq.completion_token_ids == [9] and is_empty(sch)


def test_enforces_max_seq_len_before_emission_or_allocation() -> None:
    """tiny-llm's row: the last token that fits ends the request, and no block is taken for one beyond."""
    sch = scheduler(max_model_len=5)
    with pytest.raises(RequestError, match="has 5 tokens and max_model_len=5 leaves no room for one new token: "
                                           "shorten it to 4 tokens"):
        sch.add(request([1] * 5, 0))
    seq = request([1] * 4, 1, 9)
    sch.add(seq)
    step(sch)
    assert seq.num_tokens == 5 and seq.finish_reason == "length" and queue(sch.block_manager)[-1] == 0


def test_releases_all_paged_caches_on_exception() -> None:
    """tiny-llm's row: a step that fails in the model gives every block back and forgets nothing."""
    sch = scheduler()
    seqs = [request([i] * 6, i) for i in range(3)]
    for seq in seqs:
        sch.add(seq)
    step(sch)
    before = {seq.seq_id: (seq, seq.num_tokens) for seq in sch.sequences}
    tokens = [list(seq.token_ids) for seq in seqs]
    sch.schedule()
    sch.recover(before)
    assert len(queue(sch.block_manager)) == 8 and [seq.token_ids for seq in seqs] == tokens
    assert list(sch.waiting) == seqs and not sch.running
    run(sch)
    assert all(len(seq.completion_token_ids) == 6 for seq in seqs)
