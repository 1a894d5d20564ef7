"""The Triton backend equals the torch backend: call by call over a grid of shapes, and token by token in `LLM`.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch

from tests.engine.scenes import (
    CHUNKS_AND_HITS,
    DECODE,
    MIXED,
    PROMPTS,
    STEPS,
    assert_equal_to_torch,
    interpret_triton,
    make_step,
    scattered_tables,
    spec_of,
)
from tests.engine.tiny import some_tokens

interpret_triton()
pytest.importorskip("triton", reason="triton is published for Linux only")

from nanovllm_edu import SamplingParams  # noqa: E402
from nanovllm_edu.layers.attention import TorchBackend  # noqa: E402
from nanovllm_edu.layers.attention.triton_backend import (  # noqa: E402
    TritonBackend,
    power_of_two,
    query_tiles,
    tile_sizes,
)

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
HEADS = [(9, 3), (4, 4), (8, 1)]
GRID_STEPS = [PROMPTS, [(1, 13), (5, 10), (1, 2)], [(1, 14), (1, 11), (1, 3)]]
# Outputs are averages of values of about 1. The interpreter cuts fp32 to bf16 where the torch backend rounds, so a
# result may be one step of bf16 (2**-7 of its size) away; fp16 is cut to a step of 2**-10.
BF16 = dict(atol=1.6e-2, rtol=1.6e-2)
FP16 = dict(atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dim", [16, 24, 64, 80])
@pytest.mark.parametrize("heads,kv_heads", HEADS)
@pytest.mark.parametrize("block_size", [2, 3, 16, 256])
def test_every_call_in_fp32(block_size, heads, kv_heads, dim):
    """Prompts, chunks upon contexts, chunks beside decodes, decodes: contexts cross blocks in each."""
    spec = spec_of(heads, kv_heads, dim, block_size, device=DEVICE)
    assert_equal_to_torch(TritonBackend, spec, GRID_STEPS, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype,tolerance", [(torch.bfloat16, BF16), (torch.float16, FP16)])
@pytest.mark.parametrize("heads,kv_heads,dim,block_size", [(9, 3, 64, 16), (8, 1, 80, 3)])
def test_every_call_in_half_precision(dtype, tolerance, heads, kv_heads, dim, block_size):
    assert_equal_to_torch(TritonBackend, spec_of(heads, kv_heads, dim, block_size, dtype, DEVICE), STEPS, **tolerance)


@pytest.mark.parametrize("requests", [[(70, 70)], [(20, 150)], [(1, 150)], [(65, 130)]])
def test_more_rows_and_keys_than_a_tile(requests):
    """Tiles of 64: several of queries, several of keys, and a first tile that ends in the middle of a block."""
    spec = spec_of(4, 2, 16, 7, device=DEVICE)
    assert max(tile_sizes(16, 4)) == 64
    tables, num_blocks = scattered_tables(spec, 150, 1)
    backend, judge = TritonBackend(spec, num_blocks), TorchBackend(spec, num_blocks)
    new, context = requests[0]
    steps = [[(context - new, context - new)]] if context > new else []
    for number, step in enumerate([*steps, requests]):
        one = make_step(spec, step, tables, seed=number)
        got, want = (b.attend(0, one.q, one.k, one.v, b.plan(one.batch)) for b in (backend, judge))
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_slot_of_minus_one_is_not_stored_and_a_row_without_context_reads_nothing():
    spec = spec_of(9, 3, 24, 4, device=DEVICE)
    tables, num_blocks = scattered_tables(spec)
    backend = TritonBackend(spec, num_blocks)
    step = make_step(spec, [(1, 1), (1, 1), (1, 1)], tables)
    slots = torch.tensor([tables[0][0] * 4, -1, -1], device=DEVICE)
    lens = torch.tensor([1, 0, 0], dtype=torch.int32, device=DEVICE)
    wide = torch.zeros(3, 9, dtype=torch.int32, device=DEVICE)
    wide[0, 0], wide[1:] = tables[0][0], 10**6  # a block that does not exist: reading it would be seen
    out = backend.attend(0, step.q, step.k, step.v, backend.plan_decode(slots, lens, wide))
    assert backend.kv_cache[0].any(-1).any(-1).sum() == 2  # one slot, of keys and of values
    assert torch.equal(backend.kv_cache[0, 0, slots[0]], step.k[0])
    torch.testing.assert_close(out[0].view(9, 24), step.v[0].repeat_interleave(3, 0), atol=1e-6, rtol=1e-6)
    assert not out[1:].any()


def test_keys_that_were_left_in_the_last_block_are_not_read():
    spec = spec_of(4, 2, 16, 16, device=DEVICE)
    tables, num_blocks = scattered_tables(spec)
    clean, dirty = TritonBackend(spec, num_blocks), TritonBackend(spec, num_blocks)
    dirty.kv_cache.fill_(float("nan"))
    for number, requests in enumerate([PROMPTS, CHUNKS_AND_HITS, MIXED, DECODE]):
        step = make_step(spec, requests, tables, seed=number)
        a, b = (x.attend(0, step.q, step.k, step.v, x.plan(step.batch)) for x in (clean, dirty))
        assert torch.equal(a, b)


def test_offsets_beyond_2_31():
    """A cache of more than 2**31 elements a layer. Its memory is reserved and, but for a few pages, never touched."""
    spec = spec_of(8, 8, 64, 16, torch.float16, DEVICE, num_layers=1)
    last = (2**31 // (8 * 64)) // 16  # the first block that begins at element 2**31
    backend = TritonBackend(spec, 2)
    cache = torch.empty(2, (last + 2) * 16, 8, 64, dtype=torch.float16, device=DEVICE)
    backend._layers = [(cache[0], cache[1])]
    tables = [[last, last + 1]]
    step = make_step(spec, [(20, 20)], tables)
    small = make_step(spec, [(20, 20)], [[0, 1]])
    judge = TritonBackend(spec, 2)
    got = backend.attend(0, step.q, step.k, step.v, backend.plan(step.batch))
    assert torch.equal(got, judge.attend(0, step.q, step.k, step.v, judge.plan(small.batch)))
    assert torch.equal(cache[0, last * 16], step.k[0])


def test_tiles_by_hand():
    assert query_tiles([5, 1, 9], 4) == ([0, 0, 1, 2, 2, 2], [0, 4, 0, 0, 4, 8])
    assert [power_of_two(n) for n in (1, 2, 3, 64, 65, 80)] == [1, 2, 4, 64, 128, 128]
    assert tile_sizes(64, 2) == (64, 64)  # 3 * 64 rows of 128 bytes: 24 KiB
    assert tile_sizes(128, 2) == (64, 64)  # 48 KiB
    assert tile_sizes(256, 2) == (32, 32)  # 64 rows would take 96 KiB of 64
    assert tile_sizes(64, 4) == (32, 32)  # 64 rows would take 48 KiB of 32
    assert tile_sizes(16, 4) == (64, 64)


@pytest.mark.parametrize("family,block_size,options", [
    ("llama", 4, {}), ("qwen3", 3, {}), ("llama", 2, dict(max_num_batched_tokens=7, scheduling_policy="mixed"))])
def test_tokens_of_a_model(tiny_llm, family, block_size, options):
    """16 greedy tokens in fp32, with a prefix hit in the second call, chunks and mixed batches."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    shared = some_tokens(9, seed=3)
    prompts = [shared + some_tokens(n, seed=n) for n in (1, 6)]
    answers, hits = [], []
    for backend in ("torch", "triton"):
        llm = tiny_llm(family, attention_backend=backend, kvcache_block_size=block_size, device=DEVICE, **options)
        assert llm.model_info["attention_backend"] == backend
        first = llm.generate([shared], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
        second = llm.generate(prompts, params, use_tqdm=False)
        answers.append([output.token_ids for output in first + second])
        hits.append([output.num_cached_tokens for output in second])
    assert answers[0] == answers[1]
    assert hits[0] == hits[1] and max(hits[0]) >= 8
