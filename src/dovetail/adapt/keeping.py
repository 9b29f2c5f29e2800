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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.adapt.kept_posterior import Kept, apart, together
from dovetail.adapt.linear_model import LinearModel, Readout
from dovetail.adapt.networks import front_of, network_of
from dovetail.adapt.plan import Plan
from dovetail.adapt.priors import Chosen
from dovetail.core.errors import (
    DovetailError,
    FormatError,
    SettingsError,
    argument,
    first_line,
    shown,
)
from dovetail.core.folders import (
    Manifest,
    check_hash,
    check_sizes,
    longest_header,
    open_tensors,
    read_listed,
    read_manifest,
    tensor_bytes,
    write_folder,
)
from dovetail.core.plain import MOST_BYTES, dumps, from_plain, parse_json, to_plain
from dovetail.measure.estimator_inputs import class_names
from dovetail.pack.tensors import dtype_name
from dovetail.parts.contract import Contract
from dovetail.parts.modules import structure_of
from dovetail.parts.part import Part, as_part

if TYPE_CHECKING:
    from dovetail.adapt.linearized import LinearizedEstimator

E = TypeVar("E", bound="LinearizedEstimator")

FORMAT = 1
_CONTENTS, _FACTS, _STATE, _BODY = "contents.json", "estimator.json", "state.safetensors", "body"

NOT_HERE = "not here"
"""The model of an estimator that was loaded and whose network was fitted: the first is not kept."""

MOST_NUMBERS = 2**28
"""Of one input; a larger one is not of our making."""

DTYPES = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("float32", "float64", "str", "object"),
}
"""Of arrays of classes; an array of objects holds text or numbers."""


OF_ALL = ("follows_network", "rows", "diagnostics")
OF_NUMBERS, OF_CLASSES = ("noise", "repeats"), ("temperature", "mean_temperature", "seed")
"""Facts that estimators have as attributes of these names, with an underscore."""


@dataclass(frozen=True)
class Body:
    """The network: where it is, and by what it is known again."""

    digest: str
    structure: str
    contract: Contract
    kept: bool


@dataclass(frozen=True)
class Classes:
    """An array of classes.

    >>> Classes((3, 7), "int8").array()
    array([3, 7], dtype=int8)
    """

    names: tuple[bool | int | float | str, ...]
    dtype: str

    def array(self) -> Any:
        """The classes as the labels came."""
        if self.dtype not in DTYPES or len(self.names) < 2:
            raise FormatError(f"no classes of {shown(self.dtype)} are known")
        try:
            return np.array(self.names, dtype=self.dtype)
        except (ValueError, OverflowError, TypeError) as error:
            raise FormatError(f"classes: {first_line(error)}") from None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an estimator is, but for its tensors: names and numbers that JSON holds."""

    estimator: str
    settings: dict[str, Any]
    model_given: bool
    body: Body
    names: tuple[str, ...]
    outputs: int
    projected: bool
    example: tuple[int, ...]
    mean: str
    follows_network: bool
    prior: dict[str, float]
    scales: dict[str, float]
    scales_shown: dict[str, float]
    noise: float = 1.0
    repeats: float = 0.0
    log_evidence: float | None = None
    rows: int
    plan: Plan
    diagnostics: dict[str, Any]
    features_in: int | None = None
    feature_names: tuple[str, ...] | None = None
    was_flat: bool = False
    classes: Classes | None = None
    temperature: float = 1.0
    mean_temperature: float = 1.0
    seed: int = 0
    around: str = "start"
    chosen: str = "start"
    class_names: tuple[str, ...] | None = None
    posterior: Kept | None = None
    deviation_scale: tuple[float, ...] | None = None


def write_estimator(
    estimator: LinearizedEstimator, folder: str | Path, *, data: bool, overwrite: bool
) -> Path:
    """Write a fitted estimator; see :meth:`LinearizedEstimator.save`."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FormatError(f"{folder} is a file; choose a new folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / _CONTENTS).is_file():
        raise FormatError(f"{folder} holds other files; choose a new folder")
    facts, tensors = _taken(estimator, data)
    files = {_FACTS: dumps(facts).encode(), _STATE: tensor_bytes(tensors)}
    if len(files[_FACTS]) > MOST_BYTES:  # nobody could read it again
        raise FormatError(f"{_FACTS} would have {len(files[_FACTS])} bytes; move fewer parameters")

    def add_body(hidden: Path) -> None:
        if facts.body.kept:
            estimator.body_.save_pretrained(hidden / _BODY)

    try:
        write_folder(folder, _CONTENTS, FORMAT, files, replace=overwrite, fill=add_body)
    except FileExistsError:
        raise FormatError(
            f"{folder} is there already; pass {argument('overwrite', True)}"
        ) from None
    return folder


