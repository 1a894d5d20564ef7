"""Paged attention by flash-attn (Dao, 2023), version 2: Ampere and newer, half precision, blocks of a multiple of 256.

The cache is token-major, (layers, key or value, slots + 1, kv heads, head_dim). All slots but the last are what
flash-attn calls a paged cache, seen as (num_blocks, block_size, kv heads, head_dim):

    slot     0 ... 255     256 ... 511   ...   | num_blocks * block_size
           [ block 0     ][ block 1     ] ...  | bin

A request's valid slots are those of its positions 0 to context_len - 1, through its block table. The bin takes the keys
of padded rows (slot -1), so that storing is one indexed copy in any batch; nothing reads it.

Which of flash-attn's functions (`flash_attn_interface.py` of its 2.8) a batch goes to:
- one new token for each request: `flash_attn_with_kvcache`, which splits long contexts over the GPU;
- prompts alone, nothing of them in the cache: `flash_attn_varlen_func` over the new keys themselves;
- chunks, prefix hits and mixed batches: `flash_attn_varlen_func` over the cache, through `block_table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from .host import pad_tables, upload
from .interface import AttentionBackend, AttentionBatch, KVCacheSpec


@dataclass
class _Plan:
    """cu_seqlens_q is None in a decode. block_tables is None where no key has to be read from the cache."""

    slots: Tensor  # (tokens,) int64
    context_lens: Tensor | None = None  # (requests,) int32
    block_tables: Tensor | None = None  # (requests, width) int32
    cu_seqlens_q: Tensor | None = None  # (requests + 1,) int32
    cu_seqlens_k: Tensor | None = None  # (requests + 1,) int32
    max_seqlen_q: int = 1
    max_seqlen_k: int = 0


class FlashBackend(AttentionBackend):
    """Stores by slot and attends with flash-attn."""

    name: ClassVar[str] = "flash"
    supports_graphs: ClassVar[bool] = True

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        super().__init__(spec, num_blocks)
        from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

        self._varlen, self._with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
        self._bin = num_blocks * spec.block_size
        self.kv_cache = torch.zeros(spec.num_layers, 2, self._bin + 1, spec.num_kv_heads, spec.head_dim,
                                    dtype=spec.dtype, device=spec.device)
        blocks = (num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
        self._layers = [(layer[0], layer[1]) for layer in self.kv_cache]
        self._paged = [(k[:self._bin].view(blocks), v[:self._bin].view(blocks)) for k, v in self._layers]

    def plan(self, batch: AttentionBatch) -> _Plan:
        device, lens = self.spec.device, batch.query_lens
        if max(lens) == 1:
            return self.plan_decode(batch.slot_mapping, upload(batch.context_lens, torch.int32, device),
                                    upload(pad_tables(batch.block_tables), torch.int32, device))
        plan = _Plan(self._slots(batch.slot_mapping), max_seqlen_q=max(lens), max_seqlen_k=max(batch.context_lens))
        plan.cu_seqlens_q = upload(batch.cu_seqlens_q, torch.int32, device)
        if batch.context_lens == lens:
            plan.cu_seqlens_k = plan.cu_seqlens_q
        else:
            plan.cu_seqlens_k = upload([0, *accumulate(batch.context_lens)], torch.int32, device)
            plan.block_tables = upload(pad_tables(batch.block_tables), torch.int32, device)
        return plan

    def plan_decode(self, slot_mapping: Tensor, context_lens: Tensor, block_tables: Tensor) -> _Plan:
        return _Plan(self._slots(slot_mapping), context_lens, block_tables)

    def _slots(self, slot_mapping: Tensor) -> Tensor:
        return torch.where(slot_mapping < 0, self._bin, slot_mapping)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, plan: _Plan) -> Tensor:
        keys, values = self._layers[layer]
        keys.index_copy_(0, plan.slots, k)
        values.index_copy_(0, plan.slots, v)
        k_cache, v_cache = self._paged[layer]
        scale = self.spec.head_dim ** -0.5
        if plan.cu_seqlens_q is None:
            out = self._with_kvcache(q.unsqueeze(1), k_cache, v_cache, cache_seqlens=plan.context_lens,
                                     block_table=plan.block_tables, softmax_scale=scale, causal=True)
        else:
            if plan.block_tables is not None:
                k, v = k_cache, v_cache
            out = self._varlen(q, k, v, cu_seqlens_q=plan.cu_seqlens_q, cu_seqlens_k=plan.cu_seqlens_k,
                               max_seqlen_q=plan.max_seqlen_q, max_seqlen_k=plan.max_seqlen_k, softmax_scale=scale,
                               causal=True, block_table=plan.block_tables)
        return out.reshape(q.shape[0], -1)
