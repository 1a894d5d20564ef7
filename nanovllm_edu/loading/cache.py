"""The user's cache folder, and how something is built in it exactly once.

A cache entry is a folder. It is built in a temporary folder beside its place and renamed into it in one step, so a
reader never sees half an entry and two notebooks may build the same one at once: the first rename wins. A manifest
with a checksum of every file tells a damaged entry from a whole one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import platformdirs
import xxhash

from ..errors import ModelLoadError

MANIFEST = "manifest.json"
_CHUNK = 1 << 20
_STALE_SECONDS = 3600


def cache_dir() -> Path:
    """Folder of this package's cache: `$NANOVLLM_EDU_CACHE`, else the platform's user cache. It may not exist yet."""
    override = os.environ.get("NANOVLLM_EDU_CACHE")
    return Path(override).expanduser() if override else Path(platformdirs.user_cache_dir("nanovllm_edu", False))


def checksum(path: Path) -> str:
    """xxh3-128 of a file, as hex; reads it in pieces, so that it costs no memory."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def is_whole(folder: Path) -> bool:
    """True when the entry exists and every file is exactly as it was written."""
    try:
        files: dict[str, str] = json.loads((folder / MANIFEST).read_text("utf-8"))["files"]
        return bool(files) and all(checksum(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def build_once(name: str, build: Callable[[Path], None], root: Path | None = None) -> Path:
    """Return the folder `name` of the cache, calling `build(empty_folder)` when it is missing or damaged.

    Raises ModelLoadError when the cache cannot be written (a full disk, a folder without write permission); whatever
    `build` raises passes through, and leaves nothing behind.
    """
    root = root or cache_dir()
    final = root / name
    if is_whole(final):
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
        try:
            build(work)
            files = {path.name: checksum(path) for path in sorted(work.iterdir())}
            (work / MANIFEST).write_text(json.dumps({"files": files}, indent=1), "utf-8")
            _put_in_place(work, final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise ModelLoadError(
            f"cannot write the model cache at {root}: {error}. Free some space or mend the permissions, or point the "
            "environment variable NANOVLLM_EDU_CACHE at another folder") from error
    return final


def _put_in_place(work: Path, final: Path) -> None:
    for _ in range(5):
        try:
            os.rename(work, final)
            return
        except OSError:
            if not final.exists():
                raise
        if is_whole(final):  # another process was first; its entry is as good as this one
            return
        trash = Path(tempfile.mkdtemp(prefix=".damaged.", dir=final.parent))
        try:
            os.rename(final, trash / "entry")
        except FileNotFoundError:
            pass  # another process moved it away
        shutil.rmtree(trash, ignore_errors=True)
    raise OSError(f"{final} keeps being replaced by another process")


def _sweep(root: Path) -> None:
    """Remove what builds that were killed left behind."""
    for path in root.glob(".*"):
        try:
            if path.is_dir() and time.time() - path.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
