"""The ledger of KV blocks: who holds which block, what is in it, and what can be used again.

Follows nano-vllm's ``engine/block_manager.py`` move for move (same block ids, same hashes, same free-queue order)
and keeps three promises that are only made there: a hit always has the same whole prefix, not only the same hash;
a cached block is revived in O(1); and a block is hashed once in a request's life. It never touches a tensor.

Paging the KV cache is from PagedAttention (Kwon et al., 2023); hashing blocks in a chain is vLLM's automatic prefix
caching (``v1/core/kv_cache_utils.py``).
"""
from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import xxhash

from ..errors import ConfigError, LedgerError
from .events import (
    AllocationDenied,
    BlockForgotten,
    BlockRegistered,
    BlockReleased,
    BlockReturned,
    BlockRevived,
    BlockShared,
    BlockTaken,
    EntryEvicted,
    EventHub,
    PrefixLookup,
    PrefixReused,
    TableCleared,
)
from .free_queue import FreeQueue
from .prefix import Prefix, PrefixChains
from .sequence import Sequence


class Block:
    """What the ledger knows of one physical block. The keys and values themselves live with the attention backend."""

    __slots__ = ("block_id", "ref_count", "hash", "token_ids", "prefix", "prev_free", "next_free")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0                      # block tables that hold it
        self.hash = -1                          # -1: not full, or not registered
        self.token_ids: list[int] = []          # the tokens in it, once registered
        self.prefix: Prefix | None = None       # everything from the start of the sequence to the end of this block
        self.prev_free: Any = None              # links of the free queue, None while in use
        self.next_free: Any = None

    def __repr__(self) -> str:
        content = "not registered" if self.hash == -1 else f"{self.hash:016x}"
        return f"Block({self.block_id}, ref_count={self.ref_count}, {content})"

    def update(self, hash: int, token_ids: list[int]) -> None:
        """The block is full: give it its hash and its tokens."""
        self.hash = hash
        self.token_ids = token_ids

    def reset(self) -> None:
        """The block goes to a new owner, empty."""
        self.ref_count = 1
        self.forget()

    def forget(self) -> None:
        self.hash, self.token_ids, self.prefix = -1, [], None


