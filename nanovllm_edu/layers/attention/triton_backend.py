"""Paged attention with our own Triton kernels: CUDA devices, any block size, any number of heads.

The cache is token-major, (layers, key or value, slots, kv heads, head_dim), so a token's keys are one run of memory:

    slot     0     1     2     3     4     5     6     7     8    ...   slots = num_blocks * block_size
           [ block 0         ][ block 1         ][ block 2   ...
             a0    a1    a2    a3    a4    --    b0    b1      block_size 3; a: table [0, 1], b: table [2]

A request's valid slots are those of its positions 0 to context_len - 1, through its block table; what stands in other
slots of its last block (`--`) is whatever was left there and is never read. A new token with slot -1 is not stored.

Attention runs over every request's own slots in two shapes: tiles of query rows (`prefill_kernel`: prompts, chunks and
mixed batches) and one query row a request (`decode_kernel`). No request's context is split over several programs, so
one long request alone does not fill a large GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from . import triton_kernels as kernels
from .host import pad_tables, upload
from .interface import AttentionBackend, AttentionBatch, KVCacheSpec

# What a tile of queries or keys is at least: tensor cores multiply no smaller matrices.
SMALLEST_TILE = 16


@dataclass
class _Plan:
    """The step's tensors. tile_seq and tile_row are None in a decode, where every request has one query row."""

    slots: Tensor  # (tokens,) int64
    context_lens: Tensor  # (requests,) int32
    block_tables: Tensor  # (requests, width) int32
    cu_seqlens_q: Tensor | None = None  # (requests + 1,) int32
    tile_seq: Tensor | None = None  # (tiles,) int32, see prefill_kernel
    tile_row: Tensor | None = None  # (tiles,) int32


class TritonBackend(AttentionBackend):
    """Stores and attends with the kernels of `triton_kernels`."""

    name: ClassVar[str] = "triton"
    supports_graphs: ClassVar[bool] = True

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        super().__init__(spec, num_blocks)
        # zeros, not empty: masked-out keys are multiplied by 0, and 0 * NaN is NaN
        self.kv_cache = torch.zeros(spec.num_layers, 2, num_blocks * spec.block_size, spec.num_kv_heads,
                                    spec.head_dim, dtype=spec.dtype, device=spec.device)
        self._layers = [(layer[0], layer[1]) for layer in self.kv_cache]
        self.rows, self.keys = tile_sizes(spec.head_dim, spec.dtype.itemsize)

    def plan(self, batch: AttentionBatch) -> _Plan:
        device, lens = self.spec.device, batch.query_lens
        context_lens = upload(batch.context_lens, torch.int32, device)
        tables = upload(pad_tables(batch.block_tables), torch.int32, device)
        if max(lens) == 1:
            return self.plan_decode(batch.slot_mapping, context_lens, tables)
        seqs, rows = query_tiles(lens, self.rows)
        return _Plan(batch.slot_mapping, context_lens, tables, upload(batch.cu_seqlens_q, torch.int32, device),
                     upload(seqs, torch.int32, device), upload(rows, torch.int32, device))

    def plan_decode(self, slot_mapping: Tensor, context_lens: Tensor, block_tables: Tensor) -> _Plan:
        return _Plan(slot_mapping, context_lens, block_tables)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, plan: _Plan) -> Tensor:
        spec = self.spec
        keys, values = self._layers[layer]
        dim_pad = max(SMALLEST_TILE, power_of_two(spec.head_dim))
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        kernels.store_kernel[(k.shape[0],)](
            k, v, keys, values, plan.slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            KV_HEADS=spec.num_kv_heads, DIM=spec.head_dim, HEADS_PAD=power_of_two(spec.num_kv_heads), DIM_PAD=dim_pad)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        shared = dict(q_row=q.stride(0), q_head=q.stride(1), table_width=plan.block_tables.stride(0),
                      scale=spec.head_dim ** -0.5, BLOCK_SIZE=spec.block_size, HEADS=spec.num_heads,
                      KV_HEADS=spec.num_kv_heads, DIM=spec.head_dim, KEYS=self.keys, DIM_PAD=dim_pad,
                      UPCAST=kernels.INTERPRETED)
        if plan.tile_seq is None:
            group = spec.num_heads // spec.num_kv_heads
            kernels.decode_kernel[(q.shape[0], spec.num_kv_heads)](
                q, out, keys, values, plan.block_tables, plan.context_lens,
                ROWS=max(SMALLEST_TILE, power_of_two(group)), **shared)
        else:
            kernels.prefill_kernel[(plan.tile_seq.shape[0], spec.num_heads)](
                q, out, keys, values, plan.block_tables, plan.cu_seqlens_q, plan.context_lens,
                plan.tile_seq, plan.tile_row, ROWS=self.rows, **shared)
        return out.flatten(1)


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below size."""
    return 1 << (size - 1).bit_length()


def tile_sizes(head_dim: int, itemsize: int) -> tuple[int, int]:
    """Rows of queries and of keys in a tile: fewer where a row is long, so that a program fits into shared memory.

    Queries, keys and values of a tile take 3 * side * row bytes; 64 KiB of half precision is what even a T4 has, and
    fp32 products go through shared memory once more.
    """
    row = max(SMALLEST_TILE, power_of_two(head_dim)) * itemsize
    room = (64 if itemsize < 4 else 32) << 10
    side = SMALLEST_TILE
    while side < 64 and 3 * (2 * side) * row <= room:
        side *= 2
    return side, side


def query_tiles(query_lens: list[int], rows: int) -> tuple[list[int], list[int]]:
    """Cut every request's query rows into tiles: the request of each tile, and its first row within the request."""
    seqs: list[int] = []
    first_rows: list[int] = []
    for seq, length in enumerate(query_lens):
        starts = range(0, length, rows)
        seqs += [seq] * len(starts)
        first_rows += starts
    return seqs, first_rows
