"""What is known of a part before any weight is read, without torch: lists are made of it.

See :mod:`dovetail.parts.disk` for the folder and for the order in which it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.core.errors import FormatError, shown
from dovetail.core.folders import (
    File,
    Manifest,
    check_hash,
    check_sizes,
    read_listed,
    read_manifest,
)
from dovetail.core.plain import MOST_BYTES, from_plain, parse_json
from dovetail.parts.contract import Contract
from dovetail.parts.recipe import Recipe, read_recipe


@dataclass(frozen=True)
class Origin:
    """How a part was made, of which parts, on which task, and what was measured of it.

    ``parents`` are digests of parts (see :attr:`Part.digest`), so that lineage survives renaming.

    >>> Origin(how="train", task="digits", measured={"validation accuracy": 0.98}).how
    'train'
    """

    how: str = "unknown"
    parents: tuple[str, ...] = ()
    task: str | None = None
    task_fingerprint: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)

    def of_child(self, digest: str, how: str, settings: Mapping[str, Any]) -> Origin:
        """The origin of what is made of the one part with this origin and digest: its task too.

        >>> Origin(how="train", task="digits").of_child("1f" * 32, "cut", {"at": "conv2"}).task
        'digits'
        """
        return Origin(how, (digest,), self.task, self.task_fingerprint, dict(settings))

    @property
    def trained_norms(self) -> dict[str, Any]:
        """Which statistics of batch norms the part was trained for, as settings; if it is said.

        A join says which ones it gave its batch norms, and not what its parts were trained for.

        >>> Origin(how="train", settings={"norms": "batch", "epochs": 2}).trained_norms
        {'norms': 'batch'}
        """
        # Compatible trainings, which have a scheme, did not always say what they are for.
        unsaid = "batch" if "scheme" in self.settings else None
        said = None if self.how == "join" else self.settings.get("norms", unsaid)
        return {} if said is None else {"norms": said}


FORMAT = 1
"""Raise when an older dovetail would misread a new folder; keep reading every older number."""

WEIGHTS, PACKED, REPLAY, FAMILIAR, CONFIG, CARD, MANIFEST = (
    "model.safetensors",
    "model.dovepack",
    "probe.safetensors",
    "familiar.safetensors",
    "config.json",
    "README.md",
    "manifest.json",
)
_LISTED = (CONFIG, WEIGHTS, PACKED, REPLAY, FAMILIAR, CARD)
MOST_OF_REPLAY = 128 << 20
"""Bytes of the file of a recorded run; a part whose inputs and outputs are larger has none."""

MOST_OF_FAMILIAR = 1 << 20
"""Bytes of the file of familiar features (:mod:`dovetail.parts.familiar`); those fitted have half
of it at most."""

_MOST = {
    CONFIG: MOST_BYTES,
    REPLAY: MOST_OF_REPLAY,
    FAMILIAR: MOST_OF_FAMILIAR,
    CARD: 4 * MOST_BYTES,
}
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
class PartManifest(Manifest):
    """The manifest of a part's folder, with the digest of its weights."""

    digest: str


def is_part_folder(folder: Path) -> bool:
    """Whether a folder holds a part (or claims to)."""
    return (folder / MANIFEST).is_file()


def read_facts(folder: Path, *, check_hashes: bool = True, check_builders: bool = True) -> Facts:
    """Read and check everything but the weights, whose hash ``read_module`` checks.

    To list a part, neither its hashes nor its builders need be checked; to load it, both.
    """
    if not folder.is_dir():
        raise FormatError(f"{folder}: no such folder")
    manifest = read_manifest(PartManifest, folder, MANIFEST, FORMAT, "part")
    files = manifest.files
    _check_names(folder / MANIFEST, files)
    check_sizes(folder, files, _MOST)
    for name in (REPLAY, CARD):
        if check_hashes and name in files:
            check_hash(folder / name, files[name])
    path = folder / CONFIG
    data = read_listed(path, files[CONFIG], most_bytes=MOST_BYTES, check_hashes=check_hashes)
    config = parse_json(data, str(path))
    for name in ("contract", "recipe", "origin"):
        if not isinstance(config, dict) or name not in config:
            raise FormatError(f"{path}: {name!r} is missing")
    return Facts(
        from_plain(Contract, config["contract"], "contract"),
        read_recipe(config["recipe"], check=check_builders),
        from_plain(Origin, config["origin"], "origin"),
        manifest.digest,
        files,
    )


def _check_names(manifest: Path, files: Mapping[str, File]) -> None:
    """Refuse a manifest that lists too little, weights twice, or what is no file of a part."""
    for name in (CONFIG, PACKED if PACKED in files else WEIGHTS):
        if name not in files:
            raise FormatError(f"{manifest}: does not list {name}")
    if PACKED in files and WEIGHTS in files:
        raise FormatError(f"{manifest}: lists weights twice, {WEIGHTS} and {PACKED}")
    if strange := [name for name in files if name not in _LISTED]:
        raise FormatError(f"{manifest}: {shown(strange[0])} is not a file of a part")
