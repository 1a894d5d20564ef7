"""Batches for attention backends, and one judge for all of them: the torch backend."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from nanovllm_edu.engine.batch import slot_mapping
from nanovllm_edu.layers.attention import AttentionBackend, AttentionBatch, KVCacheSpec, TorchBackend

CPU = torch.device("cpu")
# (tokens to compute, context length with them) of every request, step by step, each step upon the ones before it
PROMPTS = [(12, 12), (5, 5), (1, 1)]
CHUNKS_AND_HITS = [(7, 19), (3, 8), (16, 17)]
MIXED = [(1, 20), (4, 12), (1, 18)]
DECODE = [(1, 21), (1, 13), (1, 19)]
DECODE_AGAIN = [(1, 22), (1, 14), (1, 20)]
STEPS = [PROMPTS, CHUNKS_AND_HITS, MIXED, DECODE, DECODE_AGAIN]


def interpret_triton() -> None:
    """Run Triton's kernels in its interpreter, unless there is a GPU. To be called before Triton is imported."""
    if torch.cuda.is_available():
        return
    late = "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"
    assert not late, "Triton was imported before TRITON_INTERPRET was set: its kernels cannot be interpreted any more"
    os.environ["TRITON_INTERPRET"] = "1"


@dataclass
class Step:
    """One step's input of a backend, and of the one that judges it."""

    batch: AttentionBatch
    q: Tensor
    k: Tensor
    v: Tensor


def spec_of(heads: int, kv_heads: int, dim: int, block_size: int, dtype: torch.dtype = torch.float32,
            device: torch.device = CPU, num_layers: int = 2) -> KVCacheSpec:
    return KVCacheSpec(num_layers, heads, kv_heads, dim, block_size, dtype, device)


def make_step(spec: KVCacheSpec, requests: list[tuple[int, int]], tables: list[list[int]], seed: int = 0) -> Step:
    """q, k and v are views of one projection, as a model hands them over."""
    cu_seqlens_q, slots = [0], []
    for (new, context), table in zip(requests, tables, strict=True):
        cu_seqlens_q.append(cu_seqlens_q[-1] + new)
        slots += slot_mapping(table, spec.block_size, context - new, context)
    generator = torch.Generator().manual_seed(seed)
    h, kv = spec.num_heads, spec.num_kv_heads
    qkv = torch.randn(len(slots), h + 2 * kv, spec.head_dim, generator=generator).to(spec.device, spec.dtype)
    batch = AttentionBatch(cu_seqlens_q, [context for _, context in requests],
                           torch.tensor(slots, device=spec.device), tables)
    return Step(batch, qkv[:, :h], qkv[:, h:h + kv], qkv[:, h + kv:])


def scattered_tables(spec: KVCacheSpec, longest: int = 22, requests: int = 3) -> tuple[list[list[int]], int]:
    """Block tables that jump about in the pool and share nothing, and the size of the pool. Block 0 is used."""
    each = -(-longest // spec.block_size)
    num_blocks = each * requests + 2
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(7)).tolist()
    order.remove(0)
    order.insert(0, 0)
    return [order[i * each:(i + 1) * each] for i in range(requests)], num_blocks


def assert_equal_to_torch(make: type[AttentionBackend], spec: KVCacheSpec, steps: list[list[tuple[int, int]]],
                          atol: float, rtol: float) -> None:
    """All steps, one upon the other, on layer 1; layer 0 must stay untouched."""
    tables, num_blocks = scattered_tables(spec)
    backend, judge = make(spec, num_blocks), TorchBackend(spec, num_blocks)
    for number, requests in enumerate(steps):
        step = make_step(spec, requests, tables, seed=number)
        got = backend.attend(1, step.q, step.k, step.v, backend.plan(step.batch))
        want = judge.attend(1, step.q, step.k, step.v, judge.plan(step.batch))
        assert got.shape == want.shape and got.dtype == spec.dtype
        torch.testing.assert_close(got, want, atol=atol, rtol=rtol, msg=lambda m, n=number: f"step {n}: {m}")
    assert not backend.kv_cache[0].any()