class BlockManager:
    """Hands out the blocks of a pool and remembers what is in them.

    ``num_blocks`` blocks of ``block_size`` tokens each. With ``prefix_cache_duplicates="last"`` the map keeps only
    the last registered of several blocks with one hash, as in nano-vllm; with ``"all"`` another copy takes over when
    that one is overwritten. With ``enable_prefix_caching=False`` nothing is looked up or registered.

    Raises ConfigError for impossible sizes. Every other method raises LedgerError, before it changes anything, when
    it is asked for what the ledger's law forbids.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True,
                 prefix_cache_duplicates: str = "last") -> None:
        if num_blocks < 1:
            raise ConfigError(f"num_blocks={num_blocks}: a pool needs at least one block")
        if block_size < 2:
            raise ConfigError(f"block_size={block_size}: must be at least 2, else len % block_size == 1, which tells "
                              "that a token opens a new block, is never true")
        if prefix_cache_duplicates not in ("last", "all"):
            raise ConfigError(f"prefix_cache_duplicates={prefix_cache_duplicates!r}: must be 'last' or 'all'")
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.hash_to_block_id: dict[int, int] = {}
        self.free_block_ids = FreeQueue(self.blocks)
        self.used_block_ids: set[int] = set()
        self.emit = EventHub()
        self._keeps_copies = prefix_cache_duplicates == "all"
        self._copies: dict[int, list[int]] = {}  # only with "all": every registered block of a hash, oldest first
        self._prefixes = PrefixChains(type(self))

    # --- hash chain ------------------------------------------------------------------------------------------------

    @classmethod
    def compute_hash(cls, token_ids: Iterable[int], prefix: int = -1) -> int:
        """xxh64 of a full block: the 8 little-endian bytes of the previous link's hash, where there is one, then the
        tokens as little-endian int64. So a hash stands for the whole prefix, as in a Merkle chain."""
        tokens = [int(token) for token in token_ids]
        link = xxhash.xxh64() if prefix == -1 else xxhash.xxh64(prefix.to_bytes(8, "little"))
        link.update(struct.pack(f"<{len(tokens)}q", *tokens))
        return link.intdigest()

    def _find(self, prefix: Prefix) -> Block | None:
        """The block that holds exactly this prefix, or None. O(1) (in the number of copies with "all")."""
        if self._keeps_copies:
            candidates = reversed(self._copies.get(prefix.hash, ()))
        else:
            candidates = (self.hash_to_block_id[prefix.hash],) if prefix.hash in self.hash_to_block_id else ()
        for block_id in candidates:
            if self.blocks[block_id].prefix is prefix:
                return self.blocks[block_id]
        return None

    # --- allocate --------------------------------------------------------------------------------------------------

    def can_allocate(self, seq: Sequence) -> int:
        """How many leading blocks of the sequence are in the cache, or -1 if the pool can't hold the rest now.

        The last block is never looked up: at least one token must go through the model, or there would be no logits
        to sample from. A hit in use costs no free block; a hit that is free costs one, for it leaves the free queue.
        """
        num_cached_blocks = 0
        num_needed_blocks = seq.num_blocks
        if self.enable_prefix_caching:
            for i in range(seq.num_blocks - 1):
                block = self._look_up(seq, i)
                if block is None:
                    break
                num_cached_blocks += 1
                if block.block_id in self.used_block_ids:
                    num_needed_blocks -= 1
            else:
                i = seq.num_blocks - 1
                self.emit(PrefixLookup, seq_id=seq.seq_id, logical=i, token_ids=tuple(seq.block(i)), hash=-1,
                          parent_hash=self._prefixes.of(seq, i - 1).hash if i else -1, outcome="last_block",
                          block_id=None)
        if len(self.free_block_ids) < num_needed_blocks:
            self.emit(AllocationDenied, seq_id=seq.seq_id, num_needed_blocks=num_needed_blocks,
                      num_free_blocks=len(self.free_block_ids))
            return -1
        return num_cached_blocks

    def _look_up(self, seq: Sequence, i: int) -> Block | None:
        prefix = self._prefixes.of(seq, i)
        block = self._find(prefix)
        if block is not None:
            outcome = "hit_used" if block.ref_count > 0 else "hit_free"
        else:
            outcome = "collision" if prefix.hash in self.hash_to_block_id else "miss"
        self.emit(PrefixLookup, seq_id=seq.seq_id, logical=i, token_ids=prefix.token_ids, hash=prefix.hash,
                  parent_hash=prefix.parent_hash, outcome=outcome,
                  block_id=self.hash_to_block_id[prefix.hash] if outcome == "collision"
                  else block.block_id if block else None)
        return block

    def allocate(self, seq: Sequence, num_cached_blocks: int) -> None:
        """Fill the block table of a sequence: ``num_cached_blocks`` hits, then blocks from the head of the queue.

        Call it with what ``can_allocate`` returned, with nothing in between.
        """
        hits = self._hits(seq, num_cached_blocks)
        for i, block in enumerate(hits):
            if block.ref_count > 0:
                seq.block_table.append(block.block_id)
                block.ref_count += 1
                self.emit(BlockShared, seq_id=seq.seq_id, logical=i, block_id=block.block_id,
                          ref_count_before=block.ref_count - 1, ref_count_after=block.ref_count)
            else:
                queue_prev, queue_next = self.free_block_ids.neighbours(block.block_id)
                block.ref_count = 1
                self.used_block_ids.add(block.block_id)
                seq.block_table.append(block.block_id)
                self.free_block_ids.remove(block.block_id)
                self.emit(BlockRevived, seq_id=seq.seq_id, logical=i, block_id=block.block_id,
                          ref_count_before=0, ref_count_after=1, queue_prev=queue_prev, queue_next=queue_next)
        for _ in range(num_cached_blocks, seq.num_blocks):
            self._allocate_block(seq)
        if num_cached_blocks:
            before = seq.num_cached_tokens
            seq.num_cached_tokens = num_cached_blocks * self.block_size
            self.emit(PrefixReused, seq_id=seq.seq_id, num_cached_tokens_before=before,
                      num_cached_tokens_after=seq.num_cached_tokens)

    def _hits(self, seq: Sequence, num_cached_blocks: int) -> list[Block]:
        """The first ``num_cached_blocks`` hits, with everything checked before ``allocate`` changes anything."""
        if seq.block_table:
            raise LedgerError(f"request {seq.seq_id} holds blocks {seq.block_table} already: deallocate it first")
        if not 0 <= num_cached_blocks < seq.num_blocks:
            raise LedgerError(f"num_cached_blocks={num_cached_blocks} for request {seq.seq_id}: must be from 0 to "
                              f"{seq.num_blocks - 1}, for its last block is always computed; ask can_allocate")
        hits = [self._find(self._prefixes.of(seq, i)) for i in range(num_cached_blocks)]
        if None in hits:
            raise LedgerError(f"block {hits.index(None)} of request {seq.seq_id} is not in the cache (any more): "
                              "ask can_allocate right before allocate")
        needed = seq.num_blocks - sum(block.ref_count > 0 for block in hits)
        if needed > len(self.free_block_ids):
            raise LedgerError(f"request {seq.seq_id} needs {needed} free blocks and {len(self.free_block_ids)} are "
                              "left: can_allocate returned -1 for it; wait, or preempt a running request")
        return hits

    def _allocate_block(self, seq: Sequence) -> int:
        """Take the block at the head of the free queue, drop what the map says of it, and add it to the table."""
        block = self.blocks[self.free_block_ids.first()]
        self._evict(block)
        hash_before, token_ids_before = block.hash, tuple(block.token_ids)
        block.reset()
        self.used_block_ids.add(block.block_id)
        seq.block_table.append(block.block_id)
        self.free_block_ids.popleft()
        self.emit(BlockTaken, seq_id=seq.seq_id, logical=len(seq.block_table) - 1, block_id=block.block_id,
                  ref_count_before=0, ref_count_after=1, hash_before=hash_before, token_ids_before=token_ids_before)
        return block.block_id

    def _evict(self, block: Block) -> None:
        """Drop the map entry that leads to this block, if one does: a later duplicate may own the entry by now."""
        if block.hash == -1:
            return
        copies = self._copies.get(block.hash, [])
        if block.block_id in copies:
            copies.remove(block.block_id)
            if not copies:
                del self._copies[block.hash]
        if self.hash_to_block_id.get(block.hash) != block.block_id:
            return
        heir = copies[-1] if copies else None
        if heir is None:
            del self.hash_to_block_id[block.hash]
        else:
            self.hash_to_block_id[block.hash] = heir
        self.emit(EntryEvicted, block_id=block.block_id, hash=block.hash, block_id_after=heir)

    # --- append ----------------------------------------------------------------------------------------------------

    def can_append(self, seq: Sequence) -> bool:
        """Whether this decode step finds room: a free block is needed only if the last token opens a new block."""
        return len(self.free_block_ids) >= (len(seq) % self.block_size == 1)

    def may_append(self, seq: Sequence) -> None:
        """Take one block if the last token opens a new one. Its keys and values are computed in this step."""
        if len(seq) % self.block_size == 1:
            self._allocate_block(seq)

    # --- register --------------------------------------------------------------------------------------------------

    def hash_blocks(self, seq: Sequence) -> None:
        """Register the blocks that this step filled: call it after the model ran, before ``num_cached_tokens`` moves.

        Blocks ``num_cached_tokens // block_size`` up to ``(num_cached_tokens + num_scheduled_tokens) // block_size``
        are full now. A chunk that ends inside a block leaves that block for a later step.
        """
        if not self.enable_prefix_caching:
            return
        start = seq.num_cached_tokens // self.block_size
        end = (seq.num_cached_tokens + seq.num_scheduled_tokens) // self.block_size
        for i in range(start, end):
            prefix = self._prefixes.of(seq, i)
            block = self.blocks[seq.block_table[i]]
            hash_before, token_ids_before = block.hash, tuple(block.token_ids)
            block_id_before = self.hash_to_block_id.get(prefix.hash)
            block.update(prefix.hash, seq.block(i))
            block.prefix = prefix
            if self._keeps_copies:
                self._copies.setdefault(prefix.hash, []).append(block.block_id)
            self.hash_to_block_id[prefix.hash] = block.block_id
            self.emit(BlockRegistered, seq_id=seq.seq_id, logical=i, block_id=block.block_id, hash=prefix.hash,
                      parent_hash=prefix.parent_hash, hash_before=hash_before,
                      token_ids=prefix.token_ids, token_ids_before=token_ids_before, block_id_before=block_id_before)

    # --- free ------------------------------------------------------------------------------------------------------

    def deallocate(self, seq: Sequence) -> None:
        """Give up every block of a sequence, the last one first, so that the head of a prompt is overwritten last.

        A block returns to the free queue only when no other table holds it, and keeps its hash and its map entry.
        """
        freed = [block_id for block_id in seq.block_table if self.blocks[block_id].ref_count < 1]
        if freed:
            raise LedgerError(f"request {seq.seq_id} gives up blocks {freed}, which are free already: its block table "
                              "outlived them")
        for i, block_id in reversed(list(enumerate(seq.block_table))):
            block = self.blocks[block_id]
            block.ref_count -= 1
            self.emit(BlockReleased, seq_id=seq.seq_id, logical=i, block_id=block_id,
                      ref_count_before=block.ref_count + 1, ref_count_after=block.ref_count)
            if block.ref_count == 0:
                self._deallocate_block(block_id)
        block_table_before, num_cached_tokens_before = tuple(seq.block_table), seq.num_cached_tokens
        seq.num_cached_tokens = 0
        seq.block_table.clear()
        self.emit(TableCleared, seq_id=seq.seq_id, block_table_before=block_table_before,
                  num_cached_tokens_before=num_cached_tokens_before)

    def _deallocate_block(self, block_id: int) -> None:
        queue_prev = self.free_block_ids.tail
        self.used_block_ids.remove(block_id)
        self.free_block_ids.append(block_id)
        self.emit(BlockReturned, block_id=block_id, queue_prev=queue_prev)

    def reset_prefix_cache(self) -> None:
        """Forget everything that is cached. Raises LedgerError while blocks are in use."""
        if self.used_block_ids:
            raise LedgerError(f"{len(self.used_block_ids)} blocks are in use ({sorted(self.used_block_ids)[:8]} …): "
                              "the prefix cache can be reset only when no request holds a block")
        for block in self.blocks:
            if block.hash != -1:
                self._evict(block)
                hash_before, token_ids_before = block.hash, tuple(block.token_ids)
                block.forget()
                self.emit(BlockForgotten, block_id=block.block_id, hash_before=hash_before,
                          token_ids_before=token_ids_before)
