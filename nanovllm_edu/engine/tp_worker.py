"""A tensor-parallel worker: `python -m nanovllm_edu.engine.tp_worker`, begun by rank 0 (see `tp_team.py`).

It holds its share of the weights and of the KV cache, computes each batch that it is sent, and knows nothing of
requests, tokens' texts or sampling.
"""

from __future__ import annotations

import os
import pickle
import queue
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from .model_runner import ModelRunner
from .process_group import make_ranks
from .tp_team import HEADER, Start, meeting_place


def serve(runner: ModelRunner, receive: Callable[[], bytes]) -> None:
    """Compute what rank 0 orders until an empty order comes. Any failure passes through: it ends the process, which is
    how rank 0 hears of it."""
    while order := receive():
        # the bytes come from our own rank 0 (see tp_team.py)
        runner.compute(pickle.loads(order))
    runner.close()
    runner.ranks.close()


def main() -> None:
    """Take the first order from standard input, load, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's to answer
    place: list[Path] = []
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders, place), daemon=True).start()
    start: Start = pickle.loads(orders.get())
    place.append(start.place)
    torch.set_num_threads(start.threads)
    store = meeting_place(start.place, start.size)
    store.set(f"here {start.rank}", "")
    device = torch.device(start.config.device)
    ranks = make_ranks(store, start.rank, start.size, device, one_machine=True)
    runner = ModelRunner(start.config, start.folder, ranks)
    ranks.smallest(0)  # rank 0 waits for this: all have loaded
    serve(runner, orders.get)


def _read(orders: queue.SimpleQueue[bytes], place: list[Path]) -> None:
    """Pass orders on. Their end means that rank 0's process is gone: end at once, whatever is being computed."""
    try:
        while order := _read_exactly(int.from_bytes(_read_exactly(HEADER), "little")):
            orders.put(order)
        orders.put(b"")
    except EOFError:
        for folder in place:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def _read_exactly(count: int) -> bytes:
    """So many bytes of standard input, read without sys.stdin: its lock would outlive a thread at Python's end."""
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            raise EOFError("standard input has ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
