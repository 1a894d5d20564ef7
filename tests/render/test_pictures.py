"""The still picture and the picture in text: whole, true to the state, and safe."""
from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from nanovllm_edu.engine import Scheduler
from nanovllm_edu.render import picture, sentence, svg
from nanovllm_edu.render.facts import block_state, counts
from nanovllm_edu.trace import snapshot
from nanovllm_edu.trace.recorder import start
from tests.ledger import golden

EVIL = "<img src=x onerror=alert(1)> & ]]> \x00\x1b[31m \ud800"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def trace():
    busy = next(t for t in golden.load() if sum(bool(step["preempted"]) for step in t["steps"]) > 2)
    recorded = None
    for scheduler, *_ in golden.replay(busy):
        recorded = recorded or start(scheduler)
    return recorded


def by_panel(root: ET.Element, name: str, attribute: str) -> list[ET.Element]:
    panel = next(g for g in root.iter(f"{SVG}g") if g.get("data-panel") == name)
    return [element for element in panel.iter() if element.get(attribute) is not None]


def test_every_frame_is_drawn_as_it_is(trace) -> None:
    for frame in trace.frames[::7]:
        state = frame.state
        root = ET.fromstring(svg(state, sentence(frame.event), frame=frame.index))
        blocks = by_panel(root, "pool", "data-block-id")
        assert [(int(b.get("data-block-id")), int(b.get("data-ref-count")), b.get("data-hash"), b.get("data-state"))
                for b in blocks] == [(i, block["ref_count"], block["hash"], block_state(state, i))
                                     for i, block in enumerate(state["blocks"])]
        assert [int(item.get("data-queue-id")) for item in by_panel(root, "queue", "data-queue-id")] == state["queue"]
        rows = {row.get("data-seq-id"): [(int(cell.get("data-logical")), int(cell.get("data-physical")))
                                         for cell in row.iter() if cell.get("data-physical")]
                for row in by_panel(root, "tables", "data-seq-id")}
        assert rows == {seq_id: list(enumerate(seq["block_table"])) for seq_id, seq in state["seqs"].items()}
        assert root.get("data-frame") == str(frame.index)


def test_it_tells_itself_to_a_screen_reader(trace) -> None:
    frame = trace.frames[len(trace.events) // 2]
    root = ET.fromstring(svg(frame.state, title="Control room"))
    assert root.get("role") == "img"
    assert root[0].tag == f"{SVG}title" and root[0].text.startswith("Control room · step")
    number = counts(frame.state)
    assert root[1].tag == f"{SVG}desc"
    assert f"{number['used']} of {frame.state['num_blocks']} blocks in use" in root[1].text
    for block in by_panel(root, "pool", "data-block-id"):
        assert block[0].tag == f"{SVG}title"
        assert block[0].text.startswith(f"Block #{block.get('data-block-id')}: ")
    used = [b[0].text for b in by_panel(root, "pool", "data-block-id") if b.get("data-state") == "used"]
    assert used and all("held by " in title for title in used)


def test_untrusted_text_stays_text(trace) -> None:
    frame = trace.frames[len(trace.events) // 2]
    drawing = svg(frame.state, [EVIL, {"code": EVIL}], title=EVIL, subtitle=EVIL, note=EVIL,
                  vocab=dict.fromkeys(range(5), EVIL))
    root = ET.fromstring(drawing)  # raises if it is not well-formed
    allowed = {"svg", "g", "rect", "text", "tspan", "title", "desc"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == allowed
    assert "<img" not in drawing and "&lt;img" in drawing
    assert not any(name.startswith("on") or name.endswith("href") for element in root.iter() for name in element.attrib)
    assert "\x1b" not in picture(frame.state, EVIL, "title")


def test_panels_in_any_order_and_only_those(trace) -> None:
    root = ET.fromstring(svg(trace.initial, panels=["queue", "chat", "pool"]))
    assert [g.get("data-panel") for g in root.iter(f"{SVG}g") if g.get("data-panel")] == ["queue", "pool"]


def test_large_pools_stay_small_on_the_page() -> None:
    state = snapshot(Scheduler(golden.config(num_kvcache_blocks=20_000)))
    drawing = svg(state)
    assert len(ET.fromstring(drawing).findall(f".//{SVG}g[@data-block-id]")) == 1024
    assert "18976 blocks more, 0 of them in use" in drawing
    assert len(drawing) < 600_000
    assert len(picture(state)) < 4_000


def test_the_picture_in_text(trace) -> None:
    frame = trace.frames[len(trace.events) // 2]
    lines = picture(frame.state, "What happened.").splitlines()
    assert lines[0].startswith(f"Control room · step {frame.state['step']} · ")
    assert lines[1] == "What happened."
    marks = {"used": "█", "cached": "▒", "free": "·"}
    pool = [line.split() for line in lines if line.strip().startswith("#")]
    assert [(row[0], row[1], row[2]) for row in pool] == [
        (f"#{i}", marks[block_state(frame.state, i)], f"×{block['ref_count']}")
        for i, block in enumerate(frame.state["blocks"])]
    queue = next(line for line in lines if line.startswith("Free queue: "))
    for block_id in frame.state["queue"]:
        assert f"#{block_id}" in queue
