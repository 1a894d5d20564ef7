"""Paged attention in plain torch: any device, any block size, any number of heads.

The cache is head-major, (layers, key or value, kv heads, slots, head_dim): the keys of one head in consecutive blocks
are one matrix without a copy. A request whose block table is one run of consecutive ids is therefore read in place; a
scattered one is gathered block by block. Decodes whose runs lie evenly spaced in the pool are read in place by one
call together: a view with the spacing as its stride.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .interface import AttentionBackend, AttentionBatch, KVCacheSpec

_MAX_PADDING = 2  # decodes are joined while the longest context is at most so many times the shortest


@dataclass
class _Request:
    """Where one request's rows and keys are. `run` is the first slot of an unbroken run, else `blocks` are gathered."""

    start: int
    query_len: int
    context_len: int
    run: int | None
    blocks: Tensor | None
    mask: Tensor | None  # (query_len, context_len) bool, True where a row may look


@dataclass
class _Decodes:
    """Requests with one new token each, rows start to start + count, whose runs begin at `run`, `run + spacing`, ..."""

    start: int
    count: int
    run: int
    spacing: int
    context_len: int  # the longest of them
    mask: Tensor | None  # (count, 1, 1, context_len), 0 where a row may look and -inf behind its own context


@dataclass
class _Plan:
    slots: Tensor
    first_slot: int | None  # the slots are an unbroken run that begins here, so storing is a plain copy
    parts: list[_Request | _Decodes]  # in the order of their rows


