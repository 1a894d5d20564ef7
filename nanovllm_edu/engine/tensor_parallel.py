"""Tensor parallelism: one model computed by several processes, each with a share of the heads and of the vocabulary.

Rank 0 lives in the process of the `LLM` and has the ledger, the tokenizer and the sampler. Each step it sends the
scheduled sequences, as `Sequence.__getstate__` packs them, to the other ranks (as nano-vllm does, there through shared
memory); all ranks then run the same layers, meeting at the all-reduces, and rank 0 gets the logits:

    rank 0   schedule ─► send ─► layers ─╥─ layers ─╥─ logits ─► sample ─► postprocess
    rank 1              receive ► layers ─╨─ layers ─╨─ logits     (waits for the next step)

On one machine the workers are started here: `LLM(tensor_parallel_size=2)`. On several, the same script is started on
each by torchrun, with as many processes in all as tensor_parallel_size:

    torchrun --nnodes 2 --nproc-per-node 1 --node-rank 0 --master-addr ADDRESS --master-port PORT script.py    # on one
    torchrun --nnodes 2 --nproc-per-node 1 --node-rank 1 --master-addr ADDRESS --master-port PORT script.py    # other

There the script runs on in rank 0 alone: in the others `LLM(...)` serves rank 0 until it closes, and then ends the
process (SystemExit). Their network must be private; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name its interface.

A step that was sent is always finished, by all: it runs on a thread of its own, out of Ctrl-C's reach, on its own copy
of the sequences. If any rank fails in it, all end, and the error says which failed and how.
"""

from __future__ import annotations

import json
import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..config import EngineConfig
from ..errors import ConfigError, WorkerError
from ..loading import Checkpoint
from ..models import ModelConfig
from .devices import resolve_dtype
from .model_runner import ModelRunner
from .pilot import Job, Pilot
from .process_group import ProcessRanks
from .sequence import Sequence
from .tp_team import LocalTeam, TorchrunTeam, started_by_torchrun
from .tp_worker import serve

GRACE = 5.0  # seconds in which a step fails by itself after a worker was lost
DYING = 3.0  # seconds that a failing worker takes to end, and so to say why


@dataclass(frozen=True)
class StepTraffic:
    """What crossed between the processes in one step.

    message_bytes: the pickled sequences, to each worker. reduced_bytes: activations that were summed over all ranks.
    """

    is_prefill: bool
    num_seqs: int
    num_tokens: int
    message_bytes: int
    reduced_bytes: int


def make_runner(config: EngineConfig, folder: Path) -> ModelRunner:
    """Rank 0's runner for a configuration with several ranks; the others are started, or joined.

    In a process that torchrun started as another rank, it serves rank 0 and then raises SystemExit. Raises ConfigError
    when the model or the devices cannot be shared out.
    """
    size = config.tensor_parallel_size
    with Checkpoint(folder) as checkpoint:
        check_split(size, ModelConfig.from_dict(checkpoint.config))
    if not started_by_torchrun():
        devices = [device_of_rank(config.device, rank, size) for rank in range(size)]
        config.device = devices[0]
        return ParallelRunner(config, folder, LocalTeam(config, folder, devices))
    if int(os.environ["WORLD_SIZE"]) != size:
        raise ConfigError(f"tensor_parallel_size={size}: torchrun started {os.environ['WORLD_SIZE']} processes (its "
                          "WORLD_SIZE); start as many as tensor_parallel_size, or leave torchrun out on one machine")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    config.device = device_of_rank(config.device, int(os.environ.get("LOCAL_RANK", 0)), here)
    team = TorchrunTeam(_terms(config, folder))
    if team.rank == 0:
        return ParallelRunner(config, folder, team)
    ranks = team.connect(torch.device(config.device))
    runner = ModelRunner(config, folder, ranks)
    ranks.smallest(0)  # rank 0 waits for this: all have loaded
    serve(runner, team.receive)
    raise SystemExit(0)


def check_split(size: int, model: ModelConfig) -> None:
    """Raise ConfigError, with the numbers and what works, unless the model can be shared out to `size` ranks."""
    if obstacle := _obstacle(size, model):
        works = [str(n) for n in range(1, model.num_heads + 1) if not _obstacle(n, model)]
        raise ConfigError(f"tensor_parallel_size={size}: {obstacle}. With this model these work: {', '.join(works)}")


def _obstacle(size: int, m: ModelConfig) -> str | None:
    if m.num_heads % size:
        return f"its {m.num_heads} attention heads cannot be shared out evenly to {size} ranks"
    if m.num_kv_heads % size and size % m.num_kv_heads:
        return f"neither of {m.num_kv_heads} key/value heads and {size} ranks divides the other"
    if m.intermediate_size % size:
        return f"its {m.intermediate_size} MLP neurons cannot be shared out evenly to {size} ranks"
    return None


def device_of_rank(name: str, local_rank: int, ranks_here: int) -> str:
    """Name of the device for one of `ranks_here` ranks on this machine. Raises ConfigError when there are too few."""
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    if kind == "cpu":
        return kind
    if kind != "cuda":
        raise ConfigError(f"device={name!r}: several ranks run on 'cpu', or on 'cuda', where each takes the GPU of its "
                          "number (CUDA_VISIBLE_DEVICES chooses which they are)")
    if ranks_here > torch.cuda.device_count():
        raise ConfigError(f"tensor_parallel_size: {ranks_here} ranks on this machine need as many CUDA devices, and "
                          f"torch sees {torch.cuda.device_count()}; ask for fewer, or set device='cpu'")
    return f"cuda:{local_rank}"


