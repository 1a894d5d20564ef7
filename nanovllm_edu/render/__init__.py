"""A state of the ledger in words and pictures. Reads plain state documents and events; no torch in here.

``sentences``: what an event says; ``svg``: the still picture beside every live view; ``text``: the picture for a
terminal; ``strings``: everything that is said, in one catalogue; ``names``: how requests and hashes are called.
"""
from .names import seq_name, short_hash
from .parts import plain
from .sentences import sentence, sentence_text
from .svg import svg
from .text import picture

__all__ = ["picture", "plain", "sentence", "sentence_text", "seq_name", "short_hash", "svg"]
