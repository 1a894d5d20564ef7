"""A session owns its engine: commands, calls from cells, errors, updates, and nothing left behind."""
from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref

import pytest

from nanovllm_edu import ConfigError, SamplingParams
from nanovllm_edu.engine import Sequence
from nanovllm_edu.engine.events import RequestAdded, StepEnded
from nanovllm_edu.session import Session, session_of
from nanovllm_edu.session.updates import UPDATE_INTERVAL_S
from tests.session.fake import FakeLLM
from tests.session.helpers import assert_follows, eventually, session_threads

LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.fixture
def make():
    """make(**options) → a fake engine and its session; afterwards no session's thread may be alive."""
    before = set(session_threads())
    made = []

    def engine_and_session(**options):
        llm = FakeLLM(**options)
        made.append((llm, session_of(llm)))
        return made[-1]

    yield engine_and_session
    for llm, session in made:
        session.close()
        llm.close()
    assert set(session_threads()) <= before


def run_to_end(session: Session, llm: FakeLLM) -> None:
    session.run()
    session.settle()  # what was submitted before has arrived
    eventually(llm.is_finished, "all requests finished")
    session.pause()
    session.settle()


# --- steps and state -----------------------------------------------------------------------------------------------


def test_the_state_from_events_is_the_engines_after_every_step(make) -> None:
    llm, session = make(max_num_batched_tokens=16)
    for prompt in ("abcdefghijkl", "abcdefghxyz", "qrstuvwxyz", "abcdefghijklmnop", "z" * 30):
        session.submit(prompt, raw=True, max_tokens=30)
    session.settle()
    steps = 0
    while not llm.is_finished():
        session.step()
        session.settle()
        assert_follows(session, llm)
        assert session.status["violations"] == [] and session.status["error"] == ""
        steps += 1
    assert steps == llm.scheduler.step > 30
    assert any(seq["num_preemptions"] for seq in session.trace.frames[-1].state["seqs"].values())


def test_it_adopts_what_is_there(make) -> None:
    llm = FakeLLM()
    llm.add_request("abcdefghij", LONG)
    llm.add_request("klm", LONG)
    llm.step()
    llm.add_request("nop", LONG)
    session = session_of(llm)
    session.settle()
    assert session.status["state"] == "paused"
    initial = session.trace.initial
    assert (initial["running"], initial["waiting"], initial["step"]) == ([0, 1], [2], 1)
    run_to_end(session, llm)
    assert_follows(session, llm)
    assert set(llm.outputs) == {0, 1, 2}  # they belong to whoever added them
    session.close()


def test_it_starts_paused_runs_and_pauses(make) -> None:
    llm, session = make()
    session.submit("abc", raw=True, max_tokens=30)
    session.settle()
    assert (session.status["state"], llm.scheduler.step) == ("paused", 0)
    session.run()
    eventually(lambda: llm.scheduler.step > 2, "it runs")
    session.pause()
    session.settle()
    assert session.status["state"] == "paused"
    step = llm.scheduler.step
    session.settle()
    assert llm.scheduler.step == step


def test_running_it_takes_up_what_comes_later(make) -> None:
    llm, session = make()
    session.run()
    session.settle()
    assert session.status["state"] == "running"
    session.submit("abc", raw=True, max_tokens=3)
    eventually(lambda: llm.scheduler.step == 3 and llm.is_finished(), "the late request ran")
    session.settle()
    assert session.status["tokens_per_second"] > 0
    assert llm.outputs == {}  # its own outputs are collected


def test_step_with_nothing_to_do_says_so(make) -> None:
    llm, session = make()
    session.step()
    session.settle()
    assert "Submit a prompt first" in session.status["notice"] and llm.scheduler.step == 0


def test_abort_one_then_all_then_reset(make) -> None:
    llm, session = make()
    for prompt in ("abcdefgh", "ijklmnop", "qrstuvwx"):
        session.submit(prompt, raw=True, max_tokens=30)
    session.step()
    session.abort(1)
    session.settle()
    assert [seq.seq_id for seq in llm.scheduler.sequences] == [0, 2]
    session.abort(1)
    session.settle()
    assert "Request 1 is not live" in session.status["notice"]
    session.abort()
    session.settle()
    assert llm.is_finished() and llm.scheduler.block_manager.hash_to_block_id
    session.submit("abcdefgh", raw=True)
    session.reset()
    session.settle()
    assert llm.is_finished() and llm.scheduler.block_manager.hash_to_block_id == {}
    assert session.status["error"] == "" and "new conversation" in session.status["notice"]
    assert_follows(session, llm)


