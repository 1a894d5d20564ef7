"""Preparation of batches against tables worked out by hand."""

from __future__ import annotations

import torch

from nanovllm_edu.engine import Sequence
from nanovllm_edu.engine.devices import _cgroup_limits
from nanovllm_edu.engine.model_runner import prepare, samples, slot_mapping


def make(token_ids, table, cached, scheduled, decode=False) -> Sequence:
    seq = Sequence(token_ids, block_size=4)
    seq.block_table, seq.num_cached_tokens, seq.num_scheduled_tokens = table, cached, scheduled
    seq.is_prefill = not decode
    return seq


def test_slots():
    assert slot_mapping([5, 0, 9], 4, 0, 4) == [20, 21, 22, 23]
    assert slot_mapping([5, 0, 9], 4, 2, 10) == [22, 23, 0, 1, 2, 3, 36, 37]
    assert slot_mapping([5, 0, 9], 4, 7, 8) == [3]
    assert slot_mapping([5], 4, 0, 0) == []


def test_a_batch_of_chunk_decode_and_prefix_hit():
    chunk = make(list(range(10, 20)), [7, 2, 4], cached=3, scheduled=4)  # tokens 3 to 6 of 10
    decode = make(list(range(30, 39)), [1, 0, 8], cached=8, scheduled=1, decode=True)  # first token of a new block
    hit = make(list(range(50, 56)), [1, 5], cached=4, scheduled=2)  # 4 of 6 from the cache
    batch = prepare([chunk, decode, hit], 4, torch.device("cpu"))
    assert batch.input_ids.tolist() == [13, 14, 15, 16, 38, 54, 55]
    assert batch.positions.tolist() == [3, 4, 5, 6, 8, 4, 5]
    assert batch.attention.slot_mapping.tolist() == [31, 8, 9, 10, 32, 20, 21]
    assert batch.attention.cu_seqlens_q == [0, 4, 5, 7]
    assert batch.attention.context_lens == [7, 9, 6]  # a chunk must not read what is not written yet
    assert batch.attention.block_tables == [[7, 2, 4], [1, 0, 8], [1, 5]]
    assert [samples(seq) for seq in (chunk, decode, hit)] == [False, True, True]
    assert batch.last_rows.tolist() == [4, 6]


def test_a_decode_reads_the_last_token_alone():
    """A tensor-parallel worker holds nothing else of it."""
    seq = make([1, 2, 3], [0], cached=2, scheduled=1, decode=True)
    seq.token_ids = []
    batch = prepare([seq], 4, torch.device("cpu"))
    assert (batch.input_ids.tolist(), batch.positions.tolist()) == ([3], [2])


def test_the_first_decode_stands_at_the_prompts_length():
    seq = make([1, 2, 3, 4], [0], cached=4, scheduled=0)
    seq.append_token(9)
    seq.block_table.append(2)
    seq.is_prefill, seq.num_scheduled_tokens = False, 1
    batch = prepare([seq], 4, torch.device("cpu"))
    assert batch.positions.tolist() == [4] and batch.attention.slot_mapping.tolist() == [8]


def test_a_containers_limit_is_found(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/user/job\n")
    root = tmp_path / "fs"
    (root / "user" / "job").mkdir(parents=True)
    (root / "user" / "job" / "memory.max").write_text("max\n")
    (root / "user" / "memory.max").write_text("1000000\n")  # the limit of a group above counts too
    assert _cgroup_limits(membership, root) == [1000000]
    membership.write_text("4:cpu:/x\n7:memory:/box\n")
    (root / "memory" / "box").mkdir(parents=True)
    (root / "memory" / "box" / "memory.limit_in_bytes").write_text("2000000\n")
    assert _cgroup_limits(membership, root) == [2000000]
