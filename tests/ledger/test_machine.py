"""A state machine (Hypothesis) drives the scheduler through anything, and the shadow model reads along."""
from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanovllm_edu.engine import BlockManager, check_invariants
from nanovllm_edu.errors import LedgerError, RequestError
from nanovllm_edu.fuzz.books import Books, audit_answer
from nanovllm_edu.fuzz.runner import weak_hashes
from nanovllm_edu.fuzz.shadow import ShadowModel
from tests.ledger.helpers import request, scheduler

STEMS = ([0, 1, 2, 0, 1, 2, 2, 1], [0, 1, 2, 1, 1, 0, 0, 2])  # they fork after three tokens


class LedgerMachine(RuleBasedStateMachine):
    @initialize(block_size=st.integers(2, 4), num_blocks=st.integers(2, 8), budget=st.sampled_from([1, 3, 8, 64]),
                max_num_seqs=st.integers(1, 4), policy=st.sampled_from(["prefill_first", "mixed"]),
                duplicates=st.sampled_from(["last", "all"]), caching=st.booleans(), bits=st.sampled_from([64, 2, 0]))
    def open(self, block_size: int, num_blocks: int, budget: int, max_num_seqs: int, policy: str, duplicates: str,
             caching: bool, bits: int) -> None:
        self.scheduler = scheduler(
            weak_hashes(BlockManager, bits), kvcache_block_size=block_size, num_kvcache_blocks=num_blocks,
            max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, scheduling_policy=policy,
            prefix_cache_duplicates=duplicates, enable_prefix_caching=caching)
        self.model = ShadowModel(num_blocks, block_size)
        self.books = Books(self.scheduler, checks_hashes=bits == 64, checks_map=duplicates == "last")
        self.scheduler.emit.attach(self.books)
        self.prompts: dict[int, tuple[int, ...]] = {}

    @rule(stem=st.sampled_from(STEMS), length=st.integers(1, 8), tail=st.lists(st.integers(0, 2), max_size=5),
          max_tokens=st.integers(1, 9), salt=st.sampled_from([None, None, "a", "b"]))
    def add(self, stem: list[int], length: int, tail: list[int], max_tokens: int, salt: str | None) -> None:
        sch, seq_id = self.scheduler, len(self.prompts)
        self.prompts[seq_id] = (*stem[:length], *tail)
        seq = request(self.prompts[seq_id], seq_id, max_tokens, salt=salt, block_size=sch.block_size)
        try:
            sch.add(seq)
        except RequestError:
            assert seq.num_blocks > sch.num_blocks

    @precondition(lambda self: not self.scheduler.is_finished())
    @rule(fails=st.sampled_from([False] * 6 + [True]))
    def step(self, fails: bool) -> None:
        sch = self.scheduler
        before = {seq.seq_id: (seq, seq.num_tokens) for seq in sch.sequences}
        seqs, is_prefill = sch.schedule()
        assert seqs and len(sch.running) <= sch.max_num_seqs
        assert sum(seq.num_scheduled_tokens for seq in seqs) <= max(sch.max_num_batched_tokens, len(seqs))
        check_invariants(sch.block_manager, sch.sequences)
        tokens = self.model.run(seqs)
        if fails:
            sch.recover(before)
            assert [seq.seq_id for seq in sch.waiting] == list(before)
            return
        sch.postprocess(seqs, tokens, is_prefill)
        for seq in seqs:
            if seq.is_finished:
                audit_answer(seq, self.prompts[seq.seq_id])

    @precondition(lambda self: not self.scheduler.is_finished())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.scheduler.sequences))
        assert self.scheduler.abort(seq.seq_id) is seq and seq.finish_reason == "aborted" and not seq.block_table

    @rule()
    def reset_prefix_cache(self) -> None:
        used = bool(self.scheduler.block_manager.used_block_ids)
        try:
            self.scheduler.reset_prefix_cache()
        except LedgerError:
            assert used
        else:
            assert not used and not self.scheduler.block_manager.hash_to_block_id

    @invariant()
    def law_and_books(self) -> None:
        if hasattr(self, "scheduler"):
            check_invariants(self.scheduler.block_manager, self.scheduler.sequences)
            self.books.audit()

    def teardown(self) -> None:
        """Whatever happened, what is left comes to its end and the pool is free."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(600):
            if self.scheduler.is_finished():
                break
            self.step(False)
            self.law_and_books()
        assert self.scheduler.is_finished(), "livelock"
        assert len(self.scheduler.block_manager.free_block_ids) == self.scheduler.num_blocks


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
