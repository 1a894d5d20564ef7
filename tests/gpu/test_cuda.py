"""On a real GPU: the backends equal each other, recorded decodes equal plain ones, models run, the pool fits.

Run with `pytest -m gpu`; skipped where there is no CUDA device, and flash-attn's part where it is not installed.
"""

from __future__ import annotations

import gc

import pytest
import torch

from nanovllm_edu import LLM, ConfigError, SamplingParams
from nanovllm_edu.layers.attention import backend_class, choose, look
from tests.engine.scenes import STEPS, assert_equal_to_torch, spec_of
from tests.engine.tiny import some_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda", 0)
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
# one step of the format at the size of the result, as in the tests on a CPU
HALF = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
PROMPTS = [some_tokens(n, seed=n) for n in (1, 4, 9, 30, 65)]


def usable(name: str, spec) -> None:
    try:
        choose(name, spec, look(CUDA))
    except ConfigError as error:
        pytest.skip(str(error))


def half() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.get_device_capability(CUDA) >= (8, 0) else torch.float16


@pytest.mark.parametrize("dim", [16, 24, 64, 80, 128, 256])
@pytest.mark.parametrize("heads,kv_heads", [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("block_size", [2, 3, 16, 256])
def test_triton_in_fp32(block_size, heads, kv_heads, dim):
    spec = spec_of(heads, kv_heads, dim, block_size, device=CUDA)
    usable("triton", spec)
    assert_equal_to_torch(backend_class("triton"), spec, STEPS, 1e-5, 1e-5)


@pytest.mark.parametrize("name", ["triton", "flash"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads,kv_heads,dim", [(9, 3, 64), (4, 4, 80), (8, 1, 128)])
def test_half_precision(name, dtype, heads, kv_heads, dim):
    spec = spec_of(heads, kv_heads, dim, 256, dtype, CUDA)
    usable(name, spec)
    assert_equal_to_torch(backend_class(name), spec, STEPS, HALF[dtype], HALF[dtype])


@pytest.mark.parametrize("name", ["triton", "flash"])
def test_recorded_decodes_equal_plain_ones(tiny, name):
    """Batches shrink from 5 to 1 as requests end, so every graph is replayed with padding left by a larger one."""
    dtype = half() if name == "flash" else torch.float32
    usable(name, spec_of(6, 2, 16, 256, dtype, CUDA))
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (32, 5, 20, 11, 27)]
    answers = []
    for eager in (True, False):
        with LLM(tiny("qwen3"), device="cuda", dtype=str(dtype), attention_backend=name, enforce_eager=eager,
                 num_kvcache_blocks=20, max_model_len=128, max_num_seqs=6) as llm:
            assert llm.model_info["cuda_graphs"] is not eager
            answers.append([out.token_ids for out in llm.generate(PROMPTS, params, use_tqdm=False)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_tokens_equal_those_of_a_cpu(tiny, name, family):
    usable(name, spec_of(6, 2, 8, 4, device=CUDA))
    answers = []
    for device, backend in (("cpu", "torch"), ("cuda", name)):
        with LLM(tiny(family), device=device, dtype="float32", attention_backend=backend, kvcache_block_size=4,
                 num_kvcache_blocks=200, max_model_len=128, max_num_seqs=8) as llm:
            answers.append([out.token_ids for out in llm.generate(PROMPTS, GREEDY, use_tqdm=False)])
    assert answers[0] == answers[1]


def test_a_request_may_fill_the_models_length(tiny):
    """The last decode stands in the last column of the block tables."""
    with LLM(tiny("llama"), device="cuda", dtype="float32", kvcache_block_size=16, num_kvcache_blocks=8,
             max_model_len=64, max_num_seqs=2) as llm:
        out = llm.generate([some_tokens(48)], SamplingParams(temperature=0, max_tokens=99, ignore_eos=True),
                           use_tqdm=False)[0]
    assert len(out.token_ids) == 16 and out.finish_reason == "length"


def test_the_pool_takes_its_share_and_no_more(tiny):
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(CUDA)
    share = (total - free) / total + 0.1
    with LLM(tiny("llama"), device="cuda", gpu_memory_utilization=share, enforce_eager=True) as llm:
        info = llm.model_info
        used = total - torch.cuda.mem_get_info(CUDA)[0]
        assert info["num_blocks"] * info["bytes_per_block"] > 0.05 * total
        assert used <= share * total + (256 << 20)  # libraries may load code of their own
        assert llm.generate([some_tokens(9)], GREEDY, use_tqdm=False)[0].token_ids


def test_closing_gives_the_memory_back(tiny):
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated(CUDA)
    llm = LLM(tiny("llama"), device="cuda", num_kvcache_blocks=400, max_num_seqs=8)
    llm.generate([some_tokens(9)], GREEDY, use_tqdm=False)
    llm.close()
    del llm
    gc.collect()
    assert torch.cuda.memory_allocated(CUDA) <= before + (64 << 20)  # work space of cuBLAS


def test_a_gpu_that_is_full_is_refused_with_the_arithmetic(tiny):
    with pytest.raises(ConfigError, match="MiB in use and .* for activations"):
        LLM(tiny("llama"), device="cuda", gpu_memory_utilization=0.001)


def test_the_packaged_model_says_paris(packaged):
    with LLM(device="cuda") as llm:
        answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}],
                          SamplingParams(temperature=0, max_tokens=24))
    assert "Paris" in answer.text
