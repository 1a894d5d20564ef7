"""A request's own books, and what of it crosses to a worker process (report 34; chapter 3.1)."""
from __future__ import annotations

import pickle

import pytest

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import Sequence, SequenceStatus
from nanovllm_edu.errors import RequestError
from tests.ledger.helpers import admit, request, run, scheduler, step


def test_a_new_sequence() -> None:
    params = SamplingParams(temperature=0.5, max_tokens=7, ignore_eos=True)
    mine = [5, 6, 7]
    seq = Sequence(mine, params, 4, cache_salt="a")
    mine.append(8)
    assert seq.token_ids == [5, 6, 7] and seq.prompt_token_ids == [5, 6, 7] and seq.completion_token_ids == []
    assert seq.status is SequenceStatus.WAITING and not seq.is_finished and seq.is_prefill
    assert (seq.num_tokens, seq.num_prompt_tokens, seq.num_completion_tokens, len(seq)) == (3, 3, 0, 3)
    assert seq.last_token == 7
    assert (seq.num_cached_tokens, seq.num_scheduled_tokens, seq.block_table, seq.num_preemptions) == (0, 0, [], 0)
    assert (seq.temperature, seq.max_tokens, seq.ignore_eos, seq.cache_salt) == (0.5, 7, True, "a")
    assert seq.sampling_params is params and seq.finish_reason is None and seq.first_hit_tokens is None
    assert seq[0] == 5 and seq[1:] == [6, 7] and seq[-1] == 7
    assert repr(Sequence([1], seq_id=4)) == "Sequence(4, WAITING, 1 tokens, 0 cached, block_table=[])"


def test_defaults() -> None:
    first, second = Sequence([1]), Sequence([1])
    assert first.block_size == 256 and second.seq_id == first.seq_id + 1
    assert first.sampling_params == SamplingParams() and first.max_tokens == 64 and first.cache_salt is None


