"""Every annotation in the ledger is a real type: a learner who follows one arrives somewhere."""
from __future__ import annotations

import ast
import importlib
import inspect

import pytest


@pytest.mark.parametrize("name", ["block_manager", "free_queue", "prefix", "sequence", "scheduler", "invariants"])
def test_every_annotation_can_be_evaluated(name: str) -> None:
    module = importlib.import_module(f"nanovllm_edu.engine.{name}")
    count = 0
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                eval(compile(ast.Expression(annotation), module.__file__, "eval"), dict(vars(module)))
                count += 1
    assert count > 15
