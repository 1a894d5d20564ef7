"""Ctrl-C in a step of the whole engine: the same answers as if nothing had happened, and nothing left."""

from __future__ import annotations

import pytest

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import check_invariants
from tests.engine.tiny import some_tokens
from tests.ledger.interrupt import Tracer, first

STEM = some_tokens(9, seed=5)
PROMPTS = [STEM, [*STEM[:8], 7, 8], some_tokens(3, seed=6)]


def params(index: int) -> SamplingParams:
    """Greedy, seeded and with a stop string: what a request keeps beside its tokens must be undone as well."""
    return [SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1),
            SamplingParams(temperature=1.5, max_tokens=7, ignore_eos=True, seed=3),
            SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, stop=["never said"])][index]


def drive(llm, at: int | None = None) -> tuple[list, list]:
    """Run the prompts; interrupt at the engine's line number ``at``. Returns the answers, and the lines that ran."""
    llm.reset_prefix_cache()
    ids = [llm.add_request(prompt, params(i)) for i, prompt in enumerate(PROMPTS)]
    lines: list = []
    interrupted = False
    for _ in range(100):
        if llm.is_finished():
            break
        live = {seq.seq_id: list(seq.token_ids) for seq in llm.scheduler.sequences}
        try:
            if interrupted:
                llm.step()
            else:
                with Tracer(None if at is None else at - len(lines)) as tracer:
                    llm.step()
        except KeyboardInterrupt:
            interrupted = True
            now = {seq.seq_id: seq.token_ids for seq in llm.scheduler.sequences}
            assert now == live and not live.keys() & llm.outputs.keys()
        check_invariants(llm.scheduler.block_manager, llm.scheduler.sequences)
        if not interrupted:
            lines += tracer.lines
    assert llm.is_finished() and not llm.scheduler.block_manager.used_block_ids and not llm.engine._requests
    outputs = [llm.outputs.pop(seq_id) for seq_id in ids]
    assert not llm.outputs
    return [(o.token_ids, o.text, o.finish_reason, list(o.logprobs or [])) for o in outputs], lines


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_ctrl_c_at_any_line_of_a_step(tiny_llm, policy: str) -> None:
    llm = tiny_llm(num_kvcache_blocks=8, max_num_batched_tokens=7, scheduling_policy=policy)
    undisturbed, lines = drive(llm)
    again, _ = drive(llm)
    same(again, undisturbed, "undisturbed")
    places = first(lines)
    files = {lines[at - 1][0] for at in places}
    assert {"llm_engine.py", "scheduler.py", "block_manager.py", "model_runner.py"} <= files
    ours = [at for at in places if lines[at - 1][0] in ("llm_engine.py", "request.py")]
    # the lines of the ledger are all tried in tests/ledger, without a model
    for at in sorted({*ours, *places[policy == "mixed"::6]}):
        same(drive(llm, at)[0], undisturbed, lines[at - 1])


def same(found: list, expected: list, where: object) -> None:
    assert [one[:3] for one in found] == [one[:3] for one in expected], where
    for (*_, mine), (*_, theirs) in zip(found, expected, strict=True):
        assert [list(step) for step in mine] == [list(step) for step in theirs], where
        assert [x for step in mine for x in step.values()] == pytest.approx(
            [x for step in theirs for x in step.values()], abs=1e-4), where


def test_ctrl_c_200_times_in_a_row_leaves_nothing(tiny_llm) -> None:
    llm = tiny_llm(num_kvcache_blocks=8, max_num_batched_tokens=7)
    with Tracer() as tracer:
        llm.generate([STEM], params(0), use_tqdm=False)
    for number in range(200):
        with pytest.raises(KeyboardInterrupt), Tracer(1 + number * len(tracer.lines) // 300):
            llm.generate([STEM], params(0), use_tqdm=False)
        assert llm.is_finished() and not llm.outputs and not llm.engine._requests
        assert len(llm.scheduler.block_manager.free_block_ids) == 8
    [only] = llm.generate([STEM], params(0), use_tqdm=False)
    assert only.token_ids and not llm.outputs and llm.is_finished()
