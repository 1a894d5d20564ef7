"""The processes of a tensor-parallel group, as rank 0 sees them: how they start, get their orders, and end.

`LocalTeam` starts workers on this machine; `TorchrunTeam` joins processes that `torchrun` started on several. Orders
are pickled by rank 0. Locally they go through an anonymous pipe that nobody else can write to. Between machines they
are broadcast by gloo, which does not ask who is there: as always with torch.distributed, that network must be private.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..config import EngineConfig
from ..errors import ConfigError, WorkerError
from .process_group import ProcessRanks, make_gloo, make_ranks

HEADER = 8       # bytes before an order: its length, little-endian; length 0 is the end
STUCK = 60.0     # seconds after which a worker that takes in no order is given up
GOODBYE = 10.0   # seconds that workers have to leave
LAST_LINES = 8   # lines of a dead worker's log that are shown


@dataclass
class Start:
    """A worker's first order: who it is, and what to load."""

    config: EngineConfig
    folder: Path
    rank: int
    size: int
    place: Path  # private folder where the ranks meet
    threads: int


class LocalTeam:
    """Worker processes 1 to size - 1 on this machine, begun by `python -m nanovllm_edu.engine.tp_worker`.

    They end when told to, or when this process is gone: their standard input ends then. Everything they leave is in
    one temporary folder (the file where they meet, their logs), which goes with them.
    """

    def __init__(self, config: EngineConfig, folder: Path, devices: list[str]) -> None:
        self.size = len(devices)
        self.threads = max(1, torch.get_num_threads() // self.size)
        self.place = Path(tempfile.mkdtemp(prefix="nanovllm_edu-"))
        self.workers: list[subprocess.Popen[bytes]] = []
        self._sending_since: float | None = None
        self._end = weakref.finalize(self, _end, self.workers, self.place)
        plain = replace(config, observer=None, block_manager_class=None)  # the ledger stays here
        try:
            for rank in range(1, self.size):
                self.workers.append(self._begin(rank))
                start = Start(replace(plain, device=devices[rank]), folder, rank, self.size, self.place, self.threads)
                _write(self.workers[-1], pickle.dumps(start))
        except BaseException:
            self._end()
            raise

    def _begin(self, rank: int) -> subprocess.Popen[bytes]:
        env = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        root = str(Path(__file__).resolve().parents[2])
        if root != sysconfig.get_path("purelib"):
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with open(self.place / f"rank{rank}.log", "wb") as log:
            # -P: a file of the user's that happens to be called torch.py must not be found first
            # a session of its own: Ctrl-C in the terminal is for rank 0 alone
            return subprocess.Popen([sys.executable, "-P", "-m", "nanovllm_edu.engine.tp_worker"], env=env,
                                    stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)

    def connect(self, device: torch.device) -> ProcessRanks:
        """Form the group. Raises WorkerError if a worker ends before it is there."""
        store = meeting_place(self.place, self.size)
        while not store.check([f"here {rank}" for rank in range(1, self.size)]):
            if self.has_lost_one():
                raise self.obituary() or WorkerError("a tensor-parallel worker did not start")
            time.sleep(0.01)
        return make_ranks(store, 0, self.size, device, one_machine=True)

    def send(self, order: bytes) -> None:
        """Give all workers an order. WorkerError if one is gone."""
        self._sending_since = time.monotonic()
        try:
            for worker in self.workers:
                _write(worker, order)
        except OSError as error:
            raise WorkerError(f"a tensor-parallel worker takes no orders any more ({error})") from error
        finally:
            self._sending_since = None

    def has_lost_one(self) -> bool:
        """True when a worker has ended. One that has long taken in nothing is ended for it."""
        since = self._sending_since
        if since is not None and time.monotonic() - since > STUCK:
            _kill(self.workers)
        return any(worker.poll() is not None for worker in self.workers)

    def obituary(self) -> WorkerError | None:
        """Which workers have ended, how, and their last words; None if all live."""
        dead = [(rank, worker.returncode) for rank, worker in enumerate(self.workers, 1) if worker.poll() is not None]
        if not dead:
            return None
        lines = []
        for rank, _ in dead:
            with suppress(OSError):
                words = (self.place / f"rank{rank}.log").read_text("utf-8", "replace").rstrip().splitlines()
                lines += [f"  rank {rank}: {line}" for line in words[-LAST_LINES:]]
        told = " and ".join(f"rank {rank} ended with exit code {_named(code)}" for rank, code in dead)
        return WorkerError("\n".join([f"tensor-parallel {told}", *lines]))

    def close(self, at_once: bool = False) -> None:
        """End the workers and remove their folder. A second call does nothing. at_once: do not wait for them."""
        if not at_once and self._end.alive and not self.has_lost_one():
            with suppress(WorkerError):
                self.send(b"")
                end = time.monotonic() + GOODBYE
                for worker in self.workers:
                    with suppress(subprocess.TimeoutExpired):
                        worker.wait(max(0.0, end - time.monotonic()))
        self._end()


class TorchrunTeam:
    """The processes of one `torchrun`, on one machine or several: rank 0 has the ledger, the others serve it."""

    _made = count()

    def __init__(self, terms: str) -> None:
        store, self.rank, self.size = _environment_store()
        self._store = dist.PrefixStore(f"nanovllm_edu {next(TorchrunTeam._made)}", store)
        self.threads = torch.get_num_threads()  # torchrun has seen to it
        self._terms = terms  # what all ranks must have been started for
        self._orders: Any = None

    def connect(self, device: torch.device) -> ProcessRanks:
        """Form the group, and another one for orders. Raises ConfigError when the ranks are not of one mind."""
        ranks = make_ranks(dist.PrefixStore("ranks", self._store), self.rank, self.size, device, one_machine=False)
        # a worker may wait for its next order for as long as a notebook is left alone
        self._orders = make_gloo(dist.PrefixStore("orders", self._store), self.rank, self.size, timedelta(days=365),
                                 one_machine=False)
        ranks.agree(self._terms)
        return ranks

    def send(self, order: bytes) -> None:
        """Give all workers an order. WorkerError if one is gone."""
        try:
            self._broadcast(torch.tensor([len(order)]))
            if order:
                self._broadcast(torch.frombuffer(bytearray(order), dtype=torch.uint8))
        except RuntimeError as error:
            raise WorkerError(f"a tensor-parallel rank is gone: {str(error).splitlines()[0]}") from error

    def receive(self) -> bytes:
        """A worker's next order; b"" when rank 0 has closed its engine or is gone."""
        try:
            length = torch.zeros(1, dtype=torch.int64)
            self._broadcast(length)
            order = torch.empty(int(length), dtype=torch.uint8)
            if order.numel():
                self._broadcast(order)
        except RuntimeError:
            return b""
        return order.numpy().tobytes()

    def _broadcast(self, x: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._orders.broadcast([x], options).wait()

    def has_lost_one(self) -> bool:
        """False: `torchrun` watches its processes, and ends all when one fails."""
        return False

    def obituary(self) -> WorkerError | None:
        return None

    def close(self, at_once: bool = False) -> None:
        if self._orders is not None and self.rank == 0 and not at_once:
            with suppress(WorkerError):
                self.send(b"")
        self._orders = None


def meeting_place(place: Path, size: int) -> Any:
    """The store in which the ranks of one machine meet: a file in a folder that only this user can open."""
    return dist.FileStore(str(place / "store"), size)


def started_by_torchrun() -> bool:
    """True when the environment names several ranks and where they meet."""
    return (all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
            and os.environ["WORLD_SIZE"] != "1")


@cache
def _environment_store() -> tuple[Any, int, int]:
    try:
        return next(iter(dist.rendezvous("env://")))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"the ranks that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name cannot meet: {error}"
                          ) from error


def _write(worker: subprocess.Popen[bytes], order: bytes) -> None:
    worker.stdin.write(len(order).to_bytes(HEADER, "little"))
    worker.stdin.write(order)
    worker.stdin.flush()


def _kill(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.kill()


def _end(workers: list[subprocess.Popen[bytes]], place: Path) -> None:
    """Nothing of the workers is left after this."""
    _kill(workers)
    for worker in workers:
        with suppress(OSError):  # an order may be stuck in the pipe's buffer
            worker.stdin.close()
        worker.wait()
    shutil.rmtree(place, ignore_errors=True)


def _named(code: int) -> str:
    """An exit code; a signal by its name."""
    if code >= 0:
        return str(code)
    try:
        return f"{code} ({signal.Signals(-code).name})"
    except ValueError:
        return str(code)
