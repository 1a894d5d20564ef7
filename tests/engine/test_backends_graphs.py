"""What CUDA runs rest on, without a GPU: graph sizes, padding, memory arithmetic, the largest step, fused layers.

A graph is played here by a function that computes again into the same output, which is what a replay does.
"""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from nanovllm_edu.config import EngineConfig
from nanovllm_edu.engine import Sequence
from nanovllm_edu.engine.batch import prepare
from nanovllm_edu.engine.cuda_graphs import DecodeBuffers, graph_sizes, is_decode, record_decode, table_width
from nanovllm_edu.engine.devices import cuda_budget, num_blocks_for
from nanovllm_edu.engine.warm_up import largest_step, step_lengths
from nanovllm_edu.errors import ConfigError
from nanovllm_edu.layers.attention import AttentionBatch, TorchBackend, backend_class
from nanovllm_edu.layers.attention.host import pad_tables, upload
from nanovllm_edu.layers.compiled import compiled
from nanovllm_edu.layers.layernorm import rms_norm
from tests.engine import flash_reference
from tests.engine.scenes import CPU, interpret_triton, spec_of
from tests.engine.tiny import some_tokens

interpret_triton()
MIB = 1 << 20


@pytest.mark.parametrize("max_num_seqs,sizes", [
    (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (7, [1, 2, 4, 7]), (8, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 20]),
    (33, [1, 2, 4, 8, 16, 24, 32, 33]), (130, [1, 2, 4, *range(8, 129, 8), 130])])
def test_graph_sizes_by_hand(max_num_seqs, sizes):
    assert graph_sizes(max_num_seqs) == sizes


