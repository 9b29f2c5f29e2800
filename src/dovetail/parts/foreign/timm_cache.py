"""timm's released weights that were downloaded once: files in the Hugging Face cache.

Nothing is downloaded here, and nothing is asked of a server.  A snapshot, such as that of
``timm/resnet18.a1_in1k``, is a folder with ``model.safetensors``, which :func:`dovetail.adopt`
reads as any file of weights.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from dovetail.parts.foreign.timm_models import PREFIX

_REPOSITORY = "models--timm--"


def cached_weights() -> dict[str, Path]:
    """Files of weights by the name of their builder (``timm/resnet18``); the first of several.

    None without timm, which would be needed to build the networks.
    """
    if find_spec("timm") is None:
        return {}
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    files_of: dict[str, Path] = {}
    for repository in sorted(cache.glob(f"{_REPOSITORY}*")):
        architecture = repository.name.removeprefix(_REPOSITORY).partition(".")[0]
        files = sorted(repository.glob("snapshots/*/model.safetensors"))
        if files:
            files_of.setdefault(PREFIX + architecture, files[-1])
    return files_of
