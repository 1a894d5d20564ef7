"""Which requests run in the next step, and what becomes of them afterwards.

Follows nano-vllm's ``engine/scheduler.py``: policy in ``schedule``, bookkeeping in ``postprocess``. It runs without a
model, which is how labs and tests drive it. Continuous batching is from Orca (Yu et al., 2022); preemption by
recomputation from PagedAttention (Kwon et al., 2023); chunked prefill from Sarathi (Agrawal et al., 2023).
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from inspect import signature
from typing import Any

from ..errors import ConfigError, LedgerError, RequestError
from .block_manager import BlockManager
from .cache_stats import CacheStats
from .events import (
    BatchScheduled,
    EventHub,
    LedgerReset,
    Observer,
    QueuesRestored,
    RequestAdded,
    RequestFinished,
    RequestPreempted,
    RequestRefused,
    RequestRestored,
    RequestScheduled,
    StepBegan,
    StepEnded,
    TokenAppended,
    TokensComputed,
)
from .invariants import violations
from .sequence import Sequence, SequenceStatus


class Scheduler:
    """Waiting and running requests over one pool of blocks.

    ``config`` needs ``max_num_seqs, max_num_batched_tokens, eos_token_ids, kvcache_block_size, num_kvcache_blocks``;
    ``max_model_len``, ``scheduling_policy``, ``enable_prefix_caching`` and ``prefix_cache_duplicates`` are read if they
    are there. ``cache_stats`` counts lookups and hits (None when prefix caching is off).
    ``block_manager_class`` is called with ``(num_blocks, block_size)`` and may be a learner's own.

    Raises ConfigError for sizes that can't work.
    """

    def __init__(self, config: Any, block_manager_class: type = BlockManager,
                 observers: Iterable[Observer] = ()) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_kvcache_blocks"):
            if getattr(config, name) is None or getattr(config, name) < 1:
                raise ConfigError(f"{name}={getattr(config, name)!r}: must be at least 1, else nothing could ever run")
        self.max_num_seqs: int = config.max_num_seqs
        self.max_num_batched_tokens: int = config.max_num_batched_tokens
        self.max_model_len: int | None = getattr(config, "max_model_len", None)
        self.policy: str = getattr(config, "scheduling_policy", "prefill_first")
        if self.policy not in ("prefill_first", "mixed"):
            raise ConfigError(f"scheduling_policy={self.policy!r}: must be 'prefill_first' or 'mixed'")
        self.eos_token_ids = _as_ids(config.eos_token_ids)
        self.num_blocks: int = config.num_kvcache_blocks
        self.block_size: int = config.kvcache_block_size
        self.emit = EventHub(observers)
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        self.step = 0    # steps begun
        self.phase = ""  # "prefill" or "decode" from schedule() to the end of postprocess(), else empty
        self.in_step = False
        self._is_changing = False  # True while the ledger changes: an exception leaves a change half made
        self._live: dict[int, Sequence] = {}  # every request that is not finished, in order of arrival
        self._block_manager_class = block_manager_class
        caching = getattr(config, "enable_prefix_caching", True)
        self.cache_stats = CacheStats() if caching else None
        duplicates = getattr(config, "prefix_cache_duplicates", "last")
        self._options = {**({} if caching else {"enable_prefix_caching": False}),
                         **({} if duplicates == "last" else {"prefix_cache_duplicates": duplicates})}
        missing = set(self._options) - set(signature(block_manager_class).parameters)
        if missing:
            raise ConfigError(f"{sorted(missing)} can't be passed to {block_manager_class.__name__}: its constructor "
                              "has no such parameter. Use the built-in BlockManager, or leave the option out")
        self.block_manager = self._new_block_manager()

    def _new_block_manager(self) -> Any:
        block_manager = self._block_manager_class(self.num_blocks, self.block_size, **self._options)
        if isinstance(getattr(block_manager, "emit", None), EventHub):
            block_manager.emit = self.emit
        return block_manager

    # --- requests come and go --------------------------------------------------------------------------------------

    @property
    def sequences(self) -> list[Sequence]:
        """Every request that is not finished, in order of arrival."""
        return list(self._live.values())

    def is_finished(self) -> bool:
        """True when nothing waits and nothing runs."""
        return not self._live

    def add(self, seq: Sequence) -> None:
        """Put a request at the tail of the waiting queue. Raises RequestError if it could never run.

        Interrupted, it leaves the request outside, and the others may have to prefill again.
        """
        reason = self._why_not(seq)
        if reason:
            self.emit(RequestRefused, seq_id=seq.seq_id, num_tokens=seq.num_tokens, reason=reason)
            raise RequestError(reason)
        waiting_prev = self.waiting[-1].seq_id if self.waiting else None
        try:
            self._live[seq.seq_id] = seq
            self.waiting.append(seq)
            self.emit(RequestAdded, seq_id=seq.seq_id, token_ids=tuple(seq.token_ids), max_tokens=seq.max_tokens,
                      waiting_prev=waiting_prev)
        except BaseException:
            self._live.pop(seq.seq_id, None)
            self.recover()
            raise

    def _why_not(self, seq: Sequence) -> str | None:
        if seq.block_size != self.block_size:
            return (f"request {seq.seq_id} is cut into blocks of {seq.block_size} tokens and the pool's blocks hold "
                    f"{self.block_size}: make it with Sequence(..., block_size={self.block_size})")
        if seq.seq_id in self._live or seq.status is not SequenceStatus.WAITING or seq.block_table:
            return f"request {seq.seq_id} was added before: make a new Sequence for each request"
        if self.max_model_len is not None and seq.num_tokens >= self.max_model_len:
            return (f"the prompt has {seq.num_tokens} tokens and max_model_len={self.max_model_len} leaves no room for "
                    f"one new token: shorten it to {self.max_model_len - 1} tokens, or raise max_model_len")
        if seq.num_blocks > self.num_blocks:
            return (f"the prompt has {seq.num_tokens} tokens and needs {seq.num_blocks} blocks of {self.block_size}; "
                    f"the whole pool has {self.num_blocks}: shorten it to {self.num_blocks * self.block_size} tokens, "
                    "or raise num_kvcache_blocks")
        return None

    def abort(self, seq_id: int, reason: str = "aborted") -> Sequence | None:
        """Finish a request wherever it stands and free its blocks. None if there is no such request (any more).

        Interrupted, it leaves a sound ledger and the request either live or gone: call it again.
        """
        seq = self._live.get(seq_id)
        if seq is not None:
            try:
                self.finish(seq, reason)
            except BaseException:
                self.recover()
                raise
        return seq

    def finish(self, seq: Sequence, reason: str) -> None:
        """End a request: out of its queue, its blocks given up, ``finish_reason`` set. If interrupted, ``recover``."""
        was_changing, self._is_changing = self._is_changing, True
        queue = self.running if seq.status is SequenceStatus.RUNNING else self.waiting
        queue_prev = _before(queue, seq)
        status_before, num_scheduled_tokens_before = seq.status, seq.num_scheduled_tokens
        queue.remove(seq)
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        seq.num_scheduled_tokens = 0
        del self._live[seq.seq_id]
        self.emit(RequestFinished, seq_id=seq.seq_id, reason=reason, status_before=status_before.name,
                  num_scheduled_tokens_before=num_scheduled_tokens_before, queue_prev=queue_prev)
        if seq.block_table:
            self.block_manager.deallocate(seq)
        self._is_changing = was_changing

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks. Raises LedgerError, naming the requests, while any block is in use."""
        holders = [seq.seq_id for seq in self._live.values() if seq.block_table]
        if holders:
            raise LedgerError(f"requests {holders} hold blocks: the prefix cache can be reset only when none does. "
                              "Let them finish, or abort them")
        try:
            self.block_manager.reset_prefix_cache()
        except BaseException:
            self._is_changing = True  # half of the cache may be gone: the ledger begins anew, empty too
            self.recover()
            raise

    # --- policy ----------------------------------------------------------------------------------------------------

    def schedule(self) -> tuple[list[Sequence], bool]:
        """Choose the next batch: ``(sequences, is_prefill)``, or ``([], False)`` when there is nothing to do.

        ``"prefill_first"``, as in nano-vllm: waiting requests come first, in order, and nobody skips; only the first of
        a step may be cut to a chunk. When none can be admitted, every running request decodes one token.
        ``"mixed"``, as in vLLM v1: running requests decode first, then prompt chunks fill what is left of the same
        token budget, so that arrivals never starve a decode. ``is_prefill`` is True when any chunk is in the batch.

        While a block lacks for a decode, the newest request that holds blocks is preempted. Each scheduled sequence has
        ``num_scheduled_tokens`` set and its blocks in its table.
        """
        if self.is_finished():
            return [], False
        self.in_step = self._is_changing = True
        self.step += 1
        self.emit(StepBegan, step_before=self.step - 1, step_after=self.step)
        decodes, prefills = self._schedule_mixed() if self.policy == "mixed" else self._schedule_prefill_first()
        scheduled = decodes + prefills
        if not scheduled:
            raise LedgerError(f"requests {list(self._live)} wait, nothing runs, and still none fits: the block manager "
                              f"lost blocks ({len(self.block_manager.free_block_ids)} of {self.num_blocks} are free)")
        self.phase = "mixed" if decodes and prefills else "prefill" if prefills else "decode"
        self.emit(BatchScheduled, step=self.step, phase=self.phase,
                  seq_ids=tuple(seq.seq_id for seq in scheduled),
                  num_tokens=sum(seq.num_scheduled_tokens for seq in scheduled))
        self._is_changing = False
        return scheduled, bool(prefills)

    def _schedule_prefill_first(self) -> tuple[list[Sequence], list[Sequence]]:
        prefills = self._schedule_prefills(self.max_num_batched_tokens, cut_any=False)
        return ([] if prefills else self._schedule_decodes(len(self.running))), prefills

    def _schedule_mixed(self) -> tuple[list[Sequence], list[Sequence]]:
        preemptions = sum(seq.num_preemptions for seq in self._live.values())
        decodes = self._schedule_decodes(self.max_num_batched_tokens)
        if decodes and sum(seq.num_preemptions for seq in self._live.values()) > preemptions:
            return decodes, []  # who was preempted just now must not take the freed blocks back in the same step
        return decodes, self._schedule_prefills(self.max_num_batched_tokens - len(decodes), cut_any=True)

    def _schedule_prefills(self, budget: int, cut_any: bool) -> list[Sequence]:
        """Prompt chunks of waiting requests, in order, at most ``budget`` tokens of them."""
        scheduled: list[Sequence] = []
        # running, not the batch, is bounded: a half-prefilled request at the head of waiting has its place kept free
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            seq = self.waiting[0]
            num_cached_blocks = 0
            if seq.block_table:  # a later chunk: it got all its blocks at its first one
                num_tokens = seq.num_tokens - seq.num_cached_tokens
            else:
                num_cached_blocks = self.block_manager.can_allocate(seq)
                if num_cached_blocks == -1:
                    break
                num_tokens = seq.num_tokens - num_cached_blocks * self.block_size
            if num_tokens > budget and scheduled and not cut_any:
                break
            if not seq.block_table:
                self._admit(seq, num_cached_blocks)
            self._schedule_chunk(seq, min(num_tokens, budget))
            budget -= seq.num_scheduled_tokens
            scheduled.append(seq)
        return scheduled

    def _admit(self, seq: Sequence, num_cached_blocks: int) -> None:
        self.block_manager.allocate(seq, num_cached_blocks)
        if seq.first_hit_tokens is None:
            seq.first_hit_tokens = seq.num_cached_tokens
        if self.cache_stats is not None:
            self.cache_stats.observe(seq.num_blocks - 1, num_cached_blocks, preempted=seq.num_preemptions > 0)

    def _schedule_chunk(self, seq: Sequence, num_tokens: int) -> None:
        """The head of the waiting queue computes ``num_tokens`` of its prompt; if that completes it, it runs."""
        before = seq.num_scheduled_tokens
        running_prev = self.running[-1].seq_id if self.running else None
        seq.num_scheduled_tokens = num_tokens
        admitted = seq.num_cached_tokens + num_tokens == seq.num_tokens
        if admitted:
            seq.status = SequenceStatus.RUNNING
            self.running.append(seq)
            self.waiting.popleft()
        self.emit(RequestScheduled, seq_id=seq.seq_id, num_scheduled_tokens_before=before,
                  num_scheduled_tokens_after=num_tokens, is_prefill_before=seq.is_prefill,
                  is_prefill_after=seq.is_prefill, admitted=admitted, running_prev=running_prev)

    def _schedule_decodes(self, budget: int) -> list[Sequence]:
        scheduled: list[Sequence] = []
        while len(scheduled) < min(budget, len(self.running)):
            seq = self.running[len(scheduled)]
            if not self._make_room(seq):
                break
            self.block_manager.may_append(seq)
            before, was_prefill = seq.num_scheduled_tokens, seq.is_prefill
            seq.is_prefill = False
            seq.num_scheduled_tokens = 1
            self.emit(RequestScheduled, seq_id=seq.seq_id, num_scheduled_tokens_before=before,
                      num_scheduled_tokens_after=1, is_prefill_before=was_prefill, is_prefill_after=False,
                      admitted=False)
            scheduled.append(seq)
        return scheduled

    def _make_room(self, seq: Sequence) -> bool:
        """Preempt the newest request that holds blocks until ``seq`` can go on. False if it had to give way itself."""
        while not self.block_manager.can_append(seq):
            head = self.waiting[0] if self.waiting else None
            # a half-prefilled request stands at the head of waiting, and is newer than all that run
            newest = head if head is not None and head.block_table else self.running[-1]
            self.preempt(newest, for_seq=seq)
            if newest is seq:
                return False
        return True

    def preempt(self, seq: Sequence, for_seq: Sequence | None = None) -> None:
        """Send a request back to the head of the waiting queue and free its blocks.

        Its tokens stay, its keys and values are computed again at its next turn, save what is still cached then.
        """
        status_before, running_prev = seq.status, _before(self.running, seq)
        was_prefill, num_scheduled_tokens_before = seq.is_prefill, seq.num_scheduled_tokens
        seq.status = SequenceStatus.WAITING
        seq.is_prefill = True
        seq.num_scheduled_tokens = 0
        seq.num_preemptions += 1
        if status_before is SequenceStatus.RUNNING:
            self.running.remove(seq)
            self.waiting.appendleft(seq)
        self.emit(RequestPreempted, seq_id=seq.seq_id, for_seq_id=(for_seq or seq).seq_id,
                  status_before=status_before.name, is_prefill_before=was_prefill,
                  num_scheduled_tokens_before=num_scheduled_tokens_before,
                  num_preemptions_before=seq.num_preemptions - 1, num_preemptions_after=seq.num_preemptions,
                  running_prev=running_prev)
        self.block_manager.deallocate(seq)

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def postprocess(self, seqs: Seq[Sequence], token_ids: Seq[int], is_prefill: bool) -> None:
        """Take in what the model computed: register full blocks, append tokens, finish who is done.

        ``token_ids[i]`` is the token sampled for ``seqs[i]``; it is ignored for a sequence whose prompt is not
        complete after this step. Raises LedgerError, with nothing changed, if the two differ in length.
        """
        if len(seqs) != len(token_ids):
            raise LedgerError(f"{len(token_ids)} tokens for {len(seqs)} sequences: give one for each, in batch order")
        self._is_changing = True
        for seq, token_id in zip(seqs, token_ids, strict=True):
            self.block_manager.hash_blocks(seq)
            before, scheduled_before = seq.num_cached_tokens, seq.num_scheduled_tokens
            seq.num_scheduled_tokens = 0
            seq.num_cached_tokens = before + scheduled_before
            self.emit(TokensComputed, seq_id=seq.seq_id, num_cached_tokens_before=before,
                      num_cached_tokens_after=seq.num_cached_tokens, num_scheduled_tokens_before=scheduled_before)
            if seq.num_cached_tokens < seq.num_tokens:
                continue  # a chunk that did not complete the prompt has no logits to sample from
            seq.append_token(token_id)
            self.emit(TokenAppended, seq_id=seq.seq_id, token_id=seq.last_token,
                      num_tokens_before=seq.num_tokens - 1, num_tokens_after=seq.num_tokens)
            reason = self._why_finished(seq)
            if reason:
                self.finish(seq, reason)
        self._is_changing = False
        self._end_step()

    def _end_step(self, failed: bool = False) -> None:
        phase_before = self.phase
        self.phase, self.in_step = "", False
        self.emit(StepEnded, step=self.step, phase_before=phase_before, failed=failed)

    def _why_finished(self, seq: Sequence) -> str | None:
        if seq.last_token in self.eos_token_ids and not seq.ignore_eos:
            return "eos"
        if seq.last_token in seq.sampling_params.stop_token_ids:
            return "stop"
        if seq.num_completion_tokens >= seq.max_tokens:
            return "length"
        if self.max_model_len is not None and seq.num_tokens >= self.max_model_len:
            return "length"
        if seq.num_blocks > self.num_blocks:  # it can never go on: it would need more blocks than there are
            return "kv_exhausted"
        return None

    # --- after a failure -------------------------------------------------------------------------------------------

    def recover(self, before: Mapping[int, tuple[Sequence, int]] | None = None) -> None:
        """After a step that failed or was interrupted at any line: every request is as it was before the step.

        ``before`` maps the ids of the requests that were live then to ``(sequence, num_tokens)``. All of them wait
        again, in order of arrival, without blocks; what they compute again is mostly found in the prefix cache. Only
        if the ledger was caught in the middle of a change (not while the model ran) does it begin anew, uncached.
        """
        before = before or {}
        self._live = dict(sorted({**{i: seq for i, (seq, _) in before.items()}, **self._live}.items()))
        if not self._is_changing and not violations(self.block_manager, self.sequences):
            for seq in reversed(self.sequences):
                if seq.block_table:
                    self.block_manager.deallocate(seq)
        else:
            self.block_manager = self._new_block_manager()
            self.emit(LedgerReset, num_blocks=self.num_blocks, block_size=self.block_size)
        for seq in self.sequences:
            num_tokens = before[seq.seq_id][1] if seq.seq_id in before else seq.num_tokens
            removed = seq.truncate(num_tokens)
            seq.status, seq.finish_reason, seq.is_prefill = SequenceStatus.WAITING, None, True
            seq.num_scheduled_tokens = seq.num_cached_tokens = 0
            seq.block_table.clear()
            self.emit(RequestRestored, seq_id=seq.seq_id, num_tokens=num_tokens, removed_token_ids=tuple(removed),
                      num_preemptions=seq.num_preemptions)
        self.running.clear()
        self.waiting = deque(self.sequences)
        self.emit(QueuesRestored, waiting=tuple(self._live))
        self._is_changing = False
        self._end_step(failed=True)


def _as_ids(eos_token_ids: Any) -> frozenset[int]:
    if eos_token_ids is None:
        return frozenset()
    return frozenset([eos_token_ids] if isinstance(eos_token_ids, int) else eos_token_ids)


def _before(queue: Iterable[Sequence], seq: Sequence) -> int | None:
    """The id of the sequence in front of ``seq``, None at the head."""
    previous = None
    for other in queue:
        if other is seq:
            return previous
        previous = other.seq_id
    return None