def read_estimator(kind: type[E], folder: str | Path, model: Part | nn.Module | None) -> E:
    """Read an estimator back; see :meth:`LinearizedEstimator.load`."""
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
    files = read_manifest(Manifest, folder, _CONTENTS, FORMAT, "estimator").files
    if set(files) != {_FACTS, _STATE}:
        raise FormatError(f"{folder / _CONTENTS}: does not list the files of an estimator")
    check_sizes(folder, files, {_FACTS: MOST_BYTES})
    check_hash(folder / _STATE, files[_STATE])
    data = read_listed(folder / _FACTS, files[_FACTS], most_bytes=MOST_BYTES)
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
    networks = [whole]
    try:
        front = front_of(whole, facts.settings.get("at")).part
        networks += [] if front is None else [front]
    except DovetailError:  # it cannot be cut there, so it was not
        pass
    for part in networks:
        known = (facts.body.digest, facts.body.structure)
        if (part.digest, structure_digest(part.module)) == known:
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
    with open_tensors(path, longest_header(wanted)) as file:
        if strange := sorted(set(file.keys()) ^ set(wanted)):
            raise FormatError(f"{path}: tensor {shown(strange[0])} is missing or not wanted")
        return {name: file.get_tensor(name) for name in wanted}


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
    estimator.prior_ = Chosen(facts.prior, facts.noise if facts.classes is None else 1.0)
    estimator._scales, estimator.scales_ = facts.scales, facts.scales_shown
    own = OF_NUMBERS if facts.classes is None else OF_CLASSES
    for name in ("log_evidence", "plan", *OF_ALL, *own):
        setattr(estimator, f"{name}_", getattr(facts, name))
    if facts.classes is None and facts.log_evidence is None:
        del estimator.log_evidence_  # it was not asked for yet
    if min(facts.example, default=1) < 1 or math.prod(facts.example) > MOST_NUMBERS:
        raise FormatError(f"{_FACTS}: no input has the shape {shown(facts.example)}")
    estimator._example = torch.zeros(1, *facts.example)
    if facts.features_in is not None:
        estimator.n_features_in_ = facts.features_in
    if facts.feature_names is not None:
        estimator.feature_names_in_ = np.array(facts.feature_names, dtype=object)
    estimator.mean_ = facts.mean
    if facts.classes is None:
        estimator.flat_, estimator.centre_ = facts.was_flat, estimator.constant_
        scale = torch.tensor(facts.deviation_scale or (1.0,) * facts.outputs, dtype=torch.float64)
        if len(scale) != facts.outputs or not bool((scale.isfinite() & (scale > 0)).all()):
            raise FormatError(f"{_FACTS}: deviation_scale is a factor above 0 for each output")
        estimator.deviation_scale_ = scale
    else:
        estimator.classes_ = facts.classes.array()
        estimator.around_, estimator.chosen_ = facts.around, facts.chosen
        estimator.class_names_ = facts.class_names or class_names(estimator.classes_)
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


def _with_settings(kind: type[E], facts: Facts, body: Part, model: Any) -> E:
    """An estimator that is not fitted yet, which fits as the first did."""
    settings = dict(facts.settings)
    if not facts.model_given:
        model = None
    elif model is None:
        if facts.around == "start":
            model, settings["at"] = body, "output"  # it is cut already
        else:  # the labels are in its weights: it is not where a fit began
            model = NOT_HERE
    estimator = kind()
    if "around" in estimator.get_params():
        settings.setdefault("around", "start")  # of files written before there was a choice
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


