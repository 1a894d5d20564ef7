"""Models for the tests: tiny random checkpoints, and the packaged one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny(family) → folder of a tiny random checkpoint, made once for all tests. Do not write into it."""
    from tests.engine.tiny import make_checkpoint

    made: dict[str, Path] = {}

    def folder(family: str = "llama") -> Path:
        if family not in made:
            made[family] = make_checkpoint(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder


@pytest.fixture(scope="session")
def reference(tiny: Callable[[str], Path]) -> Callable[[str], Any]:
    """reference(family) → transformers' model of the same checkpoint."""
    from tests.engine.tiny import Reference

    made: dict[str, Reference] = {}

    def model(family: str = "llama") -> Reference:
        if family not in made:
            made[family] = Reference(tiny(family))
        return made[family]

    return model


@pytest.fixture
def tiny_llm(tiny: Callable[[str], Path]) -> Any:
    """make(family="llama", **options) → an `LLM` in fp32 on a tiny checkpoint; all are closed after the test."""
    from nanovllm_edu import LLM

    made: list[LLM] = []

    def make(family: str = "llama", **options: Any) -> LLM:
        defaults = dict(dtype="float32", kvcache_block_size=4, num_kvcache_blocks=200, max_model_len=1024)
        made.append(LLM(tiny(family), **{**defaults, **options}))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture(scope="session")
def packaged() -> Path:
    """Folder of the packaged model, converted into the user's cache if it is not there yet."""
    from nanovllm_edu.loading.packaged import packaged_folder

    return packaged_folder()
