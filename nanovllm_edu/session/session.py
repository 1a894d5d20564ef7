"""A session: the worker thread that owns an engine while it is watched.

On which thread a widget's callback runs is not knowable (it differs between versions of ipykernel), and a callback that
runs the engine freezes the page. So commands only put something on a queue, one thread carries everything out, and
updates flow out of it, at most twenty a second, with a last one whenever it comes to rest.
"""
from __future__ import annotations

import logging
import math
import queue
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ..engine.events import Event
from ..errors import ConfigError, RequestError
from ..trace import recorder
from . import strings
from .meter import Meter
from .requests import Requests
from .tasks import Task
from .updates import Judge, Subscriber, Views

T = TypeVar("T")
BUSY_S = 0.25       # how long after a cell's call the view says "busy": a loop of calls must not flicker
KEPT_ERRORS = 50

_log = logging.getLogger(__name__)
_creating = threading.Lock()


def session_of(llm: Any) -> Session:
    """The session that owns ``llm``; a new one, paused, if it has none. Raises ConfigError, EngineClosedError."""
    with _creating:
        if isinstance(llm.driver, Session):
            return llm.driver
        if llm.driver is not None:
            raise ConfigError(f"this engine is driven by {llm.driver!r} already: set llm.driver = None first")
        return Session(llm)


