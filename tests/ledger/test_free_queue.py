"""The free queue, link by link.

Peers' rows (vLLM ``test_kv_cache_utils.py``): ``test_free_kv_cache_block_queue_{initialization,operations,append_n,
popleft_n,get_all_free_blocks}``, ``test_kv_cache_block``, ``test_kv_cache_block_uses_slots``; and
``test_block_pool_double_free.py``. Left out: ``..._prepend_n``, because every block that comes back here goes to the
tail, partial ones too.
"""
from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nanovllm_edu.engine import Block, FreeQueue
from nanovllm_edu.errors import LedgerError


def blocks_and_queue(count: int) -> tuple[list[Block], FreeQueue]:
    blocks = [Block(i) for i in range(count)]
    return blocks, FreeQueue(blocks)


def links(blocks: list[Block], queue: FreeQueue) -> None:
    """Every link, followed from both ends, agrees with the others."""
    order = list(queue)
    nodes = [queue._head, *(blocks[i] for i in order), queue._tail]
    for left, right in zip(nodes, nodes[1:], strict=False):
        assert left.next_free is right and right.prev_free is left
    assert list(reversed(queue)) == order[::-1]
    assert len(queue) == len(order)
    assert queue._head.prev_free is None and queue._tail.next_free is None
    assert queue._head.block_id == queue._tail.block_id == -1
    for block in blocks:
        if block.block_id not in order:
            assert block.prev_free is None and block.next_free is None


def test_initialization() -> None:
    blocks, queue = blocks_and_queue(5)
    assert list(queue) == [0, 1, 2, 3, 4] and len(queue) == 5 and queue.tail == 4 and queue.first() == 0
    links(blocks, queue)


def test_initialization_of_one_block_and_of_none() -> None:
    blocks, queue = blocks_and_queue(1)
    assert queue.neighbours(0) == (None, None) and queue.tail == queue.first() == 0
    links(blocks, queue)
    blocks, queue = blocks_and_queue(0)
    assert list(queue) == [] and queue.tail is None and len(queue) == 0
    links(blocks, queue)


def test_operations() -> None:
    """Take two, lift one out of the middle, put them back: the order is that of returning."""
    blocks, queue = blocks_and_queue(6)
    assert [queue.popleft(), queue.popleft()] == [0, 1]
    queue.remove(4)
    assert list(queue) == [2, 3, 5]
    links(blocks, queue)
    for block_id in (1, 4, 0):
        queue.append(block_id)
    assert list(queue) == [2, 3, 5, 1, 4, 0] and queue.tail == 0
    links(blocks, queue)


def test_remove_at_the_head_and_at_the_tail() -> None:
    blocks, queue = blocks_and_queue(4)
    queue.remove(0)
    queue.remove(3)
    assert list(queue) == [1, 2] and queue.first() == 1 and queue.tail == 2
    links(blocks, queue)


def test_neighbours_are_ids_or_none_at_an_end() -> None:
    _, queue = blocks_and_queue(4)
    queue.remove(1)
    assert queue.neighbours(0) == (None, 2) and queue.neighbours(2) == (0, 3) and queue.neighbours(3) == (2, None)


def test_popleft_n() -> None:
    """The whole queue in order, then an error that says so and changes nothing."""
    blocks, queue = blocks_and_queue(4)
    assert [queue.popleft() for _ in range(4)] == [0, 1, 2, 3]
    assert all(block.prev_free is None and block.next_free is None for block in blocks)
    for take in (queue.popleft, queue.first):
        with pytest.raises(LedgerError, match="the free queue is empty: every block of the pool is in use"):
            take()
    assert list(queue) == [] and len(queue) == 0 and queue.tail is None
    links(blocks, queue)


def test_append_n_onto_an_emptied_queue() -> None:
    blocks, queue = blocks_and_queue(3)
    for _ in range(3):
        queue.popleft()
    queue.append(2)
    assert queue.tail == queue.first() == 2
    queue.append(0)
    assert list(queue) == [2, 0] and len(queue) == 2
    links(blocks, queue)


def test_get_all_free_blocks_in_both_directions() -> None:
    _, queue = blocks_and_queue(4)
    queue.append(queue.popleft())
    assert list(queue) == [1, 2, 3, 0] and list(reversed(queue)) == [0, 3, 2, 1]
    assert repr(queue) == "FreeQueue([1, 2, 3, 0])"


def test_contains() -> None:
    _, queue = blocks_and_queue(3)
    queue.remove(1)
    assert [i in queue for i in (-1, 0, 1, 2, 3)] == [False, True, False, True, False]
    assert "0" not in queue and None not in queue and 0.0 not in queue


def test_double_free_is_refused_and_changes_nothing() -> None:
    blocks, queue = blocks_and_queue(3)
    with pytest.raises(LedgerError, match="block 1 is in the free queue already: it was freed twice"):
        queue.append(1)
    queue.remove(1)
    with pytest.raises(LedgerError, match="block 1 is not in the free queue, so it can't be removed"):
        queue.remove(1)
    assert list(queue) == [0, 2] and len(queue) == 2
    links(blocks, queue)


def test_kv_cache_block_and_its_slots() -> None:
    block = Block(7)
    assert (block.block_id, block.ref_count, block.hash, block.token_ids, block.prefix) == (7, 0, -1, [], None)
    assert block.prev_free is None and block.next_free is None
    assert not hasattr(block, "__dict__"), "a pool of 100,000 blocks should not carry 100,000 dictionaries"
    block.ref_count = 3
    assert repr(block) == "Block(7, ref_count=3, not registered)"
    block.update(0xAB, [1, 2])
    assert (block.hash, block.token_ids, block.ref_count) == (0xAB, [1, 2], 3)
    assert repr(block) == "Block(7, ref_count=3, 00000000000000ab)"
    block.reset()
    assert (block.ref_count, block.hash, block.token_ids, block.prefix) == (1, -1, [], None)
    block.update(0xAB, [1, 2])
    block.forget()
    assert (block.ref_count, block.hash, block.token_ids, block.prefix) == (1, -1, [], None)


class QueueMachine(RuleBasedStateMachine):
    """The intrusive list does what a deque does, whatever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.queue = blocks_and_queue(6)
        self.model: deque[int] = deque(range(6))

    @precondition(lambda self: self.model)
    @rule()
    def popleft(self) -> None:
        assert self.queue.first() == self.model[0]
        assert self.queue.popleft() == self.model.popleft()

    @rule(block_id=st.integers(0, 5))
    def append(self, block_id: int) -> None:
        if block_id in self.model:
            with pytest.raises(LedgerError, match="twice"):
                self.queue.append(block_id)
        else:
            self.queue.append(block_id)
            self.model.append(block_id)

    @rule(block_id=st.integers(0, 5))
    def remove(self, block_id: int) -> None:
        if block_id not in self.model:
            with pytest.raises(LedgerError, match="not in the free queue"):
                self.queue.remove(block_id)
        else:
            at = self.model.index(block_id)
            before = self.model[at - 1] if at else None
            after = self.model[at + 1] if at + 1 < len(self.model) else None
            assert self.queue.neighbours(block_id) == (before, after)
            self.queue.remove(block_id)
            self.model.remove(block_id)

    @invariant()
    def reads_like_the_deque(self) -> None:
        assert list(self.queue) == list(self.model)
        assert self.queue.tail == (self.model[-1] if self.model else None)
        assert [i for i in range(6) if i in self.queue] == sorted(self.model)
        links(self.blocks, self.queue)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
