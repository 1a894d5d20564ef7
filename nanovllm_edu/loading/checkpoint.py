"""Read a folder in the Hugging Face layout: its configuration and its safetensors files, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelLoadError

if TYPE_CHECKING:
    import torch

_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)  # recomputed from the configuration; old checkpoints carry it


class Checkpoint:
    """A checkpoint folder. Use it as a context manager: files are mapped while it is open.

    config: the parsed config.json. generation_config: the parsed generation_config.json, or {}.
    Raises ModelLoadError for a folder without a configuration or weights, and for a damaged file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.config = self._json("config.json", required=True)
        self.generation_config = self._json("generation_config.json", required=False)
        self._file_of = self._find_weights()
        self._open: tuple[Path, Any] | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in sorted(set(self._file_of.values())):
            handle = self._handle(file)
            for name in handle.keys():
                if self._file_of.get(name) == file:
                    self.shapes[name] = tuple(handle.get_slice(name).get_shape())
        lost = sorted(self._file_of.keys() - self.shapes.keys())
        if lost:
            raise ModelLoadError(f"{self.folder}: the index names tensors that its files do not hold: {_some(lost)}")

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open = None

    def check(self, expected: Mapping[str, tuple[int, ...]], optional: set[str] | frozenset[str] = frozenset()) -> None:
        """Raise ModelLoadError, listing names, unless the files hold exactly the expected tensors.

        optional: names that may be there without being used (a head that is tied to the embedding).
        """
        have = {name for name in self.shapes if not name.endswith(_IGNORED_SUFFIXES)}
        problems = []
        if missing := sorted(expected.keys() - have):
            problems.append(f"missing: {_some(missing)}")
        if surplus := sorted(have - expected.keys() - optional):
            problems.append(f"not part of this architecture: {_some(surplus)}")
        wrong = [f"{name} is {list(self.shapes[name])}, the configuration asks for {list(shape)}"
                 for name, shape in expected.items() if name in have and self.shapes[name] != tuple(shape)]
        if wrong:
            problems.append(f"of another shape: {_some(wrong)}")
        if problems:
            raise ModelLoadError(f"the weights in {self.folder} do not fit its config.json: " + "; ".join(problems))

    def read(self, name: str) -> torch.Tensor:
        """One tensor in the file's dtype, mapped (not copied). Ask in file order: one file is open at once."""
        return self._handle(self._file_of[name]).get_tensor(name)

    def _handle(self, file: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        if self._open is None or self._open[0] != file:
            self._open = None  # unmap the file before: at most one is mapped at a time
            try:
                self._open = (file, safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{file} is missing or damaged ({error}); fetch the checkpoint again") from error
        return self._open[1]

    def _find_weights(self) -> dict[str, Path]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            weight_map = self._json(index.name, required=True).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ModelLoadError(f"{index} has no 'weight_map'; fetch the checkpoint again")
            return {name: self.folder / file for name, file in weight_map.items()}
        self._open = None
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise ModelLoadError(f"{self.folder} holds no .safetensors files, and no other weights are read")
        return {name: file for file in files for name in self._handle(file).keys()}

    def _json(self, name: str, required: bool) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            if required:
                raise ModelLoadError(f"{self.folder} holds no {name}: it is no checkpoint in the Hugging Face layout")
            return {}
        try:
            value = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ModelLoadError(f"{path} is not valid JSON ({error})") from error
        if not isinstance(value, dict):
            raise ModelLoadError(f"{path} must hold a JSON object")
        return value


def _some(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
