"""The control room: a live view of an engine, or the same view of a recorded run.

The widget is a pipe. What the engine did flows out as rows (state in traits, never changed in place); what the person
wants flows in as messages, which only put commands on the session's queue. The view itself is static/control_room.js.
"""
from __future__ import annotations

import difflib
import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ..errors import ConfigError
from ..render import picture, sentence, sentence_text, svg
from ..render.parts import text
from ..session import Session, session_of
from ..trace import Trace
from .feed import Feed
from .sources import Sources

DEFAULT_PANELS = ("pool", "tables", "queue", "hashes", "sequences", "chat")
PANELS = (*DEFAULT_PANELS, "timeline", "code", "invariants")
STATIC = Path(__file__).parent / "static"


class ControlRoom(anywidget.AnyWidget):
    """``ControlRoom(session=...)`` is live, ``ControlRoom(trace=...)`` replays. Made by ``watch`` and ``replay``.

    ``close()`` takes the view away; the engine and its session go on.
    """

    _esm = (STATIC / "control_room.js").read_text("utf-8")
    _css = (STATIC / "control_room.css").read_text("utf-8")

    meta = traitlets.Dict().tag(sync=True)
    initial = traitlets.Dict().tag(sync=True)
    chunk = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    sources = traitlets.Dict().tag(sync=True)

    def __init__(self, *, session: Session | None = None, trace: Trace | None = None,
                 panels: Iterable[str] | None = None, decode: Any = None,
                 block_manager_class: type | None = None) -> None:
        panels = check_panels(panels)
        trace = session.trace if session is not None else trace
        self._session = session
        self._feed = Feed(trace, decode if decode is not None else trace.decode)
        self._problem = ""  # an error of the view's own, shown until the next command
        chunk = self._feed.newest(0)
        self._sent = chunk["total"]
        self._sources = Sources(block_manager_class)
        self._sources.learn(chunk["rows"])
        super().__init__(
            meta={"mode": "replay" if session is None else "live", "panels": panels,
                  "model": describe(trace.info), "block_size": trace.initial["block_size"],
                  "num_blocks": trace.initial["num_blocks"], "title": text("picture.title")},
            initial=trace.initial, chunk=chunk, sources=self._sources.known,
            status=dict(session.status) if session is not None else replay_status(trace))
        self.on_msg(self._on_message)
        if session is not None:
            session.subscribe(self._on_update)

    @property
    def trace(self) -> Trace:
        """What has been recorded so far. Frame k is the state after event k."""
        return self._feed.trace

    @property
    def session(self) -> Session | None:
        """The session that owns the engine; None in a replay."""
        return self._session

    def close(self) -> None:
        """Take the view away and let go of the session. May be called again."""
        if getattr(self, "_session", None) is not None:  # not there if __init__ was refused
            self._session.unsubscribe(self._on_update)
        self.on_msg(self._on_message, remove=True)
        super().close()

    # --- out -------------------------------------------------------------------------------------------------------

    def _on_update(self, total: int, status: dict[str, Any]) -> None:
        """On the session's thread: one message with what is new."""
        with self.hold_sync():
            if total > self._sent:
                chunk = self._feed.newest(self._sent)
                self._show_sources(chunk["rows"])
                self.chunk = chunk
                self._sent = chunk["total"]
            self.status = {**status, "error": status["error"] or self._problem}

    def _resync(self, have: int) -> None:
        for message in self._feed.backlog(have):
            self._show_sources(message["rows"])
            self.send({"type": "rows", **message})

    def _show_sources(self, rows: list[dict[str, Any]]) -> None:
        if self._sources.learn(rows):
            self.sources = self._sources.known

    # --- in --------------------------------------------------------------------------------------------------------

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """On whatever thread the kernel chose. Nothing here waits for the engine, and nothing that fails vanishes."""
        try:
            self._obey(content)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
            self.status = {**self.status, "error": self._problem}

    def _obey(self, content: dict[str, Any]) -> None:
        action = content.get("action")
        if action == "resync":
            self._resync(int(content.get("have", 0)))
            return
        self._problem = ""
        session = self._session
        if session is None:
            raise ConfigError("a recorded run can't be steered: use watch(llm) for a live engine")
        if action == "submit":
            session.submit(content.get("prompt"), bool(content.get("raw")), content.get("max_tokens", 64))
        elif action == "abort":
            session.abort(content.get("seq_id"))
        elif action in ("step", "run", "pause", "reset"):
            getattr(session, action)()
        else:
            raise ConfigError(f"unknown action {action!r}: a view of another version? Reload the page")

    # --- where there is no browser -----------------------------------------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, "text/plain": self.text(), "text/html": self.still()}, metadata

    def text(self) -> str:
        """The latest frame as plain text."""
        frame = self._feed.frame()
        return picture(frame.state, sentence_text(frame.event, self._feed.vocab_of(frame.state)), self._title())

    def still(self) -> str:
        """The latest frame as a still picture (SVG in HTML), for where no widget can be shown."""
        frame = self._feed.frame()
        vocab = self._feed.vocab_of(frame.state)
        label = html.escape(self._title(), quote=True)
        drawing = svg(frame.state, sentence(frame.event, vocab), subtitle=self.meta["model"], vocab=vocab,
                      panels=self.meta["panels"], frame=frame.index, note=text("picture.note"))
        return f'<div role="group" aria-label="{label}" style="overflow-x:auto">{drawing}</div>'

    def _title(self) -> str:
        return f"{self.meta['title']} · {self.meta['model']}" if self.meta["model"] else self.meta["title"]


