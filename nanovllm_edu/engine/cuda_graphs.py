"""Decode steps as recorded CUDA graphs: one launch for the whole model instead of hundreds (nano-vllm, vLLM).

A graph replays the same kernels on the same memory. So there is one for each of a few batch sizes, all on the same
static buffers; a step copies its batch into them, fills the rest of the rows with padding, and replays the smallest
graph that is large enough:

    row          0 ... n-1            n ... size-1
    slots        where keys go        -1   nothing is stored
    context_lens tokens to read        0   nothing is read
    tables       block ids, then 0     left as they are: a row without tokens reads none
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..config import EngineConfig
from ..errors import ConfigError
from ..layers.attention import AttentionBackend, AttentionBatch
from ..layers.attention.host import pad_tables, upload


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to record, ascending. The last is max_num_seqs: every batch the scheduler makes has a graph.

    1, 2, 4, 8, 16, 24, …: steps of at most an eighth of the size (and at least 8), so that little is computed for
    padding and there are few graphs (32 up to the default of 512).
    """
    sizes, size = [], 1
    while size < max_num_seqs:
        sizes.append(size)
        size += min(size, 8) if size < 128 else size // 64 * 8
    return [*sizes, max_num_seqs]


def table_width(max_model_len: int, block_size: int) -> int:
    """Columns of the block tables. One more than the longest request needs, for the block its last token may open."""
    return -(-max_model_len // block_size) + 1


class DecodeBuffers:
    """The static input of all graphs, for up to max_num_seqs requests with one new token each."""

    def __init__(self, max_num_seqs: int, width: int, device: torch.device) -> None:
        self.device, self.width = device, width
        self.input_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.positions = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.slots = torch.full((max_num_seqs,), -1, dtype=torch.int64, device=device)
        self.context_lens = torch.zeros(max_num_seqs, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros(max_num_seqs, width, dtype=torch.int32, device=device)

    def fill(self, input_ids: Tensor, positions: Tensor, batch: AttentionBatch, size: int) -> None:
        """Copy a decode batch in, and make the rows after it, up to `size`, padding."""
        n = input_ids.shape[0]
        self.input_ids[:n] = input_ids
        self.positions[:n] = positions
        self.slots[:n] = batch.slot_mapping
        self.slots[n:size] = -1
        self.context_lens[:n] = upload(batch.context_lens, torch.int32, self.device)
        self.context_lens[n:size] = 0
        self.block_tables[:n] = upload(pad_tables(batch.block_tables, self.width), torch.int32, self.device)


class Graph(Protocol):
    """Something recorded: `replay` runs it again on the same memory. torch.cuda.CUDAGraph is one."""

    def replay(self) -> None: ...


Compute = Callable[[], Tensor]
Record = Callable[[Compute], tuple[Graph, Tensor]]


class DecodeGraphs:
    """A graph for each batch size of `graph_sizes`, over one set of buffers.

    compute(buffers, size): hidden states (size, hidden) of the first `size` rows; what is recorded.
    record: how; `CudaRecorder` on a GPU. Recorded largest first, so that the smaller ones fit into its memory.
    """

    def __init__(self, buffers: DecodeBuffers, compute: Callable[[DecodeBuffers, int], Tensor], record: Record) -> None:
        self.buffers = buffers
        self.sizes = graph_sizes(buffers.input_ids.shape[0])
        self._graphs: dict[int, tuple[Graph, Tensor]] = {}
        for size in reversed(self.sizes):
            self._graphs[size] = record(lambda size=size: compute(buffers, size))

    def run(self, input_ids: Tensor, positions: Tensor, batch: AttentionBatch) -> Tensor:
        """Hidden states (requests, hidden) of a decode batch. Good until the next run, which overwrites them."""
        n = input_ids.shape[0]
        size = self.sizes[bisect_left(self.sizes, n)]
        self.buffers.fill(input_ids, positions, batch, size)
        graph, hidden = self._graphs[size]
        graph.replay()
        return hidden[:n]

    def release(self) -> None:
        """Let go of the graphs. To be called before a process group is destroyed: graphs that hold its collectives
        would make that hang."""
        self._graphs.clear()


class CudaRecorder:
    """Records with torch.cuda.graph; all graphs share one memory pool."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, compute: Compute) -> tuple[Graph, Tensor]:
        # a first run apart, on a side stream: lazy set-up and compilation must not be recorded
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self._pool):
            output = compute()
        self._pool = self._pool or graph.pool()
        return graph, output


@torch.inference_mode()
def record_decode(model: Any, backend: AttentionBackend, config: EngineConfig, record: Record | None = None
                  ) -> DecodeGraphs:
    """Record the decode steps of a model over a backend that supports it. Raises ConfigError without the memory."""
    buffers = DecodeBuffers(config.max_num_seqs, table_width(config.max_model_len, backend.spec.block_size),
                            backend.spec.device)

    def compute(b: DecodeBuffers, size: int) -> Tensor:
        plan = backend.plan_decode(b.slots[:size], b.context_lens[:size], b.block_tables[:size])
        return model(b.input_ids[:size], b.positions[:size], backend, plan)

    try:
        return DecodeGraphs(buffers, compute, record or CudaRecorder())
    except torch.OutOfMemoryError as error:
        raise ConfigError("no memory is left to record CUDA graphs; lower gpu_memory_utilization or max_num_seqs, or "
                          f"set enforce_eager=True ({str(error).splitlines()[0]})") from error


def is_decode(batch: AttentionBatch) -> bool:
    """True when every request of the batch computes one token."""
    return len(batch.cu_seqlens_q) - 1 == batch.cu_seqlens_q[-1]
