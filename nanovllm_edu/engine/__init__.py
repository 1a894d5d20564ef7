"""The ledger (pure Python) and the loop around a model (torch, loaded only when it is asked for).

A learner finds the same files here as in nano-vllm: ``block_manager``, ``sequence``, ``scheduler``, ``llm_engine``,
``model_runner``. Who calls whom: ``llm`` > ``llm_engine`` > ``scheduler`` > ``block_manager`` > ``free_queue``.
"""
from .block_manager import Block, BlockManager
from .events import Event, EventHub, Observer
from .free_queue import FreeQueue
from .invariants import check_invariants, violations
from .scheduler import Scheduler
from .sequence import Sequence, SequenceStatus

__all__ = ["Block", "BlockManager", "Event", "EventHub", "FreeQueue", "Observer", "Scheduler", "Sequence",
           "SequenceStatus", "check_invariants", "violations"]
