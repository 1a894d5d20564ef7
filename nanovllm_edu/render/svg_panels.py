"""The panels of the still picture. Each draws into its canvas and says how high it became."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from .facts import block_fill, block_state, cell_tokens, cell_written, holders, phase, seq_ids
from .names import block_name, seq_name, short_hash
from .parts import text
from .shapes import box, label, node, titled
from .theme import DASHES, LINE, MUTED, PAPER, SHADE, hash_colours, request_colour

MAX_CARDS, MAX_TILES, MAX_QUEUE, MAX_CELLS, MAX_ROWS = 96, 1024, 60, 64, 64


@dataclass
class Canvas:
    """Where a panel draws: from (0, ``top``) of ``group``, ``width`` pixels wide."""

    group: ET.Element
    state: dict[str, Any]
    vocab: Mapping[int, str]
    width: int
    top: float

    def words(self, token_ids: list[int]) -> str:
        """The tokens as text, or their ids where no text is known."""
        if not any(token in self.vocab for token in token_ids):
            return " ".join(map(str, token_ids))
        return "".join(self.vocab.get(token, f"⟨{token}⟩") for token in token_ids)


def pool(canvas: Canvas) -> float:
    """The blocks in order of id: cards, or small tiles where there are many."""
    state, held = canvas.state, holders(canvas.state)
    total = len(state["blocks"])
    cards = total <= MAX_CARDS
    size, gap = ((68, 60), 9) if cards else ((20, 16), 4)
    per_row = int((canvas.width + gap) // (size[0] + gap))
    shown = min(total, MAX_TILES)
    for block_id in range(shown):
        x = block_id % per_row * (size[0] + gap)
        y = canvas.top + block_id // per_row * (size[1] + gap)
        block, kind = state["blocks"][block_id], block_state(state, block_id)
        owners = held.get(block_id, [])
        group = node(canvas.group, "g", transform=f"translate({x:g} {y:g})", data_block_id=block_id,
                     data_ref_count=block["ref_count"], data_state=kind, data_hash=block["hash"])
        titled(group, _block_title(canvas, block_id, kind, owners, held))
        colour = request_colour(owners[0]) if owners else MUTED
        box(group, 0, 0, *size, fill=PAPER if cards or kind == "free" else SHADE if kind == "cached" else colour,
            stroke=colour if owners else LINE, dash=DASHES[kind], line=1.5, radius=6 if cards else 3)
        if cards:
            _card(canvas, group, block_id, owners, held)
    rows = -(-shown // per_row)
    height = rows * (size[1] + gap)
    if shown < total:
        used = sum(block_state(state, block_id) == "used" for block_id in range(shown, total))
        label(canvas.group, 0, canvas.top + height + 12, text("pool.more", n=total - shown, used=used), fill=MUTED)
        height += 20
    return height


def _card(canvas: Canvas, group: ET.Element, block_id: int, owners: list[int], held: dict[int, list[int]]) -> None:
    block, size = canvas.state["blocks"][block_id], canvas.state["block_size"]
    label(group, 9, 16, block_name(block_id), size=12, weight=600, mono=True)
    label(group, 63, 16, f"×{block['ref_count']}", size=11, mono=True, fill=MUTED, anchor="end")
    for i, seq_id in enumerate(owners[:4]):  # one stripe, a part of it for each owner
        part = 60 / min(len(owners), 4)
        box(group, 0, i * part, 4, part, fill=request_colour(seq_id), radius=0)
    tokens, written = block_fill(canvas.state, block_id, held)
    colour = request_colour(owners[0]) if owners else MUTED
    cells = size if size <= 16 else 1
    width = 52 / cells
    for i in range(cells):
        box(group, 9 + i * width, 24, max(1.5, width - 1.5), 10, fill="none", stroke=LINE, radius=1.5)
        share = (written - i if cells > 1 else written / size)
        if share > 0:
            box(group, 9 + i * width, 24, max(1.5, width - 1.5) * min(1, share), 10, fill=colour, radius=1.5)
    for i, fill in enumerate(hash_colours(block["hash"])):
        box(group, 9 + i % 3 * 5, 43 + i // 3 * 5, 4, 4, fill=fill, radius=0.5)
    below = short_hash(block["hash"]) if block["hash"] else f"{written}/{size}" if owners else ""
    label(group, 27 if block["hash"] else 9, 52, below, size=10.5, mono=True, fill=MUTED)


def _block_title(canvas: Canvas, block_id: int, kind: str, owners: list[int], held: dict[int, list[int]]) -> str:
    block, size = canvas.state["blocks"][block_id], canvas.state["block_size"]
    tokens, written = block_fill(canvas.state, block_id, held)
    facts = [text(f"block.{kind}", block=block_name(block_id), refs=block["ref_count"], fill=written, size=size)]
    if block["hash"]:
        facts.append(text("block.hash", hash=block["hash"]))
    if owners:
        facts.append(text("block.holders", seqs=", ".join(map(seq_name, owners))))
    if tokens:
        facts.append(repr(canvas.words(tokens)))
    return " · ".join(facts)


def tables(canvas: Canvas) -> float:
    """One row per request: logical block over physical block. A finished request keeps its row, without cells."""
    ids = seq_ids(canvas.state)[-MAX_ROWS:]
    y = canvas.top
    for seq_id in ids:
        seq = canvas.state["seqs"][str(seq_id)]
        row = node(canvas.group, "g", data_seq_id=seq_id, opacity=0.55 if seq["status"] == "FINISHED" else 1,
                   transform=f"translate(0 {y:g})")
        name = text("seq.row", seq=seq_name(seq_id), phase=text(f"phase.{phase(seq)}"), n=len(seq["token_ids"]))
        box(row, 0, 0, 4, 32, fill=request_colour(seq_id), radius=1)
        label(row, 12, 21, name, weight=600)
        per_line = int((canvas.width - 200) // 56)
        for i, block_id in enumerate(seq["block_table"][:MAX_CELLS]):
            x, line = 200 + i % per_line * 56, i // per_line * 36
            _cell(canvas, row, seq_id, i, block_id, x, line)
        y += 38 + max(0, (min(len(seq["block_table"]), MAX_CELLS) - 1) // per_line) * 36
    if not ids:
        label(canvas.group, 0, y + 14, text("tables.none"), fill=MUTED)
        y += 22
    return y - canvas.top


def _cell(canvas: Canvas, row: ET.Element, seq_id: int, logical: int, block_id: int, x: float, y: float) -> None:
    seq = canvas.state["seqs"][str(seq_id)]
    written = cell_written(canvas.state, seq, logical)
    cell = node(row, "g", data_logical=logical, data_physical=block_id, transform=f"translate({x:g} {y:g})")
    titled(cell, f"{seq_name(seq_id)} {logical} → {block_name(block_id)}: "
                 f"{canvas.words(cell_tokens(canvas.state, seq, logical))!r}")
    box(cell, 0, 0, 53, 32, fill=PAPER, stroke=request_colour(seq_id))
    label(cell, 6, 12, f"L{logical}", size=9.5, mono=True, fill=MUTED)
    if written < canvas.state["block_size"]:
        label(cell, 49, 12, text("cell.cached", fill=written, size=canvas.state["block_size"]), size=9.5, mono=True,
              fill=MUTED, anchor="end")
    label(cell, 6, 26, block_name(block_id), size=12, weight=600, mono=True)


def queue(canvas: Canvas) -> float:
    """The free queue from head to tail."""
    ids = canvas.state["queue"]
    if not ids:
        label(canvas.group, 0, canvas.top + 14, text("queue.none"), fill=MUTED)
        return 22
    label(canvas.group, 0, canvas.top + 20, text("queue.head"), fill=MUTED, size=11)
    per_row = int((canvas.width - 80) // 44)
    for i, block_id in enumerate(ids[:MAX_QUEUE]):
        kind, hash = block_state(canvas.state, block_id), canvas.state["blocks"][block_id]["hash"]
        item = node(canvas.group, "g", data_queue_id=block_id,
                    transform=f"translate({36 + i % per_row * 44:g} {canvas.top + i // per_row * 40:g})")
        titled(item, text(f"block.{kind}", block=block_name(block_id), refs=0, fill=0,
                          size=canvas.state["block_size"]))
        box(item, 0, 0, 40, 34, fill=PAPER, stroke=MUTED if kind == "cached" else LINE, dash=DASHES[kind], radius=6)
        label(item, 20, 15, block_name(block_id), size=11.5, weight=600, mono=True, anchor="middle")
        label(item, 20, 28, short_hash(hash) if hash else "–", size=10, mono=True, fill=MUTED, anchor="middle")
    shown = min(len(ids), MAX_QUEUE)
    last = (shown - 1) // per_row
    end = text("queue.tail") if shown == len(ids) else f"… {text('queue.more', n=len(ids) - shown)}"
    label(canvas.group, 36 + ((shown - 1) % per_row + 1) * 44, canvas.top + last * 40 + 20, end, fill=MUTED, size=11)
    return (last + 1) * 40


def hashes(canvas: Canvas) -> float:
    """Each request's chain of registered blocks, link by link, up to the block that has no hash yet."""
    rows = [seq_id for seq_id in seq_ids(canvas.state) if canvas.state["seqs"][str(seq_id)]["block_table"]][-MAX_ROWS:]
    y = canvas.top
    for seq_id in rows:
        seq = canvas.state["seqs"][str(seq_id)]
        row = node(canvas.group, "g", transform=f"translate(0 {y:g})")
        label(row, 0, 18, f"{seq_name(seq_id)}  −1", size=11, mono=True, fill=MUTED)
        for i, block_id in enumerate(seq["block_table"][:7]):
            x, hash = 56 + i * 126, canvas.state["blocks"][block_id]["hash"]
            label(row, x - 13, 18, "→", size=11, fill=MUTED)
            tokens = cell_tokens(canvas.state, seq, i)
            link = node(row, "g", transform=f"translate({x} 0)", data_link=hash)
            titled(link, repr(canvas.words(tokens)))
            box(link, 0, 0, 108, 34, fill=PAPER, stroke=request_colour(seq_id), dash="" if hash else "1.5 3")
            words = canvas.words(tokens)
            label(link, 6, 14, words if len(words) <= 16 else words[:15] + "…", size=10.5)
            below = f"{short_hash(hash)} {block_name(block_id)}" if hash else text(
                "chain.open", fill=cell_written(canvas.state, seq, i), size=canvas.state["block_size"])
            label(link, 6, 28, below, size=10, mono=True, fill=MUTED)
        if len(seq["block_table"]) > 7:
            label(row, 56 + 7 * 126 - 10, 18, "…", fill=MUTED)
        y += 42
    if not rows:
        label(canvas.group, 0, y + 14, text("hashes.none"), fill=MUTED)
        y += 22
    return y - canvas.top
