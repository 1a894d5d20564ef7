"""Three Triton kernels for a paged KV cache: store, attend for prompts, attend for one token a request.

Each addresses a key by its position: position p of a request lies in slot block_table[p // B] * B + p % B. So a tile
of keys may begin and end anywhere, and the block size B may be any number. Softmax is computed online in fp32
(Milakov and Gimelshein, 2018), tile by tile, as in FlashAttention (Dao et al., 2022).

Tiles have power-of-two sides, as `tl.arange` asks; what stands beyond the real sizes is masked. Offsets into the cache
are int64: a slot times the width of a slot passes 2**31 in any cache of more than 2**31 elements a layer.

The environment variable TRITON_INTERPRET=1, set before Triton is imported, runs them in Python on the CPU. Its `tl.dot`
multiplies the bits of a bfloat16 as whole numbers (Triton 3.7), hence UPCAST: matrix products in fp32, there alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)


@triton.jit
def store_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    k_row, k_head, v_row, v_head,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, HEADS_PAD: tl.constexpr, DIM_PAD: tl.constexpr,
):
    """One program per new token: copy its keys and values, (KV_HEADS, DIM) each, to its slot. Slot -1: nowhere.

    k_row, k_head, v_row, v_head: strides of k and v, in elements.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    heads = tl.arange(0, HEADS_PAD)[:, None]
    dims = tl.arange(0, DIM_PAD)[None, :]
    keep = (heads < KV_HEADS) & (dims < DIM) & (slot >= 0)
    there = slot * (KV_HEADS * DIM) + heads * DIM + dims
    tl.store(k_cache_ptr + there, tl.load(k_ptr + token * k_row + heads * k_head + dims, mask=keep), mask=keep)
    tl.store(v_cache_ptr + there, tl.load(v_ptr + token * v_row + heads * v_head + dims, mask=keep), mask=keep)


@triton.jit
def _attend(
    q, positions, last, kv_head, table_ptr, k_cache_ptr, v_cache_ptr, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM_PAD: tl.constexpr, UPCAST: tl.constexpr,
):
    """Rows of q, (ROWS, DIM_PAD), over the keys 0 to last - 1 of one request; row i sees keys up to positions[i].

    Returns (ROWS, DIM_PAD) fp32. `highest`, `total` and `out` are the running maximum, the sum of exp(score - maximum)
    and the sum of the values weighted by it; when the maximum rises, what was summed before is scaled down.
    """
    dims = tl.arange(0, DIM_PAD)
    if UPCAST:
        q = q.to(tl.float32)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, DIM_PAD], tl.float32)
    for start in range(0, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < last, other=0).to(tl.int64)
        slots = block * BLOCK_SIZE + keys % BLOCK_SIZE
        there = (slots * KV_HEADS + kv_head)[:, None] * DIM + dims[None, :]
        keep = (keys < last)[:, None] & (dims < DIM)[None, :]
        k = tl.load(k_cache_ptr + there, mask=keep, other=0.0)
        v = tl.load(v_cache_ptr + there, mask=keep, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = (keys[None, :] <= positions[:, None]) & (keys < last)[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        # every row sees key 0, so the maximum is finite from the first tile on
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = higher
    return out / tl.where(total > 0, total, 1.0)[:, None]  # no key at all (a padded row): zeros


@triton.jit
def prefill_kernel(
    q_ptr, out_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, cu_seqlens_q_ptr, context_lens_ptr,
    tile_seq_ptr, tile_row_ptr, q_row, q_head, table_width, scale,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM_PAD: tl.constexpr, UPCAST: tl.constexpr,
):
    """One program per tile of query rows and query head.

    Tile t holds the rows tile_row[t] to tile_row[t] + ROWS - 1 of request tile_seq[t]. The request's queries are its
    newest tokens, so its row i stands at position context_len - query_len + i.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    seq = tl.load(tile_seq_ptr + tile)
    first_row = tl.load(tile_row_ptr + tile)
    q_start = tl.load(cu_seqlens_q_ptr + seq)
    query_len = tl.load(cu_seqlens_q_ptr + seq + 1) - q_start
    context_len = tl.load(context_lens_ptr + seq)
    rows = first_row + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    keep = (rows < query_len)[:, None] & (dims < DIM)[None, :]
    tokens = (q_start + rows).to(tl.int64)[:, None]
    q = tl.load(q_ptr + tokens * q_row + head * q_head + dims[None, :], mask=keep, other=0.0)
    positions = context_len - query_len + rows
    # keys after the tile's last row are seen by nobody in it
    last = tl.minimum(context_len, context_len - query_len + first_row + ROWS)
    out = _attend(q, positions, last, head // (HEADS // KV_HEADS), tables_ptr + seq.to(tl.int64) * table_width,
                  k_cache_ptr, v_cache_ptr, scale, BLOCK_SIZE, KV_HEADS, DIM, ROWS, KEYS, DIM_PAD, UPCAST)
    there = out_ptr + tokens * (HEADS * DIM) + head * DIM + dims[None, :]
    tl.store(there, out.to(out_ptr.dtype.element_ty), mask=keep)


@triton.jit
def decode_kernel(
    q_ptr, out_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, context_lens_ptr, q_row, q_head, table_width, scale,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM_PAD: tl.constexpr, UPCAST: tl.constexpr,
):
    """One program per request and key head: the query heads that share the key head are the rows of one tile.

    The keys of a request are thus read once, not once for each query head (grouped-query attention).
    """
    seq, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    context_len = tl.load(context_lens_ptr + seq)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    heads = (kv_head * group + rows)[:, None]
    keep = (rows < group)[:, None] & (dims < DIM)[None, :]
    q = tl.load(q_ptr + seq * q_row + heads * q_head + dims[None, :], mask=keep, other=0.0)
    positions = tl.zeros([ROWS], tl.int32) + (context_len - 1)  # the newest token sees all of its request
    out = _attend(q, positions, context_len, kv_head, tables_ptr + seq * table_width,
                  k_cache_ptr, v_cache_ptr, scale, BLOCK_SIZE, KV_HEADS, DIM, ROWS, KEYS, DIM_PAD, UPCAST)
    there = out_ptr + seq * (HEADS * DIM) + heads * DIM + dims[None, :]
    tl.store(there, out.to(out_ptr.dtype.element_ty), mask=keep)