@pytest.mark.parametrize("length", range(1, 10))
def test_blocks(length: int) -> None:
    seq = Sequence(range(length), block_size=4)
    assert seq.num_blocks == -(-length // 4)
    assert seq.last_block_num_tokens == (length - 1) % 4 + 1
    assert [t for i in range(seq.num_blocks) for t in seq.block(i)] == list(range(length))
    assert len(seq.block(seq.num_blocks - 1)) == seq.last_block_num_tokens
    for i in (-1, seq.num_blocks, seq.num_blocks + 1):
        with pytest.raises(IndexError, match=f"block {i} of a sequence that has blocks 0 to {seq.num_blocks - 1}"):
            seq.block(i)


def test_append_and_truncate() -> None:
    seq = Sequence([1, 2], block_size=4)
    for token in (3, 4, 5):
        seq.append_token(token)
    assert (seq.num_tokens, seq.last_token, seq.completion_token_ids) == (5, 5, [3, 4, 5])
    assert seq.prompt_token_ids == [1, 2] and seq.num_prompt_tokens == 2
    assert seq.truncate(3) == [4, 5]
    assert (seq.token_ids, seq.num_tokens, seq.last_token, seq.num_completion_tokens) == ([1, 2, 3], 3, 3, 1)
    assert seq.truncate(3) == [] and seq.token_ids == [1, 2, 3]
    with pytest.raises(RequestError, match="token -1"):
        seq.append_token(-1)
    assert seq.num_tokens == 3


class Whole:
    """A whole number as numpy and torch make them: not an int, but it has ``__index__``."""

    def __index__(self) -> int:
        return 6


def test_all_containers_of_whole_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    for tokens in ([5, 6], (5, 6), range(5, 7), numpy.array([5, 6]), numpy.array([5, 6], dtype=numpy.uint8),
                   iter([5, 6]), {5: "a", 6: "b"}, [5, Whole()], bytes([5, 6])):
        seq = Sequence(tokens)
        assert seq.token_ids == [5, 6] and [type(t) for t in seq.token_ids] == [int, int]


@pytest.mark.parametrize(("tokens", "message"), [
    ([], "the prompt has no tokens: give at least one"),
    ([True], "token True: token ids are whole numbers of at least 0"),
    ([1, -1], "token -1: token ids are whole numbers"),
    ([1.0], "token 1.0"),
    ("text", "token 't': .*a text must go through the tokenizer first"),
    ([None], "token None"),
    ([[1, 2]], r"token \[1, 2\]"),
    ([1, "2"], "token '2'"),
])
def test_other_prompts_are_refused(tokens, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Sequence(tokens)


@pytest.mark.parametrize("block_size", [1, 0, -4])
def test_blocks_of_one_token_are_refused(block_size: int) -> None:
    with pytest.raises(RequestError, match=f"block_size={block_size}: must be at least 2"):
        Sequence([1], block_size=block_size)
    assert Sequence([1], block_size=2).block_size == 2


def test_report_34_block_size_belongs_to_the_instance() -> None:
    """Two engines in one notebook, blocks of 256 and 512: 800 tokens, position 799 in each one's own slot."""
    small, large = Sequence(range(800), block_size=256), Sequence(range(800), block_size=512)
    assert (small.num_blocks, large.num_blocks) == (4, 2)
    assert (small.last_block_num_tokens, large.last_block_num_tokens) == (32, 288)
    assert not hasattr(Sequence, "block_size")
    worker = pickle.loads(pickle.dumps(large))
    worker.block_size = 512                           # a worker is told once, at its start
    assert (worker.num_blocks, worker.last_block_num_tokens) == (2, 288)


def test_state_in_prefill_carries_all_tokens() -> None:
    seq = request([1, 2, 3, 4, 5], 0)
    seq.block_table, seq.num_cached_tokens, seq.num_scheduled_tokens = [7, 3], 4, 1
    assert seq.__getstate__() == (5, 5, 4, 1, [7, 3], [1, 2, 3, 4, 5])
    there = pickle.loads(pickle.dumps(seq))
    assert there.__getstate__() == seq.__getstate__()
    assert there.is_prefill and there.token_ids == [1, 2, 3, 4, 5] and there.last_token == 5 and len(there) == 5
    assert there.num_prompt_tokens == 5 and there.num_scheduled_tokens == 1 and there.block_table == [7, 3]


def test_state_in_decode_carries_the_last_token_alone() -> None:
    sch = scheduler()
    seq = request([1, 2, 3], 0)
    sch.add(seq)
    step(sch, {0: 8})
    sch.schedule()
    assert seq.__getstate__() == (4, 3, 3, 1, [0], 8)
    there = pickle.loads(pickle.dumps(seq))
    assert not there.is_prefill and there.last_token == 8 and there.token_ids == [] and len(there) == 4
    assert not hasattr(there, "sampling_params") and not hasattr(there, "temperature"), "sampling is rank 0's"


def test_state_in_decode_does_not_grow_with_the_tokens() -> None:
    """Only the block table grows: for the same table a long sequence is as small as a short one."""
    def size(length: int) -> int:
        seq = Sequence([250] * length, block_size=4096)
        seq.block_table, seq.is_prefill = [1], False
        seq.num_tokens = seq.num_prompt_tokens = seq.num_cached_tokens = 1000  # ints of one size
        return len(pickle.dumps(seq))

    assert size(10) == size(4000)
    prefill = Sequence([250] * 4000, block_size=4096)
    assert len(pickle.dumps(prefill)) > 4000


def test_state_after_a_preemption_is_that_of_a_prefill_again() -> None:
    sch = scheduler()
    seq = request([1, 2, 3], 0)
    sch.add(seq)
    step(sch)
    step(sch)
    sch.preempt(seq)
    assert seq.is_prefill and seq.__getstate__()[-1] == seq.token_ids and list(sch.waiting) == [seq]
    run(sch)


def test_num_cached_tokens_jumps_over_hits() -> None:
    sch = scheduler()
    first = admit(sch.block_manager, [1] * 9)
    sch.block_manager.deallocate(first)
    seq = request([1] * 10, 3)
    sch.add(seq)
    sch.schedule()
    assert (seq.num_cached_tokens, seq.num_scheduled_tokens, seq.first_hit_tokens) == (8, 2, 8)
