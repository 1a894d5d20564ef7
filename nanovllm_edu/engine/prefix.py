"""Whole prefixes by content, one object for each, so that equality is identity and no hash collision can matter.

A hash hit alone proves nothing: xxh64 can collide, and comparing only a block's own tokens does not help when the
blocks before it differ. Interning makes the whole comparison one ``is``.
"""
from __future__ import annotations

from weakref import WeakKeyDictionary, WeakValueDictionary

import xxhash

from .sequence import Sequence


class Prefix:
    """All tokens from the start of a sequence to the end of one full block: that block's tokens after ``parent``."""

    __slots__ = ("parent", "token_ids", "hash", "__weakref__")

    def __init__(self, parent: Prefix | None, token_ids: tuple, hash: int) -> None:
        self.parent, self.token_ids, self.hash = parent, token_ids, hash

    @property
    def parent_hash(self) -> int:
        return -1 if self.parent is None else self.parent.hash


class PrefixChains:
    """The chain of prefixes of each sequence; each link is hashed once in the sequence's life.

    ``hasher`` is the class whose ``compute_hash(token_ids, previous_hash)`` makes the links. A prefix lives as long as
    a block, a sequence or a longer prefix refers to it.
    """

    def __init__(self, hasher: type) -> None:
        self._hasher = hasher
        self._interned: WeakValueDictionary[tuple, Prefix] = WeakValueDictionary()
        self._chains: WeakKeyDictionary[Sequence, list[Prefix]] = WeakKeyDictionary()

    def of(self, seq: Sequence, i: int) -> Prefix:
        """The prefix that ends with logical block ``i``, which must be full."""
        chain = self._chains.get(seq)
        if chain is None:
            chain = self._chains[seq] = []
        while len(chain) <= i:
            parent = chain[-1] if chain else self._root(seq.cache_salt)
            chain.append(self._intern(parent, tuple(seq.block(len(chain)))))
        return chain[i]

    def _intern(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> Prefix:
        prefix = self._interned.get((parent, token_ids))
        if prefix is None:
            hash = self._hasher.compute_hash(token_ids, -1 if parent is None else parent.hash)
            prefix = self._interned[parent, token_ids] = Prefix(parent, token_ids, hash)
        return prefix

    def _root(self, cache_salt: str | None) -> Prefix | None:
        """What stands before the first block: nothing, or a tenant's salt, so that tenants never share a block."""
        if cache_salt is None:
            return None
        root = self._interned.get((None, cache_salt))
        if root is None:
            hash = xxhash.xxh64_intdigest(cache_salt.encode())
            root = self._interned[None, cache_salt] = Prefix(None, (cache_salt,), hash)
        return root