class TorchBackend(AttentionBackend):
    """`scaled_dot_product_attention` over views of the paged cache."""

    name: ClassVar[str] = "torch"

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        super().__init__(spec, num_blocks)
        # zeros, not empty: a slot that was never written must not hold a NaN
        self.kv_cache = torch.zeros(spec.num_layers, 2, spec.num_kv_heads, num_blocks * spec.block_size, spec.head_dim,
                                    dtype=spec.dtype, device=spec.device)
        self._layers = [(layer[0], layer[1]) for layer in self.kv_cache]
        self._num_slots = num_blocks * spec.block_size

    # --- once a step -----------------------------------------------------------------------------------------------

    def plan(self, batch: AttentionBatch) -> _Plan:
        requests = []
        for start, query_len, context_len, table in zip(
                batch.cu_seqlens_q, batch.query_lens, batch.context_lens, batch.block_tables, strict=False):
            run, blocks = self._locate(table, context_len)
            requests.append(_Request(start, query_len, context_len, run, blocks, self._mask(query_len, context_len)))
        first_slot = None
        if len(requests) == 1 and requests[0].run is not None:
            first_slot = requests[0].run + requests[0].context_len - requests[0].query_len
        return _Plan(batch.slot_mapping, first_slot, self._join(requests))

    def _locate(self, table: list[int], context_len: int) -> tuple[int | None, Tensor | None]:
        used = table[:-(-context_len // self.spec.block_size)]
        if used[-1] - used[0] == len(used) - 1 and used == list(range(used[0], used[-1] + 1)):
            return used[0] * self.spec.block_size, None
        return None, torch.tensor(used, dtype=torch.int64, device=self.spec.device)

    def _mask(self, query_len: int, context_len: int) -> Tensor | None:
        if query_len == 1 or query_len == context_len:  # sees everything, or plainly causal
            return None
        device = self.spec.device
        rows = torch.arange(context_len - query_len, context_len, device=device).unsqueeze(1)
        return torch.arange(context_len, device=device).unsqueeze(0) <= rows

    def _join(self, requests: list[_Request]) -> list[_Request | _Decodes]:
        """Join neighbouring decodes whose runs are evenly spaced; the rest stay as they are."""
        parts: list[_Request | _Decodes] = []
        first = 0
        while first < len(requests):
            end = first + 1
            while end < len(requests) and self._may_join(requests[first:end + 1]):
                end += 1
            parts.append(requests[first] if end == first + 1 else self._decodes(requests[first:end]))
            first = end
        return parts

    def _may_join(self, group: list[_Request]) -> bool:
        """Whether the newest may join the others, of which each was asked before."""
        newest = group[-1]
        if newest.query_len != 1 or group[0].query_len != 1 or newest.run is None or group[0].run is None:
            return False
        spacing = newest.run - group[-2].run
        lengths = [request.context_len for request in group]
        return (spacing > 0 and spacing == group[1].run - group[0].run
                and max(lengths) <= _MAX_PADDING * min(lengths)
                and newest.run + max(lengths) <= self._num_slots)  # the view must not reach past the pool

    def _decodes(self, group: list[_Request]) -> _Decodes:
        lengths = [request.context_len for request in group]
        longest = max(lengths)
        mask = None
        if min(lengths) < longest:
            device = self.spec.device
            behind = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device).unsqueeze(1)
            mask = torch.zeros(len(group), longest, dtype=self.spec.dtype, device=device)
            mask = mask.masked_fill_(behind, -torch.inf).view(len(group), 1, 1, longest)
        return _Decodes(group[0].start, len(group), group[0].run, group[1].run - group[0].run, longest, mask)

    # --- once a layer ----------------------------------------------------------------------------------------------

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, plan: _Plan) -> Tensor:
        keys, values = self._layers[layer]
        if plan.first_slot is not None:
            end = plan.first_slot + k.shape[0]
            keys[:, plan.first_slot:end] = k.transpose(0, 1)
            values[:, plan.first_slot:end] = v.transpose(0, 1)
        else:
            keys.index_copy_(1, plan.slots, k.transpose(0, 1))
            values.index_copy_(1, plan.slots, v.transpose(0, 1))
        out = [self._together(q, keys, values, part) if isinstance(part, _Decodes) else self._one(q, keys, values, part)
               for part in plan.parts]
        return out[0] if len(out) == 1 else torch.cat(out)

    def _together(self, q: Tensor, keys: Tensor, values: Tensor, d: _Decodes) -> Tensor:
        """(count, num_heads * head_dim) of evenly spaced decodes."""
        kv_heads, dim = self.spec.num_kv_heads, self.spec.head_dim
        # the query heads that share a key head become rows of one small matrix
        rows = q[d.start:d.start + d.count].reshape(d.count, kv_heads, -1, dim)
        shape, stride = (d.count, kv_heads, d.context_len, dim), (d.spacing * dim, self._num_slots * dim, dim, 1)
        key, value = (x.as_strided(shape, stride, x.storage_offset() + d.run * dim) for x in (keys, values))
        return F.scaled_dot_product_attention(rows, key, value, attn_mask=d.mask).reshape(d.count, -1)

    def _one(self, q: Tensor, keys: Tensor, values: Tensor, r: _Request) -> Tensor:
        """(query_len, num_heads * head_dim) of one request."""
        kv_heads, dim = self.spec.num_kv_heads, self.spec.head_dim
        group = self.spec.num_heads // kv_heads
        if r.run is not None:
            key = keys[:, r.run:r.run + r.context_len]
            value = values[:, r.run:r.run + r.context_len]
        else:
            key, value = (self._gather(cache, r) for cache in (keys, values))
        if r.query_len == 1:
            rows = q[r.start].view(1, kv_heads, group, dim)
            return F.scaled_dot_product_attention(rows, key.unsqueeze(0), value.unsqueeze(0)).view(1, -1)
        # key heads as the batch, the group as heads with stride 0: grouped-query attention without a copy
        rows = q[r.start:r.start + r.query_len].view(r.query_len, kv_heads, group, dim).permute(1, 2, 0, 3)
        key, value = (x.unsqueeze(1).expand(kv_heads, group, r.context_len, dim) for x in (key, value))
        out = F.scaled_dot_product_attention(rows, key, value, attn_mask=r.mask, is_causal=r.mask is None)
        return out.permute(2, 0, 1, 3).reshape(r.query_len, -1)

    def _gather(self, cache: Tensor, r: _Request) -> Tensor:
        """(kv_heads, context_len, head_dim), copied together from scattered blocks."""
        blocks = cache.view(cache.shape[0], self.num_blocks, -1).index_select(1, r.blocks)
        return blocks.view(cache.shape[0], -1, self.spec.head_dim)[:, :r.context_len]
