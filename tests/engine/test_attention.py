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
