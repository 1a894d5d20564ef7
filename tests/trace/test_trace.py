"""The reducer's state is the engine's: after every event, not only after every step, and back again."""
from __future__ import annotations

import gzip
import json
import random
from copy import deepcopy

import pytest

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import Scheduler, Sequence
from nanovllm_edu.engine.events import EVENT_TYPES, BlockTaken
from nanovllm_edu.trace import (
    Trace,
    TraceError,
    apply,
    event_from_json,
    event_to_json,
    patches,
    record,
    revert,
    snapshot,
)
from tests.ledger.golden import config, load, next_token, replay

TRACES = load()


class Shadow:
    """Rebuilds the state from events as they come and compares it with a walk of the real objects each time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = snapshot(scheduler)
        self.states = [deepcopy(self.state)]
        self.patches: list = []
        self.kinds: set[str] = set()
        self.error: Exception | None = None

    def on_event(self, event) -> None:
        try:
            new = patches(self.state, event)
            apply(self.state, new)
            real = snapshot(self.scheduler)
            live = {key: self.state["seqs"][key] for key in real["seqs"]}
            assert {**self.state, "seqs": live} == real, event
            json.dumps(new)
        except Exception as error:  # the hub would only warn
            self.error = self.error or error
        self.patches.append(new)
        self.states.append(deepcopy(self.state))
        self.kinds.add(type(event).__name__)


def shadowed_run(trace: dict) -> Shadow:
    shadow = None
    for scheduler, *_ in replay(trace):
        if shadow is None:  # the first yield is after the first schedule(): start from there
            shadow = Shadow(scheduler)
            scheduler.emit.attach(shadow)
    assert shadow.error is None, shadow.error
    return shadow


@pytest.mark.parametrize("number", range(0, 300, 3))
def test_state_equals_the_engine_after_every_event_and_reverts(number: int) -> None:
    shadow = shadowed_run(TRACES[number])
    state = deepcopy(shadow.state)
    for k in range(len(shadow.patches), 0, -1):
        assert state == shadow.states[k]
        revert(state, shadow.patches[k - 1])
    assert state == shadow.states[0]


def test_ordinary_runs_emit_these_kinds() -> None:
    kinds = set().union(*(shadowed_run(trace).kinds for trace in TRACES[:60]))
    rare = {"RequestRefused", "RequestRestored", "QueuesRestored", "LedgerReset", "BlockForgotten"}
    assert kinds == set(EVENT_TYPES) - rare


def small_scheduler(**options) -> Scheduler:
    return Scheduler(config(**options))


def request(tokens, seq_id: int, max_tokens: int = 6) -> Sequence:
    return Sequence(tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True), 4, seq_id=seq_id)


def step(scheduler: Scheduler) -> None:
    seqs, is_prefill = scheduler.schedule()
    scheduler.postprocess(seqs, [next_token(seq) for seq in seqs], is_prefill)


def recorded() -> tuple[Trace, Scheduler]:
    scheduler = small_scheduler(num_kvcache_blocks=6)
    scheduler.add(request([1, 2, 3, 4, 5], 0))
    step(scheduler)
    with record(scheduler) as trace:
        scheduler.add(request([1, 2, 3, 4, 9, 9, 9], 1))
        scheduler.add(request([1, 2, 3, 4, 9, 9, 9, 7], 2))
        while not scheduler.is_finished():
            step(scheduler)
        scheduler.reset_prefix_cache()
    scheduler.add(request([8], 3))  # after the recording: not in it
    return trace, scheduler


def test_record_adopts_what_runs_already_and_stops_at_the_end() -> None:
    trace, _ = recorded()
    assert list(trace.initial["seqs"]) == ["0"] and trace.initial["blocks"][0]["ref_count"] == 1
    assert list(trace.frames[-1].state["seqs"]) == ["0", "1", "2"]
    assert len(trace.frames) == len(trace.events) + 1
    assert trace.frames[-1].state["map"] == {}


def test_frames_are_the_same_in_any_order_and_cannot_be_spoilt() -> None:
    trace, _ = recorded()
    in_order = [frame.state for frame in trace.frames]
    indices = list(range(len(trace.frames)))
    random.Random(1).shuffle(indices)
    for k in indices:
        frame = trace.frames[k]
        assert frame.state == in_order[k] and frame.index == k
        frame.state["queue"].clear()
    assert [frame.state for frame in trace.frames] == in_order
    with pytest.raises(IndexError, match="has frames 0 to"):
        trace.frames[len(trace.frames)]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_saved_trace_loads_as_it_was(tmp_path, name: str) -> None:
    trace, _ = recorded()
    trace._vocab = {1: "one", 2: "<img src=x onerror=alert(1)>"}
    loaded = Trace.load(trace.save(tmp_path / name))
    assert loaded.events == trace.events and loaded.initial == trace.initial
    assert loaded.vocab == trace.vocab and loaded.frames[-1].state == trace.frames[-1].state
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_every_event_kind_survives_json() -> None:
    seen = set()
    for trace in TRACES[:60]:
        shadow: list = []
        for scheduler, *_ in replay(trace):
            if not shadow:
                scheduler.emit.attach(type("Listener", (), {"on_event": staticmethod(shadow.append)})())
                shadow.append(None)
        for event in filter(None, shadow):
            if type(event) not in seen:
                assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event
                seen.add(type(event))
    assert len(seen) > 12


@pytest.mark.parametrize(("damage", "message"), [
    (lambda d: d.update(version=99), "version 99"),
    (lambda d: d.update(format="other"), "not a trace of nanovllm_edu"),
    (lambda d: d.pop("initial"), "lacks a part"),
    (lambda d: d["events"][0].update(kind="Nonsense"), "damaged event"),
    (lambda d: d["events"].pop(0), "does not fit|was changed"),
    (lambda d: next(e for e in d["events"] if e["kind"] == "BlockTaken").update(block_id="<b>"), "damaged event"),
    (lambda d: next(e for e in d["events"] if e["kind"] == "BlockTaken").update(block_id=99), "an event is missing"),
    (lambda d: d.update(events=7), "lacks a part"),
])
def test_a_damaged_trace_is_refused_with_the_reason(tmp_path, damage, message: str) -> None:
    path = recorded()[0].save(tmp_path / "run.json")
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match=message):
        Trace.load(path)


@pytest.mark.parametrize("data", [b"", b"\x1f\x8bnope", b"[1, 2]", b"{", gzip.compress(b"{}")[:-4], b"\xff\xfe"])
def test_a_file_that_is_no_trace_is_refused(tmp_path, data: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="not a trace"):
        Trace.load(path)


def test_events_tell_the_line_that_made_the_change() -> None:
    import linecache

    from nanovllm_edu.engine import block_manager

    trace, _ = recorded()
    taken = next(event for event in trace.events if isinstance(event, BlockTaken))
    assert (taken.at.file, taken.at.function) == ("block_manager.py", "BlockManager._allocate_block")
    assert linecache.getline(block_manager.__file__, taken.at.line).strip() == "self.free_block_ids.popleft()"


def test_an_observer_that_raises_is_detached_and_the_run_goes_on() -> None:
    class Broken:
        def on_event(self, event) -> None:
            raise RuntimeError("I only wanted to look")

    scheduler = small_scheduler()
    scheduler.emit.attach(Broken())
    with pytest.warns(RuntimeWarning, match="was detached"):
        scheduler.add(request([1, 2, 3], 0))
    while not scheduler.is_finished():
        step(scheduler)
    assert scheduler.emit.observers == ()
