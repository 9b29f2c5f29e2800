"""One part's folder: written whole, and read in an order that trusts nothing.

The folder follows the Hugging Face layout, so that it can go to a hub as it is::

    config.json        contract, recipe, origin
    model.safetensors  the weights; or model.dovepack, the same packed small
    probe.safetensors  an input and what the part made of it
    manifest.json      format number, sha256 and size of every other file
    README.md          the card

Reading: the two JSON files within size limits; sizes of all files, and the sha256 of all but the
weights; the recipe, refusing unknown operators, builders and arguments; the module on the meta
device, which says how long the weights' file can be; their sha256; their header, whose every name,
shape and dtype must be the module's; only then the real module, loaded strictly.  Links, pipes and
devices are never opened; files that the manifest does not list are never looked at.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from dovetail.core.errors import FormatError, first_line, shown
from dovetail.core.files import read_plain, sha256_of, whole_folder
from dovetail.core.memory import refuse_beyond_memory
from dovetail.core.plain import MOST_BYTES, dumps, from_plain, parse_json, read_json, to_plain
from dovetail.parts import probe
from dovetail.parts.card import card
from dovetail.parts.contract import Contract
from dovetail.parts.described import (
    Described,
    described,
    described_slices,
    differences,
    refuse_misfit,
)
from dovetail.parts.origin import Origin
from dovetail.parts.packed_file import bytes_of, holds, read_packed, unpacked
from dovetail.parts.planning import Plan, plan
from dovetail.parts.recipe import Recipe, read_recipe
from dovetail.parts.structure import structure_of
from dovetail.parts.weights import check_header, digest_of, longest_header

__all__ = [
    "FILES",
    "FORMAT",
    "Facts",
    "is_part_folder",
    "read_facts",
    "read_module",
    "replay",
    "write",
]

FORMAT = 1
"""Raise when an older dovetail would misread a new folder; keep reading every older number."""

_WEIGHTS, _PACKED, _PROBE, _CONFIG, _CARD, _MANIFEST = (
    "model.safetensors",
    "model.dovepack",
    "probe.safetensors",
    "config.json",
    "README.md",
    "manifest.json",
)
_LISTED = (_CONFIG, _WEIGHTS, _PACKED, _PROBE, _CARD)
_MOST = {_CONFIG: MOST_BYTES, _PROBE: probe.MOST_BYTES, _CARD: 4 * MOST_BYTES}
"""Bytes of the files whose length no recipe tells; a card says what the config says, at length."""

FILES = (_MANIFEST, *_LISTED)
"""All a part's folder can hold; of the two files of weights it holds one."""


@dataclass(frozen=True)
class Facts:
    """What a part's folder says before any weight is read."""

    contract: Contract
    recipe: Recipe
    origin: Origin
    digest: str
    files: dict[str, _File]

    @property
    def is_packed(self) -> bool:
        """Whether the weights are in a packed container."""
        return _PACKED in self.files


@dataclass(frozen=True)
class _File:
    sha256: str
    size: int


@dataclass(frozen=True)
class _Manifest:
    format: int
    digest: str
    files: dict[str, _File]


def is_part_folder(folder: Path) -> bool:
    """Whether a folder holds a part (or claims to)."""
    return (folder / _MANIFEST).is_file()


def write(
    folder: Path,
    module: nn.Module,
    contract: Contract,
    recipe: Recipe,
    origin: Origin,
    *,
    packed: bytes | None = None,
    replace: bool = False,
) -> None:
    """Write a part's folder; it appears whole or not at all.

    ``packed`` is a container of the weights, written in their stead as long as it decodes to
    exactly them; weights that have changed since are written as they are.
    """
    state = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    planned = plan(read_recipe(to_plain(recipe))).module
    if wrong := differences(described(state), described(planned.state_dict())) or _restructured(
        module, planned
    ):
        raise FormatError(
            f"the recipe does not rebuild this module: {wrong[0]}; it was changed after it was "
            "built, so register what makes it as a builder of its own (@dt.builder)"
        )
    digest = digest_of(module)
    files = {
        _CONFIG: _config(contract, recipe, origin),
        _CARD: card(contract, recipe, origin, digest).encode(),
    }
    if packed is not None and holds(packed, state):
        files[_PACKED] = packed
    else:  # tied tensors are written once a name; the builder ties them again
        files[_WEIGHTS] = save({name: t.clone().contiguous() for name, t in state.items()})
    if tensors := probe.record(module, contract):
        files[_PROBE] = save(tensors)
    with whole_folder(folder, replace=replace) as hidden:
        for name, data in files.items():
            (hidden / name).write_bytes(data)
        listed = {n: _File(sha256_of(hidden / n), len(data)) for n, data in files.items()}
        (hidden / _MANIFEST).write_text(dumps(_Manifest(FORMAT, digest, listed)))


def read_facts(folder: Path, *, check_hashes: bool = True, check_builders: bool = True) -> Facts:
    """Read and check everything but the weights, whose hash :func:`read_module` checks.

    To list a part, neither its hashes nor its builders need be checked; to load it, both.
    """
    if not folder.is_dir():
        raise FormatError(f"{folder}: no such folder")
    raw = read_json(folder / _MANIFEST, links=False)
    found = raw.get("format") if isinstance(raw, dict) else None
    if found != FORMAT:
        raise FormatError(
            f"{folder}: part format {shown(found)}, this dovetail reads {FORMAT}; update dovetail"
        )
    manifest = from_plain(_Manifest, raw, _MANIFEST)
    _check_files(folder, manifest.files, check_hashes)
    config = _read_config(folder / _CONFIG, manifest.files[_CONFIG], check_hashes)
    for name in ("contract", "recipe", "origin"):
        if not isinstance(config, dict) or name not in config:
            raise FormatError(f"{folder / _CONFIG}: {name!r} is missing")
    return Facts(
        from_plain(Contract, config["contract"], "contract"),
        read_recipe(config["recipe"], check=check_builders),
        from_plain(Origin, config["origin"], "origin"),
        manifest.digest,
        manifest.files,
    )


