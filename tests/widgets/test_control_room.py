"""The widget's Python side: what it sends, what it accepts, and what it shows where there is no browser."""
from __future__ import annotations

import gc
import json
import weakref
from xml.etree import ElementTree as ET

import pytest

from nanovllm_edu import ConfigError, Trace, replay, watch
from nanovllm_edu.engine.events import TokenAppended
from nanovllm_edu.render import plain
from nanovllm_edu.trace import apply, revert, snapshot
from nanovllm_edu.trace.recorder import start
from nanovllm_edu.widgets import Feed
from nanovllm_edu.widgets.control_room import DEFAULT_PANELS
from nanovllm_edu.widgets.feed import MAX_ROWS
from tests.ledger import golden
from tests.session.fake import FakeLLM
from tests.session.helpers import eventually, live, session_threads


class Page:
    """The browser's side of a widget: keeps its rows as the view does, from what the widget sends."""

    def __init__(self, room) -> None:
        self.room, self.rows, self.messages, self.vocab = room, [], [], {}
        room.send = self.receive
        room.observe(lambda change: self.take(change["new"]), "chunk")
        self.take(room.chunk)

    def receive(self, content, buffers=None) -> None:
        assert content["type"] == "rows"
        self.take(content)

    def take(self, message) -> None:
        self.messages.append((message["start"], len(message["rows"]), len(json.dumps(message))))
        self.vocab.update(message["vocab"])
        if message["start"] > len(self.rows):
            self.say(action="resync", have=len(self.rows))
        self.rows += message["rows"][len(self.rows) - message["start"]:]

    def say(self, **content) -> None:
        self.room._handle_custom_msg(content, [])

    def state(self) -> dict:
        state = json.loads(json.dumps(self.room.initial))
        for row in json.loads(json.dumps(self.rows)):
            apply(state, row["p"])
        return state


@pytest.fixture
def room():
    """make(**engine options) → engine, room and page."""
    made = []

    def make(**options):
        llm = FakeLLM(**options)
        view = watch(llm)
        made.append((llm, view))
        return llm, view, Page(view)

    yield make
    for llm, view in made:
        view.close()
        llm.close()
    assert session_threads() == []


def finish(llm, view) -> None:
    view.session.run()
    view.session.settle()
    eventually(llm.is_finished, "all requests finished")
    view.session.pause()
    view.session.settle()


@pytest.fixture(scope="module")
def trace() -> Trace:
    busy = next(t for t in golden.load() if sum(bool(step["preempted"]) for step in t["steps"]) > 2)
    recorded = None
    for scheduler, *_ in golden.replay(busy):
        recorded = recorded or start(scheduler)
    return recorded


# --- out -----------------------------------------------------------------------------------------------------------


def test_what_the_page_rebuilds_is_the_engines_state(room) -> None:
    llm, view, page = room()
    for prompt in ("abcdefghijkl", "abcdefgh"):
        page.say(action="submit", prompt=prompt, raw=True, max_tokens=20)
    view.session.settle()
    while not llm.is_finished():
        page.say(action="step")
        view.session.settle()
        assert live(page.state()) == snapshot(llm.scheduler)
    assert len(page.rows) == len(view.trace.events)
    back = page.state()
    for row in reversed(page.rows):
        revert(back, row["p"])
    assert back == view.initial


def test_rows_carry_event_patches_sentence_step_and_text(room) -> None:
    llm, view, page = room()
    page.say(action="submit", prompt="abc", raw=True, max_tokens=3)
    finish(llm, view)
    assert [row["last"] for row in page.rows] == [row["e"]["kind"] == "StepEnded" for row in page.rows]
    assert [row["step"] for row in page.rows if row["last"]] == [1, 2, 3]
    for row, event in zip(page.rows, view.trace.events, strict=True):
        assert row["e"]["kind"] == type(event).__name__
        assert plain(row["s"]) and "None" not in plain(row["s"])
        assert ("t" in row) == isinstance(event, TokenAppended)
    seq = view.trace.frames[-1].state["seqs"]["0"]
    assert "".join(row.get("t", "") for row in page.rows) == llm.tokenizer.decode(seq["token_ids"][3:])
    assert page.vocab["97"] == "a"


def test_meta_and_status(room) -> None:
    llm, view, page = room()
    assert view.meta == {"mode": "live", "panels": list(DEFAULT_PANELS), "model": "fake · none", "block_size": 4,
                         "num_blocks": 32, "title": "Control room"}
    assert set(view.status) == {"state", "error", "notice", "tokens_per_second", "chat", "violations", "lookups"}
    assert view.status["state"] == "paused"
    page.say(action="run")
    view.session.settle()
    assert view.status["state"] == "running"


