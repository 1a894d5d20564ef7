"""`python -m nanovllm_edu start`: a learner's notebook is never overwritten, and what is missing is said plainly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nanovllm_edu import __main__ as command_line
from nanovllm_edu import start


@pytest.fixture
def shipped(tmp_path):
    folder = tmp_path / "course"
    folder.mkdir()
    (folder / "00_start.ipynb").write_text("lab 0, first edition")
    (folder / "01_blocks.ipynb").write_text("lab 1, first edition")
    (folder / "notes.txt").write_text("not for learners")
    return folder


def test_first_time_lays_every_notebook_and_nothing_else(shipped, tmp_path):
    mine = tmp_path / "a" / "my_labs"
    told = start.lay_labs(mine, shipped)
    assert sorted(path.name for path in mine.iterdir()) == [start.NOTES, "00_start.ipynb", "01_blocks.ipynb"]
    assert len(told) == 2 and "your own copy" in told[0]


def test_a_second_time_keeps_the_learners_work_and_says_nothing(shipped, tmp_path):
    start.lay_labs(tmp_path / "mine", shipped)
    (tmp_path / "mine" / "00_start.ipynb").write_text("my answers")
    assert start.lay_labs(tmp_path / "mine", shipped) == []
    assert (tmp_path / "mine" / "00_start.ipynb").read_text() == "my answers"


def test_a_newer_edition_is_announced_and_not_laid(shipped, tmp_path):
    start.lay_labs(tmp_path / "mine", shipped)
    (tmp_path / "mine" / "00_start.ipynb").write_text("my answers")
    (shipped / "00_start.ipynb").write_text("lab 0, second edition")
    for _ in range(2):  # it stays announced until the learner acts
        (told,) = start.lay_labs(tmp_path / "mine", shipped)
        assert "00_start.ipynb" in told and "newer version" in told and "rename yours" in told
    assert (tmp_path / "mine" / "00_start.ipynb").read_text() == "my answers"

    (tmp_path / "mine" / "00_start.ipynb").rename(tmp_path / "mine" / "my_00.ipynb")
    start.lay_labs(tmp_path / "mine", shipped)
    assert (tmp_path / "mine" / "00_start.ipynb").read_text() == "lab 0, second edition"
    assert start.lay_labs(tmp_path / "mine", shipped) == []


@pytest.mark.parametrize("notes", ["", "[]", "{", '{"00_start.ipynb": 3}'])
def test_damaged_notes_cost_no_notebook(shipped, tmp_path, notes):
    start.lay_labs(tmp_path / "mine", shipped)
    (tmp_path / "mine" / "00_start.ipynb").write_text("my answers")
    (tmp_path / "mine" / start.NOTES).write_text(notes)
    start.lay_labs(tmp_path / "mine", shipped)
    assert (tmp_path / "mine" / "00_start.ipynb").read_text() == "my answers"


def test_a_full_disk_leaves_no_half_notebook(shipped, tmp_path, monkeypatch):
    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(start, "_digest", lambda path: "x")
    monkeypatch.setattr(Path, "read_bytes", full)
    with pytest.raises(start.StartError, match="No space left on device.*Make room"):
        start.lay_labs(tmp_path / "mine", shipped)
    assert not (tmp_path / "mine" / "00_start.ipynb").exists()


def test_the_courses_own_folder_is_refused(shipped):
    with pytest.raises(start.StartError, match="name another folder"):
        start.lay_labs(shipped, shipped)


def test_a_file_in_the_folders_place_is_a_sentence(shipped, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine").write_text("a file")
    monkeypatch.setattr(start, "shipped_labs", lambda: shipped)
    assert command_line.main(["start", str(tmp_path / "mine")]) == 1
    assert "the labs cannot be written to" in capsys.readouterr().err


def test_jupyterlab_opens_lab_00_with_this_python(shipped, tmp_path, monkeypatch):
    ran = {}
    monkeypatch.setattr(start, "shipped_labs", lambda: shipped)
    monkeypatch.setattr(start, "prepare_model", lambda: ran.setdefault("model", True))
    monkeypatch.setattr(start.os, "execv", lambda program, words: ran.update(program=program, words=words))
    monkeypatch.delenv("NO_BROWSER", raising=False)
    command_line.main(["start", str(tmp_path / "mine"), "--no-browser", "--", "--port=9999"])
    assert ran["model"] and ran["program"] == sys.executable
    words = ran["words"]  # what execv was given; it never returns to here in earnest
    assert words[1:3] == ["-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={tmp_path / 'mine'}" in words
    assert "--LabApp.default_url=/lab/tree/00_start.ipynb" in words
    assert "--no-browser" in words and words[-1] == "--port=9999"


def test_no_browser_can_be_asked_for_by_the_environment(shipped, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(start, "shipped_labs", lambda: shipped)
    monkeypatch.setattr(start, "prepare_model", lambda: None)
    monkeypatch.setattr(start.os, "execv", lambda program, words: ran.extend(words))
    monkeypatch.setenv("NO_BROWSER", "1")
    command_line.main(["start", str(tmp_path / "mine")])
    assert "--no-browser" in ran


def test_without_jupyterlab_nothing_is_laid(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(start.importlib.util, "find_spec", lambda name: None)
    assert command_line.main(["start", str(tmp_path / "mine")]) == 1
    assert "JupyterLab is missing. Install it with:" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


def test_prepare_stops_before_jupyterlab(shipped, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "shipped_labs", lambda: shipped)
    monkeypatch.setattr(start, "prepare_model", lambda: None)
    monkeypatch.setattr(start.os, "execv", lambda *_: pytest.fail("JupyterLab was started"))
    assert command_line.main(["start", str(tmp_path / "mine"), "--prepare"]) == 0
    assert (tmp_path / "mine" / "00_start.ipynb").exists()


def test_a_model_that_cannot_be_had_stops_with_its_reason(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("NANOVLLM_EDU_CACHE", str(tmp_path / "cache"))
    broken = "import sys; sys.exit('the model file is damaged.')"
    monkeypatch.setattr(start, "_PREPARE", broken)
    with pytest.raises(start.StartError, match="could not be prepared"):
        start.prepare_model()
    told = capfd.readouterr()
    assert "preparing the model" in told.out and "the model file is damaged." in told.err