@pytest.mark.parametrize("max_num_seqs", [*range(1, 300), 500, 511, 512, 513, 1000, 4096])
def test_every_batch_has_a_graph_that_is_little_larger(max_num_seqs):
    sizes = graph_sizes(max_num_seqs)
    assert sizes[-1] == max_num_seqs and sizes == sorted(set(sizes)) and len(sizes) <= 50
    for smaller, larger in zip(sizes, sizes[1:], strict=False):
        assert larger - smaller <= max(8, smaller // 8)


@pytest.mark.parametrize("max_model_len,block_size,width", [
    (4096, 256, 17), (4095, 256, 17), (4097, 256, 18), (10, 3, 5), (2, 2, 2), (1, 2, 2)])
def test_tables_are_one_column_wider_than_the_longest_request(max_model_len, block_size, width):
    assert table_width(max_model_len, block_size) == width


def test_tables_are_padded_to_rows_of_one_width():
    assert pad_tables([[5], [1, 2, 3], []]) == [[5, 0, 0], [1, 2, 3], [0, 0, 0]]
    assert pad_tables([[5], [1, 2]], 4) == [[5, 0, 0, 0], [1, 2, 0, 0]]
    with pytest.raises(ValueError, match="3 entries does not fit into 2 columns"):
        pad_tables([[1, 2, 3]], 2)
    assert upload([[1, 2]], torch.int32, CPU).dtype == torch.int32


def decode_batch(tables, contexts, block_size):
    slots = torch.tensor([t[(c - 1) // block_size] * block_size + (c - 1) % block_size
                          for t, c in zip(tables, contexts, strict=True)])
    return AttentionBatch(list(range(len(tables) + 1)), contexts, slots, tables)


def test_buffers_by_hand_and_what_an_earlier_step_left():
    buffers = DecodeBuffers(8, 4, CPU)
    full = decode_batch([[7, 8, 9]] * 8, [9] * 8, 4)
    buffers.fill(torch.arange(8), torch.full((8,), 8), full, 8)
    assert buffers.slots.tolist() == [36] * 8  # position 8: block 9, offset 0
    buffers.fill(torch.tensor([31, 32, 33]), torch.tensor([3, 4, 0]), decode_batch([[2], [3, 1], [6]], [4, 5, 1], 4), 4)
    assert buffers.input_ids[:3].tolist() == [31, 32, 33]
    assert buffers.positions[:3].tolist() == [3, 4, 0]
    assert buffers.slots[:4].tolist() == [11, 4, 24, -1]  # the padded row stores nothing
    assert buffers.context_lens[:4].tolist() == [4, 5, 1, 0]  # and reads nothing
    assert buffers.block_tables[:3].tolist() == [[2, 0, 0, 0], [3, 1, 0, 0], [6, 0, 0, 0]]
    assert buffers.block_tables.dtype == buffers.context_lens.dtype == torch.int32


def test_what_is_a_decode():
    assert is_decode(AttentionBatch([0, 1, 2], [5, 9], torch.zeros(2), [[0], [0]]))
    assert not is_decode(AttentionBatch([0, 1, 3], [5, 9], torch.zeros(3), [[0], [0]]))


class Replay:
    """Computes again, into the output of the recording."""

    def __init__(self, compute):
        self.compute, self.output, self.replays = compute, compute(), 0

    def replay(self):
        self.replays += 1
        self.output.copy_(self.compute())


@pytest.fixture(params=["triton", "flash"])
def backend_name(request, monkeypatch):
    if request.param == "triton":
        pytest.importorskip("triton", reason="triton is published for Linux only")
    else:
        monkeypatch.setitem(sys.modules, "flash_attn", flash_reference.module())
    return request.param


@torch.inference_mode()
def test_padded_replays_equal_plain_runs(tiny_llm, backend_name):
    """Batches of 5, 3, 5 and 1 with graphs for 1, 2, 4 and 5; a shrinking batch meets what a larger one left."""
    block_size = 256 if backend_name == "flash" else 4
    llm = tiny_llm(kvcache_block_size=block_size, num_kvcache_blocks=2, max_model_len=24, max_num_seqs=5)
    runner = llm.engine.runner
    spec = runner.spec
    made = []

    def record(compute):
        made.append(Replay(compute))
        return made[-1], made[-1].output

    plain, recorded = (backend_class(backend_name)(spec, 40) for _ in range(2))
    graphs = record_decode(runner.model, recorded, llm.config, record)
    assert graphs.sizes == [1, 2, 4, 5]
    assert graphs.buffers.block_tables.shape == (5, table_width(24, block_size))
    seqs = [Sequence(some_tokens(n, seed=n), block_size=block_size) for n in (3, 9, 1, 22, 5)]
    ids = iter(torch.randperm(40, generator=torch.Generator().manual_seed(1)).tolist())
    for seq in seqs:
        seq.block_table = [next(ids) for _ in range(table_width(24, block_size) - 1)]
        seq.num_scheduled_tokens = seq.num_tokens - 1
    live = [seq for seq in seqs if seq.num_scheduled_tokens]
    prompt = prepare(live, block_size, CPU)
    for backend in (plain, recorded):
        runner.model(prompt.input_ids, prompt.positions, backend, backend.plan(prompt.attention))
    for chosen in (seqs, seqs[:3], seqs, seqs[1:2]):
        for seq in chosen:
            seq.num_cached_tokens, seq.num_scheduled_tokens, seq.is_prefill = seq.num_tokens - 1, 1, False
        batch = prepare(chosen, block_size, CPU)
        want = runner.model(batch.input_ids, batch.positions, plain, plain.plan(batch.attention))
        got = graphs.run(batch.input_ids, batch.positions, batch.attention)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert [graph.replays for graph in made] == [2, 1, 0, 1]  # recorded largest first: 5, 4, 2, 1
    blocks = slice(0, 40 * block_size)
    torch.testing.assert_close(recorded.kv_cache[:, :, blocks], plain.kv_cache[:, :, blocks], atol=1e-5, rtol=1e-5)
    graphs.release()
    assert not graphs._graphs


def test_closing_releases_the_graphs(tiny_llm):
    llm = tiny_llm()
    released = []
    graphs = type("Graphs", (), {"release": lambda self: released.append(True)})()
    runner, runner.graphs = llm.engine.runner, graphs
    llm.close()
    assert released == [True] and runner.graphs is None


def test_memory_arithmetic_by_hand():
    # 90% of 1000 is 900; 300 are in use; 100 for a step: 500 are left
    assert cuda_budget(1000 * MIB, 700 * MIB, 0.9, 100 * MIB)[0] == 500 * MIB
    # another process holds half of the GPU, and 40% is what this one may have of it all
    budget, told = cuda_budget(16000 * MIB, 8000 * MIB, 0.4, 50 * MIB)
    assert budget == (6400 - 8000 - 50) * MIB
    assert told.startswith("40% of 16,000 MiB less 8,000 MiB in use and 50 MiB for activations; raise gpu_memory_uti")


def test_a_gpu_that_is_full_is_met_with_the_numbers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8000 * MIB, 16000 * MIB))
    spec = spec_of(9, 3, 64, 256, torch.bfloat16, torch.device("cuda", 0), num_layers=30)
    with pytest.raises(ConfigError, match="5.6 MiB: 0.0 MiB left .40% of 16,000 MiB less 8,000 MiB in use"):
        num_blocks_for(EngineConfig(gpu_memory_utilization=0.4), spec, 50 * MIB)
    config = EngineConfig(gpu_memory_utilization=0.9)  # 14,400 - 8,000 - 50 MiB, in blocks of 5.625
    assert num_blocks_for(config, spec, 50 * MIB) == int(6350 / 5.625)


