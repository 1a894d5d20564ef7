"""The torch backend against attention written out, token by token."""

from __future__ import annotations

import pytest
import torch

from nanovllm_edu.engine.model_runner import slot_mapping
from nanovllm_edu.layers.attention import AttentionBatch, KVCacheSpec, TorchBackend

NUM_BLOCKS = 32


def by_hand(q, keys, values):
    """One request, q (queries, heads, dim) for its last positions, keys and values (context, kv heads, dim)."""
    out = torch.empty_like(q)
    group = q.shape[1] // keys.shape[1]
    for row in range(q.shape[0]):
        seen = keys.shape[0] - q.shape[0] + row + 1
        for head in range(q.shape[1]):
            scores = keys[:seen, head // group] @ q[row, head] * q.shape[2] ** -0.5
            out[row, head] = scores.softmax(0) @ values[:seen, head // group]
    return out.flatten(1)


@pytest.mark.parametrize("heads,kv_heads,dim", [(9, 3, 64), (4, 4, 16), (8, 1, 32), (6, 2, 80)])
@pytest.mark.parametrize("block_size", [2, 3, 16, 256])
@pytest.mark.parametrize("scattered", [True, False])
def test_mixed_batches_over_two_steps(heads, kv_heads, dim, block_size, scattered):
    """Step 1 fills contexts, step 2 mixes decodes, a chunk on top of a context, and a fresh prompt."""
    torch.manual_seed(0)
    spec = KVCacheSpec(2, heads, kv_heads, dim, block_size, torch.float32, torch.device("cpu"))
    backend = TorchBackend(spec, NUM_BLOCKS)
    order = torch.randperm(NUM_BLOCKS).tolist() if scattered else list(range(NUM_BLOCKS))
    first, second = [5, 1, 12, 0, 16], [1, 1, 4, 7, 1]
    tables = []
    for before, new in zip(first, second, strict=True):
        count = -(-(before + new) // block_size)
        tables.append(order[:count] if scattered else sorted(order[:count]))
        del order[:count]
    kept = [(torch.empty(0, kv_heads, dim), torch.empty(0, kv_heads, dim)) for _ in first]
    done = [0] * len(first)
    for step in (first, second):
        live = [i for i, n in enumerate(step) if n]
        tokens = sum(step)
        q, k, v = (torch.randn(tokens, n, dim) for n in (heads, kv_heads, kv_heads))
        cu = [0]
        slots = []
        for i in live:
            cu.append(cu[-1] + step[i])
            slots += slot_mapping(tables[i], block_size, done[i], done[i] + step[i])
        batch = AttentionBatch(cu, [done[i] + step[i] for i in live], torch.tensor(slots), [tables[i] for i in live])
        got = backend.attend(1, q, k, v, backend.plan(batch))
        for place, i in enumerate(live):
            rows = slice(cu[place], cu[place + 1])
            kept[i] = (torch.cat((kept[i][0], k[rows])), torch.cat((kept[i][1], v[rows])))
            torch.testing.assert_close(got[rows], by_hand(q[rows], *kept[i]), atol=2e-5, rtol=1e-4)
            done[i] += step[i]
    assert not backend.kv_cache[0].any(), "layer 0 was not asked for and must be untouched"


def test_bytes_per_block():
    spec = KVCacheSpec(30, 9, 3, 64, 16, torch.bfloat16, torch.device("cpu"))
    assert spec.bytes_per_block == 2 * 30 * 3 * 64 * 16 * 2
    assert TorchBackend(spec, 2).kv_cache.nbytes == 2 * spec.bytes_per_block


def decodes(tables: list[list[int]], context_lens: list[int], block_size: int = 4):
    """Sizes of the parts of a plan for decodes alone, held equal to attention by hand on a pool of garbage."""
    torch.manual_seed(1)
    spec = KVCacheSpec(1, 6, 2, 8, block_size, torch.float32, torch.device("cpu"))
    backend = TorchBackend(spec, NUM_BLOCKS)
    backend.kv_cache.normal_()
    count = len(tables)
    q, k, v = (torch.randn(count, n, 8) for n in (6, 2, 2))
    slots = [slot_mapping(t, block_size, n - 1, n)[0] for t, n in zip(tables, context_lens, strict=True)]
    plan = backend.plan(AttentionBatch(list(range(count + 1)), context_lens, torch.tensor(slots), tables))
    got = backend.attend(0, q, k, v, plan)
    for i, (table, length) in enumerate(zip(tables, context_lens, strict=True)):
        keys, values = backend.kv_cache[0][:, :, slot_mapping(table, block_size, 0, length)].transpose(1, 2)
        torch.testing.assert_close(got[i:i + 1], by_hand(q[i:i + 1], keys, values), atol=2e-5, rtol=1e-4)
    return [getattr(part, "count", 1) for part in plan.parts]


@pytest.mark.parametrize("tables,context_lens,parts", [
    ([[0], [1], [2], [3]], [3, 4, 2, 4], [4]),  # a block each, side by side
    ([[0, 1], [4, 5], [8, 9]], [7, 7, 7], [3]),  # evenly spaced, all as long: no mask
    ([[30], [31]], [2, 4], [2]),  # up to the last slot of the pool
    ([[29, 30], [31]], [5, 4], [1, 1]),  # a view as long as the longer one would reach past the pool
    ([[0], [1], [5], [6], [7]], [4, 4, 4, 4, 4], [2, 3]),  # a gap begins a new group
    ([[3], [2], [1]], [4, 4, 4], [1, 1, 1]),  # a view cannot go backwards
    ([[0, 2], [4, 5], [6, 7]], [6, 6, 6], [1, 2]),  # a scattered one is gathered on its own
    ([[0], [1, 2, 3], [4]], [2, 12, 2], [1, 1, 1]),  # a long context would pad the short ones
    ([[4, 5, 6], [7, 8, 9], [10, 11, 12]], [9, 12, 10], [3]),  # several blocks each
    ([[0, 1], [0, 1, 2]], [6, 9], [1, 1]),  # a shared prefix: runs that begin at one slot
])
def test_decodes_that_are_read_together(tables, context_lens, parts):
    assert decodes(tables, context_lens) == parts