class Session:
    """Owns ``llm`` from now on: it is the engine's ``driver``, and calls from other threads are carried out here.

    ``trace`` is recorded from the session's start and adopts what waits or runs then. ``status`` is the latest status
    for views, a fresh dict each time. ``errors`` keeps the latest exceptions of commands. ``step``, ``run``, ``pause``,
    ``submit``, ``abort`` and ``reset`` return at once; ``settle`` waits for what was asked so far.

    It holds the engine weakly: when the engine goes, so does the session's thread.
    """

    def __init__(self, llm: Any) -> None:
        tokenizer = llm.tokenizer  # raises EngineClosedError before anything has changed
        self._llm = weakref.ref(llm)
        self._commands: queue.SimpleQueue[Task | Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._requests, self._meter = Requests(tokenizer), Meter()
        self._views, self._judge = Views(), Judge()
        self._running = self._ended = self._nudged = False
        self._error = self._notice = ""
        self._busy_until = 0.0
        self.errors: deque[BaseException] = deque(maxlen=KEPT_ERRORS)
        self._thread = threading.Thread(target=self._work, name="nanovllm-edu session", daemon=True)
        self._thread.start()
        self.thread_id = self._thread.ident
        self.trace: recorder.Trace
        self.status = self._status()
        try:
            llm._call(lambda: self._attach(llm))
        except BaseException:
            self._commands.put(lambda: setattr(self, "_ended", True))
            raise
        self._farewell = weakref.finalize(llm, self._commands.put, self._engine_gone)
        self._farewell.atexit = False

    def _attach(self, llm: Any) -> None:
        self.trace = recorder.start(llm)
        llm.scheduler.emit.attach(self)
        llm.driver = self

    @property
    def closed(self) -> bool:
        return self._ended

    # --- commands, from any thread ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one step of the engine."""
        self._command(self._do_step)

    def run(self) -> None:
        """Step until ``pause``. With nothing to do it waits for requests."""
        self._command(lambda: self._set_running(True))

    def pause(self) -> None:
        """Stop after the current step."""
        self._command(lambda: self._set_running(False))

    def submit(self, prompt: str, raw: bool = False, max_tokens: int = 64) -> None:
        """Queue a prompt: as the next turn of the conversation, or raw, as text to continue."""
        self._command(lambda: self._do_submit(prompt, raw, max_tokens))

    def abort(self, seq_id: int | None = None) -> None:
        """End one request, or all that are live."""
        self._command(lambda: self._do_abort(seq_id))

    def reset(self) -> None:
        """Abort everything, forget the prefix cache, begin a new conversation."""
        self._command(self._do_reset)

    def call(self, fn: Callable[[], T]) -> T:
        """Be the engine's driver: run ``fn`` on the session's thread between two steps and return its result.

        Waiting for it can be interrupted; the engine stays usable.
        """
        if threading.get_ident() == self.thread_id:
            return fn()
        task = Task(fn)
        if not self._put(task):
            llm = self._llm()
            return fn() if llm is None else llm._call(fn)
        try:
            return task.wait()
        finally:
            if self._ended:  # it was the engine's close: leave no thread behind
                self._thread.join()

    def settle(self) -> None:
        """Wait until everything asked before is carried out and every view is up to date."""
        task = Task(self._update)
        if self._put(lambda: task.run(lambda fn: fn(), lambda: None)):
            task.wait()

    def close(self) -> None:
        """Give the engine back to its callers and end the thread. What was recorded stays. May be called again."""
        self._put(lambda: self._end(strings.DETACHED))
        if threading.get_ident() != self.thread_id:
            self._thread.join()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber(number of events so far, status)`` on the session's thread, at most 20 times a second."""
        self._views.add(subscriber)
        self._put(self._mark_dirty)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._views.remove(subscriber)

    def _command(self, do: Callable[[], None]) -> None:
        self._put(lambda: self._guarded(do))

    def _put(self, command: Task | Callable[[], None]) -> bool:
        with self._lock:
            if not self._ended:
                self._commands.put(command)
            return not self._ended

    # --- the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._ended:
                self._turn()
        except BaseException as error:  # nobody may wait for ever for a thread that is gone
            _log.exception("the session's thread failed")
            self._keep(error)
            self._error = strings.THREAD_FAILED.format(error=repr(error))
            self._end(strings.DETACHED)
        while not self._commands.empty():  # who came too late still gets an answer
            command = self._commands.get()
            if isinstance(command, Task):
                command.run(self._on_engine, lambda: None)
            else:
                command()

    def _turn(self) -> None:
        """Carry out one command, or one step if there is none, and update the views when it is time."""
        try:
            command = self._commands.get(timeout=self._patience())
        except queue.Empty:
            command = None
        if isinstance(command, Task):
            command.run(self._for_a_cell, self._after_call)
        elif command is not None:
            command()
        elif self._running and self._has_work():
            self._guarded(self._engine_step)
        if self._views.dirty and self._views.may_be_told:
            self._update()

    def _patience(self) -> float | None:
        """Seconds to wait for a command before there is something else to do; None is for ever."""
        if self._running and self._has_work():
            return 0
        if self._busy_until and not self._views.dirty:
            left = self._busy_until - time.monotonic()
            if left > 0:
                return left
            self._busy_until, self._views.dirty = 0.0, True  # it is paused again, and the views should know
        return self._views.patience if self._views.dirty else None

    def _has_work(self) -> bool:
        llm = self._llm()
        return llm is not None and not llm.is_finished()

    def _on_engine(self, fn: Callable[[], Any]) -> Any:
        llm = self._llm()
        return fn() if llm is None else llm._call(fn)

    def _for_a_cell(self, fn: Callable[[], Any]) -> Any:
        self._busy_until = math.inf
        return self._on_engine(fn)

    def _after_call(self) -> None:
        self._busy_until = time.monotonic() + BUSY_S
        self._views.dirty = True
        self._collect()
        llm = self._llm()
        if llm is not None and llm.is_closed:
            self._end(strings.ENGINE_CLOSED)

    def _guarded(self, do: Callable[[], None]) -> None:
        """Carry out a command; what it raises is shown in the views, and the engine goes on."""
        try:
            do()
        except BaseException as error:
            self._keep(error)
            self._error = str(error) or repr(error)
        self._collect()
        self._views.dirty = True

    def _keep(self, error: BaseException) -> None:
        """Remember an error with its traceback as text: the frames themselves would hold the engine."""
        error.add_note("".join(traceback.format_exception(error)))
        self.errors.append(error)
        seen: BaseException | None = error
        while seen is not None:
            seen.__traceback__ = None
            seen = seen.__cause__ or seen.__context__

    def _collect(self) -> None:
        llm = self._llm()
        if llm is not None:
            self._requests.collect(llm)

    # --- what commands do, on the thread -----------------------------------------------------------------------------

    def _engine(self) -> Any:
        llm = self._llm()
        if llm is None or self._ended:
            raise RequestError(strings.ENGINE_GONE if llm is None else strings.DETACHED)
        self._error = self._notice = ""
        return llm

    def _do_step(self) -> None:
        if self._engine().is_finished():
            self._notice = strings.NOTHING_TO_DO
        else:
            self._engine_step()

    def _engine_step(self) -> None:
        try:
            self._llm().step()
        except BaseException as error:
            self._running = False
            self._keep(error)
            self._error = strings.STEP_FAILED.format(error=str(error) or repr(error))

    def _set_running(self, running: bool) -> None:
        self._engine()
        self._running = running

    def _do_submit(self, prompt: str, raw: bool, max_tokens: int) -> None:
        self._notice = self._requests.submit(self._engine(), prompt, raw, max_tokens)

    def _do_abort(self, seq_id: int | None) -> None:
        llm = self._engine()
        live = [seq.seq_id for seq in llm.scheduler.sequences]
        if seq_id is not None and seq_id not in live:
            self._notice = strings.NO_SUCH_REQUEST.format(seq_id=seq_id)
        for one in live if seq_id is None else [seq_id]:
            llm.abort(one)

    def _do_reset(self) -> None:
        self._do_abort(None)
        self._collect()
        self._engine().reset_prefix_cache()
        self._requests.forget()
        self._notice = strings.NEW_CONVERSATION

    def _engine_gone(self) -> None:
        self._end(strings.ENGINE_GONE)

    def _end(self, notice: str) -> None:
        if self._ended:
            return
        llm = self._llm()
        if llm is not None:
            recorder.stop(llm, self.trace)
            llm.scheduler.emit.detach(self)
            llm.driver = None
            self._farewell.detach()
        self._running, self._notice = False, notice
        with self._lock:
            self._ended = True
        self._update()

    # --- updates ---------------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Be the engine's observer: keep count, and update the views when it is time, also in the middle of a step."""
        self._meter.on_event(event)
        self._views.dirty = True
        if threading.get_ident() != self.thread_id:
            if not self._nudged:  # somebody works on the scheduler itself, beside the engine
                self._nudged = True
                self._put(self._mark_dirty)
        elif self._views.may_be_told:
            self._update(in_step=True)

    def _mark_dirty(self) -> None:
        self._nudged, self._views.dirty = False, True

    def _update(self, in_step: bool = False) -> None:
        """Tell every view how many events there are and what the status is."""
        self._views.dirty = False
        llm = self._llm()
        if llm is not None and not in_step:
            self._judge.look(llm.scheduler, at_rest=not self._running or llm.is_finished())
        self.status = self._status()
        for error in self._views.tell(len(self.trace.events), self.status):
            _log.error("a view of the session failed to update", exc_info=error)
            self._keep(error)

    def _status(self) -> dict[str, Any]:
        state = ("closed" if self._ended else "running" if self._running
                 else "busy" if time.monotonic() < self._busy_until else "paused")
        return {"state": state, "error": self._error, "notice": self._notice,
                "tokens_per_second": self._meter.tokens_per_second, "chat": list(self._requests.chat),
                "violations": list(self._judge.violations), "lookups": self._meter.lookups}
