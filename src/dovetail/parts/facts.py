"""What a part's folder says before any weight is read, without torch: lists are made of it.

See :mod:`dovetail.parts.disk` for the folder and for the order in which it is read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core.errors import FormatError, shown
from dovetail.core.files import read_plain, sha256_of
from dovetail.core.plain import MOST_BYTES, from_plain, parse_json, read_json
from dovetail.parts.contract import Contract
from dovetail.parts.origin import Origin
from dovetail.parts.recipe import Recipe, read_recipe

__all__ = [
    "FILES",
    "FORMAT",
    "Facts",
    "File",
    "Manifest",
    "another_hash",
    "is_part_folder",
    "read_facts",
]

FORMAT = 1
"""Raise when an older dovetail would misread a new folder; keep reading every older number."""

WEIGHTS, PACKED, PROBE, CONFIG, CARD, MANIFEST = (
    "model.safetensors",
    "model.dovepack",
    "probe.safetensors",
    "config.json",
    "README.md",
    "manifest.json",
)
_LISTED = (CONFIG, WEIGHTS, PACKED, PROBE, CARD)
MOST_OF_PROBE = 128 << 20
"""Bytes of a probe's file; a part whose inputs and outputs are larger has none."""

_MOST = {CONFIG: MOST_BYTES, PROBE: MOST_OF_PROBE, CARD: 4 * MOST_BYTES}
"""Bytes of the files whose length no recipe tells; a card says what the config says, at length."""

FILES = (MANIFEST, *_LISTED)
"""All a part's folder can hold; of the two files of weights it holds one."""


@dataclass(frozen=True)
class Facts:
    """What a part's folder says before any weight is read."""

    contract: Contract
    recipe: Recipe
    origin: Origin
    digest: str
    files: dict[str, File]

    @property
    def is_packed(self) -> bool:
        """Whether the weights are in a packed container."""
        return PACKED in self.files


@dataclass(frozen=True)
class File:
    """What the manifest says of a file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """The manifest of a part's folder."""

    format: int
    digest: str
    files: dict[str, File]


def is_part_folder(folder: Path) -> bool:
    """Whether a folder holds a part (or claims to)."""
    return (folder / MANIFEST).is_file()


def read_facts(folder: Path, *, check_hashes: bool = True, check_builders: bool = True) -> Facts:
    """Read and check everything but the weights, whose hash ``read_module`` checks.

    To list a part, neither its hashes nor its builders need be checked; to load it, both.
    """
    if not folder.is_dir():
        raise FormatError(f"{folder}: no such folder")
    raw = read_json(folder / MANIFEST, links=False)
    found = raw.get("format") if isinstance(raw, dict) else None
    if found != FORMAT:
        raise FormatError(
            f"{folder}: part format {shown(found)}, this dovetail reads {FORMAT}; update dovetail"
        )
    manifest = from_plain(Manifest, raw, MANIFEST)
    _check_files(folder, manifest.files, check_hashes)
    config = _read_config(folder / CONFIG, manifest.files[CONFIG], check_hashes)
    for name in ("contract", "recipe", "origin"):
        if not isinstance(config, dict) or name not in config:
            raise FormatError(f"{folder / CONFIG}: {name!r} is missing")
    return Facts(
        from_plain(Contract, config["contract"], "contract"),
        read_recipe(config["recipe"], check=check_builders),
        from_plain(Origin, config["origin"], "origin"),
        manifest.digest,
        manifest.files,
    )


def _check_files(folder: Path, files: dict[str, File], check_hashes: bool) -> None:
    for name in (CONFIG, PACKED if PACKED in files else WEIGHTS):
        if name not in files:
            raise FormatError(f"{folder / MANIFEST}: does not list {name}")
    if PACKED in files and WEIGHTS in files:
        raise FormatError(f"{folder / MANIFEST}: lists weights twice, {WEIGHTS} and {PACKED}")
    for name, expected in files.items():
        if name not in _LISTED:
            raise FormatError(f"{folder / MANIFEST}: {shown(name)} is not a file of a part")
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise FormatError(f"{path}: missing, or not a plain file")
        if (size := path.stat().st_size) != expected.size:
            raise FormatError(f"{path}: {size} bytes, the manifest says {expected.size}")
        if size > _MOST.get(name, size):
            raise FormatError(f"{path}: {size} bytes is more than a file of ours ever has")
    for name in (PROBE, CARD):
        if check_hashes and name in files and sha256_of(folder / name) != files[name].sha256:
            raise another_hash(folder / name)


def another_hash(path: Path) -> FormatError:
    """The error for a file that is not the one that was written."""
    return FormatError(f"{path}: sha256 differs from the manifest")


def _read_config(path: Path, expected: File, check_hash: bool) -> Any:
    """The config's JSON, from the very bytes whose hash was checked."""
    data = read_plain(path, most_bytes=MOST_BYTES, links=False)
    if check_hash and hashlib.sha256(data).hexdigest() != expected.sha256:
        raise another_hash(path)
    return parse_json(data, str(path))
