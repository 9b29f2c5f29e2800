r"""From what the user says of the prior and the noise to numbers.

A prior is a variance for every parameter.  ``"evidence"`` finds one for all of them, ``"layers"``
one for each layer; a number is taken as it is, and a mapping names layers, parameters or patterns
of them, such as what another task's estimator has in ``scales_``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from dovetail.adapt.evidence import Problem, tune, tune_layers
from dovetail.adapt.label_priors import tune_label_layers, tune_label_scale
from dovetail.adapt.linear_model import LinearModel
from dovetail.adapt.readout import OFFSET
from dovetail.core.errors import ContractError, SettingsError, nearest, shown
from dovetail.core.seeds import generator
from dovetail.linalg.tangent import TangentFeatures

__all__ = [
    "Chosen",
    "checked_noise",
    "checked_prior",
    "few",
    "few_of_each",
    "label_prior",
    "number_prior",
]

ROWS = 1500
"""Rows (samples times outputs) on which a prior is tuned; more of them would hardly move it."""

LABEL_ROWS = 750
"""The same for classes, whose evidence takes some steps of Newton's method for every value."""

LEAST = 1e-10
"""The least variance that noise is found to have, in units of the targets' mean square."""

WIDE = 100.0
"""The prior variance of an offset, in units of the targets' mean square."""


@dataclass(frozen=True)
class Chosen:
    """A variance for each layer, and one for the noise.

    Attributes:
        layers: The prior's variance by layer.
        noise: The noise's variance; 1 for classes, which have none.
    """

    layers: dict[str, float]
    noise: float = 1.0

    def scales(self, model: LinearModel, offset: float) -> dict[str, float]:
        """The same by parameter name; ``offset`` is the variance of the offset, if it moves."""
        by_name = {
            name: self.layers[layer] for layer, names in model.groups.items() for name in names
        }
        return by_name | ({OFFSET: offset} if OFFSET in by_name else {})


def checked_prior(prior: Any, model: LinearModel) -> dict[str, float] | None:
    """What is known of the prior by layer, or None where it is to be found.

    >>> from torch import nn
    >>> model = LinearModel(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)))
    >>> checked_prior({"0": 2.0, "*": 1.0}, model)
    {'0': 2.0, '1': 1.0}
    """
    if prior in ("evidence", "layers"):
        return None
    layers = [layer for layer in model.groups if model.groups[layer] != (OFFSET,)]
    if isinstance(prior, Mapping):
        return {layer: _named(prior, layer, model.groups[layer]) for layer in layers} | _offset(
            prior, model
        )
    if not _is_variance(prior):
        raise SettingsError(
            "prior is 'evidence', 'layers', a variance above 0, or a mapping of layers to "
            f"variances; got {shown(prior)}"
        )
    return dict.fromkeys(layers, float(prior)) | _offset({}, model)


def checked_noise(noise: Any) -> float | None:
    """The noise's variance, or None where it is to be found."""
    if isinstance(noise, str) and noise == "evidence":
        return None
    if not _is_variance(noise):
        raise SettingsError(f"noise is 'evidence' or a variance above 0, got {shown(noise)}")
    return float(noise)


