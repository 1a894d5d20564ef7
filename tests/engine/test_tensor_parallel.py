"""Several processes compute what one does: layers, logits and tokens, over gloo and in fp32."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from nanovllm_edu import LLM, SamplingParams
from nanovllm_edu.engine import Sequence, check_invariants
from nanovllm_edu.engine.model_runner import ModelRunner
from nanovllm_edu.engine.tensor_parallel import check_split, device_of_rank
from nanovllm_edu.errors import ConfigError
from nanovllm_edu.layers.parallel import Ranks
from nanovllm_edu.models import ModelConfig
from tests.engine import tp_layers
from tests.engine.tiny import SIZES, some_tokens

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ["llama", "qwen2", "qwen2-one-key-head", "qwen3"]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def tokens(llm, prompts, count: int) -> list[list[int]]:
    outputs = llm.generate(prompts, greedy(count), use_tqdm=False)
    check_invariants(llm.scheduler.block_manager, llm.scheduler.sequences)
    return [output.token_ids for output in outputs]


def test_layers_equal_the_whole_ones(tmp_path):
    """Three processes; biases are added once, and the odd vocabulary is filled up and cut off again."""
    others = [subprocess.Popen([sys.executable, "-m", "tests.engine.tp_layers", str(tmp_path), str(rank), "3"],
                               cwd=ROOT) for rank in (1, 2)]
    tp_layers.check(tp_layers.join(tmp_path, 0, 3))
    assert [other.wait(60) for other in others] == [0, 0]


@pytest.mark.parametrize("family,count,blocks", [("llama-untied-biased", 200, 70), *((f, 50, 36) for f in FAMILIES)])
def test_two_ranks_equal_one(tiny_llm, reference, family, count, blocks):
    """Transformers' logits and tokens, which one process has too: in a batch, in chunks, with preemptions, alone."""
    llm = tiny_llm(family, tensor_parallel_size=2, num_kvcache_blocks=blocks, max_num_batched_tokens=20)
    token_ids = some_tokens(24, seed=1)
    seqs, block_ids = [], iter(sorted(range(blocks), key=lambda i: i * 11 % blocks))  # tables that jump about
    for n in range(1, 9):
        seq = Sequence(token_ids[:3 * n], block_size=4)
        seq.block_table = [next(block_ids) for _ in range(seq.num_blocks)]
        seq.num_scheduled_tokens = len(seq)
        seqs.append(seq)
    with torch.inference_mode():
        logits = llm.engine.runner.compute(seqs)
    want = reference(family).logits(token_ids)[2::3]
    assert (logits - want).abs().max() < 1e-4

    prompts = [some_tokens(n, seed=n) for n in (9, 30, 17)]
    answers = [reference(family).greedy(prompt, count) for prompt in prompts]
    assert min(len(set(answer)) for answer in answers) >= min(20, count // 2), "a model that is stuck proves nothing"
    outputs = llm.generate(prompts, greedy(count), use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert [output.token_ids for output in outputs] == answers
    llm.reset_prefix_cache()
    for cached in (0, 28):
        alone = llm.generate(prompts[1], greedy(20), use_tqdm=False)[0]
        assert (alone.token_ids, alone.num_cached_tokens) == (answers[1][:20], cached)


def test_mixed_batches(tiny_llm, reference):
    prompts = [some_tokens(n, seed=n) for n in (30, 9, 1)]
    want = [reference("llama").greedy(prompt, 60) for prompt in prompts]
    llm = tiny_llm(tensor_parallel_size=2, scheduling_policy="mixed", max_num_batched_tokens=5)
    assert tokens(llm, prompts, 60) == want


def test_six_ranks_share_two_key_heads():
    """Query head h reads key head h // 3: ranks 0 to 2, with query heads 0 to 2, hold the first."""
    ranks = Ranks()
    ranks.size = 6
    held = []
    for ranks.rank in range(6):
        held.append((range(6)[ranks.share(6)], range(2)[ranks.share(2)]))
    assert held == [(range(h, h + 1), range(h // 3, h // 3 + 1)) for h in range(6)]


@pytest.mark.slow
def test_the_packaged_model_on_three_ranks(packaged):
    prompts = ["The capital of France is", "Once upon a time, there was", "def fibonacci(n):"]
    want = []
    for size in (1, 3):
        with LLM(dtype="float32", num_kvcache_blocks=9, tensor_parallel_size=size) as llm:
            want.append(tokens(llm, prompts, 32))
    assert want[0] == want[1]
    assert all(len(set(answer)) >= 10 for answer in want[0])


def test_two_engines_at_once(tiny_llm, reference):
    """Each with a group of its own; nothing of torch's default group is made or needed."""
    llms = {family: tiny_llm(family, tensor_parallel_size=2) for family in ("llama", "qwen3")}
    prompt = some_tokens(9)
    for llm in llms.values():
        llm.add_request(prompt, greedy(20))
    while not all(llm.is_finished() for llm in llms.values()):
        for llm in llms.values():
            llm.step()
    for family, llm in llms.items():
        assert llm.outputs[0].token_ids == reference(family).greedy(prompt, 20)
    assert not dist.is_initialized()


def test_random_sampling_and_blocks_from_memory(tiny_llm):
    """The sampler is rank 0's own; and the number of blocks is agreed upon when nobody gives it."""
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=20, ignore_eos=True, logprobs=2)
    one = tiny_llm().generate("abc", params, use_tqdm=False)[0]
    llm = tiny_llm(tensor_parallel_size=2, num_kvcache_blocks=None, kvcache_block_size=256)
    two = llm.generate("abc", params, use_tqdm=False)[0]
    assert two.token_ids == one.token_ids
    for ours, theirs in zip(two.logprobs, one.logprobs, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_what_crosses(tiny_llm):
    """All tokens of a prompt, but of a decoding sequence the last token alone; and no message is too long."""
    llm = tiny_llm(tensor_parallel_size=2, kvcache_block_size=256, num_kvcache_blocks=64, max_model_len=1024)
    llm.generate([some_tokens(700, seed=1), some_tokens(500, seed=2)], greedy(3), use_tqdm=False)
    prefill, *decodes = llm.engine.runner.traffic
    assert (prefill.is_prefill, prefill.num_seqs, prefill.num_tokens) == (True, 2, 1200)
    assert prefill.reduced_bytes == 7 * 1200 * 48 * 4
    assert [(d.is_prefill, d.num_seqs, d.num_tokens, d.reduced_bytes) for d in decodes] == [
        (False, 2, 2, 7 * 2 * 48 * 4)] * 2
    assert prefill.message_bytes > 1200 and max(d.message_bytes for d in decodes) < 150

    seqs = []
    for i in range(64):
        seq = Sequence(some_tokens(4096, seed=i), block_size=256)
        seq.block_table, seq.num_cached_tokens, seq.num_scheduled_tokens = [i] * 16, 1023, 1
        seqs.append(seq)
    assert len(pickle.dumps(seqs)) > 500_000
    assert llm.engine.runner.compute(seqs) is None, "nobody is complete, so there are no logits"
    assert llm.engine.runner.traffic[-1].message_bytes > 500_000
    assert len(tokens(llm, ["abc"], 5)[0]) == 5


def test_one_rank_makes_no_group(tiny_llm):
    runner = tiny_llm(tensor_parallel_size=1).engine.runner
    assert type(runner) is ModelRunner and runner.ranks.size == 1 and not dist.is_initialized()


@pytest.mark.parametrize("size,changes,words", [
    (2, dict(num_attention_heads=9, num_key_value_heads=3), "9 attention heads.*2 ranks.*these work: 1, 3, 9"),
    (4, dict(num_attention_heads=12, num_key_value_heads=6), "neither of 6 key/value heads and 4 ranks"),
    (3, dict(num_key_value_heads=6, intermediate_size=100), "100 MLP neurons.*3 ranks.*these work: 1, 2$"),
    (7, {}, "6 attention heads.*these work: 1, 2, 6"),
])
def test_what_cannot_be_shared_out(size, changes, words):
    raw = SIZES | changes
    if "num_attention_heads" in changes:
        raw |= {"hidden_size": 8 * raw["num_attention_heads"], "intermediate_size": 72}
    with pytest.raises(ConfigError, match=words):
        check_split(size, ModelConfig.from_dict(raw))


def test_the_refusal_comes_before_any_process(tiny_llm, packaged):
    with pytest.raises(ConfigError, match="tensor_parallel_size=2: its 9 attention heads.*these work: 1, 3$"):
        LLM(tensor_parallel_size=2)


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of_rank(name, 1, 2) for name in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
    with pytest.raises(ConfigError, match="3 ranks on this machine.*torch sees 2.*device='cpu'"):
        device_of_rank("auto", 0, 3)
    for name in ("cuda:0", "mps"):
        with pytest.raises(ConfigError, match=f"device='{name}'"):
            device_of_rank(name, 0, 2)
