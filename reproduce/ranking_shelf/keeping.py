"""Results that are computed once: written whole, and read back when they are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from dovetail.core.files import write_whole

__all__ = ["Facts", "kept_facts", "kept_tensors"]

Facts = dict[str, Any]


def kept_facts(file: Path, make: Callable[[], Facts]) -> Facts:
    """The facts in a JSON file; made and written first if it is not there."""
    if not file.is_file():
        write_whole(file, json.dumps(make(), indent=1) + "\n")
    facts: Facts = json.loads(file.read_text())
    return facts


def kept_tensors(file: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors in a safetensors file; made and written first if it is not there."""
    if not file.is_file():
        tensors = {name: tensor.contiguous() for name, tensor in make().items()}
        write_whole(file, save(tensors))
    return load_file(file)
