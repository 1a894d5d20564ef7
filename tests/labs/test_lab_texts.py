"""What can be judged of the labs without running them: up to date, plain words, sentences before cells, links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import Random

import nbformat
import pytest

from nanovllm_edu.exercises import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))
each = pytest.mark.parametrize("lab", LABS, ids=[lab.stem for lab in LABS])
# They tell a reader who is stuck that it is their fault.
FORBIDDEN = re.compile(
    r"\b(simply|just|obvious(ly)?|eas(y|ily)|of course|clearly|trivial(ly)?|merely|basically|as you know)\b", re.I)


def cells(lab: Path, kind: str) -> list[str]:
    return [cell.source for cell in nbformat.read(lab, as_version=4).cells if cell.cell_type == kind]


def test_there_are_labs():
    assert [lab.stem for lab in LABS] == [source.stem for source in sorted((ROOT / "labs" / "src").glob("[0-9]*.py"))]
    assert LABS


def test_the_notebooks_are_what_their_sources_give():
    command = [sys.executable, ROOT / "scripts" / "build_labs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@each
def test_no_outputs_no_counts_and_ids_that_stay(lab: Path):
    document = nbformat.read(lab, as_version=4)
    nbformat.validate(document)
    assert document.metadata.kernelspec.name == "python3"
    for number, cell in enumerate(document.cells):
        assert cell.id.endswith(f"-{number:03d}")
        assert not cell.get("outputs") and cell.get("execution_count") is None


@each
def test_a_sentence_stands_before_every_code_cell(lab: Path):
    before = ""
    for cell in nbformat.read(lab, as_version=4).cells:
        if cell.cell_type == "code":
            assert re.search(r"[.:?!]\)?\s*$", before), f"no sentence before: {cell.source[:60]!r}"
            before = ""
        else:
            before = cell.source


@each
def test_there_is_something_to_do_on_every_screen(lab: Path):
    words, document = 0, nbformat.read(lab, as_version=4)
    for cell in document.cells:
        words = words + len(cell.source.split()) if cell.cell_type == "markdown" else 0
        assert words <= 300, f"{words} words without anything to do, up to: {cell.source[:60]!r}"


def texts() -> dict[str, str]:
    found = {lab.name: "\n".join(cells(lab, "markdown")) for lab in LABS}
    for one in CATALOGUE.values():
        params = one.draw(Random(0))
        found[one.id] = "\n".join([one.title, one.ask(params).text(), *one.hints, one.explain(params), one.otherwise,
                                   *(m.message for m in one.misconceptions)])
    return found


@pytest.mark.parametrize("name", list(texts()))
def test_words_are_kind(name: str):
    assert [match.group() for match in FORBIDDEN.finditer(texts()[name])] == []


@each
def test_links_within_the_project_lead_somewhere(lab: Path):
    text = "\n".join(cells(lab, "markdown"))
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, flags=re.M)
    for target in targets:
        assert target.startswith("https://") or (lab.parent / target.split("#")[0]).exists(), target


@each
def test_functions_that_the_lab_names_here_exist(lab: Path):
    rows = re.findall(r"^\| .*$", "\n".join(cells(lab, "markdown")), flags=re.M)
    named = [(file, function) for row in rows
             for file, functions in re.findall(r"`(\w+\.py)`: ((?:`\w+`(?:, )?)+)", row.split("|")[2])
             for function in re.findall(r"`(\w+)`", functions)]
    assert named
    for file, function in named:
        source = (ROOT / "nanovllm_edu" / "engine" / file).read_text("utf-8")
        assert f"def {function}(" in source, f"{file} has no {function}"


@each
def test_every_exercise_of_the_lab_is_in_it(lab: Path):
    number = lab.stem.split("_")[0]
    used = re.findall(r'^exercise\("([\w-]+)"\)\.widget\(\)$', "\n".join(cells(lab, "code")), flags=re.M)
    assert used == [one.id for one in CATALOGUE.values() if one.lab == number]
    assert len(used) >= 2