def test_lookups_are_counted(make) -> None:
    llm, session = make()
    for _ in range(2):
        session.submit("abcdefghij", raw=True, max_tokens=2)
        run_to_end(session, llm)
    assert session.status["lookups"] == {"hits": 2, "queries": 3}


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "says"), [
    (("", True, 5), "Type a prompt first"),
    (("  \n", False, 5), "Type a prompt first"),
    ((None, False, 5), "Type a prompt first"),
    (("abc", True, 0), "max_tokens=0"),
    (("abc", True, "many"), "max_tokens='many'"),
    (("abc", True, True), "max_tokens=True"),
    (("x" * 500, True, 5), "the whole pool has 32"),
])
def test_a_bad_submit_is_shown_and_nothing_else_happens(make, arguments, says: str) -> None:
    llm, session = make()
    session.submit(*arguments)
    session.settle()
    assert says in session.status["error"] and says in str(session.errors[-1])
    assert llm.is_finished() and session.status["chat"] == []
    session.submit("abc", raw=True, max_tokens=2)
    run_to_end(session, llm)
    assert session.status["error"] == ""
    assert [entry["text"] for entry in session.status["chat"]] == ["abc"]


def test_a_step_that_fails_is_undone_and_shown_and_pauses(make) -> None:
    failures = iter([None, None, MemoryError("out of memory in step 3")])

    def fail() -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    llm, session = make(before_step=fail)
    session.submit("abcdefgh", raw=True, max_tokens=5)
    session.run()
    eventually(lambda: session.errors, "the failure")
    session.settle()
    assert session.status["state"] == "paused"
    assert session.status["error"] == ("The step failed; every request is as it was before it. "
                                       "out of memory in step 3")
    assert_follows(session, llm)
    run_to_end(session, llm)
    assert_follows(session, llm)
    assert session.status["error"] == ""
    assert len(session.trace.frames[-1].state["seqs"]["0"]["token_ids"]) == 8 + 5


def test_a_ledger_that_breaks_its_law_is_named(make) -> None:
    llm, session = make()
    session.submit("abcdefgh", raw=True, max_tokens=5)
    session.step()
    session.settle()
    llm.scheduler.block_manager.blocks[0].ref_count += 1
    session.step()
    session.settle()
    assert any("block 0 has ref_count 2" in sentence for sentence in session.status["violations"])
    llm.scheduler.block_manager.blocks[0].ref_count -= 1
    session.settle()
    assert session.status["violations"] == []


def test_a_view_that_fails_does_not_disturb_the_others(make) -> None:
    llm, session = make()
    seen = []

    def broken(total, status):
        raise RuntimeError("the page is gone")

    session.subscribe(broken)
    session.subscribe(lambda total, status: seen.append(total))
    session.submit("abc", raw=True, max_tokens=5)
    run_to_end(session, llm)
    assert seen[-1] == len(session.trace.events)
    assert str(session.errors[0]) == "the page is gone"


# --- calls from cells ----------------------------------------------------------------------------------------------


def test_calls_from_cells_are_carried_out_by_its_thread(make) -> None:
    llm, session = make()
    assert session.call(threading.get_ident) == session.thread_id
    assert session.call(lambda: session.call(threading.get_ident)) == session.thread_id
    with pytest.raises(ZeroDivisionError):
        session.call(lambda: 1 // 0)
    assert list(session.errors) == []  # it belongs to the cell
    llm.add_request("abc", LONG)
    llm.step()
    session.settle()
    assert session.status["state"] == "busy"
    eventually(lambda: session.status["state"] == "paused", "it is paused again")
    assert_follows(session, llm)


def test_an_interrupt_before_the_call_began_withdraws_it(make) -> None:
    llm, session = make()
    gate, done = threading.Event(), []
    session._put(lambda: gate.wait(30))
    caller = InterruptedCaller(lambda: session.call(lambda: done.append(1)))
    caller.interrupt()
    caller.join()
    gate.set()
    session.settle()
    assert caller.raised is KeyboardInterrupt and done == []


def test_an_interrupt_during_the_call_waits_for_its_end(make) -> None:
    llm, session = make()
    began, gate, done = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        gate.wait(30)
        done.append(1)

    caller = InterruptedCaller(lambda: session.call(work))
    began.wait(30)
    caller.interrupt()
    gate.set()
    caller.join()
    assert caller.raised is KeyboardInterrupt and done == [1]


class InterruptedCaller:
    """A thread that makes a call and gets a KeyboardInterrupt while it waits, as a cell does on Ctrl-C."""

    def __init__(self, call) -> None:
        self.raised: type | None = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call) -> None:
        try:
            call()
        except BaseException as error:
            self.raised = type(error)

    def interrupt(self) -> None:
        eventually(lambda: self._thread.is_alive(), "the caller waits")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident),
                                                   ctypes.py_object(KeyboardInterrupt))

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


