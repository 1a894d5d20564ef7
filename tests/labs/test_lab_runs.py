"""Every lab in a real kernel: untouched from top to bottom, then again in the same kernel with its solutions.

Lab 00's run is held to its promises by its events: what its text says happens, happens, on the packaged model.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from nanovllm_edu import Trace
from nanovllm_edu.engine import events as ev
from nanovllm_edu.exercises import CATALOGUE, data

ROOT = Path(__file__).resolve().parents[2]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))
MEMORY_LIMIT = 1.5 * 2**30
TRACES = ["first_steps", "sharing", "squeeze", "finishing", "fourth"]
pytestmark = pytest.mark.slow

AFTER = r"""
import json, pathlib, re, resource, sys, threading
status = pathlib.Path("/proc/self/status")
if status.exists():  # not ru_maxrss: Linux starts it at the peak of the process that started this one, the tests'
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
json.dump({
    "peak": peak,
    "sessions": [t.name for t in threading.enumerate() if t.name == "nanovllm-edu session"],
    "turns": [[list(t.prompt_token_ids), list(t.token_ids), t.num_cached_tokens, t.text] for t in (turn_1, turn_2)],
    "room": [type(e).__name__ for e in room.trace.events],
}, open(FOLDER + "/facts.json", "w"))
for name in TRACES:
    globals()[name].save(f"{FOLDER}/{name}.json")
"""


class Kernel:
    """One kernel in a folder of its own, as a learner's copy would run; ``run`` executes whole notebooks in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = NotebookClient(
            nbformat.v4.new_notebook(), km=AsyncKernelManager(kernel_name="python3"), timeout=240,
            resources={"metadata": {"path": str(folder)}}, force_raise_errors=True)

    def run(self, cells: list[Any]) -> list[Any]:
        """Execute the code cells in order; raises when one of them does. Returns the cells with their outputs."""
        self.client.nb = nbformat.v4.new_notebook(cells=cells)
        for index, cell in enumerate(self.client.nb.cells):
            self.client.execute_cell(cell, index)
        return self.client.nb.cells

    def code(self, source: str) -> str:
        """Execute one more cell; the text it printed."""
        [cell] = self.run([nbformat.v4.new_code_cell(source)])
        return "".join(output.get("text", "") for output in cell.outputs)


