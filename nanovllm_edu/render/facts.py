"""What a picture shows of a state document, worked out once for all pictures.

Every question that a view must answer the same way (is this block used, how full is it, who holds it) is answered
here, from the state alone.
"""
from __future__ import annotations

from typing import Any

State = dict[str, Any]


def block_state(state: State, block_id: int) -> str:
    """"used" (in a table), "cached" (free, but the map leads to it) or "free"."""
    block = state["blocks"][block_id]
    if block["ref_count"] > 0:
        return "used"
    return "cached" if block["hash"] and state["map"].get(block["hash"]) == block_id else "free"


def counts(state: State) -> dict[str, int]:
    """How many blocks are in each of the three states."""
    out = {"used": 0, "cached": 0, "free": 0}
    for block_id in range(len(state["blocks"])):
        out[block_state(state, block_id)] += 1
    return out


def holders(state: State) -> dict[int, list[int]]:
    """By block id the requests whose tables hold it, in order of seq_id."""
    out: dict[int, list[int]] = {}
    for seq_id in seq_ids(state):
        for block_id in state["seqs"][str(seq_id)]["block_table"]:
            out.setdefault(block_id, []).append(seq_id)
    return out


def seq_ids(state: State) -> list[int]:
    return sorted(map(int, state["seqs"]))


def cell_tokens(state: State, seq: State, logical: int) -> list[int]:
    """Tokens of one logical block of a request."""
    size = state["block_size"]
    return seq["token_ids"][logical * size:(logical + 1) * size]


def cell_written(state: State, seq: State, logical: int) -> int:
    """How many tokens of a logical block have their keys and values in the pool."""
    size = state["block_size"]
    return max(0, min(seq["num_cached_tokens"], (logical + 1) * size) - logical * size)


def block_fill(state: State, block_id: int, holder: dict[int, list[int]]) -> tuple[list[int], int]:
    """The tokens that are (or will be) in a block and how many of them are written."""
    block = state["blocks"][block_id]
    if block["hash"]:
        return block["token_ids"], len(block["token_ids"])
    best: tuple[list[int], int] = ([], 0)
    for seq_id in holder.get(block_id, ()):
        seq = state["seqs"][str(seq_id)]
        logical = seq["block_table"].index(block_id)
        best = max(best, (cell_tokens(state, seq, logical), cell_written(state, seq, logical)), key=lambda x: x[1])
    return best


def phase(seq: State) -> str:
    """"waiting", "prefill", "decode" or "finished": a request that holds blocks and waits is between two chunks."""
    if seq["status"] == "FINISHED":
        return "finished"
    if seq["status"] == "WAITING":
        return "prefill" if seq["block_table"] else "waiting"
    return "prefill" if seq["is_prefill"] else "decode"