def test_20_000_events_are_few_small_messages_and_nothing_is_lost(room) -> None:
    llm, view, page = room(max_num_seqs=64)
    while len(view.trace.events) < 20_000:
        for i in range(16):
            view.session.submit(f"{len(view.trace.events)} {i}", raw=True, max_tokens=100)
        finish(llm, view)
    assert max(rows for _, rows, _ in page.messages) <= MAX_ROWS
    assert max(size for *_, size in page.messages) < 1_000_000
    assert len(page.messages) < 20_000 / 20
    assert live(page.state()) == snapshot(llm.scheduler)
    assert len(page.rows) == len(view.trace.events)


def test_values_are_fresh_never_changed_in_place(room) -> None:
    llm, view, page = room()
    sent = []
    view.observe(lambda change: sent.append((change["new"], json.dumps(change["new"]))), ["chunk", "status", "initial"])
    page.say(action="submit", prompt="abcdefgh", raw=True, max_tokens=9)
    finish(llm, view)
    assert len(sent) > 2
    assert all(json.dumps(value) == then for value, then in sent)


def test_a_page_that_comes_late_asks_for_what_it_lacks(room) -> None:
    llm, view, _ = room()
    while len(view.trace.events) < 3 * MAX_ROWS:
        view.session.submit("abc", raw=True, max_tokens=100)
        finish(llm, view)
    late = Page(view)
    assert late.messages[0][:2] == (len(view.trace.events) - MAX_ROWS, MAX_ROWS)
    assert len(late.rows) == len(view.trace.events)
    assert live(late.state()) == snapshot(llm.scheduler)
    assert set(late.vocab) >= {"97", "98", "99"}


def test_a_later_view_of_a_session_begins_at_its_start(room) -> None:
    llm, view, page = room()
    page.say(action="submit", prompt="abcdefgh", raw=True, max_tokens=9)
    finish(llm, view)
    second = watch(llm)
    other = Page(second)
    assert second.session is view.session and len(session_threads()) == 1
    other.say(action="submit", prompt="abcdefgh", raw=True, max_tokens=2)
    finish(llm, view)
    assert other.state() == page.state()
    second.close()
    page.say(action="submit", prompt="xyz", raw=True, max_tokens=2)
    finish(llm, view)
    assert live(page.state()) == snapshot(llm.scheduler)


# --- in ------------------------------------------------------------------------------------------------------------


def test_buttons_only_put_commands_on_the_queue(room, monkeypatch) -> None:
    llm, view, page = room()
    asked = []
    for name in ("submit", "step", "run", "pause", "abort", "reset"):
        monkeypatch.setattr(view.session, name, lambda *args, name=name: asked.append((name, args)))
    page.say(action="submit", prompt="abc", raw=False, max_tokens=7)
    for name in ("step", "run", "pause", "abort", "reset"):
        page.say(action=name)
    page.say(action="abort", seq_id=3)
    assert asked == [("submit", ("abc", False, 7)), ("step", ()), ("run", ()), ("pause", ()), ("abort", (None,)),
                     ("reset", ()), ("abort", (3,))]


@pytest.mark.parametrize("content", [{}, {"action": "explode"}, {"action": "resync", "have": "all"}, None, "step"])
def test_a_message_that_makes_no_sense_is_shown(room, content) -> None:
    llm, view, page = room()
    view._handle_custom_msg(content, [])
    assert view.status["error"]
    view.session.settle()
    assert view.status["error"]  # the session's next update does not wipe it
    page.say(action="step")
    view.session.settle()
    assert view.status["error"] == ""


def test_an_error_of_a_command_reaches_the_page(room) -> None:
    llm, view, page = room()
    page.say(action="submit", prompt="", raw=True, max_tokens=7)
    view.session.settle()
    assert "Type a prompt first" in view.status["error"]


# --- panels, replay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("panels", "says"), [
    (["pool", "tabels"], "unknown panel 'tabels': did you mean 'tables'?"),
    (["zzz"], "panels are: pool, tables"),
    (["pool", "timelin"], "unknown panel 'timelin': did you mean 'timeline'?"),
    ([3], "unknown panel 3"),
    ([], "name at least one"),
])
def test_an_unknown_panel_is_refused_before_anything_starts(panels, says: str) -> None:
    llm = FakeLLM()
    with pytest.raises(ConfigError) as error:
        watch(llm, panels=panels)
    assert says in str(error.value)
    assert llm.driver is None and session_threads() == []