@pytest.mark.parametrize("tokens,seqs,length,lengths", [
    (16384, 512, 4096, [4096] * 4), (100, 512, 4096, [100]), (10, 3, 4, [4, 4, 2]),
    (100, 2, 4, [4, 4]), (4, 9, 4, [4])])
def test_the_largest_step_by_hand(tokens, seqs, length, lengths):
    assert step_lengths(tokens, seqs, length) == lengths


def test_the_largest_step_runs_on_every_backend(tiny_llm, backend_name):
    block_size = 256 if backend_name == "flash" else 4
    llm = tiny_llm(kvcache_block_size=block_size, max_model_len=8, max_num_batched_tokens=20, max_num_seqs=3)
    runner = llm.engine.runner
    for backend in (TorchBackend, backend_class(backend_name)):
        largest_step(llm.config, runner.model, runner.model_config, backend, runner.spec)
    assert len(llm.scheduler.block_manager.free_block_ids) == llm.config.num_kvcache_blocks


def test_small_layers_compile_whole_and_compute_the_same():
    """Traced without a break, for one token and for several, into one graph each."""
    from nanovllm_edu.layers import activation, rotary_embedding, sampler

    x, weight, cos, sin = torch.randn(5, 3, 8), torch.rand(8), torch.randn(5, 1, 8), torch.randn(5, 1, 8)
    logits, temperatures = torch.randn(5, 11), torch.rand(5, 1) + 0.1
    cases = [(rms_norm, lambda n: (x[:n], weight, 1e-6)),
             (rotary_embedding.apply_rotary, lambda n: (x[:n], cos[:n], sin[:n])),
             (activation.silu_and_mul, lambda n: (x[:n, 0],)),
             (sampler.tempered, lambda n: (logits[:n], temperatures[:n]))]
    for layer, inputs in cases:
        plain = layer.__wrapped__
        fused = compiled(plain, "cpu", backend="aot_eager", fullgraph=True)
        for n in (5, 1, 2, 3, 4):
            torch.testing.assert_close(fused(*inputs(n)), plain(*inputs(n)))
            torch.testing.assert_close(layer(*inputs(n)), plain(*inputs(n)))


def test_where_compiling_fails_the_plain_layer_serves_and_says_so_once():
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    def double(x):
        return x * 2

    layer = compiled(double, "cpu", backend=broken)
    with pytest.warns(RuntimeWarning, match="double runs uncompiled and slower"):
        assert layer(torch.ones(2)).tolist() == [2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert layer(torch.ones(3)).tolist() == [2, 2, 2]