def _terms(config: EngineConfig, folder: Path) -> str:
    """What ranks that were started one by one must agree on, as text."""
    with Checkpoint(folder) as checkpoint:
        model = json.dumps(checkpoint.config, sort_keys=True)
    names = ("attention_backend", "kvcache_block_size", "num_kvcache_blocks", "max_num_seqs", "max_num_batched_tokens",
             "max_model_len", "enforce_eager")
    options = {name: getattr(config, name) for name in names}
    return f"{__version__} {resolve_dtype(config.dtype, torch.device(config.device))} {options} {model}"


class ParallelRunner(ModelRunner):
    """Rank 0's `ModelRunner`: what it computes, all ranks of its team compute.

    traffic: what crossed in the newest steps (`StepTraffic`), oldest first. failure: why it cannot be used any more.
    """

    def __init__(self, config: EngineConfig, folder: Path, team: LocalTeam | TorchrunTeam) -> None:
        self._team = team
        self._failure: BaseException | None = None
        self._job: Job | None = None
        self._lost_at: float | None = None
        self.traffic: deque[StepTraffic] = deque(maxlen=4096)
        self._pilot = Pilot(team.threads)
        weakref.finalize(self, self._pilot.jobs.put, None)
        this = weakref.proxy(self)  # so that the thread holds no engine
        try:
            self._together(lambda: this._load(config, folder))
        except BaseException:
            self.close(at_once=True)
            raise

    def _load(self, config: EngineConfig, folder: Path) -> None:
        self.ranks = self._team.connect(torch.device(config.device))
        super().__init__(config, folder, self.ranks)
        self.ranks.smallest(0)  # all have loaded

    def compute(self, seqs: Seq[Sequence]) -> Tensor | None:
        """As `ModelRunner.compute`, on all ranks. Raises WorkerError when one of them fails."""
        if self.failure is not None:  # seen before anything is sent
            raise WorkerError(f"{self.failure}")
        order = pickle.dumps(list(seqs))

        def step() -> Tensor | None:
            self._team.send(order)
            # like the others: the sequences themselves may change before this is through, after an interrupt
            logits = ModelRunner.compute(self, pickle.loads(order))
            if self.device.type == "cuda":  # here a lost rank is noticed, and waiting can be given up
                torch.cuda.synchronize(self.device)
            return logits

        logits = self._together(step)
        self._count(seqs, len(order))
        return logits

    def _count(self, seqs: Seq[Sequence], message_bytes: int) -> None:
        tokens, m = sum(seq.num_scheduled_tokens for seq in seqs), self.model_config
        sums = 2 * m.num_layers + 1  # attention and MLP of each layer, and the embedding
        self.traffic.append(StepTraffic(any(seq.is_prefill for seq in seqs), len(seqs), tokens, message_bytes,
                                        sums * tokens * m.hidden_size * self.dtype.itemsize))

    # --- all or nothing --------------------------------------------------------------------------------------------

    def _together(self, fn: Callable[[], Any]) -> Any:
        """Run fn, which meets the other ranks, to its end. An error ends the team; an interrupt is raised after it."""
        interrupt = self._settle()  # one may have come earlier, before anybody waited for the job before
        if interrupt is not None:
            raise interrupt
        if self._failure is not None:
            raise WorkerError(f"{self._failure}") from self._failure
        job = self._job = Job(fn)
        self._pilot.jobs.put(job)
        interrupt = self._settle()
        if job.error is not None:
            raise self._failure from (None if self._failure is job.error else job.error)
        if interrupt is not None:
            raise interrupt
        return job.result

    def _settle(self) -> BaseException | None:
        """Wait for the job under way, and end the team if it failed. Returns what interrupted the wait."""
        job = self._job
        if job is None:
            return None
        self._lost_at = None
        interrupt = job.wait(self._is_hopeless)
        self._job = None
        if not job.done.is_set():
            job.error = WorkerError("a tensor-parallel worker was lost")
        if job.error is not None:
            self._fail(job.error)
        return interrupt

    def _is_hopeless(self) -> bool:
        """True when a worker is lost and the step does not fail of itself."""
        if not self._team.has_lost_one():
            return False
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            if self.ranks.size > 1:
                self.ranks.abort()
        return time.monotonic() - self._lost_at > GRACE

    def _fail(self, error: BaseException | None) -> None:
        """Say why, once, and end the others: they wait for a rank that does not come."""
        if self._failure is None:
            self._failure = self._explain(error)
            self._team.close(at_once=True)

    def _explain(self, error: BaseException | None) -> BaseException:
        if error is not None and not isinstance(error, WorkerError):
            return error  # rank 0's own
        end = time.monotonic() + DYING
        while not (obituary := self._team.obituary()) and time.monotonic() < end:
            time.sleep(0.02)
        return obituary or error or WorkerError("a tensor-parallel worker was lost")

    @property
    def failure(self) -> BaseException | None:
        if self._failure is None and self._team.has_lost_one():
            self._fail(None)
        return self._failure

    def close(self, at_once: bool = False) -> None:
        """End the other ranks, the thread and the group. A second call does nothing."""
        self._settle()
        super().close()
        self._team.close(at_once or self._failure is not None)
        self._pilot.close(GRACE)
        if isinstance(self.ranks, ProcessRanks):
            self.ranks.close()