def solutions(lab: Path) -> dict[str, Any]:
    path = ROOT / "labs" / "solutions" / f"{lab.stem}.py"
    spec = importlib.util.spec_from_file_location(f"solutions_{lab.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SOLUTIONS


@pytest.fixture(scope="module", params=LABS, ids=[lab.stem for lab in LABS])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, packaged: Path) -> Iterator[Any]:
    """A lab that was run twice in one kernel; see the attributes set below."""
    folder, lab = tmp_path_factory.mktemp("my_labs"), request.param
    kernel = Kernel(folder)
    env = {**os.environ, "NANOVLLM_EDU_PROGRESS": str(folder / "progress.json"),
           "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    with kernel.client.setup_kernel(env=env, cwd=str(folder)):
        kernel.code(f"FOLDER, TRACES = {str(folder)!r}, {TRACES!r}")
        kernel.lab = lab
        kernel.untouched = kernel.run(nbformat.read(lab, as_version=4).cells)
        kernel.code(AFTER)
        kernel.facts = json.loads((folder / "facts.json").read_text())
        kernel.traces = {name: Trace.load(folder / f"{name}.json") for name in TRACES}
        kernel.progress = kernel.code("from nanovllm_edu.exercises import progress; print(progress())")
        kernel.solved = kernel.run(with_solutions(lab))
        kernel.code(AFTER)
        kernel.facts_again = json.loads((folder / "facts.json").read_text())
        kernel.progress_again = kernel.code("print(progress())")
        kernel.stuttered = kernel.run([nbformat.v4.new_code_cell(cell.source) for cell in with_solutions(lab)
                                       if cell.cell_type == "code" for _ in range(2)])
        yield kernel


def with_solutions(lab: Path) -> list[Any]:
    """The lab's cells, and after each exercise one that hands in its solution."""
    path = ROOT / "labs" / "solutions" / f"{lab.stem}.py"
    head = (f"import importlib.util as u\ns = u.spec_from_file_location('s', {str(path)!r})\n"
            "m = u.module_from_spec(s)\ns.loader.exec_module(m)\n")
    cells = []
    for cell in nbformat.read(lab, as_version=4).cells:
        cells.append(cell)
        for name in solutions(lab):
            if cell.cell_type == "code" and cell.source == f'exercise("{name}").widget()':
                cells.append(nbformat.v4.new_code_cell(
                    f'{head}print(exercise("{name}").check(m.SOLUTIONS["{name}"](exercise("{name}").question)))'))
    return cells


def streams(cells: list[Any], name: str) -> list[str]:
    return [output.text for cell in cells if cell.cell_type == "code" for output in cell.outputs
            if output.output_type == "stream" and output.name == name]


def test_untouched_it_runs_and_nothing_counts_as_answered(ran):
    assert streams(ran.untouched, "stderr") == []
    number = ran.lab.stem.split("_")[0]
    mine = [one.id for one in CATALOGUE.values() if one.lab == number]
    for name in mine:
        assert f"{name:<14} new" in ran.progress
    shown = [o for cell in ran.untouched if cell.cell_type == "code" for o in cell.outputs
             if "application/vnd.jupyter.widget-view+json" in o.get("data", {})]
    assert all("text/html" in output.data for output in shown), "a widget without a still twin"
    assert len(shown) >= len(mine) + 2


def test_again_in_the_same_kernel_with_its_solutions_everything_is_right(ran):
    assert streams(ran.solved, "stderr") == []
    for name in solutions(ran.lab):
        assert f"{name:<14} solved" in ran.progress_again


def test_each_cell_may_be_run_twice_in_a_row(ran):
    assert streams(ran.stuttered, "stderr") == []


def test_memory_stays_under_a_gibibyte_and_a_half(ran):
    print(f"{ran.lab.stem}: peak {ran.facts['peak'] / 2**30:.2f} GiB, "
          f"after a second run {ran.facts_again['peak'] / 2**30:.2f} GiB")
    assert ran.facts_again["peak"] < MEMORY_LIMIT


def test_running_it_twice_leaves_one_engine_thread(ran):
    assert len(ran.facts["sessions"]) == len(ran.facts_again["sessions"]) == 1


# --- what lab 00 promises ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab00(ran: Any) -> Any:
    if ran.lab.stem != "00_start":
        pytest.fail("this file knows the promises of lab 00 alone: give each new lab its own")
    return ran


def of(trace: Trace, kind: type, **values: Any) -> list[Any]:
    return [e for e in trace.events if isinstance(e, kind) and all(getattr(e, k) == v for k, v in values.items())]


def test_a_block_is_taken_when_the_newest_token_opens_it(lab00):
    trace = lab00.traces["first_steps"]
    frames = [frame for frame in trace.frames if isinstance(frame.event, ev.BlockTaken)]
    lengths = [len(frame.state["seqs"]["0"]["token_ids"]) for frame in frames]
    assert [frame.event.block_id for frame in frames] == [0, 1, 2, 3]
    assert [frame.step for frame in frames] == [1, 1, 1, 3]
    assert lengths[-1] % 16 == 1


def test_prefix_blocks_are_shared(lab00):
    trace = lab00.traces["sharing"]
    shared = of(trace, ev.BlockShared)
    assert [(e.seq_id, e.block_id, e.ref_count_after) for e in shared] == [(1, 0, 2), (1, 1, 2), (2, 0, 3), (2, 1, 3)]
    assert of(trace, ev.PrefixLookup, seq_id=1, outcome="last_block") and of(trace, ev.PrefixLookup, outcome="miss")
    assert [block["ref_count"] for block in trace.frames[-1].state["blocks"][:3]] == [3, 3, 1]


def test_one_request_is_preempted_and_finds_its_own_blocks_again(lab00):
    [preemption] = of(lab00.traces["squeeze"], ev.RequestPreempted)
    assert (preemption.seq_id, preemption.for_seq_id) == (2, 1)
    finishing = lab00.traces["finishing"]
    assert not of(finishing, ev.RequestPreempted)
    assert len(of(finishing, ev.BlockRevived, seq_id=2)) == 4
    middle = [e for e in of(finishing, ev.BlockRevived) if e.queue_prev is not None and e.queue_next is not None]
    assert middle, "the text says: out of the middle"


def test_blocks_go_back_last_first_to_the_tail(lab00):
    for trace in (lab00.traces["squeeze"], lab00.traces["finishing"]):
        for cleared in of(trace, ev.TableCleared):
            index = trace.events.index(cleared)
            released = [e.block_id for e in trace.events[:index] if isinstance(e, ev.BlockReleased)
                        and e.seq_id == cleared.seq_id][-len(cleared.block_table_before):]
            assert released == list(reversed(cleared.block_table_before))
    last = lab00.traces["finishing"].frames[-1].state
    assert last["queue"][-2:] == [1, 0], "the system prompt's blocks are taken last"
    assert len(last["queue"]) == 16


def test_freed_blocks_are_hit_and_others_burn(lab00):
    trace = lab00.traces["fourth"]
    assert [e.block_id for e in of(trace, ev.BlockRevived)] == [0, 1]
    assert {e.outcome for e in of(trace, ev.PrefixLookup)} == {"hit_free", "last_block"}
    assert of(trace, ev.EntryEvicted)


def test_the_second_turn_finds_the_first_ones_blocks_answer_included(lab00):
    (prompt, answer, cached, text), (prompt_2, _, cached_2, _) = lab00.facts["turns"]
    assert "Paris" in text and cached == 0
    assert prompt_2[:len(prompt)] == prompt
    assert cached_2 == (len(prompt) + len(answer)) // 16 * 16 > len(prompt)
    assert "BlockRevived" in lab00.facts["room"], "the room shows what cells ask for"


def test_the_recording_is_the_run_that_follows(lab00):
    def moves(events: list[Any]) -> list[tuple]:
        names = ("seq_id", "block_id", "logical", "outcome", "num_scheduled_tokens_after", "reason", "for_seq_id")
        return [(type(e).__name__, *(getattr(e, name, None) for name in names)) for e in events]

    live = [event for name in TRACES for event in lab00.traces[name].events]
    assert moves(Trace.load(data("00_start")).events) == moves(live)
