"""The flash backend calls flash-attn as its contract asks, and then equals the torch backend."""

from __future__ import annotations

import sys

import pytest
import torch

from nanovllm_edu.layers.attention import TorchBackend, backend_class
from tests.engine import flash_reference
from tests.engine.scenes import (
    CHUNKS_AND_HITS,
    DECODE,
    MIXED,
    PROMPTS,
    STEPS,
    assert_equal_to_torch,
    make_step,
    scattered_tables,
    spec_of,
)


class Calls(list):
    """Names of the functions called, in order, each with whether it read through a block table."""

    def of(self, name):
        def call(*args, **kwargs):
            self.append((name, kwargs.get("block_table") is not None))
            return getattr(flash_reference, f"flash_attn_{name}")(*args, **kwargs)
        return call


@pytest.fixture
def calls(monkeypatch):
    calls, module = Calls(), flash_reference.module()
    module.flash_attn_varlen_func = calls.of("varlen_func")
    module.flash_attn_with_kvcache = calls.of("with_kvcache")
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return calls


@pytest.mark.parametrize("dim", [16, 24, 64, 80])
@pytest.mark.parametrize("heads,kv_heads", [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("block_size", [256, 512])
def test_equal_to_the_torch_backend(calls, heads, kv_heads, dim, block_size):
    assert_equal_to_torch(backend_class("flash"), spec_of(heads, kv_heads, dim, block_size), STEPS, 1e-5, 1e-5)
    assert calls == [("varlen_func", False), ("varlen_func", True), ("varlen_func", True),
                     ("with_kvcache", True), ("with_kvcache", True)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision(calls, dtype):
    """Both round once, from fp32, so a result is at most a step of bf16 (2**-7 of its size) away."""
    assert_equal_to_torch(backend_class("flash"), spec_of(8, 2, 64, 256, dtype), STEPS, 1.6e-2, 1.6e-2)


def test_contexts_of_several_blocks(calls):
    """Tables of different lengths are padded to one width; context 300 ends in its second block."""
    spec = spec_of(4, 2, 16, 256)
    long = [[(300, 300), (10, 10), (256, 256)], [(5, 305), (1, 11), (260, 516)], [(1, 306), (1, 12), (1, 517)]]
    tables, num_blocks = scattered_tables(spec, 517)
    tables[1] = tables[1][:1]
    flash, judge = backend_class("flash")(spec, num_blocks), TorchBackend(spec, num_blocks)
    for number, requests in enumerate(long):
        step = make_step(spec, requests, tables, seed=number)
        got, want = (b.attend(0, step.q, step.k, step.v, b.plan(step.batch)) for b in (flash, judge))
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_padded_rows_write_into_the_bin_alone(calls):
    spec = spec_of(4, 2, 16, 256)
    tables, num_blocks = scattered_tables(spec)
    backend = backend_class("flash")(spec, num_blocks)
    step = make_step(spec, [(1, 1)] * 3, tables)
    slots = torch.tensor([tables[0][0] * 256, -1, -1])
    lens = torch.tensor([1, 0, 0], dtype=torch.int32)
    wide = torch.zeros(3, 4, dtype=torch.int32)
    wide[0, 0] = tables[0][0]
    out = backend.attend(0, step.q, step.k, step.v, backend.plan_decode(slots, lens, wide))
    written = backend.kv_cache[0, 0].any(-1).any(-1).nonzero().flatten().tolist()
    assert written == sorted([int(slots[0]), num_blocks * 256])
    torch.testing.assert_close(out[0].view(4, 16), step.v[0].repeat_interleave(2, 0), atol=1e-6, rtol=1e-6)


def test_what_the_kernel_may_not_read_is_not_read(calls):
    spec = spec_of(4, 2, 16, 256)
    tables, num_blocks = scattered_tables(spec)
    clean, dirty = (backend_class("flash")(spec, num_blocks) for _ in range(2))
    dirty.kv_cache.fill_(float("nan"))
    for number, requests in enumerate([PROMPTS, CHUNKS_AND_HITS, MIXED, DECODE]):
        step = make_step(spec, requests, tables, seed=number)
        a, b = (x.attend(0, step.q, step.k, step.v, x.plan(step.batch)) for x in (clean, dirty))
        assert torch.equal(a, b)


@pytest.mark.parametrize("wrong", [
    dict(cu_seqlens_k=torch.tensor([0, 5])),  # int64
    dict(block_table=torch.zeros(2, 1, dtype=torch.int32)),  # one row too many
    dict(max_seqlen_q=torch.tensor(5)),
    dict(k=torch.zeros(3, 16, 2, 16), v=torch.zeros(3, 16, 2, 16)),  # pages of 16
])
def test_the_reference_refuses_what_flash_attn_refuses(wrong):
    """Else a test against it would prove nothing."""
    ints = torch.tensor([0, 5], dtype=torch.int32)
    right = dict(q=torch.zeros(5, 4, 16), k=torch.zeros(3, 256, 2, 16), v=torch.zeros(3, 256, 2, 16),
                 cu_seqlens_q=ints, cu_seqlens_k=ints, max_seqlen_q=5, max_seqlen_k=5, causal=True,
                 block_table=torch.zeros(1, 1, dtype=torch.int32))
    flash_reference.flash_attn_varlen_func(**right)
    with pytest.raises(RuntimeError):
        flash_reference.flash_attn_varlen_func(**{**right, **wrong})
