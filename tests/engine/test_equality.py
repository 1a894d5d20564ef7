"""The truth of the engine: in fp32, its logits and its greedy tokens are transformers' own."""

from __future__ import annotations

import pytest
import torch

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import Sequence, check_invariants
from nanovllm_edu.engine.model_runner import prepare
from tests.engine.tiny import FAMILIES, some_tokens

TOKENS = 200
PROMPT_LENGTHS = (1, 3, 4, 9, 30)  # one token, around the block size of 4, several blocks


def greedy(count: int = TOKENS) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def run(llm, prompts, count: int = TOKENS) -> list[list[int]]:
    outputs = llm.generate(prompts, greedy(count), use_tqdm=False)
    check_invariants(llm.scheduler.block_manager, llm.scheduler.sequences)
    return [output.token_ids for output in outputs]


def expected(reference, family: str, prompts, count: int = TOKENS) -> list[list[int]]:
    answers = [reference(family).greedy(prompt, count) for prompt in prompts]
    assert min(len(set(answer)) for answer in answers) >= min(20, count // 2), "a model that is stuck proves nothing"
    return answers


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block_size,chunk", [(4, 1), (4, 7), (3, 40), (16, 5), (256, 40)])
def test_logits_at_every_position(tiny_llm, reference, family, block_size, chunk):
    """Teacher-forced, chunk by chunk, through a block table that jumps about in the pool."""
    token_ids = some_tokens(40, seed=1)
    want = reference(family).logits(token_ids)
    runner = tiny_llm(family, kvcache_block_size=block_size, num_kvcache_blocks=20).engine.runner
    seq = Sequence(token_ids, block_size=block_size)
    seq.block_table = [(7 * i + 3) % 20 for i in range(seq.num_blocks)]
    rows = []
    with torch.inference_mode():
        while seq.num_cached_tokens < seq.num_tokens:
            seq.num_scheduled_tokens = min(chunk, seq.num_tokens - seq.num_cached_tokens)
            rows.append(runner.model.compute_logits(runner.forward(prepare([seq], block_size, runner.device))))
            seq.num_cached_tokens += seq.num_scheduled_tokens
    assert (torch.cat(rows) - want).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_and_batched(tiny_llm, reference, family):
    prompts = [some_tokens(n, seed=n) for n in PROMPT_LENGTHS]
    want = expected(reference, family, prompts)
    llm = tiny_llm(family, num_kvcache_blocks=400)
    assert run(llm, prompts) == want
    assert [run(llm, [prompt])[0] for prompt in prompts] == want


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_with_prefix_hits(tiny_llm, reference, family):
    shared = some_tokens(22, seed=3)
    prompts = [shared + some_tokens(n, seed=n) for n in (1, 5, 11)]
    want = expected(reference, family, prompts)
    llm = tiny_llm(family, num_kvcache_blocks=400)
    run(llm, [shared], 4)
    outputs = llm.generate(prompts, greedy(), use_tqdm=False)
    assert [output.token_ids for output in outputs] == want
    assert [output.num_cached_tokens for output in outputs] == [20, 20, 20]
    again = llm.generate(prompts[0], greedy(), use_tqdm=False)[0]  # a whole prompt in the cache: last block recomputed
    assert (again.token_ids, again.num_cached_tokens) == (want[0], 20)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 13])
def test_chunked(tiny_llm, reference, family, policy, chunk):
    prompts = [some_tokens(n, seed=n) for n in (30, 9, 1)]
    want = expected(reference, family, prompts, 60)
    llm = tiny_llm(family, max_num_batched_tokens=chunk, scheduling_policy=policy)
    assert run(llm, prompts, 60) == want


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
@pytest.mark.parametrize("caching", [True, False])
def test_after_preemption(tiny_llm, reference, family, policy, caching):
    prompts = [some_tokens(n, seed=n) for n in (9, 30, 17)]
    want = expected(reference, family, prompts)
    llm = tiny_llm(family, num_kvcache_blocks=70, scheduling_policy=policy, enable_prefix_caching=caching)
    outputs = llm.generate(prompts, greedy(), use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert [output.token_ids for output in outputs] == want
    assert len(llm.scheduler.block_manager.free_block_ids) == 70


@pytest.mark.parametrize("block_size", [2, 3, 5, 16, 256])
def test_any_block_size(tiny_llm, reference, block_size):
    prompts = [some_tokens(n, seed=n) for n in (7, 20)]
    want = expected(reference, "llama", prompts, 60)
    assert run(tiny_llm(kvcache_block_size=block_size, num_kvcache_blocks=100), prompts, 60) == want


def test_packed_weights_compute_the_same(tiny_llm, reference):
    prompts = [some_tokens(n, seed=n) for n in PROMPT_LENGTHS]
    assert run(tiny_llm(pack_weights=True, num_kvcache_blocks=400), prompts) == expected(reference, "llama", prompts)
