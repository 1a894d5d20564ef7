"""What tests of sessions share."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from nanovllm_edu.trace import snapshot


def eventually(condition: Callable[[], Any], what: str, seconds: float = 30) -> None:
    """Wait for something that another thread does; the time is only how long a failure takes to show."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"never came true: {what}")
        time.sleep(0.005)


def session_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("nanovllm-edu")]


def live(state: dict) -> dict:
    """A state without finished requests: the scheduler does not know them any more."""
    return {**state, "seqs": {k: seq for k, seq in state["seqs"].items() if seq["status"] != "FINISHED"}}


def assert_follows(session: Any, llm: Any) -> None:
    """The state rebuilt from events is the state that a walk of the engine's own objects finds."""
    assert live(session.trace.frames[-1].state) == snapshot(llm.scheduler)
