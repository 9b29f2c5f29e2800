"""A fitted linearised estimator in a folder, and back.

The folder appears whole or not at all::

    contents.json      format number, sha256 and size of the two files below
    estimator.json     settings and what was found, in numbers and names
    state.safetensors  the mean's direction; with the data, the posterior and its inputs
    body/              the network, as a part's folder, where it has a recipe

Reading trusts nothing: sizes and hashes first, every field by its type, the network as any part is
read, every tensor by name, type and shape.  There is no code in any of the files.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dovetail.adapt.front import front_of
from dovetail.adapt.kept_facts import Facts, structure_digest, taken
from dovetail.adapt.kept_posterior import together
from dovetail.adapt.linear_model import LinearModel
from dovetail.adapt.networks import network_of
from dovetail.adapt.priors import Chosen
from dovetail.adapt.readout import Readout
from dovetail.core.errors import DovetailError, FormatError, first_line, shown
from dovetail.core.files import read_plain, sha256_of, whole_folder
from dovetail.core.memory import refuse_beyond_memory
from dovetail.core.plain import MOST_BYTES, dumps, from_plain, parse_json, read_json
from dovetail.parts.part import Part, as_part
from dovetail.parts.weights import check_header, dtype_name

if TYPE_CHECKING:
    from dovetail.adapt.linearized import Linearized

__all__ = ["read_estimator", "write_estimator"]

E = TypeVar("E", bound="Linearized")

FORMAT = 1
_CONTENTS, _FACTS, _STATE, _BODY = (
    "contents.json",
    "estimator.json",
    "state.safetensors",
    "body",
)

MOST_NUMBERS = 2**28
"""Of one input; a larger one is not of our making."""


@dataclass(frozen=True)
class _File:
    sha256: str
    size: int


@dataclass(frozen=True)
class _Contents:
    format: int
    files: dict[str, _File]


def write_estimator(
    estimator: Linearized, folder: str | Path, *, data: bool, overwrite: bool
) -> Path:
    """Write a fitted estimator; see :meth:`Linearized.save`."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FormatError(f"{folder} is a file; choose a new folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / _CONTENTS).is_file():
        raise FormatError(f"{folder} holds other files; choose a new folder")
    facts, tensors = taken(estimator, data)
    files = {
        _FACTS: dumps(facts).encode(),
        _STATE: save({n: t.detach().cpu().clone().contiguous() for n, t in tensors.items()}),
    }
    if len(files[_FACTS]) > MOST_BYTES:  # nobody could read it again
        raise FormatError(f"{_FACTS} would have {len(files[_FACTS])} bytes; move fewer parameters")
    try:
        with whole_folder(folder, replace=overwrite) as hidden:
            for name, content in files.items():
                (hidden / name).write_bytes(content)
            listed = {n: _File(sha256_of(hidden / n), len(each)) for n, each in files.items()}
            (hidden / _CONTENTS).write_text(dumps(_Contents(FORMAT, listed)))
            if facts.body.kept:
                estimator.body_.save_pretrained(hidden / _BODY)
    except FileExistsError:
        raise FormatError(f"{folder} is there already; pass overwrite=True") from None
    return folder


def read_estimator(kind: type[E], folder: str | Path, model: Part | nn.Module | None) -> E:
    """Read an estimator back; see :meth:`Linearized.load`."""
    folder = Path(folder)
    facts = _read_facts(folder)
    if facts.estimator != kind.__name__:
        raise FormatError(f"{folder} holds a {shown(facts.estimator)}, not a {kind.__name__}")
    body = _body(folder, facts, model)
    tensors = _read_state(folder / _STATE, facts)
    return _restored(kind, facts, body, tensors, model)


def _read_facts(folder: Path) -> Facts:
    if not (folder / _CONTENTS).is_file():
        raise FormatError(f"{folder}: no estimator is kept there")
    raw = read_json(folder / _CONTENTS, links=False)
    found = raw.get("format") if isinstance(raw, dict) else None
    if found != FORMAT:
        raise FormatError(
            f"{folder}: format {shown(found)}, this dovetail reads {FORMAT}; update dovetail"
        )
    listed = from_plain(_Contents, raw, _CONTENTS).files
    if set(listed) != {_FACTS, _STATE}:
        raise FormatError(f"{folder / _CONTENTS}: does not list the files of an estimator")
    data = read_plain(folder / _FACTS, most_bytes=MOST_BYTES, links=False)
    state = folder / _STATE
    if state.is_symlink() or not state.is_file():
        raise FormatError(f"{state}: missing, or not a plain file")
    refuse_beyond_memory(state.stat().st_size, state)
    hashes = {
        _FACTS: _File(hashlib.sha256(data).hexdigest(), len(data)),
        _STATE: _File(sha256_of(state), state.stat().st_size),
    }
    for name, expected in listed.items():
        if hashes[name] != expected:
            raise FormatError(f"{folder / name}: differs from what was written; save it again")
    return from_plain(Facts, parse_json(data, str(folder / _FACTS)), _FACTS)


def _body(folder: Path, facts: Facts, model: Part | nn.Module | None) -> Part:
    """The network inside, known again by its weights and its structure."""
    if model is not None:
        return _given(model, facts)
    if not facts.body.kept:
        raise FormatError(
            f"{folder} does not hold the network, which has no recipe; pass it: "
            "load(folder, model=...)"
        )
    part = Part.from_pretrained(folder / _BODY)
    if part.digest != facts.body.digest:
        raise FormatError(f"{folder / _BODY}: another network than the estimator was fitted with")
    return part


