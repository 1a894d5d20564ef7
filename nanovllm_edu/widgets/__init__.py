"""What a notebook shows: the control room (``watch``, ``replay``) and its front end in ``static/``.

``control_room``: the widget; ``feed``: a trace as messages for the browser. JavaScript applies patches and decides
nothing; see ``src/`` for its sources.
"""
from .control_room import ControlRoom, replay, watch
from .feed import Feed

__all__ = ["ControlRoom", "Feed", "replay", "watch"]
