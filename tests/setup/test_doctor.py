"""`python -m nanovllm_edu doctor`: every line is true, and each thing missing comes with what mends it."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from nanovllm_edu import doctor
from nanovllm_edu.__main__ import main


def test_a_whole_environment_is_called_whole(capsys):
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert f"Python {sys.version.split()[0]}" in told
    for name in ("torch", "jupyterlab", "ipywidgets", "anywidget"):
        assert f"{name} {importlib.metadata.version(name)}" in told
    assert "All that the labs need is here." in told and "BAD" not in told


def test_a_missing_package_names_its_command_and_the_exit_status_tells(monkeypatch, capsys):
    real = importlib.metadata.version

    def version(name):
        if name == "anywidget":
            raise importlib.metadata.PackageNotFoundError(name)
        return "4.0.1" if name == "jupyterlab" else real(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "BAD  anywidget is missing" in told
    assert "BAD  jupyterlab 4.0.1 is outside of <5,>=4.4" in told
    assert f"{sys.executable} -m pip install 'anywidget" in told


def test_a_wrong_python_is_bad(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 10, 1))
    (found,) = doctor.check_python()
    assert found.state == "bad" and "make PYTHON=" in found.remedy


def test_a_missing_dot_is_a_note_with_its_remedy(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    (found,) = doctor.check_dot()
    assert found.state == "note" and "apt install graphviz" in found.remedy


def test_a_kernel_from_elsewhere_is_found(monkeypatch, tmp_path):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    argv = '["/usr/bin/env", "-m", "ipykernel_launcher", "-f", "{connection_file}"]'
    (folder / "kernel.json").write_text(f'{{"argv": {argv}, "display_name": "Python 3", "language": "python"}}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    (found,) = doctor.check_kernel()
    assert found.state == "bad" and "/usr/bin/env" in found.what and str(folder) in found.remedy


def test_an_unprepared_model_is_a_note_and_the_cache_is_where_it_was_put(monkeypatch, tmp_path):
    monkeypatch.setenv("NANOVLLM_EDU_CACHE", str(tmp_path / "cache"))
    model, cache = doctor.check_model()
    assert model.state == "note" and "start --prepare" in model.remedy
    assert str(tmp_path / "cache") in cache.what and " 0 MB" in cache.what


def test_too_little_memory_and_disk(monkeypatch, tmp_path):
    import psutil

    monkeypatch.setenv("NANOVLLM_EDU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 10**8})())
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("D", (), {"free": 10**8})())
    memory, disk = doctor.check_room()
    assert memory.state == "note" and "0.1 GB of memory free" in memory.what
    assert disk.state == "bad" and "NANOVLLM_EDU_CACHE" in disk.remedy


def test_one_broken_check_does_not_hide_the_others(monkeypatch, capsys):
    def check_broken():
        raise RuntimeError("gone")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (check_broken, doctor.check_python))
    assert doctor.doctor() == 1
    told = capsys.readouterr().out
    assert "check_broken failed: RuntimeError: gone" in told and "ok   Python" in told


@pytest.mark.parametrize("words", [[], ["strat"], ["start", "a", "b"]])
def test_misspelt_commands_end_with_the_usage(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: python -m nanovllm_edu" in capsys.readouterr().err
