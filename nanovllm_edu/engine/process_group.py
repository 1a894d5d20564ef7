"""Collectives between the processes of a tensor-parallel group: torch.distributed's gloo on CPUs, NCCL on CUDA.

A group is made by itself, not as torch.distributed's default group, of which a process has but one: two engines live
side by side in a notebook, and a default group that somebody else made is left alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ConfigError, WorkerError
from ..layers.parallel import Ranks

TIMEOUT = timedelta(minutes=5)  # for one collective; ranks compute the same, so none is ever far behind


class ProcessRanks(Ranks):
    """The ranks of a group that computes on `device`.

    group: a ProcessGroupGloo or ProcessGroupNCCL of torch.distributed, the same on all ranks. All ranks must call the
    same methods in the same order. WorkerError when another rank is gone, or does not come within TIMEOUT.
    """

    def __init__(self, group: Any, rank: int, size: int, device: torch.device) -> None:
        self._group, self.rank, self.size, self.device = group, rank, size, device

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        _meet(lambda: self._group.allreduce([x]))
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        x = x.contiguous()
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else []
        _meet(lambda: self._group.gather([parts] if parts else [], [x], options))
        return torch.cat(parts, -1) if parts else None

    def smallest(self, number: int) -> int:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        value = torch.tensor([number], dtype=torch.int64, device=self.device)
        _meet(lambda: self._group.allreduce([value], options))
        return int(value.item())

    def agree(self, what: str) -> None:
        """Raise ConfigError on every rank unless all were started for the same."""
        mark = zlib.crc32(what.encode())
        if self.smallest(mark) != -self.smallest(-mark):
            raise ConfigError("the ranks were started with different options, models or versions of nanovllm_edu; "
                              f"start the same on each machine. Rank {self.rank} has {what}")

    def abort(self) -> None:
        """Let go of whoever waits for a rank that is gone. gloo notices by itself; NCCL would wait on."""
        if self.device.type == "cuda":
            self._group.abort()

    def close(self) -> None:
        """Leave the group. CUDA graphs that hold its collectives must be released before."""
        if self._group is not None and self.device.type == "cuda":
            self._group.shutdown()
        self._group = None


def _meet(begin: Callable[[], Any]) -> None:
    """Begin a collective and wait for it."""
    try:
        begin().wait()
    except RuntimeError as error:  # torch.distributed's errors are such
        raise WorkerError(f"the other ranks do not answer: {str(error).splitlines()[0]}") from error


def make_ranks(store: Any, rank: int, size: int, device: torch.device, one_machine: bool) -> ProcessRanks:
    """Meet the other ranks in a store of torch.distributed and form the group. WorkerError if one does not come."""
    try:
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            group = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            group = make_gloo(store, rank, size, TIMEOUT, one_machine)
    except RuntimeError as error:
        raise WorkerError(f"the {size} ranks could not meet: {str(error).splitlines()[0]}") from error
    return ProcessRanks(group, rank, size, device)


def make_gloo(store: Any, rank: int, size: int, timeout: timedelta, one_machine: bool) -> Any:
    """A gloo group. On one machine it talks over the loopback interface alone, on ports that the system chooses."""
    if not one_machine:  # the interface is found by the host's name, or named in GLOO_SOCKET_IFNAME
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)
