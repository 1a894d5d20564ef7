"""The real scheduler and the real block manager, with a stand-in for the model.

The ledger doesn't care which token the model picks, only how many there are. So exercises let the engine's own code
run on token ids counted up from a number, and read off what it did: in microseconds, and without torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from types import SimpleNamespace

from ..engine import Scheduler, Sequence
from ..sampling_params import SamplingParams

FOREVER = SamplingParams(max_tokens=1_000_000)


class Bench:
    """A scheduler over a small pool, its own supply of tokens that never repeat, and one step at a time."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.scheduler = Scheduler(SimpleNamespace(
            max_num_seqs=64, max_num_batched_tokens=100_000, eos_token_ids=(), kvcache_block_size=block_size,
            num_kvcache_blocks=num_blocks))
        self.block_size = block_size
        self._tokens = count(1000)

    def tokens(self, n: int) -> list[int]:
        """``n`` token ids that occur nowhere else."""
        return [next(self._tokens) for _ in range(n)]

    def add(self, token_ids: Iterable[int], seq_id: int, max_tokens: int | None = None) -> Sequence:
        """A new request at the tail of the waiting queue."""
        params = FOREVER if max_tokens is None else SamplingParams(max_tokens=max_tokens)
        seq = Sequence(token_ids, params, block_size=self.block_size, seq_id=seq_id)
        self.scheduler.add(seq)
        return seq

    def step(self) -> None:
        """One step of the engine; each request whose prompt is complete gets one new token."""
        seqs, is_prefill = self.scheduler.schedule()
        self.scheduler.postprocess(seqs, self.tokens(len(seqs)), is_prefill)

    def finish(self, seq: Sequence) -> None:
        """End a request as if it had produced its last token."""
        self.scheduler.finish(seq, "length")

    @property
    def queue(self) -> list[int]:
        """The free queue, head to tail."""
        return list(self.scheduler.block_manager.free_block_ids)
