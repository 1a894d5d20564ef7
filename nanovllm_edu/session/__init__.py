"""The one thread that owns a running engine: commands go in, updates come out.

``session``: the thread, its commands and its updates; ``requests``: prompts, conversation and answers; ``tasks``: work
that a cell waits for; ``meter``: tokens per second. Nothing here draws, and nothing here touches a block itself.
"""
from .session import Session, session_of

__all__ = ["Session", "session_of"]
