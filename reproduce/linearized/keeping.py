"""What a run has found so far, on disk: one that is stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from dovetail.core.files import write_whole

Found = dict[str, float]


def found_once(
    folder: Path, key: str, protocol: Mapping[str, Any], make: Callable[[], Found]
) -> Found:
    """What ``make`` found, from disk if it was found before under the same protocol."""
    file = folder / f"{_plain(key)}.json"
    if not file.exists():
        found = make()
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"protocol": protocol, "found": found}, indent=1).encode())
        print(key, {name: round(value, 4) for name, value in found.items()}, flush=True)
    kept = json.loads(file.read_text())
    if kept["protocol"] != json.loads(json.dumps(protocol)):
        raise SystemExit(f"{file} was found under another protocol; delete it to run it again")
    return {name: float(value) for name, value in kept["found"].items()}


def trained_once(
    folder: Path, key: str, module: nn.Module, train: Callable[[], nn.Module]
) -> nn.Module:
    """The module with the weights that ``train`` gave it, now or before."""
    file = folder / f"{_plain(key)}.safetensors"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(".part")
        save_file({n: t.contiguous() for n, t in train().state_dict().items()}, half)
        half.rename(file)
    module.load_state_dict(load_file(file))
    return module.eval()


def _plain(key: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in key)
