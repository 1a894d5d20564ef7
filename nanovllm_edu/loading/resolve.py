"""From what the user named (nothing, a folder, a hub id) to a folder in the Hugging Face layout."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import ModelLoadError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+\Z")
_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json",
              "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt",
              "special_tokens_map.json", "added_tokens.json"]


def resolve(model: str | os.PathLike[str] | None) -> Path:
    """Folder of a checkpoint. None is the packaged model; a hub id is downloaded once, with a progress bar.

    Raises ModelLoadError when there is no such folder, or the hub cannot be reached and has nothing cached.
    """
    if model is None:
        from .packaged import packaged_folder

        return packaged_folder()
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise ModelLoadError(f"{path} is a file: name the folder that holds config.json and the .safetensors files")
    name = str(model)
    if not _HUB_ID.match(name) or name.startswith("."):
        raise ModelLoadError(f"there is no folder {name!r}, and it is not a hub id such as 'Qwen/Qwen3-0.6B'")
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except GatedRepoError as error:
        raise ModelLoadError(f"{name!r} asks for its licence to be accepted on its page and for a login "
                             "(`hf auth login`)") from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(f"there is no folder and no model on the hub named {name!r}") from error
    except LocalEntryNotFoundError as error:
        raise ModelLoadError(f"{name!r} is neither a local folder nor in the hub's cache, and the hub cannot be "
                             "reached: check the network, or give LLM a local folder; LLM() needs no hub") from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{name!r} could not be fetched from the hub: {error}") from error
