"""Threads, drivers, and the end of an engine."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from nanovllm_edu import LLM
from nanovllm_edu.engine import check_invariants
from nanovllm_edu.errors import EngineClosedError
from tests.engine.helpers import GREEDY, assert_empty


def test_two_threads_take_turns(tiny_llm):
    llm = tiny_llm()
    want = tiny_llm().generate(["one", "two"], GREEDY, use_tqdm=False)
    got: dict[str, list[int]] = {}

    def work(prompt: str) -> None:
        got[prompt] = llm.generate(prompt, GREEDY, use_tqdm=False)[0].token_ids

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {"one": want[0].token_ids, "two": want[1].token_ids}
    assert_empty(llm)


class Driver:
    """Owns an engine on a thread of its own, as a session does."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.pool = ThreadPoolExecutor(1)
        self.thread_id = self.pool.submit(threading.get_ident).result()
        self.calls = 0

    def call(self, fn):
        self.calls += 1
        return self.pool.submit(fn).result()


def test_a_driver_carries_out_every_call_on_its_thread(tiny_llm):
    llm, driver = tiny_llm(), Driver()
    llm.driver = driver
    threads: set[int] = set()
    run = llm.engine.runner.run
    llm.engine.runner.run = lambda *args: threads.add(threading.get_ident()) or run(*args)
    assert len(llm.generate("abc", GREEDY, use_tqdm=False)[0].token_ids) == 12
    assert driver.calls >= 13, "a step a call, so that other commands come in between"
    assert "".join(llm.stream("abc", GREEDY)) == llm.generate("abc", GREEDY, use_tqdm=False)[0].text
    llm.abort(llm.add_request("abc"))
    llm.outputs.clear()
    assert threads == {driver.thread_id}
    inside = driver.pool.submit(lambda: llm.generate("abc", GREEDY, use_tqdm=False))
    assert len(inside.result()) == 1, "no deadlock on its own thread"
    llm.driver = None
    driver.pool.shutdown()


def test_create_and_close_three_times(tiny):
    threads = threading.active_count()
    for _ in range(3):
        llm = LLM(tiny(), dtype="float32", num_kvcache_blocks=4)
        alive, weights = weakref.ref(llm), weakref.ref(llm.engine.runner.model)
        llm.generate("abc", GREEDY, use_tqdm=False)
        llm.close()
        llm.close()
        assert weights() is None, "closing frees the weights while the LLM is still referred to"
        del llm
        gc.collect()
        assert alive() is None
    assert threading.active_count() == threads


def test_a_closed_engine_says_so(tiny_llm):
    with tiny_llm() as llm:
        llm.add_request("abc", GREEDY)
        stream = llm.stream("abc", GREEDY)
        next(stream)
    for call in (lambda: llm.generate("x"), lambda: llm.add_request("x"), llm.step, lambda: llm.chat([{}]),
                 lambda: llm.stream("x"), lambda: llm.abort(0), llm.reset_prefix_cache, lambda: llm.tokenizer,
                 lambda: list(stream)):
        with pytest.raises(EngineClosedError, match="closed"):
            call()
    assert llm.is_finished() and "closed" in repr(llm)
    check_invariants(llm.scheduler.block_manager, [])
