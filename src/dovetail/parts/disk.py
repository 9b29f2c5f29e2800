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
import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from dovetail.core.errors import FormatError, first_line
from dovetail.core.files import sha256_of, whole_folder
from dovetail.core.memory import refuse_beyond_memory
from dovetail.core.plain import MOST_BYTES, dumps, parse_json, to_plain
from dovetail.parts import probe
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.described import (
    Described,
    described,
    described_slices,
    differences,
    refuse_misfit,
)
from dovetail.parts.facts import (
    CARD,
    CONFIG,
    FILES,
    FORMAT,
    MANIFEST,
    PACKED,
    PROBE,
    WEIGHTS,
    Facts,
    File,
    Manifest,
    another_hash,
    is_part_folder,
    read_facts,
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
    "card",
    "is_part_folder",
    "read_facts",
    "read_module",
    "replay",
    "write",
]


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
        CONFIG: _config(contract, recipe, origin),
        CARD: card(contract, recipe, origin, digest).encode(),
    }
    if packed is not None and holds(packed, state):
        files[PACKED] = packed
    else:  # tied tensors are written once a name; the builder ties them again
        files[WEIGHTS] = save({name: t.clone().contiguous() for name, t in state.items()})
    if tensors := probe.record(module, contract):
        files[PROBE] = save(tensors)
    with whole_folder(folder, replace=replace) as hidden:
        for name, data in files.items():
            (hidden / name).write_bytes(data)
        listed = {n: File(sha256_of(hidden / n), len(data)) for n, data in files.items()}
        (hidden / MANIFEST).write_text(dumps(Manifest(FORMAT, digest, listed)))


def read_module(folder: Path, facts: Facts) -> tuple[nn.Module, bytes | None]:
    """Rebuild the module and load its weights, or refuse and build nothing.

    Returns the container beside it, when the weights came packed.
    """
    planned = plan(facts.recipe)
    wanted = described(planned.module.state_dict())
    weights = PACKED if facts.is_packed else WEIGHTS
    refuse_beyond_memory(facts.files[weights].size, folder / weights)
    packed = None
    try:
        if facts.is_packed:
            packed = read_packed(folder / PACKED, facts.files[PACKED].size, wanted)
            if hashlib.sha256(packed).hexdigest() != facts.files[PACKED].sha256:
                raise another_hash(folder / PACKED)
            state = unpacked(packed, wanted, folder / PACKED)
            module = planned.with_memory()
            module.load_state_dict(state, strict=True)
        else:
            module = _from_safetensors(folder / WEIGHTS, facts.files[WEIGHTS], planned, wanted)
    except RuntimeError as error:  # a builder that makes another module than on the meta device
        raise FormatError(f"{folder}: cannot be loaded ({first_line(error)})") from None
    module.eval()
    if digest_of(module) != facts.digest:
        raise FormatError(f"{folder}: the weights' digest differs from the manifest's")
    return module, packed


def _from_safetensors(path: Path, file: File, planned: Plan, wanted: Described) -> nn.Module:
    if file.size > (most := 8 + longest_header(wanted) + bytes_of(wanted)):
        raise FormatError(
            f"{path}: not a safetensors file of its recipe ({file.size} bytes, at most {most})"
        )
    if sha256_of(path) != file.sha256:
        raise another_hash(path)
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
    if PROBE in facts.files and not probe.agrees(folder / PROBE, module, facts.contract):
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
        raise FormatError(f"{CONFIG} would have {len(data)} bytes, at most {MOST_BYTES} are read")
    parse_json(data, CONFIG)
    return data


def _restructured(module: nn.Module, planned: nn.Module) -> list[str]:
    """What has the same tensors but is another network: an exchanged activation, say."""
    found, wanted = structure_of(module), structure_of(planned)
    pairs = zip(found, wanted, strict=False)
    changed = [f"{a.strip()!r} instead of {b.strip()!r}" for a, b in pairs if a != b]
    return changed or ([] if len(found) == len(wanted) else ["it has other layers"])


# The card in a part's folder: what it is, for people and for hubs ---------------------------------


def card(contract: Contract, recipe: Recipe, origin: Origin, digest: str) -> str:
    """A README with the YAML head that model hubs read.

    >>> from dovetail.parts.recipe import Build
    >>> print(card(Contract(), Build("mlp"), Origin(how="build"), "1f" * 32).splitlines()[1])
    library_name: dovetail
    """
    head = ["---", "library_name: dovetail", "tags:", "- dovetail"]
    if origin.task:
        head += ["datasets:", f"- {json.dumps(origin.task)}"]
    rows = [
        *(f"| takes | {_port(port)} |" for port in contract.takes),
        *(f"| gives | {_port(port)} |" for port in contract.gives),
    ]
    if contract.classes:
        rows.append(f"| classes | {_cell(', '.join(contract.classes))} |")
    rows.append(f"| made by | {_cell(origin.how)} |")
    if origin.task:
        rows.append(f"| task | {_cell(origin.task)} |")
    rows += [f"| parent | `{parent[:12]}` |" for parent in origin.parents]
    rows += [f"| {_cell(name)} | {value:.4g} |" for name, value in origin.measured.items()]
    rows.append(f"| weights | sha256 `{digest[:12]}` |")
    return "\n".join(
        [
            *head,
            "---",
            "",
            "# A part made by dovetail",
            "",
            "| | |",
            "|---|---|",
            *rows,
            "",
            "Recipe:",
            "",
            "```json",
            json.dumps(to_plain(recipe), indent=2, sort_keys=True),
            "```",
            "",
            "Load it with `dovetail.from_pretrained(folder)`.",
            "",
        ]
    )


def _port(port: Port) -> str:
    after = "" if port.activation == "identity" else f", after {port.activation}"
    space = f", space `{_cell(port.space)}`" if port.space else ""
    return f"{shown_shape(port.shape)} {port.dtype}{after}{space}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
