"""How much memory the largest step needs beside weights and KV cache: what is left may become KV blocks.

On a GPU the step is run and its peak is read off, as in nano-vllm's `model_runner.py`; elsewhere it is estimated.
"""

from __future__ import annotations

from typing import Any

import torch

from ..config import EngineConfig
from ..layers.attention import AttentionBackend, KVCacheSpec
from ..layers.sampler import sample
from ..models import ModelConfig
from ..sampling_params import SamplingParams
from .batch import prepare
from .sequence import Sequence


def activation_bytes(config: EngineConfig, model: Any, m: ModelConfig, backend: type[AttentionBackend],
                     spec: KVCacheSpec) -> int:
    """Bytes that the largest step takes and gives back."""
    if spec.device.type != "cuda":
        return estimate(config, m, spec.dtype)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    largest_step(config, model, m, backend, spec)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()  # so that the memory counts as free again
    return peak


def step_lengths(max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int) -> list[int]:
    """Prompt lengths that fill a step: as long as may be, and together no more than the step takes."""
    full, rest = divmod(max_num_batched_tokens, max_model_len)
    return ([max_model_len] * full + [rest] * (rest > 0))[:max_num_seqs]


@torch.inference_mode()
def largest_step(config: EngineConfig, model: Any, m: ModelConfig, backend: type[AttentionBackend],
                 spec: KVCacheSpec) -> None:
    """Run the largest prefill, and the dearest sampling for max_num_seqs rows, over a cache of a single block.

    All tables lead to that one block, so what is computed is nonsense of the right size.
    """
    cache = backend(spec, 1)
    seqs = []
    for length in step_lengths(config.max_num_batched_tokens, config.max_num_seqs, config.max_model_len):
        seq = Sequence([0] * length, block_size=spec.block_size, seq_id=0)
        seq.block_table, seq.num_scheduled_tokens = [0] * seq.num_blocks, length
        seqs.append(seq)
    batch = prepare(seqs, spec.block_size, spec.device)
    model(batch.input_ids, batch.positions, cache, cache.plan(batch.attention))
    rows = config.max_num_seqs
    hidden = torch.zeros(rows, m.hidden_size, dtype=spec.dtype, device=spec.device)
    dearest = SamplingParams(top_k=m.vocab_size, top_p=0.9, min_p=0.01)
    logits = model.compute_logits(hidden)
    if logits is not None:  # the other ranks of a tensor-parallel group do not sample
        sample(logits, [dearest] * rows, [0.5] * rows)


def estimate(config: EngineConfig, m: ModelConfig, dtype: torch.dtype) -> int:
    """A generous guess at the same."""
    row = 6 * m.hidden_size + 3 * m.intermediate_size + 4 * (m.num_heads + 2 * m.num_kv_heads) * m.head_dim
    return config.max_num_batched_tokens * row * dtype.itemsize + 3 * config.max_num_seqs * m.vocab_size * 4
