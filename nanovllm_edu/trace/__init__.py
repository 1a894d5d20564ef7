"""Runs of the ledger, recorded and rebuilt from events alone.

``recorder``: ``record(llm)`` and ``Trace`` with its frames; ``state``: the state document and a walk of the real
objects; ``patches``: what each event changes, forward and backward; ``files``: the file format. No torch in here.
"""
from .files import event_from_json, event_to_json
from .patches import TraceError, apply, patches, revert
from .recorder import Frame, Trace, record
from .state import hex_hash, snapshot

__all__ = ["Frame", "Trace", "TraceError", "apply", "event_from_json", "event_to_json", "hex_hash", "patches",
           "record", "revert", "snapshot"]
