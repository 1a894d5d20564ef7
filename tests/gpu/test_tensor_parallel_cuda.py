"""Tensor parallelism over NCCL, on machines with two GPUs or more. Run with `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch

from nanovllm_edu import SamplingParams
from tests.engine.tiny import some_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")]
GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)


@pytest.mark.parametrize("family", ["llama", "qwen2-one-key-head", "qwen3"])
@pytest.mark.parametrize("enforce_eager", [True, False])
def test_two_gpus_equal_one_cpu(tiny_llm, family, enforce_eager):
    prompts = [some_tokens(n, seed=n) for n in (1, 4, 9, 30, 65)]
    want = tiny_llm(family, device="cpu").generate(prompts, GREEDY, use_tqdm=False)
    llm = tiny_llm(family, device="cuda", tensor_parallel_size=2, enforce_eager=enforce_eager)
    got = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.token_ids for output in got] == [output.token_ids for output in want]
    llm.close()  # graphs hold NCCL's collectives: closing must not wait for ever


def test_a_killed_worker_is_an_error(tiny_llm):
    llm = tiny_llm(device="cuda", tensor_parallel_size=2)
    llm.add_request("abc", GREEDY)
    llm.step()
    worker = llm.engine.runner._team.workers[0]
    worker.kill()
    with pytest.raises(RuntimeError, match="rank 1 ended"):  # WorkerError in the step, EngineClosedError before it
        while True:
            llm.step()