def check_panels(panels: Iterable[str] | None) -> list[str]:
    """The panels in the order asked for, by default ``DEFAULT_PANELS``. Raises ConfigError."""
    if panels is None:
        return list(DEFAULT_PANELS)
    chosen = [panels] if isinstance(panels, str) else list(panels)
    for name in chosen:
        if name not in PANELS:
            close = difflib.get_close_matches(str(name), PANELS, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"panels are: {', '.join(PANELS)}"
            raise ConfigError(f"unknown panel {name!r}: {hint}")
    if not chosen:
        raise ConfigError(f"panels={panels!r}: name at least one of {', '.join(PANELS)}")
    return list(dict.fromkeys(chosen))


def describe(info: dict[str, Any]) -> str:
    """The engine in a line, such as "SmolLM2-135M-Instruct · cpu · bfloat16 · torch attention"."""
    facts = [str(info[key]) for key in ("name", "device", "dtype") if info.get(key)]
    if info.get("attention_backend"):
        facts.append(f"{info['attention_backend']} attention")
    return " · ".join(facts)


def replay_status(trace: Trace) -> dict[str, Any]:
    return {"state": "replay", "error": "", "notice": "", "tokens_per_second": 0.0, "chat": [], "violations": [],
            "lookups": {"hits": 0, "queries": 0}}


def watch(llm: Any, panels: Iterable[str] | None = None) -> ControlRoom:
    """The live control room of an engine. Put it last in a cell to see it.

    It starts paused and adopts what is waiting or running already. From now on its own thread runs the engine:
    ``generate`` or ``step`` called in a cell are carried out there and shown. Watching an engine twice gives two views
    of it. ``panels``: any of pool, tables, queue, hashes, sequences, chat, timeline, code, invariants, in any order; by
    default all but the last three. Raises ConfigError for an unknown panel, EngineClosedError for a closed engine.
    """
    panels = check_panels(panels)
    tokenizer = llm.tokenizer
    return ControlRoom(session=session_of(llm), panels=panels, decode=getattr(tokenizer, "decode", None),
                       block_manager_class=type(llm.scheduler.block_manager))


def replay(trace: Trace, panels: Iterable[str] | None = None) -> ControlRoom:
    """The control room over a recorded run: the same views, back and forward, without an engine.

    ``trace`` is a ``Trace`` (from ``record`` or ``Trace.load``). Raises ConfigError.
    """
    if not isinstance(trace, Trace):
        raise ConfigError(f"replay({trace!r}): give a Trace, from record(llm) or Trace.load(path)")
    return ControlRoom(trace=trace, panels=panels)
