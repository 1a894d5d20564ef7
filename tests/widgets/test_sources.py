"""The code panel's sources: the text of the very lines that the events name, or none."""
from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from nanovllm_edu import Trace, replay, watch
from nanovllm_edu.engine import BlockManager
from nanovllm_edu.widgets.sources import Sources
from tests.ledger import golden
from tests.session.fake import FakeLLM


def row(file: str, function: str, line: int) -> dict:
    return {"e": {"at": [file, function, line]}}


def test_every_event_of_a_live_run_has_its_line() -> None:
    llm = FakeLLM()
    room = watch(llm)
    try:
        room._handle_custom_msg({"action": "submit", "prompt": "abcdefghijkl", "raw": True, "max_tokens": 4}, [])
        for _ in range(4):
            room.session.step()
        room.session.settle()
        engine = Path(__file__).parents[2] / "nanovllm_edu" / "engine"
        assert len(room.trace.events) > 20
        for event in room.trace.events:
            file, function, line = event.at.file, event.at.function, event.at.line
            source = room.sources[f"{file}:{function}"]
            shown = source["lines"][line - source["first_line"]]
            assert shown == (engine / file).read_text("utf-8").splitlines()[line - 1] and shown.strip()
            assert "emit(" in source["lines"][line + 1 - source["first_line"]]
        assert "def schedule(" in room.sources["scheduler.py:Scheduler.schedule"]["lines"][0]
        # A second view of the same run, and a replay of it, know them from the start.
        assert replay(room.trace).sources == room.sources
    finally:
        room.close()
        llm.close()


def test_a_saved_run_finds_this_versions_source(tmp_path: Path) -> None:
    from nanovllm_edu.trace.recorder import start

    trace = None
    for scheduler, *_ in golden.replay(golden.load()[0]):
        trace = trace or start(scheduler)
    loaded = replay(Trace.load(trace.save(tmp_path / "run.json")))
    assert "scheduler.py:Scheduler.postprocess" in loaded.sources


@pytest.mark.parametrize("at", [
    ("block_manager.py", "BlockManager.allocate", 1), ("block_manager.py", "BlockManager.nothing", 100),
    ("nowhere.py", "f", 1), ("../errors.py", "f", 1), ("/etc/passwd", "f", 1), ("os.py", "getenv", 800),
])
def test_a_line_that_is_not_here_has_no_source(at) -> None:
    sources = Sources()
    assert sources.learn([row(*at), {"e": {"at": None}}]) is False
    assert sources.known == {}


def test_one_line_that_does_not_fit_takes_the_whole_function_away() -> None:
    sources, scheduler = Sources(), golden.replay(golden.load()[0])
    next(scheduler)
    text = linecache.getlines(str(Path(__file__).parents[2] / "nanovllm_edu" / "engine" / "scheduler.py"))
    fits = next(i for i, line in enumerate(text, 1) if "self.emit(StepBegan" in line) - 1
    assert sources.learn([row("scheduler.py", "Scheduler.schedule", fits)]) is True
    known = sources.known
    assert sources.learn([row("scheduler.py", "Scheduler.schedule", fits)]) is False
    assert sources.learn([row("scheduler.py", "Scheduler.schedule", fits + 1)]) is True
    assert sources.known == {} and list(known) == ["scheduler.py:Scheduler.schedule"], "the old dict stays as it was"


CELL = """class Mine(BlockManager):
    def allocate(self, seq, *args):
        '''Mine.'''
        return super().allocate(seq, *args)
"""


def test_a_learners_own_cell_is_found() -> None:
    name = "/somewhere/ipykernel_77/1234.py"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    try:
        space = {"BlockManager": BlockManager}
        exec(compile(CELL, name, "exec"), space)
        for sources in Sources(space["Mine"]), Sources():
            assert sources.learn([row("1234.py", "Mine.allocate", 4)])
            assert sources.known["1234.py:Mine.allocate"] == {"first_line": 2, "lines": CELL.splitlines()[1:]}
    finally:
        del linecache.cache[name]
