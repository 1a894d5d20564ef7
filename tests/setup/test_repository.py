"""What is under version control: no outputs, no traces of the machine it was written on, a wheel that is whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = {".py", ".js", ".css", ".md", ".toml", ".txt", ".yml", ".ipynb", ".html", ".svg", ".json", ".cfg", ""}
# Split, so that this file does not find itself.
MACHINE = re.compile(r"(?<![\w.~])/(?:wo" r"rk|ro" r"ot|home/\w+)/|/tm" r"p/\w|C:\\\\Users")
REGISTRY = re.compile(r"py" r"pi\.org|pythonh" r"osted\.org|registry\.n" r"pmjs|deb\.deb" r"ian\.org")


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def notebooks() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".ipynb"]


@pytest.mark.parametrize("pattern", [MACHINE, REGISTRY], ids=["a machine's path", "a package registry's host"])
def test_no_file_names(pattern):
    found = []
    for path in tracked():
        if path.suffix in TEXT and "golden" not in path.parts and path.name != "LICENSE":
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                if match := pattern.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []


def test_the_patterns_see_what_they_are_for():
    assert MACHINE.search('open("/ro' 'ot/x")') and MACHINE.search("in /tm" "p/y") and not MACHINE.search("net/work/x")
    assert REGISTRY.search("https://py" "pi.org/simple")


def test_notebooks_carry_no_outputs_and_no_run_counts():
    for path in notebooks():
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert code, f"{path.name} has no code"
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), path.name


def test_notebooks_are_what_their_sources_give():
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "build_labs.py"), "--check"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_views_file_is_what_its_sources_give():
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "build_widgets.py"), "--check"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_learner_makes_is_ignored():
    for name in ("my_labs/00_start.ipynb", ".venv/pyvenv.cfg"):
        assert subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT).returncode == 0, name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    quietly = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *quietly, "-w", str(place), str(ROOT)], check=True,
                   capture_output=True)
    (path,) = place.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_carries_the_package_its_views_and_the_labs_and_nothing_else(wheel):
    names = set(wheel.namelist())
    package = {path for path in tracked() if path.is_relative_to(ROOT / "nanovllm_edu")}
    assert {str(path.relative_to(ROOT)) for path in package} <= names
    assert {f"nanovllm_edu/_labs/{path.name}" for path in notebooks() if path.parent.name == "labs"} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"nanovllm_edu"}
    assert not any(name.endswith((".pyc", ".gguf", ".safetensors")) for name in names)


def test_the_wheel_says_what_it_is(wheel):
    (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    text = wheel.read(metadata).decode()
    assert "\nLicense-Expression: Apache-2.0\n" in text and "\nRequires-Python: >=3.11\n" in text
    assert "\nRequires-Dist: jupyterlab" in text and "extra == 'lab'" in text
