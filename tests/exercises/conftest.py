"""Every test has a progress file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "progress.json"
    monkeypatch.setenv("NANOVLLM_EDU_PROGRESS", str(path))
    return path
