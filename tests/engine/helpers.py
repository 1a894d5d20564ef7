"""What the tests of `LLM` share."""

from __future__ import annotations

from nanovllm_edu import LLM, SamplingParams
from nanovllm_edu.engine import check_invariants

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def assert_empty(llm: LLM) -> None:
    """Nothing is left behind: no request, no block, no output."""
    assert llm.is_finished() and not llm.outputs and not llm.engine._requests
    assert len(llm.scheduler.block_manager.free_block_ids) == llm.config.num_kvcache_blocks
    check_invariants(llm.scheduler.block_manager, [])


def interrupt_in_step(llm: LLM, number: int, error: BaseException) -> None:
    """Let the model fail in the given step of the engine, once."""
    run, calls = llm.engine.runner.run, iter(range(1, 10**9))

    def failing(*args):
        if next(calls) == number:
            llm.engine.runner.run = run
            raise error
        return run(*args)

    llm.engine.runner.run = failing
