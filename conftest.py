"""What holds for every test of the project."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

pytest_plugins = ["tests.ci"]

# Triton reads this once, when something first imports it; later is too late. Without a GPU its kernels are
# interpreted. (The driver is looked for and not torch asked, since most tests here need no torch.)
if shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia/version").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
