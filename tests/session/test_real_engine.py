"""A session over the real engine: a tiny random model, and the packaged one for a conversation."""
from __future__ import annotations

import gc
import signal
import threading
import weakref

import pytest

from nanovllm_edu import LLM, SamplingParams
from nanovllm_edu.engine.events import BlockRevived, BlockShared
from nanovllm_edu.errors import EngineClosedError
from nanovllm_edu.session import session_of
from tests.session.helpers import assert_follows, eventually, session_threads

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = ["The quick brown fox", "The quick brown dog", "jumps"]


def texts(outputs: list) -> list[str]:
    return [output.text for output in outputs]


@pytest.fixture
def expected(tiny_llm) -> list[str]:
    """What each prompt gives on an engine that nobody watches."""
    return texts(tiny_llm().generate(PROMPTS, GREEDY, use_tqdm=False))


def test_generate_from_a_cell_while_the_session_runs(tiny_llm, expected) -> None:
    llm = tiny_llm()
    session = session_of(llm)
    session.submit("something else", raw=True, max_tokens=60)
    session.run()
    assert texts(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
    assert texts([llm.generate([prompt], GREEDY, use_tqdm=False)[0] for prompt in PROMPTS]) == expected
    assert "".join(llm.stream(PROMPTS[0], GREEDY)) == expected[0]
    eventually(llm.is_finished, "the submitted request finished too")
    session.settle()
    assert llm.outputs == {} and list(session.errors) == []
    assert_follows(session, llm)


def test_several_cells_at_once(tiny_llm, expected) -> None:
    llm = tiny_llm()
    session = session_of(llm)
    got: dict[int, list[str]] = {}
    cells = [threading.Thread(target=lambda i=i: got.update({i: texts(llm.generate(PROMPTS, GREEDY, use_tqdm=False))}))
             for i in range(3)]
    for cell in cells:
        cell.start()
    for cell in cells:
        cell.join()
    assert got == dict.fromkeys(range(3), expected)
    session.settle()
    assert_follows(session, llm)


def test_the_state_from_events_follows_the_real_engine(tiny_llm) -> None:
    llm = tiny_llm(num_kvcache_blocks=14, max_num_batched_tokens=16)
    session = session_of(llm)
    for prompt in (*PROMPTS, "The quick brown fox jumps over"):
        session.submit(prompt, raw=True, max_tokens=20)
    session.settle()
    while not llm.is_finished():
        session.step()
        session.settle()
        assert_follows(session, llm)
        assert session.status["violations"] == []
    kinds = {type(event) for event in session.trace.events}
    assert BlockShared in kinds or BlockRevived in kinds


@pytest.mark.parametrize("running", [False, True])
def test_an_interrupted_generate_leaves_nothing_behind(tiny_llm, expected, running: bool) -> None:
    """Ctrl-C while the cell waits in its third step; the next call returns exactly its own results."""
    llm = tiny_llm()
    session = session_of(llm)
    if running:
        session.run()
    real, steps = llm.engine.runner.run, []

    def run_and_press_ctrl_c(*args):
        steps.append(1)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)  # Python hands it to the main thread, which waits for this step
        return real(*args)

    llm.engine.runner.run = run_and_press_ctrl_c
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.engine.runner.run = real
    session.settle()
    assert llm.is_finished() and llm.outputs == {}
    assert texts(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
    assert session.status["violations"] == [] and list(session.errors) == []
    assert_follows(session, llm)


def test_a_failing_model_is_shown_and_the_request_still_finishes(tiny_llm) -> None:
    llm = tiny_llm()
    session = session_of(llm)
    session.submit(PROMPTS[0], raw=True, max_tokens=12)
    session.step()
    session.settle()
    real = llm.engine.runner.run

    def fail(*args):
        llm.engine.runner.run = real
        raise RuntimeError("the model fell over")

    llm.engine.runner.run = fail
    session.run()
    eventually(lambda: session.errors, "the failure")
    session.settle()
    assert "the model fell over" in session.status["error"] and session.status["state"] == "paused"
    assert_follows(session, llm)
    session.run()
    session.settle()
    eventually(llm.is_finished, "the request finished")
    session.settle()
    assert_follows(session, llm)


def test_closed_engines(tiny_llm) -> None:
    before = session_threads()
    llm = tiny_llm()
    session = session_of(llm)
    llm.add_request("abc", GREEDY)
    llm.close()
    llm.close()
    assert session.closed and session_threads() == before
    with pytest.raises(EngineClosedError):
        session_of(llm)
    with pytest.raises(EngineClosedError):
        llm.generate(["abc"])
    assert session_threads() == before


def test_cycles_of_making_watching_and_dropping_leave_nothing(tiny) -> None:
    before = session_threads()
    for _ in range(3):
        llm = LLM(tiny("llama"), dtype="float32", kvcache_block_size=4, num_kvcache_blocks=50, max_model_len=200)
        session = session_of(llm)
        session.submit("abc", raw=True, max_tokens=5)
        session.run()
        llm.generate(["abcdef"], GREEDY, use_tqdm=False)
        gone = weakref.ref(llm)
        del llm, session
        gc.collect()
        eventually(lambda gone=gone: gone() is None, "the engine is gone")
    eventually(lambda: session_threads() == before, "no thread is left")


@pytest.fixture(scope="module")
def smollm():
    with LLM(dtype="float32", kvcache_block_size=8, num_kvcache_blocks=40, max_model_len=320) as llm:
        yield llm


def say(session, llm, text: str, **options) -> str:
    session.submit(text, max_tokens=16, **options)
    session.settle()
    seq_id = session.status["chat"][-1]["seq_id"]
    session.run()
    session.settle()
    eventually(llm.is_finished, "the answer is there", seconds=120)
    session.settle()
    seq = session.trace.frames[-1].state["seqs"][str(seq_id)]
    return llm.tokenizer.decode(seq["token_ids"][seq["num_prompt_tokens"]:])


@pytest.mark.slow
def test_a_conversation_finds_its_own_blocks_again(smollm) -> None:
    llm, session = smollm, session_of(smollm)
    assert "Paris" in say(session, llm, "What is the capital of France?")
    assert "Rome" in say(session, llm, "And of Italy?")
    first, second = (session.trace.frames[-1].state["seqs"][str(i)] for i in (0, 1))
    assert second["token_ids"][:len(first["token_ids"])] == first["token_ids"]
    reused = {event.seq_id: event.num_cached_tokens_after for event in session.trace.events
              if type(event).__name__ == "PrefixReused"}
    # the last token of an answer was never computed, so the last block that is full without it is the last one found
    assert reused[1] == (len(first["token_ids"]) - 1) // 8 * 8 > first["num_prompt_tokens"] // 8 * 8 - 8
    asked = llm.tokenizer.decode(second["token_ids"][:second["num_prompt_tokens"]], skip_special_tokens=False)
    messages = [{"role": "user", "content": "What is the capital of France?"},
                {"role": "assistant", "content": llm.tokenizer.decode(
                    first["token_ids"][first["num_prompt_tokens"]:])},
                {"role": "user", "content": "And of Italy?"}]
    assert asked == llm.tokenizer.render_chat(messages)
    assert [entry["turn"] for entry in session.status["chat"]] == [1, 2]
    assert_follows(session, llm)


@pytest.mark.slow
def test_beside_the_conversation(smollm) -> None:
    llm, session = smollm, session_of(smollm)
    session.reset()
    session.submit("Name a colour.", max_tokens=4)
    session.submit("Name a fruit.", max_tokens=4)
    session.settle()
    assert "a request of its own" in session.status["notice"]
    session.submit("Once upon a time", raw=True, max_tokens=4)
    session.settle()
    assert [entry["turn"] for entry in session.status["chat"]][-3:] == [1, 0, 0]
    assert [entry["raw"] for entry in session.status["chat"]][-3:] == [False, False, True]
    session.run()
    session.settle()
    eventually(llm.is_finished, "all are done", seconds=120)
    session.settle()
    session.submit("And " * 400)
    session.settle()
    assert "Reset begins a new one" in session.status["error"]
    say(session, llm, "Another one, please.")  # goes on with the turn before
    assert session.status["error"] == ""
    assert session.status["chat"][-1]["turn"] == 2


@pytest.mark.slow
def test_a_turn_that_is_aborted_before_its_first_token_is_undone(smollm) -> None:
    llm, session = smollm, session_of(smollm)
    session.reset()
    session.submit("Say something long.", max_tokens=50)
    session.abort()
    say(session, llm, "What is 1 + 1?")
    last = session.trace.frames[-1].state["seqs"][str(session.status["chat"][-1]["seq_id"])]
    assert "something long" not in llm.tokenizer.decode(last["token_ids"])
    assert [entry["turn"] for entry in session.status["chat"]][-2:] == [1, 1]
