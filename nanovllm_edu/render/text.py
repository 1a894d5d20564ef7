"""A state as plain text, for terminals, logs and wherever no picture can be shown."""
from __future__ import annotations

from typing import Any

from .facts import block_fill, block_state, counts, holders, phase, seq_ids
from .names import block_name, seq_name, short_hash
from .parts import text

MARK = {"used": "█", "cached": "▒", "free": "·"}
MAX_BLOCKS = 512
MAX_QUEUE = 32


def picture(state: dict[str, Any], sentence: str = "", title: str = "") -> str:
    """The pool, the tables and the free queue, line by line. ``sentence`` is what just happened."""
    number = counts(state)
    free = number["cached"] + number["free"]
    lines = [
        f"{title or text('picture.title')} · {text('picture.step', n=state['step'])} · "
        + text("picture.counts", running=len(state["running"]), waiting=len(state["waiting"]), free=free,
               blocks=state["num_blocks"])
        + " · " + text("picture.size", blocks=state["num_blocks"], size=state["block_size"])]
    if sentence:
        lines.append(_printable(sentence))
    legend = "  ".join(f"{MARK[name]} {text(f'state.{name}')}" for name in MARK)
    return "\n".join([*lines, "", f"{text('pool')}   {legend}", *_pool(state), "",
                      f"{text('tables')} ({text('tables.hint')})", *_tables(state), "",
                      f"{text('queue')}: {_queue(state)}"])


def _pool(state: dict[str, Any]) -> list[str]:
    shown = min(state["num_blocks"], MAX_BLOCKS)
    if shown <= 32:
        held = holders(state)
        return [_block_line(state, block_id, held) for block_id in range(shown)]
    marks = "".join(MARK[block_state(state, block_id)] for block_id in range(shown))
    lines = [f"{block_name(start):>6} {marks[start:start + 64]}" for start in range(0, shown, 64)]
    if shown < state["num_blocks"]:
        rest = range(shown, state["num_blocks"])
        lines.append("       " + text("pool.more", n=len(rest),
                                      used=sum(block_state(state, block_id) == "used" for block_id in rest)))
    return lines


def _block_line(state: dict[str, Any], block_id: int, held: dict[int, list[int]]) -> str:
    block, kind = state["blocks"][block_id], block_state(state, block_id)
    _, written = block_fill(state, block_id, held)
    return (f"{block_name(block_id):>6} {MARK[kind]} ×{block['ref_count']}  {written:>3}/{state['block_size']}  "
            f"{short_hash(block['hash']) if block['hash'] else '':<6} "
            f"{', '.join(map(seq_name, held.get(block_id, ())))}").rstrip()


def _tables(state: dict[str, Any]) -> list[str]:
    lines = []
    for seq_id in seq_ids(state):
        seq = state["seqs"][str(seq_id)]
        cells = "  ".join(f"{i}→{block_name(block)}" for i, block in enumerate(seq["block_table"]))
        row = text("seq.row", seq=seq_name(seq_id), phase=text(f"phase.{phase(seq)}"), n=len(seq["token_ids"]))
        lines.append(f"  {row}: {cells}".rstrip(": "))
    return lines or [f"  {text('tables.none')}"]


def _queue(state: dict[str, Any]) -> str:
    queue = state["queue"]
    if not queue:
        return text("queue.none")
    shown = " ".join(block_name(block_id) for block_id in queue[:MAX_QUEUE])
    more = f" … {text('queue.more', n=len(queue) - MAX_QUEUE)}" if len(queue) > MAX_QUEUE else ""
    return f"{text('queue.head')} {shown}{more} {text('queue.tail')}"


def _printable(value: str) -> str:
    """Control characters (a terminal would obey them) are shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