def test_panels_in_any_order(trace) -> None:
    assert replay(trace, panels=["queue", "pool", "queue"]).meta["panels"] == ["queue", "pool"]
    assert replay(trace, panels="pool").meta["panels"] == ["pool"]


def test_replay_shows_the_whole_run_and_has_no_engine(trace, tmp_path) -> None:
    loaded = Trace.load(trace.save(tmp_path / "run.json.gz"))
    for view in (replay(trace), replay(loaded)):
        page = Page(view)
        assert view.meta["mode"] == "replay" and view.status["state"] == "replay"
        assert page.state() == trace.frames[-1].state
        page.say(action="step")
        assert "watch(llm)" in view.status["error"]
        view.close()
    assert session_threads() == []
    with pytest.raises(ConfigError, match="give a Trace"):
        replay([1, 2])


# --- text ----------------------------------------------------------------------------------------------------------


class Bytes:
    """A tokenizer of bytes: most characters beyond ASCII need several tokens. 0 is a special token."""

    def decode(self, token_ids, skip_special_tokens=True) -> str:
        return b"".join(b"" if t == 0 and skip_special_tokens else b"<end>" if t == 0 else bytes([t])
                        for t in token_ids).decode(errors="replace")


def appended(trace, token_ids, seq_id=0) -> None:
    for token in token_ids:
        trace.on_event(TokenAppended(seq_id=seq_id, token_id=token, num_tokens_before=0, num_tokens_after=1))


def test_text_never_splits_a_character_and_hides_special_tokens() -> None:
    llm = FakeLLM()
    llm.add_request("abc", golden.SamplingParams())
    trace = start(llm)
    trace.decode = None
    appended(trace, [*"Grüß 🙂!".encode(), 0])
    feed = Feed(trace, Bytes().decode)
    pieces = [feed._texts.of(i) for i in range(feed.total)]
    assert "".join(pieces) == "Grüß 🙂!" and "�" not in "".join(pieces)
    assert pieces[2:4] == ["", "ü"] and pieces[-1] == ""
    assert feed.vocab([0, 65]) == {0: "<end>", 65: "A"}


def test_text_of_a_step_that_failed_is_taken_back(room) -> None:
    calls = []

    def fail_in_step_4() -> None:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("no")

    llm, view, page = room(before_step=fail_in_step_4)
    page.say(action="submit", prompt="abcdefg", raw=True, max_tokens=6)
    page.say(action="run")
    eventually(lambda: view.session.errors, "the failure")
    finish(llm, view)
    seq = view.trace.frames[-1].state["seqs"]["0"]
    assert "".join(row.get("t", "") for row in page.rows) == llm.tokenizer.decode(seq["token_ids"][7:])


# --- where there is no browser -------------------------------------------------------------------------------------


def test_the_bundle_has_a_view_a_still_and_a_text(room) -> None:
    llm, view, page = room()
    evil = "<img src=x onerror=alert(1)>"
    page.say(action="submit", prompt=evil, raw=True, max_tokens=3)
    page.say(action="step")
    view.session.settle()
    data, _ = view._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == view.model_id
    assert evil not in data["text/html"] and "&lt;img" in data["text/html"]
    root = ET.fromstring(data["text/html"])
    blocks = [b for b in root.iter() if b.get("data-block-id")]
    assert [int(b.get("data-ref-count")) for b in blocks] == [b.ref_count for b in llm.scheduler.block_manager.blocks]
    assert data["text/plain"].startswith("Control room · fake · none · step 1 · ")


# --- the end -------------------------------------------------------------------------------------------------------


def test_a_closed_view_is_collected_and_the_session_goes_on() -> None:
    llm = FakeLLM()
    view = watch(llm)
    session = view.session
    view.close()
    view.close()
    gone = weakref.ref(view)
    del view
    gc.collect()
    assert gone() is None
    session.submit("abc", raw=True, max_tokens=2)
    session.step()
    session.settle()
    assert llm.scheduler.step == 1 and list(session.errors) == []
    session.close()


def test_a_view_outlives_its_engine(room) -> None:
    llm, view, page = room()
    page.say(action="submit", prompt="abcdefgh", raw=True, max_tokens=9)
    finish(llm, view)
    llm.close()
    assert view.status["state"] == "closed" and "closed" in view.status["notice"]
    page.say(action="step")
    late = Page(view)
    late.say(action="resync", have=0)
    assert len(late.rows) == len(view.trace.events)
