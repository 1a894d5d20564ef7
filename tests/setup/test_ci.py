"""The gate itself: nothing is skipped unseen in CI, a missing tool fails there, and .ci/run is what it says."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = """
import pytest

def test_passes(): pass

def test_skips_itself(): pytest.skip("no such tool")

@pytest.mark.skip(reason="not today")
def test_marked(): pass

@pytest.mark.gpu
def test_on_gpu(): pytest.skip("no GPU")

@pytest.mark.xfail(reason="known", strict=True)
def test_known(): assert False
"""


@pytest.fixture
def run_tests():
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "scripts" / "run_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_pytest(tmp_path: Path, source: str, ci: str) -> str:
    (tmp_path / "test_sample.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs one\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.ci", "-p", "no:cacheprovider", "-rA",
                           "--rootdir", str(tmp_path), "-c", str(tmp_path / "pytest.ini"), str(tmp_path)],
                          cwd=ROOT, env={**os.environ, "CI": ci}, capture_output=True, text=True)
    return done.stdout


def test_in_ci_a_skipped_test_fails_unless_it_needs_a_gpu(tmp_path):
    out = run_pytest(tmp_path, SAMPLE, "true")
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in out  # one skips in its call, one before it
    assert "test_skips_itself: skipped in CI, where only tests marked `gpu` may be: " in out and "no such tool" in out


def test_elsewhere_it_is_skipped(tmp_path):
    assert "1 passed, 3 skipped, 1 xfailed" in run_pytest(tmp_path, SAMPLE, "")


def test_in_ci_a_whole_file_that_skips_itself_fails(tmp_path):
    source = "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n"
    assert "1 error" in run_pytest(tmp_path, source, "true")
    assert "1 skipped" in run_pytest(tmp_path, source, "")


def test_a_missing_tool_fails_in_ci_before_anything_runs(run_tests, monkeypatch, capsys):
    monkeypatch.setattr(run_tests.shutil, "which", lambda name: None)
    monkeypatch.setattr(run_tests, "playwright_has_browser", lambda: False)
    monkeypatch.setattr(run_tests, "run", lambda title, command: pytest.fail("a layer ran"))
    monkeypatch.setenv("CI", "true")
    assert run_tests.main([]) == 1
    told = capsys.readouterr().err
    assert "chromium is missing" in told and "apt install chromium" in told and "node is missing" in told


def test_elsewhere_a_missing_tool_is_said_before_and_after(run_tests, monkeypatch, capsys):
    monkeypatch.setattr(run_tests.shutil, "which", lambda name: None if "chrom" in name else name)
    monkeypatch.setattr(run_tests, "playwright_has_browser", lambda: False)
    monkeypatch.setattr(run_tests, "run", lambda title, command: True)
    monkeypatch.delenv("CI", raising=False)
    assert run_tests.main([]) == 0
    assert capsys.readouterr().err.count("chromium is missing") == 2


@pytest.mark.parametrize("broken", ["style", "JavaScript", "Python"])
def test_every_layer_runs_and_one_failure_fails_the_whole(run_tests, monkeypatch, broken):
    ran = []
    monkeypatch.setattr(run_tests, "missing_tools", lambda names: [])
    monkeypatch.setattr(run_tests, "run", lambda title, command: ran.append(title) or title != broken)
    assert run_tests.main(["-k", "x"]) == (1 if broken in ran else 0)
    assert ran[0] == "style" and ran[-1] == "Python"


def test_the_gate_is_executable_shell_that_reads_no_input():
    gate = ROOT / ".ci" / "run"
    assert os.access(gate, os.X_OK)
    assert subprocess.run(["bash", "-n", str(gate)]).returncode == 0
    last = gate.read_text("utf-8").strip().splitlines()[-1]
    assert last == "make test </dev/null"