# --- updates -------------------------------------------------------------------------------------------------------


def test_updates_are_few_and_the_last_one_is_whole(make) -> None:
    llm, session = make(max_num_seqs=64)
    updates: list[tuple[float, int]] = []
    session.subscribe(lambda total, status: updates.append((time.monotonic(), total)))
    for i in range(16):
        session.submit(chr(97 + i) * 7, raw=True, max_tokens=100)
    began = time.monotonic()
    rounds = 0
    while len(session.trace.events) < 20_000:
        run_to_end(session, llm)
        rounds += 1
        for i in range(16):
            session.submit(f"{rounds} {i}", raw=True, max_tokens=100)
    run_to_end(session, llm)
    took = time.monotonic() - began
    total = len(session.trace.events)
    assert total > 20_000
    assert updates[-1][1] == total
    forced = 2 * (rounds + 2)  # settle asks for one at once
    assert len(updates) <= took / UPDATE_INTERVAL_S + forced
    assert [n for _, n in updates] == sorted(n for _, n in updates)


def test_updates_come_also_in_the_middle_of_a_step(make) -> None:
    gate = threading.Event()
    llm, session = make(before_step=lambda: gate.wait(30))
    totals = []
    session.subscribe(lambda total, status: totals.append(total))
    session.submit("abcdefgh", raw=True, max_tokens=4)
    session.settle()
    seen = totals[-1]
    session._views._next = 0.0
    session.step()
    eventually(lambda: totals[-1] > seen, "the scheduler's events are seen before the model has run")
    gate.set()
    session.settle()
    assert totals[-1] == len(session.trace.events)
    assert isinstance(session.trace.events[-1], StepEnded)


def test_who_unsubscribes_hears_nothing_more(make) -> None:
    llm, session = make()
    totals = []

    def listen(total, status):
        totals.append(total)

    session.subscribe(listen)
    session.settle()
    session.unsubscribe(listen)
    heard = len(totals)
    session.submit("abc", raw=True)
    session.settle()
    assert len(totals) == heard


def test_work_on_the_scheduler_itself_is_seen_too(make) -> None:
    llm, session = make()
    totals = []
    session.subscribe(lambda total, status: totals.append(total))
    llm.scheduler.add(Sequence([1, 2, 3], LONG, llm.scheduler.block_size, seq_id=77))
    eventually(lambda: totals and totals[-1] == 1, "the event of another thread")
    assert isinstance(session.trace.events[0], RequestAdded)


# --- the end -------------------------------------------------------------------------------------------------------


def test_one_engine_has_one_session_and_two_engines_two(make) -> None:
    llm, session = make()
    other, second = make()
    assert session_of(llm) is session and second is not session
    other.add_request("abc", LONG)
    second.step()
    second.settle()
    assert (llm.scheduler.step, other.scheduler.step) == (0, 1)


def test_another_driver_is_not_pushed_aside() -> None:
    llm = FakeLLM()
    llm.driver = driver = object()
    with pytest.raises(ConfigError, match="driven by .* already"):
        session_of(llm)
    assert llm.driver is driver


def test_close_gives_the_engine_back(make) -> None:
    before = session_threads()
    llm, session = make()
    llm.add_request("abc", LONG)
    session.close()
    session.close()
    assert session.closed and llm.driver is None and session_threads() == before
    assert llm.scheduler.emit.observers == ()
    recorded = len(session.trace.events)
    llm.step()  # in this thread
    assert llm.scheduler.step == 1 and len(session.trace.events) == recorded
    session.step()
    session.settle()
    assert session.call(lambda: 5) == 5
    assert llm.scheduler.step == 1 and session.status["state"] == "closed"
    again = session_of(llm)
    assert again is not session
    again.close()


def test_closing_the_engine_ends_the_session(make) -> None:
    before = session_threads()
    llm, session = make()
    session.run()
    llm.close()
    assert session.closed and session_threads() == before and llm.driver is None
    assert session.status["state"] == "closed" and "closed" in session.status["notice"]


def test_an_engine_that_nobody_holds_goes_and_its_thread_too(make) -> None:
    before = session_threads()
    failures = iter([RuntimeError("a traceback must not hold the engine")])

    def fail() -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    llm = FakeLLM(before_step=fail)
    session = session_of(llm)
    session.submit("abc", raw=True, max_tokens=3)
    session.step()
    session.step()
    session.submit("x" * 500, raw=True)
    session.settle()
    assert len(session.errors) == 2
    gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None
    eventually(lambda: session_threads() == before, "the thread ended")
    assert session.status["state"] == "closed" and "keep it in a variable" in session.status["notice"]