def few(count: int, outputs: int, seed: int) -> Tensor:
    """Some samples to tune on, at random, in order; all where they are few."""
    most = max(2, ROWS // outputs)
    if count <= most:
        return torch.arange(count)
    order = torch.randperm(count, generator=generator(seed, "tuning"))
    return order[:most].sort().values


def few_of_each(labels: Tensor, classes: int, seed: int) -> Tensor:
    """Some samples of every class to tune on, at random, in order; all where they are few.

    >>> few_of_each(torch.tensor([0, 1, 0, 1]), 2, seed=0)
    tensor([0, 1, 2, 3])
    """
    most = max(2 * classes, LABEL_ROWS // classes)
    if len(labels) <= most:
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=generator(seed, "tuning"))
    # The first of every class, then the second of every class, and so on.
    rank = torch.empty_like(labels)
    for code in range(classes):
        members = order[labels[order] == code]
        rank[members] = torch.arange(len(members))
    chosen = order[rank[order].argsort(stable=True)][:most]
    return chosen.sort().values


def number_prior(
    model: LinearModel,
    tasks: Sequence[tuple[TangentFeatures, Tensor, Tensor | None]],
    prior: Any,
    noise: float | None,
    *,
    constant: bool,
) -> Chosen:
    """The prior and noise for numbers, by the evidence of one task or several.

    Args:
        model: Whose layers they are.
        tasks: Features, residuals ``[n, o]`` and known relative noise ``[n, o]`` of each.
        prior: As the user gave it.
        noise: The variance, or None to find it.
        constant: Whether an offset takes the mean of the residuals.
    """
    known = checked_prior(prior, model)
    groups = {layer: names for layer, names in model.groups.items() if names != (OFFSET,)}
    # Targets that leave nothing to explain would have noise of nothing, to divide by.
    least = 0.0
    if noise is None:
        least = LEAST * max(float(residual.square().mean()) for _, residual, _ in tasks)
    problems = []
    for features, residual, relative in tasks:
        kernels = features.grams(groups)
        if known is not None:
            kernels = {layer: known[layer] * kernel for layer, kernel in kernels.items()}
        if not any(bool(kernel.any()) for kernel in kernels.values()):
            raise ContractError(
                "no chosen parameter reaches the outputs: none is used, the network detaches "
                "them, or the prior's variances are zero; choose others by params="
            )
        rows = residual.numel()
        outputs = residual.shape[1]
        ones = torch.eye(outputs, dtype=residual.dtype).repeat(len(residual), 1)
        problems.append(
            Problem(
                tuple(kernel.reshape(rows, rows) for kernel in kernels.values()),
                residual.flatten(),
                None if relative is None else relative.flatten(),
                ones if constant else None,
            )
        )
    if known is not None:
        found = tune(problems, scale=1.0, noise=noise)
        return Chosen(known, max(found.noise, least))
    if prior == "layers":
        found = tune_layers(problems, noise=noise)
        layers = _spread(groups, found.scales) | _offset({}, model)
        return Chosen(layers, max(found.noise, least))
    found = tune(problems, noise=noise)
    layers = dict.fromkeys(groups, found.scales[0]) | _offset({}, model)
    return Chosen(layers, max(found.noise, least))


def label_prior(
    model: LinearModel, features: TangentFeatures, labels: Tensor, mean: Tensor, prior: Any
) -> Chosen:
    """The prior for classes, by Laplace's evidence."""
    known = checked_prior(prior, model)
    if known is not None:
        return Chosen(known)
    rows = mean.numel()
    if prior == "layers":
        kernels = features.grams(model.groups)
        flat = tuple(kernel.reshape(rows, rows) for kernel in kernels.values())
        scales, _ = tune_label_layers(flat, mean, labels)
        return Chosen(_spread(model.groups, scales))
    scale, _ = tune_label_scale(features.gram().reshape(rows, rows), mean, labels)
    return Chosen(dict.fromkeys(model.groups, scale))


def _spread(groups: Mapping[str, Any], scales: Sequence[float]) -> dict[str, float]:
    return dict(zip(groups, scales, strict=True))


def _offset(prior: Mapping[str, float], model: LinearModel) -> dict[str, float]:
    """The layer that holds the offset, whose variance is chosen elsewhere."""
    return {
        layer: float(prior.get(OFFSET, math.nan))
        for layer, names in model.groups.items()
        if names == (OFFSET,)
    }


def _named(prior: Mapping[str, float], layer: str, names: Sequence[str]) -> float:
    """The variance of a layer: by its name, a parameter's, or the first pattern that fits."""
    for wanted in (layer, layer.removeprefix("body."), *names):
        if wanted in prior:
            return _variance(prior[wanted], wanted)
    for pattern, value in prior.items():
        if any(fnmatchcase(name.removeprefix("body."), pattern) for name in (layer, *names)):
            return _variance(value, pattern)
    raise SettingsError(
        f"the prior says nothing of the layer {layer.removeprefix('body.')!r}"
        f"{nearest(layer, list(prior))}; name it, or give '*' for all others"
    )


def _variance(value: Any, name: str) -> float:
    if not (_is_variance(value) or value == 0):
        raise SettingsError(
            f"the prior variance of {name!r} is a number from 0, got {shown(value)}"
        )
    return float(value)


def _is_variance(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0
