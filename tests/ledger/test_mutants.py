"""The tests have teeth: a sample of the ledger's mutants, drawn with a fixed seed, is killed or explained.

All of them: ``python scripts/mutate.py``; who survives and why: ``mutants.md``.
"""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_sample_of_mutants_is_killed_or_explained() -> None:
    pytest.importorskip("cosmic_ray")
    if not hasattr(os, "fork"):
        pytest.skip("needs a system with fork")
    done = subprocess.run([sys.executable, "scripts/mutate.py", "--sample", "25"], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25 mutants" in done.stdout
