"""What a fitted linearised estimator is, apart from tensors: names and numbers that JSON holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from dovetail.adapt.kept_posterior import Kept, apart
from dovetail.adapt.plan import Plan
from dovetail.core.errors import FormatError, SettingsError, first_line, shown
from dovetail.core.plain import to_plain
from dovetail.parts.contract import Contract
from dovetail.parts.structure import structure_of

if TYPE_CHECKING:
    from dovetail.adapt.linearized import Linearized

__all__ = ["Body", "Classes", "Facts", "structure_digest", "taken"]

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "float32",
    "float64",
    "str",
    "object",
)
"""Of arrays of classes; an array of objects holds text or numbers."""


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


@dataclass(frozen=True)
class Facts:
    """What an estimator is, but for its tensors."""

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
    noise: float
    log_evidence: float | None
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
    posterior: Kept | None = None


def taken(estimator: Linearized, data: bool) -> tuple[Facts, dict[str, Tensor]]:
    """Facts and tensors of a fitted estimator, with the posterior if its data are to be kept."""
    body, linear, prior = estimator.body_, estimator.linear_, estimator.prior_
    projection = estimator.network_.projection
    tensors = {"direction": estimator.direction_, "constant": estimator.constant_}
    if projection is not None:
        tensors["projection"] = projection
    posterior = getattr(estimator, "posterior_", None) if data else None
    kept = None
    if posterior is not None:
        kept, held = apart(posterior)
        tensors |= {f"posterior.{name}": tensor for name, tensor in held.items()}
        if hasattr(estimator, "labels_"):
            tensors |= {"labels": estimator.labels_, "means": estimator.means_}
    names = getattr(estimator, "feature_names_in_", None)
    facts = Facts(
        type(estimator).__name__,
        _settings(estimator),
        estimator.model is not None,
        Body(
            body.digest, structure_digest(body.module), body.contract, kept=body.recipe is not None
        ),
        tuple(linear.names),
        len(estimator.constant_),
        projection is not None,
        tuple(estimator._example.shape[1:]),
        str(getattr(estimator, "mean_", estimator.mean)),
        estimator.follows_network_,
        dict(prior.scales),
        dict(estimator._scales),
        dict(estimator.scales_),
        float(getattr(estimator, "noise_", 1.0)),
        estimator.log_evidence_,
        estimator.rows_,
        estimator.plan_,
        dict(estimator.diagnostics_),
        getattr(estimator, "n_features_in_", None),
        None if names is None else tuple(str(name) for name in names),
        getattr(estimator, "was_flat_", False),
        _classes(estimator),
        float(getattr(estimator, "temperature_", 1.0)),
        float(getattr(estimator, "mean_temperature_", 1.0)),
        int(getattr(estimator, "seed_", 0)),
        kept,
    )
    return facts, tensors


def _settings(estimator: Linearized) -> dict[str, Any]:
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


def _classes(estimator: Linearized) -> Classes | None:
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return None
    dtype = {"U": "str", "O": "object"}.get(classes.dtype.kind, classes.dtype.name)
    listed = classes.tolist()
    if dtype not in DTYPES or not all(
        isinstance(each, bool | int | float | str) for each in listed
    ):
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
