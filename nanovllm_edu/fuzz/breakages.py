"""One-line mistakes in the ledger, each with what it does and the check that catches it.

Each is a line of the real source and the line to put in its place; ``broken`` builds the class with that one line
changed. The fuzz must find every one of them within 500 runs, which shows that its checks have teeth.
"""
from __future__ import annotations

import inspect
import linecache
from dataclasses import dataclass
from types import ModuleType

from ..engine import block_manager, scheduler
from .runner import Failure, fuzz


@dataclass(frozen=True)
class Breakage:
    """``line`` (which stands once in the module, without its indentation) becomes ``instead``.

    ``caught_by`` is the check that the fuzz meets first: "law" (check_invariants), "shadow" (a wrong read), "books"
    (possible, but not right) or "guard" (an operation refuses, or a limit is broken).
    """

    name: str
    module: ModuleType
    line: str
    instead: str
    story: str
    caught_by: str

    def source(self) -> str:
        """The module's source with the one line changed. Raises ValueError if the line does not stand there once."""
        lines = inspect.getsource(self.module).splitlines()
        places = [i for i, text in enumerate(lines) if text.strip() == self.line]
        if len(places) != 1:
            raise ValueError(f"breakage {self.name!r}: its line stands {len(places)} times in {self.module.__name__}: "
                             f"{self.line}")
        indent = lines[places[0]][:len(lines[places[0]]) - len(lines[places[0]].lstrip())]
        lines[places[0]] = indent + self.instead
        return "\n".join(lines) + "\n"

    def broken(self) -> type:
        """The BlockManager or Scheduler class of the module with the line changed."""
        source, filename = self.source(), f"<{self.name} in {self.module.__name__.rpartition('.')[2]}.py>"
        module = ModuleType(self.module.__name__)
        module.__package__ = self.module.__package__
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        exec(compile(source, filename, "exec"), module.__dict__)
        return module.BlockManager if self.module is block_manager else module.Scheduler

    def find(self, runs: int = 500, first_seed: int = 0) -> tuple[Failure | None, int]:
        """Let the fuzz look for it. Returns the shrunk failure (None if it was not found) and the runs it took."""
        cls = self.broken()
        which = {"manager": cls} if self.module is block_manager else {"scheduler_class": cls}
        failure, _, made = fuzz(runs, first_seed, **which)
        return failure, made


def kind_of(error: Exception) -> str:
    """Which kind of check an error comes from, in the words of ``Breakage.caught_by``."""
    from ..errors import LedgerError
    from .books import BooksError
    from .runner import Livelock
    from .shadow import ShadowError

    if isinstance(error, LedgerError):
        return "law" if str(error).startswith("the ledger breaks its law") else "guard"
    for kind, name in ((ShadowError, "shadow"), (BooksError, "books"), (Livelock, "livelock")):
        if isinstance(error, kind):
            return name
    return "crash"


_bm, _sch = block_manager, scheduler

BREAKAGES: tuple[Breakage, ...] = (
    Breakage("keep-the-map-entry", _bm, "del self.hash_to_block_id[block.hash]", "pass",
             "A block is overwritten and the map still leads to it.", "law"),
    Breakage("evict-for-another", _bm, "if self.hash_to_block_id.get(block.hash) != block.block_id:",
             "if block.hash not in self.hash_to_block_id:",
             "Overwriting one of two duplicates drops the entry that belongs to the other.", "books"),
    Breakage("forget-the-reverse", _bm, "for i, block_id in reversed(list(enumerate(seq.block_table))):",
             "for i, block_id in list(enumerate(seq.block_table)):",
             "The head of a prompt enters the free queue first and is overwritten first.", "books"),
    Breakage("free-while-shared", _bm, "if block.ref_count == 0:", "if True:",
             "A block goes back to the free queue although another table holds it.", "law"),
    Breakage("look-the-last-block-up", _bm, "for i in range(seq.num_blocks - 1):", "for i in range(seq.num_blocks):",
             "Every token may hit, and none is left to get logits from.", "guard"),
    Breakage("drop-the-parent", _bm,
             'link = xxhash.xxh64() if prefix == -1 else xxhash.xxh64(prefix.to_bytes(8, "little"))',
             "link = xxhash.xxh64()", "A hash stands for one block's tokens, whatever came before them.", "books"),
    Breakage("trust-the-hash", _bm, "if self.blocks[block_id].prefix is prefix:", "if True:",
             "A collision hands out the keys and values of another prompt.", "law"),
    Breakage("compare-own-tokens-only", _bm, "if self.blocks[block_id].prefix is prefix:",
             "if self.blocks[block_id].token_ids == list(prefix.token_ids):",
             "The block's own tokens are equal and those before it are not.", "shadow"),
    Breakage("share-without-counting", _bm, "block.ref_count += 1", "pass",
             "Two tables hold a block and its ref_count says one.", "law"),
    Breakage("revive-in-place", _bm, "self.free_block_ids.remove(block.block_id)", "pass",
             "A hit block is in a table and in the free queue, so it will be given away.", "law"),
    Breakage("free-hits-cost-nothing", _bm, "if block.block_id in self.used_block_ids:", "if True:",
             "A hit in the free queue is counted as if it cost no free block.", "guard"),
    Breakage("one-block-late", _bm, "if len(seq) % self.block_size == 1:", "if len(seq) % self.block_size == 0:",
             "The token that opens a block finds no block.", "shadow"),
    Breakage("never-ask-for-room", _bm, "return len(self.free_block_ids) >= (len(seq) % self.block_size == 1)",
             "return True", "A decode takes a block from an empty queue.", "guard"),
    Breakage("register-too-early", _bm, "end = (seq.num_cached_tokens + seq.num_scheduled_tokens) // self.block_size",
             "end = -(-(seq.num_cached_tokens + seq.num_scheduled_tokens) // self.block_size)",
             "A block that still fills is registered.", "law"),
    Breakage("keep-the-old-hash", _bm, "self.forget()", "pass",
             "A block goes to a new owner with the hash of what was in it.", "law"),
    Breakage("keep-the-table", _bm, "seq.block_table.clear()", "pass",
             "A request that gave up its blocks still has them in its table.", "law"),
    Breakage("keep-the-count", _bm, "seq.num_cached_tokens = 0", "pass",
             "A request without blocks believes that its tokens are computed.", "law"),
    Breakage("skip-one-token", _bm, "seq.num_cached_tokens = num_cached_blocks * self.block_size",
             "seq.num_cached_tokens = num_cached_blocks * self.block_size + 1",
             "One token after the hit blocks is never computed.", "shadow"),
    Breakage("forget-who-is-used", _bm, "self.used_block_ids.remove(block_id)", "pass",
             "A block is free and used at once.", "law"),
    Breakage("sample-from-a-chunk", _sch, "if seq.num_cached_tokens < seq.num_tokens:", "if False:",
             "A token is sampled before the prompt is complete.", "shadow"),
    Breakage("preempt-and-keep", _sch, "self.waiting.appendleft(seq)", "self.waiting.append(seq)",
             "A preempted request loses its place in the line.", "books"),
    Breakage("everybody-runs", _sch, "while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:",
             "while self.waiting and budget > 0:", "More requests run than max_num_seqs allows.", "guard"),
    Breakage("outgrow-the-pool", _sch,
             "if seq.num_blocks > self.num_blocks:  # it can never go on: it would need more blocks than there are",
             "if False:", "A request that needs more blocks than there are waits for ever.", "guard"),
)
