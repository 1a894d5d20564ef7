"""The processes of a tensor-parallel engine: how they start, what interrupts them, and how they end."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch

from nanovllm_edu import LLM, SamplingParams
from nanovllm_edu.engine import process_group
from nanovllm_edu.errors import ConfigError, EngineClosedError, WorkerError
from tests.engine.helpers import GREEDY, assert_empty

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = dict(dtype="float32", kvcache_block_size=4, num_kvcache_blocks=200, max_model_len=1024)
LONG = SamplingParams(temperature=0, max_tokens=600, ignore_eos=True)
SOON = 30.0  # seconds; far more than anything here takes, far less than torch's own time limits


@pytest.fixture
def expected(tiny_llm):
    return tiny_llm().generate("abc", GREEDY, use_tqdm=False)[0].token_ids


def gone(pid: int) -> bool:
    """Wait for a process to end."""
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def script(folder: Path, end: str = "llm.close()") -> str:
    return (f"from nanovllm_edu import LLM, SamplingParams\n"
            f"llm = LLM({str(folder)!r}, tensor_parallel_size=2, **{OPTIONS!r})\n"
            f"params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)\n"
            f"out = llm.generate('abc', params, use_tqdm=False)\n"
            f"print(out[0].token_ids, flush=True)\n{end}\n")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


# --- starting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["standard input", "a script"])
def test_start_without_a_main_guard(tiny, expected, tmp_path, how):
    """From a folder that holds a misleading torch.py, which only the user's own process might take up."""
    code = script(tiny(), end="")  # never closed: leaving Python is enough
    if how == "a script":
        (tmp_path / "script.py").write_text(code)
    command = [sys.executable, "-"] if how == "standard input" else [sys.executable, "script.py"]
    done = subprocess.run(command, input=code, cwd=tmp_path, env=environment(), text=True, capture_output=True,
                          timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, str(expected)), done.stderr


def test_workers_find_their_own_modules_first(tiny_llm, expected, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    monkeypatch.chdir(tmp_path)
    assert tiny_llm(tensor_parallel_size=2).generate("abc", GREEDY, use_tqdm=False)[0].token_ids == expected


@pytest.mark.slow
def test_torchrun_joins_processes_started_one_by_one(tiny, expected, tmp_path):
    """Two torchruns as on two machines, here over loopback: rank 0 runs the script, rank 1 serves it."""
    (tmp_path / "script.py").write_text(script(tiny()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(n),
         "--master-addr", "127.0.0.1", "--master-port", str(port), "script.py"], cwd=tmp_path,
        env=environment(GLOO_SOCKET_IFNAME="lo"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in (0, 1)]
    (out, err), (other_out, other_err) = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], err + other_err
    assert (out.strip(), other_out) == (str(expected), "")


def test_torchrun_with_another_number(tiny, monkeypatch):
    for name, value in dict(RANK="0", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT="1").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2: torchrun started 3 processes"):
        LLM(tiny(), tensor_parallel_size=2, **OPTIONS)


def test_threads_are_shared_out(tiny_llm):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        runner = tiny_llm(tensor_parallel_size=2).engine.runner
        assert runner._team.threads == 2
        assert runner._together(torch.get_num_threads) == 2, "of rank 0's share of the work"
        assert torch.get_num_threads() == 4, "of everybody else in this process"
    finally:
        torch.set_num_threads(before)


# --- interrupts ----------------------------------------------------------------------------------------------------


def test_interrupts_leave_the_ranks_in_step(tiny_llm, expected):
    """Ctrl-C at many moments of a run; each time the error comes out, and the next answer is right."""
    llm = tiny_llm(tensor_parallel_size=2)
    try:
        for i in range(25):
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.003 + 0.0037 * i)
                llm.generate("abc", LONG, use_tqdm=False)
            assert_empty(llm)
            if i % 5 == 0:
                assert llm.generate("abc", GREEDY, use_tqdm=False)[0].token_ids == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert llm.generate("abc", GREEDY, use_tqdm=False)[0].token_ids == expected


# --- failures ------------------------------------------------------------------------------------------------------


def assert_unusable(llm: LLM, words: str) -> None:
    with pytest.raises(EngineClosedError, match=f"can no longer be used.*{words}"):
        llm.generate("abc", GREEDY, use_tqdm=False)
    place, workers = llm.engine.runner._team.place, llm.engine.runner._team.workers
    llm.close()
    llm.close()
    assert not place.exists() and all(worker.returncode is not None for worker in workers)
    with pytest.raises(EngineClosedError, match="was closed"):
        llm.step()


