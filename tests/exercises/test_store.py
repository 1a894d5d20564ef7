"""Progress: survives restarts, damage, two notebooks at once and a disk that can't be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanovllm_edu.exercises import exercise, progress, progress_path, reset_progress
from nanovllm_edu.exercises import store as store_module
from nanovllm_edu.exercises.store import ProgressStore, record_of

ROOT = Path(__file__).resolve().parents[2]


def right_answer(name: str):
    desk = exercise(name)
    return desk.exercise.answer(desk.params)


def test_the_variable_names_the_file_and_the_users_folder_is_the_default(progress_file, monkeypatch):
    assert progress_path() == progress_file
    monkeypatch.delenv("NANOVLLM_EDU_PROGRESS")
    assert progress_path().name == "progress.json" and "nanovllm_edu" in str(progress_path())


def test_what_was_done_is_still_there_after_a_restart(progress_file):
    exercise("free-order").check([0])
    exercise("free-order").hint()
    exercise("free-order").check(right_answer("free-order"))
    params = exercise("free-order").params
    store_module._stores.clear()  # a new kernel
    assert exercise("free-order").params == params
    record = exercise("free-order").record
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["wrong", "correct"]
    assert record["hints"] == 1
    assert json.loads(progress_file.read_text())["version"] == 1
    line = next(line for line in progress().lines if line.id == "free-order")
    assert (line.state, line.attempts, line.hints) == ("solved", 2, 1)
    assert str(progress_file) in str(progress()) and str(progress_file) in progress()._repr_html_()


def test_two_learners_get_different_numbers(tmp_path, monkeypatch):
    seen = set()
    for name in "abcdef":
        monkeypatch.setenv("NANOVLLM_EDU_PROGRESS", str(tmp_path / name))
        seen.add(str(exercise("second-turn").params))
    assert len(seen) > 3


def test_reset_of_one_leaves_the_others_and_reset_of_all_leaves_none():
    for name in ("free-order", "second-turn"):
        exercise(name).check(right_answer(name))
    assert {line.id: line.state for line in reset_progress("free-order").lines} == {
        "give-way": "new", "free-order": "new", "second-turn": "solved"}
    assert all(line.state == "new" for line in reset_progress().lines)
    with pytest.raises(LookupError, match="did you mean"):
        reset_progress("free_order")


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe\x00", b"[]", b'{"version": 1}',
                                    b'{"version": 1, "learner": "x", "exercises": {"free-order": 3}}'])
def test_a_damaged_file_is_set_aside_and_said(progress_file, damage):
    progress_file.parent.mkdir(parents=True)
    progress_file.write_bytes(damage)
    result = exercise("free-order").check([0])
    assert result.outcome == "wrong" and "was damaged" in result.notice
    kept = list(progress_file.parent.glob("progress-damaged-*.json"))
    assert [path.read_bytes() for path in kept] == [damage] and str(kept[0]) in result.notice
    assert len(exercise("free-order").record["attempts"]) == 1
    assert exercise("free-order").check([0]).notice == "", "it is said once"


def test_a_file_of_a_newer_version_is_set_aside_too(progress_file):
    progress_file.parent.mkdir(parents=True)
    progress_file.write_text('{"version": 99}')
    assert "newer version" in exercise("free-order").check([0]).notice
    assert list(progress_file.parent.glob("progress-newer-*.json"))


def test_where_nothing_can_be_written_exercises_work_and_say_so(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("NANOVLLM_EDU_PROGRESS", str(blocked / "progress.json"))
    params = exercise("free-order").params
    assert exercise("free-order").params == params
    for number in (1, 2):
        result = exercise("free-order").check([0])
        assert result.outcome == "wrong" and result.notice.startswith("Not saved")
        assert len(exercise("free-order").record["attempts"]) == number


def test_a_full_disk_loses_nothing_that_was_saved(progress_file, monkeypatch):
    exercise("free-order").check([0])
    before = progress_file.read_text()

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "replace", full)
    result = exercise("free-order").check([1])
    assert "No space left on device" in result.notice
    assert progress_file.read_text() == before
    assert not list(progress_file.parent.glob("*.new"))
    assert len(exercise("free-order").record["attempts"]) == 2, "this kernel still knows"


def test_two_processes_at_once_lose_no_attempt(progress_file):
    code = ("from nanovllm_edu.exercises import exercise\n"
            "for i in range(20): exercise('free-order').check([0])")
    env = {**os.environ, "NANOVLLM_EDU_PROGRESS": str(progress_file)}
    running = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len(record_of(ProgressStore(progress_file).read(), "free-order")["attempts"]) == 40
