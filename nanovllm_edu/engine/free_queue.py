"""The free queue: an intrusive doubly linked list over the pool's blocks.

Intrusive means that the links are two attributes of each block, not separate nodes, so a block can be lifted out of
the middle by touching its two neighbours: O(1) however long the queue is. A ``collections.deque`` would have to scan.
The idea is vLLM's ``FreeKVCacheBlockQueue`` (``v1/core/kv_cache_utils.py``).
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import LedgerError


class _End:
    """A sentinel before the first or after the last block, so that no link is ever a special case."""

    __slots__ = ("block_id", "prev_free", "next_free")

    def __init__(self) -> None:
        self.block_id = -1
        self.prev_free: Any = None
        self.next_free: Any = None


class FreeQueue:
    """Ids of free blocks, head to tail. Reads like a deque of ids: ``popleft``, ``append``, ``remove``, ``in``.

    ``blocks[i]`` must carry ``block_id == i`` and writable ``prev_free`` and ``next_free``; both are None exactly
    while the block is not in the queue. At the start every block is in it, in order of id.
    """

    def __init__(self, blocks: Sequence[Any]) -> None:
        self._blocks = blocks
        self._head, self._tail = _End(), _End()
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self._len = 0
        for block in blocks:
            self.append(block.block_id)

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[int]:
        node = self._head.next_free
        while node is not self._tail:
            yield node.block_id
            node = node.next_free

    def __reversed__(self) -> Iterator[int]:
        node = self._tail.prev_free
        while node is not self._head:
            yield node.block_id
            node = node.prev_free

    def __contains__(self, block_id: object) -> bool:
        return (isinstance(block_id, int) and 0 <= block_id < len(self._blocks)
                and self._blocks[block_id].next_free is not None)

    def __repr__(self) -> str:
        return f"FreeQueue({list(self)})"

    def neighbours(self, block_id: int) -> tuple[int | None, int | None]:
        """The ids before and after a queued block, None at an end. O(1)."""
        block = self._blocks[block_id]
        before, after = block.prev_free, block.next_free
        return (None if before is self._head else before.block_id,
                None if after is self._tail else after.block_id)

    @property
    def tail(self) -> int | None:
        """The id at the tail, None when the queue is empty. O(1)."""
        return None if self._len == 0 else self._tail.prev_free.block_id

    def first(self) -> int:
        """The id at the head, which ``popleft`` takes next. Raises LedgerError when the queue is empty."""
        if self._len == 0:
            raise LedgerError("the free queue is empty: every block of the pool is in use. "
                              "Ask can_allocate or can_append first, or preempt a running request")
        return self._head.next_free.block_id

    def popleft(self) -> int:
        """Take the block at the head. Raises LedgerError when the queue is empty."""
        block_id = self.first()
        self.remove(block_id)
        return block_id

    def append(self, block_id: int) -> None:
        """Put a block at the tail. Raises LedgerError if it is queued already (a double free)."""
        block = self._blocks[block_id]
        if block.next_free is not None:
            raise LedgerError(f"block {block_id} is in the free queue already: it was freed twice")
        last = self._tail.prev_free
        last.next_free = self._tail.prev_free = block
        block.prev_free, block.next_free = last, self._tail
        self._len += 1

    def remove(self, block_id: int) -> None:
        """Lift a block out from wherever it stands. Raises LedgerError if it is not queued."""
        block = self._blocks[block_id]
        before, after = block.prev_free, block.next_free
        if after is None:
            raise LedgerError(f"block {block_id} is not in the free queue, so it can't be removed from it")
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self._len -= 1
