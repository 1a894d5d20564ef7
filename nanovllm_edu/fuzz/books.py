"""A second set of books: the queue, the map and the answers, kept from the moves alone and compared with the ledger.

The law (``check_invariants``) says which ledgers are possible; these checks say which one is right: who must be taken
next, in which order blocks come back, which entry may die, what a request must answer.
"""
from __future__ import annotations

import struct
from typing import Any

import xxhash

from ..engine import Sequence
from ..engine.events import (
    BlockForgotten,
    BlockRegistered,
    BlockReturned,
    BlockRevived,
    BlockTaken,
    Event,
    LedgerReset,
    TableCleared,
)
from .shadow import next_token


class BooksError(Exception):
    """The ledger is possible, but not the right one."""


class Books:
    """An observer with its own queue and map. ``audit`` compares them with the ledger, where no operation is open."""

    def __init__(self, scheduler: Any, checks_hashes: bool = True, checks_map: bool = True) -> None:
        self._scheduler = scheduler
        self._checks_hashes, self._checks_map = checks_hashes, checks_map
        self._open(scheduler.num_blocks)
        self._complaint: str | None = None
        self._hashes: dict[tuple[int, ...], int] = {}

    def _open(self, num_blocks: int) -> None:
        self._queue = list(range(num_blocks))
        self._map: dict[int, int] = {}

    def _complain(self, sentence: str) -> None:
        self._complaint = self._complaint or sentence

    def on_event(self, event: Event) -> None:
        match event:
            case BlockTaken():
                if self._queue[:1] != [event.block_id]:
                    self._complain(f"block {event.block_id} was taken, and the head of the queue is {self._queue[:1]}")
                self._leave(event.block_id)
                self._forget(event.hash_before, event.block_id)
            case BlockRevived():
                self._leave(event.block_id)
            case BlockReturned():
                self._queue.append(event.block_id)
            case BlockRegistered():
                self._map[event.hash] = event.block_id
            case BlockForgotten():
                self._forget(event.hash_before, event.block_id)
            case TableCleared():
                blocks = self._scheduler.block_manager.blocks
                returned = [b for b in event.block_table_before if blocks[b].ref_count == 0]
                if returned and self._queue[:-len(returned) - 1:-1] != returned:
                    self._complain(f"request {event.seq_id} gave back {returned}, and the tail of the free queue is "
                                   f"{self._queue[-len(returned):]}: its last block must come first")
            case LedgerReset():
                self._open(event.num_blocks)

    def _leave(self, block_id: int) -> None:
        if block_id in self._queue:
            self._queue.remove(block_id)

    def _forget(self, hash: int, block_id: int) -> None:
        if self._map.get(hash) == block_id:
            del self._map[hash]

    def audit(self) -> None:
        """Raise BooksError if the ledger is not what the moves make it."""
        manager = self._scheduler.block_manager
        if self._complaint:
            raise BooksError(self._complaint)
        if list(manager.free_block_ids) != self._queue:
            raise BooksError(f"the free queue is {list(manager.free_block_ids)} and should be {self._queue}")
        if self._checks_map and dict(manager.hash_to_block_id) != self._map:
            raise BooksError(f"the map is {dict(manager.hash_to_block_id)} and should be {self._map}")
        waiting = [seq.seq_id for seq in self._scheduler.waiting]
        if waiting != sorted(waiting):
            raise BooksError(f"requests wait in the order {waiting}, and first come must be first served")
        if self._checks_hashes:
            for seq in self._scheduler.sequences:
                self._audit_hashes(seq)

    def _audit_hashes(self, seq: Sequence) -> None:
        if seq.cache_salt is not None:
            return
        size = seq.block_size
        for i, block_id in enumerate(seq.block_table[:seq.num_cached_tokens // size]):
            found, expected = self._scheduler.block_manager.blocks[block_id].hash, self._hash(seq.token_ids, i, size)
            if found not in (-1, expected):
                raise BooksError(f"block {block_id} has hash {found:016x}; xxh64 over the chain up to block {i} "
                                 f"of request {seq.seq_id} is {expected:016x}")

    def _hash(self, token_ids: list[int], i: int, size: int) -> int:
        key = tuple(token_ids[:(i + 1) * size])
        if key not in self._hashes:
            link = b"" if i == 0 else self._hash(token_ids, i - 1, size).to_bytes(8, "little")
            self._hashes[key] = xxhash.xxh64_intdigest(link + struct.pack(f"<{size}q", *key[-size:]))
        return self._hashes[key]


def audit_answer(seq: Sequence, prompt: tuple[int, ...]) -> None:
    """A finished request must hold its own prompt and then what the stand-in model says after it. Raises BooksError."""
    if tuple(seq.prompt_token_ids) != prompt:
        raise BooksError(f"request {seq.seq_id} came with {prompt} and ends with {seq.prompt_token_ids}")
    again = Sequence(prompt, block_size=seq.block_size, seq_id=seq.seq_id)
    for token in seq.completion_token_ids:
        expected = next_token(again)
        if token != expected:
            raise BooksError(f"request {seq.seq_id} answers {seq.completion_token_ids}; after "
                             f"{again.token_ids} the model says {expected}")
        again.append_token(token)
