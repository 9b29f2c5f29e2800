"""One part's folder: written whole, and read in an order that trusts nothing.

The folder follows the Hugging Face layout, so that it can go to a hub as it is::

    config.json        contract, recipe, origin
    model.safetensors  the weights; or model.dovepack, the same packed small
    probe.safetensors  an input and what the part made of it
    familiar.safetensors  which features it knows, if that was fitted
    manifest.json      format number, sha256 and size of every other file
    README.md          the card

Reading: the two JSON files within size limits; sizes of all files, and the sha256 of all but the
weights; the recipe, refusing unknown operators, builders and arguments; the module on the meta
device, which says how long the weights' file can be; their sha256; their header, whose every name,
shape and dtype must be the module's; only then the real module, loaded strictly; and the features
that it knows, which must suit it.  Links, pipes and devices are never opened; files that the
manifest does not list are never looked at.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import FormatError, first_line
from dovetail.core.files import refuse_beyond_memory
from dovetail.core.folders import (
    File,
    check_hash,
    longest_header,
    open_tensors,
    tensor_bytes,
    write_folder,
)
from dovetail.core.plain import MOST_BYTES, dumps, parse_json, to_plain
from dovetail.pack.tensors import dtype_name
from dovetail.parts.blueprint import Blueprint, draft
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.facts import (
    CARD,
    CONFIG,
    FAMILIAR,
    FORMAT,
    MANIFEST,
    MOST_OF_REPLAY,
    PACKED,
    REPLAY,
    WEIGHTS,
    Facts,
    Origin,
    read_facts,
)
from dovetail.parts.familiar import Familiar, read_familiar
from dovetail.parts.modules import (
    Described,
    described,
    described_slices,
    differences,
    digest_of,
    evaluating,
    refuse_misfit,
    structure_of,
)
from dovetail.parts.packed import bytes_of, holds, read_packed, unpacked
from dovetail.parts.recipe import Recipe, read_recipe


def write(
    folder: Path,
    module: nn.Module,
    contract: Contract,
    recipe: Recipe,
    origin: Origin,
    *,
    packed: bytes | None = None,
    familiar: Familiar | None = None,
    replace: bool = False,
) -> None:
    """Write a part's folder; it appears whole or not at all.

    ``packed`` is a container of the weights, written in their stead as long as it decodes to
    exactly them; weights that have changed since are written as they are.
    """
    state = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    rebuilt = draft(read_recipe(to_plain(recipe))).module
    if wrong := differences(described(state), described(rebuilt.state_dict())) or _restructured(
        module, rebuilt
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
    else:  # the builder ties again what is tied
        files[WEIGHTS] = tensor_bytes(state)
    if tensors := _recorded_run(module, contract):
        files[REPLAY] = tensor_bytes(tensors)
    if familiar is not None:
        files[FAMILIAR] = familiar.to_bytes()
    write_folder(folder, MANIFEST, FORMAT, files, replace=replace, digest=digest)


def read_module(folder: Path, facts: Facts) -> tuple[nn.Module, bytes | None]:
    """Rebuild the module and load its weights, or refuse and build nothing.

    Returns the container beside it, when the weights came packed.
    """
    blueprint = draft(facts.recipe)
    wanted = described(blueprint.module.state_dict())
    weights = PACKED if facts.is_packed else WEIGHTS
    path, listed = folder / weights, facts.files[weights]
    refuse_beyond_memory(listed.size, path)
    packed = None
    try:
        if facts.is_packed:
            packed = read_packed(path, listed.size, wanted)
            check_hash(path, listed, packed)
            state = unpacked(packed, wanted, path)
            module = blueprint.with_memory()
            module.load_state_dict(state, strict=True)
        else:
            module = _from_safetensors(path, listed, blueprint, wanted)
    except RuntimeError as error:  # a builder that makes another module than on the meta device
        raise FormatError(f"{folder}: cannot be loaded ({first_line(error)})") from None
    module.eval()
    if digest_of(module) != facts.digest:
        raise FormatError(f"{folder}: the weights' digest differs from the manifest's")
    return module, packed


def read_known(folder: Path, facts: Facts, module: nn.Module) -> Familiar | None:
    """The features that the part knows, or nothing if its folder does not say."""
    listed = facts.files.get(FAMILIAR)
    return None if listed is None else read_familiar(folder / FAMILIAR, listed, module)


def _from_safetensors(path: Path, file: File, blueprint: Blueprint, wanted: Described) -> nn.Module:
    if file.size > (most := 8 + longest_header(wanted) + bytes_of(wanted)):
        raise FormatError(
            f"{path}: not a safetensors file of its recipe ({file.size} bytes, at most {most})"
        )
    check_hash(path, file)
    with open_tensors(path, longest_header(wanted)) as tensors:
        refuse_misfit(described_slices(tensors), wanted, path)
        module = blueprint.with_memory()
        module.load_state_dict({name: tensors.get_tensor(name) for name in wanted}, strict=True)
    return module


def replay(folder: Path, module: nn.Module) -> None:
    """Run the stored probe again: a cut whose names drifted gives another output, and is refused.

    Only a probe that the manifest vouches for counts; a part without one passes.
    """
    facts = read_facts(folder, check_hashes=False, check_builders=False)
    if REPLAY in facts.files and not _still_agrees(folder / REPLAY, module, facts.contract):
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


def _restructured(module: nn.Module, rebuilt: nn.Module) -> list[str]:
    """What has the same tensors but is another network: an exchanged activation, say."""
    mine, wanted = structure_of(module), structure_of(rebuilt)
    pairs = zip(mine, wanted, strict=False)
    changed = [f"{a.strip()!r} instead of {b.strip()!r}" for a, b in pairs if a != b]
    return changed or ([] if len(mine) == len(wanted) else ["it has other layers"])


# A fixed input and what the part made of it, to see whether it still does -------------------------


def _recorded_run(module: nn.Module, contract: Contract) -> dict[str, Tensor]:
    """Two fixed inputs and the outputs they give; empty when the contract does not say enough.

    >>> sorted(_recorded_run(nn.Linear(3, 1), Contract(takes=(Port((3,)),))))
    ['input.0', 'output.0']
    """
    inputs = []
    for port in contract.takes:
        if port.shape is None or None in port.shape or port.dtype != "float32":
            return {}
        sizes = [axis for axis in port.shape if axis is not None]
        inputs.append(torch.rand(2, *sizes, generator=torch.Generator().manual_seed(0)))
    try:
        outputs = _outputs(module, inputs)
    except Exception as error:  # the module is code of others
        raise FormatError(
            f"the part does not take what its contract says it takes: {first_line(error)}"
        ) from None
    if not all(isinstance(output, Tensor) for output in outputs):
        return {}
    if sum(value.nbytes for value in (*inputs, *outputs)) > MOST_OF_REPLAY - (
        1 << 20
    ):  # its header
        return {}
    named = {f"input.{i}": x for i, x in enumerate(inputs)}
    return named | {f"output.{i}": y.clone().contiguous() for i, y in enumerate(outputs)}


def _still_agrees(path: Path, module: nn.Module, contract: Contract) -> bool:
    """Whether the module still gives the outputs in the file.

    Outputs are compared to 1e-4 of their size: bits differ between processors, meaning does not.
    Both must have the shapes of the contract, whose word is otherwise only its author's.
    """
    try:
        with open_tensors(path, longest_header(())) as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        inputs = [stored[f"input.{i}"] for i in range(len(contract.takes))]
        expected = [stored[f"output.{i}"] for i in range(len(stored) - len(inputs))]
        _check_shapes(contract.takes, inputs)
        outputs = _outputs(module, inputs)
        _check_shapes(contract.gives, list(outputs))
    except Exception as error:  # the file may lie, and the module is code of others
        reason = first_line(error)
        raise FormatError(f"{path}: the probe cannot be replayed ({reason})") from None
    return len(outputs) == len(expected) and all(map(_close, outputs, expected))


def _check_shapes(ports: tuple[Port, ...], values: list[Any]) -> None:
    for port, value in zip(ports, values, strict=False):
        if isinstance(value, Tensor):
            actual = Port(tuple(value.shape[1:]), dtype_name(value.dtype))
            if obstacles := port.obstacles(actual):
                raise FormatError(
                    f"the contract says {shown_shape(port.shape)}, "
                    f"the probe has another {obstacles[0]}"
                )


def _outputs(module: nn.Module, inputs: list[Tensor]) -> tuple[Any, ...]:
    first = next(iter(module.state_dict().values()), None)
    device = torch.device("cpu") if first is None else first.device
    with evaluating(module), torch.random.fork_rng():
        value = module(*(x.to(device) for x in inputs))
    values = value if isinstance(value, tuple) else (value,)
    return tuple(v.cpu() if isinstance(v, Tensor) else v for v in values)


def _close(output: Any, expected: Tensor) -> bool:
    if not isinstance(output, Tensor):
        return False
    if (output.shape, output.dtype) != (expected.shape, expected.dtype):
        return False
    if not expected.is_floating_point():
        return torch.equal(output, expected)
    finite = expected[expected.isfinite()].abs()
    scale = float(finite.max()) + 1e-6 if finite.numel() else 1.0
    return torch.allclose(output, expected, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)


# The card in a part's folder: what it is, for people and for hubs ---------------------------------


def card(contract: Contract, recipe: Recipe, origin: Origin, digest: str) -> str:
    """A README with the YAML head that model hubs read.

    >>> from dovetail.parts.recipe import Build
    >>> print(card(Contract(), Build("mlp"), Origin(how="build"), "1f" * 32).splitlines()[1])
    library_name: dovetail
    """
    datasets = f"datasets:\n- {json.dumps(origin.task)}\n" if origin.task else ""
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
    table = "\n".join(["| | |", "|---|---|", *rows])
    built = json.dumps(to_plain(recipe), indent=2, sort_keys=True)
    return (
        f"---\nlibrary_name: dovetail\ntags:\n- dovetail\n{datasets}---\n\n"
        f"# A part made by dovetail\n\n{table}\n\n"
        f"Recipe:\n\n```json\n{built}\n```\n\n"
        "Load it with `dovetail.from_pretrained(folder)`.\n"
    )


def _port(port: Port) -> str:
    after = "" if port.activation == "identity" else f", after {port.activation}"
    space = f", space `{_cell(port.space)}`" if port.space else ""
    return f"{shown_shape(port.shape)} {port.dtype}{after}{space}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
