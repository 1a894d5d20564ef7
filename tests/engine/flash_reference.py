"""What flash-attn 2.8 promises, as plain torch: signatures, checks and results of two of its functions.

Written from the released `flash_attn_interface.py` (names, order and defaults of the parameters; the causal mask's
bottom-right corner) and `csrc/flash_attn/flash_api.cpp` (what it checks). fp32 on a CPU is let through, so that results
can be compared exactly; the rest of the checks stands.
"""

from __future__ import annotations

import types

import torch
from torch import Tensor


def check(condition: bool, text: str) -> None:
    if not condition:
        raise RuntimeError(text)


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    check(q.dtype == k.dtype == v.dtype, "one dtype for queries, keys and values")
    check(q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "the last dimension must be contiguous")
    check(q.shape[-1] <= 256 and q.shape[-1] % 8 == 0, "head dimension: a multiple of 8, at most 256")
    check(q.shape[-2] % k.shape[-2] == 0, "key heads must divide query heads")
    check(k.shape == v.shape and k.shape[-1] == q.shape[-1], "shapes of keys and values")


def check_int32(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    check(isinstance(x, Tensor) and x.dtype == torch.int32, f"{name} must have dtype int32")
    check(tuple(x.shape) == shape and x.is_contiguous(), f"{name} must be contiguous and have shape {shape}")


def check_paged(cache: Tensor, block_table: Tensor, batch: int) -> None:
    check(cache.dim() == 4 and cache.shape[1] % 256 == 0, "pages hold a multiple of 256 tokens")
    check_int32("block_table", block_table, (batch, block_table.shape[1]))


def from_pages(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """(length, kv heads, head_dim) of one request."""
    page = cache.shape[1]
    used = table[:-(-length // page)].long()
    check(bool(((used >= 0) & (used < cache.shape[0])).all()), "a page outside of the cache")
    return cache[used].flatten(0, 1)[:length]


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """q (queries, heads, dim), k and v (keys, kv heads, dim). A row that sees no key is zero."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    if causal:
        hidden = torch.ones(q.shape[0], k.shape[0]).triu(k.shape[0] - q.shape[0] + 1).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, v.float()).to(q.dtype)


def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None):
    check_heads(q, k, v)
    check(type(max_seqlen_q) is int and type(max_seqlen_k) is int, "the longest lengths are plain numbers")
    batch = cu_seqlens_q.numel() - 1
    check(batch > 0, "a batch holds at least one request")
    check_int32("cu_seqlens_q", cu_seqlens_q, (batch + 1,))
    check_int32("cu_seqlens_k", cu_seqlens_k, (batch + 1,))
    check(q.dim() == 3 and q.shape[0] == cu_seqlens_q[-1], "q must be (total_q, heads, head_dim)")
    if block_table is None:
        check(k.dim() == 3 and k.shape[0] == cu_seqlens_k[-1], "k must be (total_k, kv heads, head_dim)")
    else:
        check_paged(k, block_table, batch)
    check(max_seqlen_q == cu_seqlens_q.diff().max() and max_seqlen_k == cu_seqlens_k.diff().max(), "longest lengths")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    out = []
    for i, length in enumerate(cu_seqlens_k.diff().tolist()):
        rows, keys = (slice(int(c[i]), int(c[i + 1])) for c in (cu_seqlens_q, cu_seqlens_k))
        key, value = (x[keys] if block_table is None else from_pages(x, block_table[i], length) for x in (k, v))
        out.append(attend(q[rows], key, value, scale, causal))
    return torch.cat(out)


def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False):
    check(q.dim() == 4, "q must be (batch, seqlen, heads, head_dim)")
    check_heads(q, k_cache, v_cache)
    check(k is None and v is None and cache_batch_idx is None, "this reference appends nothing")
    check_paged(k_cache, block_table, q.shape[0])
    check_int32("cache_seqlens", cache_seqlens, (q.shape[0],))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return torch.stack([
        attend(q[i], from_pages(k_cache, block_table[i], length), from_pages(v_cache, block_table[i], length), scale,
               causal) for i, length in enumerate(cache_seqlens.tolist())])


def module() -> types.ModuleType:
    """A module of the name that the backend imports."""
    made = types.ModuleType("flash_attn")
    made.flash_attn_varlen_func, made.flash_attn_with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
    return made
