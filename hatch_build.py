"""Lay the course's notebooks into the wheel, so that `python -m nanovllm_edu start` works without a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Labs(BuildHookInterface):
    """An editable install reads labs/ in place; only a real wheel needs copies."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for notebook in sorted((Path(self.root) / "labs").glob("*.ipynb")):
            build_data["force_include"][str(notebook)] = f"nanovllm_edu/_labs/{notebook.name}"