def _taken(estimator: LinearizedEstimator, data: bool) -> tuple[Facts, dict[str, Tensor]]:
    """Facts and tensors of a fitted estimator, with the posterior if its data are to be kept."""
    body, has = estimator.body_, vars(estimator)
    if body.recipe is None and has.get("around_", "start") != "start":
        raise SettingsError(
            "this network has no recipe and was fitted, so no file would have its weights; fit "
            "with around='start', or save to_part().module yourself"
        )
    projection = estimator.network_.projection
    tensors = {"direction": estimator.direction_, "constant": estimator.constant_}
    if projection is not None:
        tensors["projection"] = projection
    posterior, scale, names = None, has.get("deviation_scale_"), has.get("feature_names_in_")
    known = data or "prior_" in has  # else it would be computed for nothing
    if known and "classes_" in has:
        _ = estimator.log_evidence_
    if data and getattr(estimator, "posterior_", None) is not None:
        posterior, held = apart(estimator.posterior_)
        tensors |= {f"posterior.{name}": tensor for name, tensor in held.items()}
        if "labels_" in has:
            tensors |= {"labels": has["labels_"], "means": has["means_"]}
    facts = Facts(
        estimator=type(estimator).__name__,
        settings=_settings(estimator),
        model_given=estimator.model is not None,
        body=Body(
            body.digest, structure_digest(body.module), body.contract, body.recipe is not None
        ),
        names=tuple(estimator.linear_.names),
        outputs=len(estimator.constant_),
        projected=projection is not None,
        example=tuple(estimator._example.shape[1:]),
        mean=str(has.get("mean_", estimator.mean)),
        prior=dict(estimator.prior_.scales) if known else {},
        scales=dict(estimator._scales) if known else {},
        scales_shown=dict(estimator.scales_) if known else {},
        log_evidence=has.get("log_evidence_"),
        plan=estimator.plan_,
        around=has.get("around_", "start"),
        chosen=has.get("chosen_", "start"),
        class_names=has.get("class_names_"),
        features_in=has.get("n_features_in_"),
        feature_names=None if names is None else tuple(str(name) for name in names),
        was_flat=has.get("flat_", False),
        deviation_scale=None if scale is None else tuple(scale.tolist()),
        classes=_classes(estimator),
        posterior=posterior,
        **{n: has[f"{n}_"] for n in (*OF_ALL, *OF_NUMBERS, *OF_CLASSES) if f"{n}_" in has},
    )
    return facts, tensors


def _settings(estimator: LinearizedEstimator) -> dict[str, Any]:
    """The arguments but for the model, as JSON."""
    settings = estimator.get_params(deep=False)
    del settings["model"]
    if callable(settings["params"]):  # what it chose is known
        moved = (name for name in estimator.linear_.names if name.startswith("body."))
        settings["params"] = [name.removeprefix("body.") for name in moved]
    if isinstance(settings["projection"], np.ndarray | Tensor):
        settings["projection"] = np.asarray(settings["projection"]).tolist()
    settings["at"] = None if settings["at"] is None else str(settings["at"])
    plain = {}
    for name, value in settings.items():
        value = value.item() if isinstance(value, np.generic) else value
        try:
            plain[name] = to_plain(value)
        except TypeError:
            raise SettingsError(
                f"{name}={shown(value)} cannot be written to a file; exchange it first, by "
                f"set_params({name}=...)"
            ) from None
    return plain


def _classes(estimator: LinearizedEstimator) -> Classes | None:
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return None
    dtype = {"U": "str", "O": "object"}.get(classes.dtype.kind, classes.dtype.name)
    listed = classes.tolist()
    plain = all(isinstance(each, bool | int | float | str) for each in listed)
    if dtype not in DTYPES or not plain:
        raise SettingsError(
            f"classes of dtype {classes.dtype} cannot be written to a file; fit to labels that are "
            "text or numbers"
        )
    return Classes(tuple(listed), dtype)


def structure_digest(module: nn.Module) -> str:
    """The sha256 of a network's layers and settings, which its weights do not tell.

    >>> structure_digest(nn.ReLU()) == structure_digest(nn.Tanh())
    False
    """
    return hashlib.sha256("\n".join(structure_of(module)).encode()).hexdigest()
