"""The fuzz: random workloads against the ledger, with a shadow KV store that catches every wrong read.

``workload``: what a seed stands for, and simpler versions of it; ``shadow``: the stand-in model that remembers what
each slot was computed from; ``books``: a second set of books; ``runner``: run, judge after every step, shrink;
``breakages``: one-line mistakes, each with the check that catches it. Pure Python, like the ledger.
"""
from .books import BooksError
from .runner import FEATURES, Failure, Livelock, fuzz, run
from .shadow import ShadowError
from .workload import Request, Workload, draw

__all__ = ["FEATURES", "BooksError", "Failure", "Livelock", "Request", "ShadowError", "Workload", "draw", "fuzz", "run"]
