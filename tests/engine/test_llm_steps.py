"""A step at a time: by hand, beside other calls, failing, and interrupted."""

from __future__ import annotations

import pytest

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import check_invariants
from nanovllm_edu.errors import LedgerError
from tests.engine.helpers import GREEDY, assert_empty, interrupt_in_step
from tests.engine.tiny import some_tokens


def test_steps_by_hand(tiny_llm):
    llm = tiny_llm(max_num_batched_tokens=6)
    assert llm.step().phase == "idle" and llm.is_finished()
    a = llm.add_request(some_tokens(9), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    assert a == 0 and not llm.is_finished()
    first = llm.step()
    assert (first.step, first.phase, first.seq_ids, first.new_token_ids, first.finished) == (1, "prefill", [0], {}, [])
    second, third = llm.step(), llm.step()
    assert (second.phase, third.phase) == ("prefill", "decode")
    assert [output.seq_id for output in third.finished] == [0]
    output = llm.outputs.pop(0)
    assert output is third.finished[0]
    assert output.token_ids == [second.new_token_ids[0], third.new_token_ids[0]]
    assert_empty(llm)


def test_others_requests_progress_beside_generate(tiny_llm):
    llm = tiny_llm()
    short = llm.add_request("other", SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    long = llm.add_request("other", SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    outputs = llm.generate(["mine"], GREEDY, use_tqdm=False)
    assert [output.seq_id for output in outputs] == [2]
    assert list(llm.outputs) == [short] and not llm.is_finished()
    while not llm.is_finished():
        llm.step()
    assert len(llm.outputs.pop(long).token_ids) == 50 and len(llm.outputs.pop(short).token_ids) == 3
    assert_empty(llm)


def test_abort(tiny_llm):
    llm = tiny_llm()
    ids = [llm.add_request("abc", GREEDY) for _ in range(3)]
    llm.step()
    llm.step()
    output = llm.abort(ids[1])
    assert (output.finish_reason, len(output.token_ids)) == ("aborted", 2)
    assert llm.outputs.pop(ids[1]) is output
    assert llm.abort(ids[1]) is None and llm.abort(99) is None
    while not llm.is_finished():
        llm.step()
    assert llm.outputs.pop(ids[0]).token_ids == llm.outputs.pop(ids[2]).token_ids


def test_reset_prefix_cache(tiny_llm):
    llm = tiny_llm()
    prompt = some_tokens(13)
    llm.generate([prompt], GREEDY, use_tqdm=False)
    llm.add_request(prompt, GREEDY)
    llm.step()
    with pytest.raises(LedgerError, match=r"\[1\]"):
        llm.reset_prefix_cache()
    llm.abort(1)
    llm.outputs.clear()
    llm.reset_prefix_cache()
    assert llm.generate([prompt], GREEDY, use_tqdm=False)[0].num_cached_tokens == 0



@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_ctrl_c_in_generate_then_again(tiny_llm, step):
    llm = tiny_llm()
    other = llm.add_request("other", GREEDY)
    want = tiny_llm().generate(["other", "new"], GREEDY, use_tqdm=False)
    interrupt_in_step(llm, step, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["mine", "mine too"], GREEDY, use_tqdm=False)
    assert [seq.seq_id for seq in llm.scheduler.sequences] == [other], "its own are gone, the other one is still there"
    again = llm.generate("new", GREEDY, use_tqdm=False)
    assert len(again) == 1 and again[0].token_ids == want[1].token_ids
    while not llm.is_finished():
        llm.step()
    assert llm.outputs.pop(other).token_ids == want[0].token_ids
    assert_empty(llm)


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
@pytest.mark.parametrize("step", range(1, 9))
def test_a_failing_step_leaves_its_requests_as_before(tiny_llm, step, policy):
    options = dict(max_num_batched_tokens=7, num_kvcache_blocks=16, scheduling_policy=policy)
    prompts = [some_tokens(n, seed=n) for n in (9, 17, 4)]
    params = SamplingParams(temperature=0.9, max_tokens=12, ignore_eos=True, seed=3, logprobs=1, stop="\x00\x00\x00")
    want = tiny_llm(**options).generate(prompts, params, use_tqdm=False)
    llm = tiny_llm(**options)
    for prompt in prompts:
        llm.add_request(prompt, params)
    interrupt_in_step(llm, step, RuntimeError("the model broke"))
    for _ in range(step - 1):
        llm.step()
    before = [(seq.seq_id, list(seq.token_ids)) for seq in llm.scheduler.sequences]
    with pytest.raises(RuntimeError, match="the model broke"):
        llm.step()
    assert [(seq.seq_id, list(seq.token_ids)) for seq in llm.scheduler.sequences] == before
    check_invariants(llm.scheduler.block_manager, llm.scheduler.sequences)
    while not llm.is_finished():
        llm.step()
    for i, output in enumerate(want):
        got = llm.outputs.pop(i)
        assert (got.token_ids, got.text, got.finish_reason) == (output.token_ids, output.text, output.finish_reason)
        assert [list(one) for one in got.logprobs] == [list(one) for one in output.logprobs]
    assert_empty(llm)


def test_an_error_after_the_model_ran_is_undone_too(tiny_llm, monkeypatch):
    llm = tiny_llm()
    llm.add_request("abc", GREEDY)
    llm.step()
    before = list(llm.scheduler.sequences[0].token_ids)
    from nanovllm_edu.engine.request import Request

    with monkeypatch.context() as patch:
        patch.setattr(Request, "follow_text", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.step()
    assert llm.scheduler.sequences[0].token_ids == before
    want = tiny_llm().generate("abc", GREEDY, use_tqdm=False)[0].token_ids
    while not llm.is_finished():
        llm.step()
    assert llm.outputs.pop(0).token_ids == want
