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
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from dovetail.adapt.evidence import Problem, tune, tune_label_layers, tune_label_scale, tune_layers
from dovetail.adapt.linear_model import OFFSET, LinearModel
from dovetail.core.errors import ContractError, SettingsError, nearest, shown
from dovetail.core.seeds import generator
from dovetail.linalg.tangent import TangentFeatures

ROWS = 1500
"""Rows (samples times outputs) on which a prior is tuned; more of them would hardly move it."""

LABEL_ROWS = 750
"""The same for classes, whose evidence takes some steps of Newton's method for every value."""

LEAST = 1e-10
"""The least variance that noise is found to have, in units of the targets' mean square."""

WIDE = 100.0
"""The prior variance of an offset, in units of the targets' variance."""


@dataclass(frozen=True)
class Chosen:
    """A variance for each parameter, and one for the noise.

    Attributes:
        scales: The prior's variance by parameter name; not of the offset.
        noise: The noise's variance; 1 for classes, which have none.
    """

    scales: dict[str, float]
    noise: float = 1.0

    def named(self, model: LinearModel) -> dict[str, float]:
        """As the user calls them: by layer, or by parameter where those of a layer differ."""
        shown_as: dict[str, float] = {}
        for layer, names in _groups(model).items():
            values = {name: self.scales[name] for name in names}
            if len(set(values.values())) == 1:
                shown_as[_plain(layer)] = values[names[0]]
            else:
                shown_as |= {_plain(name): value for name, value in values.items()}
        return shown_as


def checked_prior(prior: Any, model: LinearModel) -> dict[str, float] | None:
    """What is known of the prior by parameter name, or None where it is to be found.

    >>> from torch import nn
    >>> model = LinearModel(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)))
    >>> checked_prior({"0": 2.0, "*.bias": 0.5, "*": 1.0}, model)
    {'0.weight': 2.0, '0.bias': 2.0, '1.weight': 1.0, '1.bias': 0.5}
    """
    if isinstance(prior, str) and prior in ("evidence", "layers"):
        return None
    names = [name for name in model.names if name != OFFSET]
    if isinstance(prior, Mapping):
        return _by_mapping(prior, model, names)
    if not _is_variance(prior):
        raise SettingsError(
            "prior is 'evidence', 'layers', a variance above 0, or a mapping of layers to "
            f"variances; got {shown(prior)}"
        )
    return dict.fromkeys(names, float(prior))


def offset_variance(prior: Any) -> float | None:
    """What a mapping says of the offset, if it does."""
    if isinstance(prior, Mapping) and OFFSET in prior:
        return _variance(prior[OFFSET], OFFSET)
    return None


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
    most = max(4, LABEL_ROWS // classes)
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
    least: float = 0.0,
    counts: Tensor | None = None,
) -> Chosen:
    """The prior and noise for numbers, by the evidence of one task or several.

    Args:
        model: Whose layers they are.
        tasks: Features, residuals ``[n, o]`` and known relative noise ``[n, o]`` of each.
        prior: As the user gave it.
        noise: The variance, or None to find it.
        constant: Whether an offset takes the mean of the residuals.
        least: The least variance that noise is found to have: targets that leave nothing to
            explain would have noise of nothing, to divide by.
        counts: How many times each sample counts ``[n]``, of one task; once unless said.
    """
    known = checked_prior(prior, model)
    groups = {"": [name for name in model.names if name != OFFSET]}
    if prior == "layers" and known is None:
        groups = {layer: list(names) for layer, names in _groups(model).items()}
    problems = []
    for features, residual, relative in tasks:
        rows, outputs = residual.numel(), residual.shape[1]
        if known is None:
            kernels = features.grams(groups)
        else:
            kernels = {"": features.gram(scales=known | {OFFSET: 0.0})}
        if not any(bool(kernel.any()) for kernel in kernels.values()):
            raise ContractError(
                "no chosen parameter reaches the outputs: none is used, the network detaches "
                "them, or the prior's variances are zero; choose others by params="
            )
        ones = torch.eye(outputs, dtype=residual.dtype).repeat(len(residual), 1)
        problems.append(
            Problem(
                tuple(kernel.reshape(rows, rows) for kernel in kernels.values()),
                residual.flatten(),
                None if relative is None else relative.flatten(),
                ones if constant else None,
                None if counts is None else counts.repeat_interleave(outputs),
            )
        )
    if known is not None:
        tuned = tune(problems, scale=1.0, noise=noise)
        return Chosen(known, tuned.noise if noise is not None else max(tuned.noise, least))
    tuned = tune_layers(problems, noise=noise) if prior == "layers" else tune(problems, noise=noise)
    scales = {
        name: value
        for value, names in zip(tuned.scales, groups.values(), strict=True)
        for name in names
    }
    return Chosen(scales, tuned.noise if noise is not None else max(tuned.noise, least))


def label_prior(
    model: LinearModel,
    features: TangentFeatures,
    labels: Tensor,
    mean: Tensor,
    prior: Any,
    counts: Tensor | None = None,
) -> Chosen:
    """The prior for classes, by Laplace's evidence of labels that count so many times each."""
    known = checked_prior(prior, model)
    if known is not None:
        return Chosen(known)
    rows = mean.numel()
    if prior == "layers":
        kernels = features.grams(model.groups)
        flat = tuple(kernel.reshape(rows, rows) for kernel in kernels.values())
        scales, _ = tune_label_layers(flat, mean, labels, counts=counts)
        named = zip(scales, model.groups.values(), strict=True)
        return Chosen({name: scale for scale, names in named for name in names})
    scale, _ = tune_label_scale([(features.gram().reshape(rows, rows), mean, labels, counts)])
    return Chosen(dict.fromkeys(model.names, scale))


def _groups(model: LinearModel) -> dict[str, tuple[str, ...]]:
    """Layers and their parameters, but for the offset."""
    return {layer: names for layer, names in model.groups.items() if names != (OFFSET,)}


def _plain(name: str) -> str:
    """As the user's network calls it."""
    return name.removeprefix("body.")


def _by_mapping(
    prior: Mapping[str, Any], model: LinearModel, names: Sequence[str]
) -> dict[str, float]:
    """A variance for each parameter: by its name, its layer's, or the first pattern that fits."""
    layers = {name: layer for layer, held in model.groups.items() for name in held}
    scales: dict[str, float] = {}
    used: set[str] = {OFFSET}
    for name in names:
        plain, layer = _plain(name), _plain(layers[name])
        fits = [key for key in (plain, layer) if key in prior]
        fits += [key for key in prior if fnmatchcase(plain, key) or fnmatchcase(layer, key)]
        if not fits:
            raise SettingsError(
                f"the prior says nothing of {plain!r}; name it or its layer {layer!r}, or give '*' "
                "for all others"
            )
        used.update(fits)
        scales[name] = _variance(prior[fits[0]], fits[0])
    if stray := [key for key in prior if key not in used]:
        layer_names = list(dict.fromkeys(_plain(layer) for layer in layers.values()))
        raise SettingsError(
            f"the prior names {shown(stray[0])}, which is no layer or parameter that moves"
            f"{nearest(str(stray[0]), layer_names)}"
        )
    return scales


def _variance(value: Any, name: str) -> float:
    if not (_is_variance(value) or value == 0):
        raise SettingsError(
            f"the prior variance of {name!r} is a number from 0, got {shown(value)}"
        )
    return float(value)


def _is_variance(value: Any) -> bool:
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0