def test_a_killed_worker_is_an_error(tiny_llm):
    llm = tiny_llm("qwen3", tensor_parallel_size=2)
    worker = llm.engine.runner._team.workers[0]
    threading.Timer(0.3, worker.kill).start()
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"rank 1 ended with exit code -9 \(SIGKILL\)"):
        while True:
            llm.generate("abc", LONG, use_tqdm=False)
    assert time.monotonic() - began < SOON
    assert_unusable(llm, "rank 1 ended")


def test_a_worker_killed_while_nothing_runs(tiny_llm):
    llm = tiny_llm(tensor_parallel_size=2)
    llm.add_request("abc")
    llm.engine.runner._team.workers[0].kill()
    llm.engine.runner._team.workers[0].wait()
    with pytest.raises(EngineClosedError, match="rank 1 ended with exit code -9"):
        llm.step()
    assert_unusable(llm, "rank 1 ended")


def test_a_worker_that_fails_says_why(tiny_llm):
    llm = tiny_llm(tensor_parallel_size=2)
    runner = llm.engine.runner

    def unequal():
        runner._team.send(pickle.dumps(["no sequence"]))
        runner.ranks.smallest(0)  # rank 1 does not come

    with pytest.raises(WorkerError, match=r"(?s)rank 1 ended with exit code 1.*rank 1: AttributeError: 'str' object"):
        runner._together(unequal)
    assert_unusable(llm, "rank 1 ended")


def test_a_worker_that_stands_still_is_waited_for_so_long(tiny_llm, monkeypatch):
    monkeypatch.setattr(process_group, "TIMEOUT", timedelta(seconds=2))
    llm = tiny_llm(tensor_parallel_size=2)
    os.kill(llm.engine.runner._team.workers[0].pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="the other ranks do not answer"):
        llm.generate("abc", GREEDY, use_tqdm=False)
    assert_unusable(llm, "do not answer")


def test_a_failure_of_rank_0_ends_the_others(tiny_llm, monkeypatch):
    llm = tiny_llm(tensor_parallel_size=2)

    def out_of_memory(*args):
        raise MemoryError("no memory for this")

    monkeypatch.setattr(llm.engine.runner, "forward", out_of_memory)
    with pytest.raises(MemoryError, match="no memory for this"):
        llm.generate("abc", GREEDY, use_tqdm=False)
    assert_unusable(llm, "no memory for this")


def test_a_worker_that_cannot_start(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('this Python is broken')")
    before = psutil.Process().children()
    with pytest.raises(WorkerError, match="(?s)rank 1 ended with exit code.*this Python is broken"):
        LLM(tiny(), tensor_parallel_size=2, **OPTIONS)
    assert psutil.Process().children() == before


def test_bad_options_end_the_workers(tiny):
    before = psutil.Process().children()
    with pytest.raises(ConfigError, match="max_model_len=5000"):
        LLM(tiny(), tensor_parallel_size=2, **{**OPTIONS, "max_model_len": 5000})
    assert psutil.Process().children() == before


# --- the end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "forget"])
def test_nothing_is_left(tiny, how):
    threads, children = threading.active_count(), psutil.Process().children()
    llm = LLM(tiny(), tensor_parallel_size=2, **OPTIONS)
    llm.generate("abc", GREEDY, use_tqdm=False)
    place, worker = llm.engine.runner._team.place, llm.engine.runner._team.workers[0]
    assert worker.poll() is None and place.stat().st_mode & 0o077 == 0
    alive = weakref.ref(llm)
    if how == "close":
        llm.close()
        assert worker.returncode == 0, "it left by itself"
        llm.close()
    del llm
    gc.collect()
    assert alive() is None and worker.poll() is not None and not place.exists()
    assert psutil.Process().children() == children
    end = time.monotonic() + SOON
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == threads


@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_with_a_killed_parent(tiny, busy):
    end = ("team = llm.engine.runner._team\nprint(team.workers[0].pid, team.place, flush=True)\n"
           + ("while True: llm.generate('abc', use_tqdm=False)" if busy else "input()"))
    parent = subprocess.Popen([sys.executable, "-c", script(tiny(), end)], env=environment(), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    parent.stdout.readline()
    pid, place = parent.stdout.readline().split(maxsplit=1)
    parent.kill()
    parent.communicate()
    assert gone(int(pid))
    assert not Path(place.strip()).exists()