def _given(model: Part | nn.Module, facts: Facts) -> Part:
    """The user's network, whole or cut as it was for fitting."""
    whole = as_part(model)
    found = [whole]
    try:
        front = front_of(whole, facts.settings.get("at")).part
        found += [] if front is None else [front]
    except DovetailError:  # it cannot be cut there, so it was not
        pass
    for part in found:
        if (
            part.digest == facts.body.digest
            and structure_digest(part.module) == facts.body.structure
        ):
            return part.changed(contract=facts.body.contract)
    raise FormatError(
        "the model given is not the one that the estimator was fitted with: its weights or its "
        "layers differ"
    )


def _read_state(path: Path, facts: Facts) -> dict[str, Tensor]:
    wanted = ["direction", "constant", *(["projection"] if facts.projected else [])]
    if facts.posterior is not None:
        if not 0 <= facts.posterior.blocks <= 10**6:
            raise FormatError(f"{path}: no posterior has {facts.posterior.blocks} blocks of data")
        wanted += [f"posterior.{name}" for name in facts.posterior.names]
        wanted += [] if facts.classes is None else ["labels", "means"]
    check_header(path, wanted)
    try:
        with safe_open(path, framework="pt") as file:
            if set(file.keys()) != set(wanted):
                strange = sorted(set(file.keys()) ^ set(wanted))
                raise FormatError(f"{path}: tensor {shown(strange[0])} is missing or not wanted")
            return {name: file.get_tensor(name) for name in wanted}
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path}: not a safetensors file ({first_line(error)})") from None


def _restored(
    kind: type[E],
    facts: Facts,
    body: Part,
    tensors: dict[str, Tensor],
    model: Part | nn.Module | None,
) -> E:
    estimator = _with_settings(kind, facts, body, model)
    module, estimator._prepare, _ = network_of(body)
    estimator.body_ = body.changed(module=module)
    _must_be(tensors["constant"], (facts.outputs,), "constant")
    projection = tensors.get("projection")
    estimator.network_ = Readout(module, facts.outputs, projection)
    estimator.network_.to(next(module.parameters()).dtype).eval()
    known = dict(estimator.network_.named_parameters())
    if not facts.names or any(name not in known for name in facts.names):
        raise FormatError(f"{_FACTS}: names parameters that the network does not have")
    estimator.linear_ = LinearModel(estimator.network_, list(facts.names))
    estimator.direction_, estimator.constant_ = tensors["direction"], tensors["constant"]
    _must_be(estimator.direction_, (estimator.linear_.size,), "direction")
    estimator.follows_network_ = facts.follows_network
    estimator.prior_ = Chosen(facts.prior, facts.noise if facts.classes is None else 1.0)
    estimator._scales, estimator.scales_ = facts.scales, facts.scales_shown
    estimator.log_evidence_, estimator.rows_ = facts.log_evidence, facts.rows
    estimator.plan_ = facts.plan
    estimator.diagnostics_ = facts.diagnostics
    if min(facts.example, default=1) < 1 or math.prod(facts.example) > MOST_NUMBERS:
        raise FormatError(f"{_FACTS}: no input has the shape {shown(facts.example)}")
    estimator._example = torch.zeros(1, *facts.example)
    if facts.features_in is not None:
        estimator.n_features_in_ = facts.features_in
    if facts.feature_names is not None:
        estimator.feature_names_in_ = np.array(facts.feature_names, dtype=object)
    if facts.classes is None:
        estimator.noise_, estimator.was_flat_ = facts.noise, facts.was_flat
        estimator.centre_ = estimator.constant_
    else:
        estimator.classes_ = facts.classes.array()
        estimator.temperature_, estimator.mean_ = facts.temperature, facts.mean
        estimator.mean_temperature_, estimator.seed_ = facts.mean_temperature, facts.seed
    if facts.posterior is not None:
        held = {
            name.removeprefix("posterior."): tensor
            for name, tensor in tensors.items()
            if name.startswith("posterior.")
        }
        estimator.posterior_ = together(facts.posterior, held, estimator.linear_, facts.scales)
        if facts.classes is not None:
            estimator.labels_, estimator.means_ = tensors["labels"], tensors["means"]
            _must_be(estimator.means_, (len(estimator.labels_), facts.outputs), "means")
    return estimator


def _with_settings(kind: type[E], facts: Facts, body: Part, model: Part | nn.Module | None) -> E:
    """An estimator that is not fitted yet, which fits as the first did."""
    settings = dict(facts.settings)
    if not facts.model_given:
        model = None
    elif model is None:
        model, settings["at"] = body, "output"  # it is cut already
    estimator = kind()
    if strange := sorted(set(settings) ^ (set(estimator.get_params()) - {"model"})):
        raise FormatError(f"{_FACTS}: the setting {shown(strange[0])} is missing or not known")
    estimator.set_params(**settings, model=model)
    return estimator


def _must_be(tensor: Tensor, shape: tuple[int, ...], name: str) -> None:
    if tensor.dtype != torch.float64 or tuple(tensor.shape) != shape:
        raise FormatError(
            f"{_STATE}: {name!r} is {dtype_name(tensor.dtype)} {list(tensor.shape)}, expected "
            f"float64 {list(shape)}"
        )