def read_module(folder: Path, facts: Facts) -> tuple[nn.Module, bytes | None]:
    """Rebuild the module and load its weights, or refuse and build nothing.

    Returns the container beside it, when the weights came packed.
    """
    planned = plan(facts.recipe)
    wanted = described(planned.module.state_dict())
    weights = _PACKED if facts.is_packed else _WEIGHTS
    refuse_beyond_memory(facts.files[weights].size, folder / weights)
    packed = None
    try:
        if facts.is_packed:
            packed = read_packed(folder / _PACKED, facts.files[_PACKED].size, wanted)
            if hashlib.sha256(packed).hexdigest() != facts.files[_PACKED].sha256:
                raise _another_hash(folder / _PACKED)
            state = unpacked(packed, wanted, folder / _PACKED)
            module = planned.with_memory()
            module.load_state_dict(state, strict=True)
        else:
            module = _from_safetensors(folder / _WEIGHTS, facts.files[_WEIGHTS], planned, wanted)
    except RuntimeError as error:  # a builder that makes another module than on the meta device
        raise FormatError(f"{folder}: cannot be loaded ({first_line(error)})") from None
    module.eval()
    if digest_of(module) != facts.digest:
        raise FormatError(f"{folder}: the weights' digest differs from the manifest's")
    return module, packed


def _from_safetensors(path: Path, file: _File, planned: Plan, wanted: Described) -> nn.Module:
    if file.size > (most := 8 + longest_header(wanted) + bytes_of(wanted)):
        raise FormatError(
            f"{path}: not a safetensors file of its recipe ({file.size} bytes, at most {most})"
        )
    if sha256_of(path) != file.sha256:
        raise _another_hash(path)
    check_header(path, wanted)
    try:
        # One handle for both: a file exchanged between the check and the loading is not seen.
        with safe_open(path, framework="pt") as tensors:
            refuse_misfit(described_slices(tensors), wanted, path)
            module = planned.with_memory()
            module.load_state_dict({name: tensors.get_tensor(name) for name in wanted}, strict=True)
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path}: not a safetensors file ({error})") from None
    return module


def replay(folder: Path, module: nn.Module) -> None:
    """Run the stored probe again: a cut whose names drifted gives another output, and is refused.

    Only a probe that the manifest vouches for counts; a part without one passes.
    """
    facts = read_facts(folder, check_hashes=False, check_builders=False)
    if _PROBE in facts.files and not probe.agrees(folder / _PROBE, module, facts.contract):
        raise FormatError(f"{folder}: the part no longer gives the output it was stored with")


def _config(contract: Contract, recipe: Recipe, origin: Origin) -> bytes:
    value = {
        "library_name": "dovetail",
        "contract": to_plain(contract),
        "recipe": to_plain(recipe),
        "origin": to_plain(origin),
    }
    data = dumps(value).encode()
    if len(data) > MOST_BYTES:  # nobody could read it again
        raise FormatError(f"{_CONFIG} would have {len(data)} bytes, at most {MOST_BYTES} are read")
    parse_json(data, _CONFIG)
    return data


def _check_files(folder: Path, files: dict[str, _File], check_hashes: bool) -> None:
    for name in (_CONFIG, _PACKED if _PACKED in files else _WEIGHTS):
        if name not in files:
            raise FormatError(f"{folder / _MANIFEST}: does not list {name}")
    if _PACKED in files and _WEIGHTS in files:
        raise FormatError(f"{folder / _MANIFEST}: lists weights twice, {_WEIGHTS} and {_PACKED}")
    for name, expected in files.items():
        if name not in _LISTED:
            raise FormatError(f"{folder / _MANIFEST}: {shown(name)} is not a file of a part")
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise FormatError(f"{path}: missing, or not a plain file")
        if (size := path.stat().st_size) != expected.size:
            raise FormatError(f"{path}: {size} bytes, the manifest says {expected.size}")
        if size > _MOST.get(name, size):
            raise FormatError(f"{path}: {size} bytes is more than a file of ours ever has")
    for name in (_PROBE, _CARD):
        if check_hashes and name in files and sha256_of(folder / name) != files[name].sha256:
            raise _another_hash(folder / name)


def _another_hash(path: Path) -> FormatError:
    return FormatError(f"{path}: sha256 differs from the manifest")


def _read_config(path: Path, expected: _File, check_hash: bool) -> Any:
    """The config's JSON, from the very bytes whose hash was checked."""
    data = read_plain(path, most_bytes=MOST_BYTES, links=False)
    if check_hash and hashlib.sha256(data).hexdigest() != expected.sha256:
        raise _another_hash(path)
    return parse_json(data, str(path))


def _restructured(module: nn.Module, planned: nn.Module) -> list[str]:
    """What has the same tensors but is another network: an exchanged activation, say."""
    found, wanted = structure_of(module), structure_of(planned)
    pairs = zip(found, wanted, strict=False)
    changed = [f"{a.strip()!r} instead of {b.strip()!r}" for a, b in pairs if a != b]
    return changed or ([] if len(found) == len(wanted) else ["it has other layers"])
