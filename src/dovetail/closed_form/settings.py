"""The arguments of an estimator, judged when it is fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from dovetail.closed_form.layers import ACTIVATIONS, Activation, activation_of
from dovetail.closed_form.platonic import SOLVERS
from dovetail.closed_form.projections import PROJECTIONS
from dovetail.closed_form.scaling import SCALES
from dovetail.core.errors import SettingsError, nearest, shown
from dovetail.measure.estimator_inputs import seed_of

WIDE = 16
"""Inputs from which on the first layer is by sorted PCA: few inputs have few directions."""
ENOUGH = 2 * WIDE
"""Rows from which on it is: of fewer there is little to choose."""

USUAL = 100
"""Units of the one hidden layer that ``"auto"`` makes.

Where units are about as many as rows, a network fits them by heart and predicts worst: from half to
twice as many rows as that, it gets half as many units as rows (``reproduce/platonic_widths.py``).
"""

NAMED = {"deterministic": ("sorted-pca", "pca")}
"""Names for several projections."""


@dataclass(frozen=True)
class Settings:
    """What the estimators were asked for, checked: known names, numbers within their limits."""

    widths: tuple[int, ...] | None
    """``None`` for ``"auto"``."""
    activation: Activation
    projections: tuple[str, ...]
    """Empty for ``"auto"``."""
    tries: int
    target_scale: float
    label_weight: float | str
    ridge: float | str
    solver: str
    ema: float | None
    patience: int | None
    rank: int | None
    scale_inputs: str
    filters: int | None
    patch_size: int | None
    pool: int | None
    seed: int

    def widths_for(self, rows: float) -> tuple[int, ...]:
        """A width for each hidden layer of a network for so many rows, copies counted."""
        if self.widths is not None:
            return self.widths
        return (int(rows / 2) if USUAL < 2 * rows < 4 * USUAL else USUAL,)

    def projections_for(
        self, inputs: int, widths: Sequence[int], rows: int, copies: float
    ) -> tuple[str, ...]:
        """A projection for each layer, the last for all beyond.

        ``"auto"`` is sorted PCA for the first layer where there are inputs enough to have
        directions and rows enough to choose from (``copies``, where whole weights count as so
        many rows; sorted PCA picks from ``rows``); random projections for all else, and behind
        filters, where they are better by a point (``benchmarks/platonic_patches.py``).
        """
        if self.projections:
            return self.projections
        plain = self.filters is None
        if plain and widths and inputs >= WIDE and copies >= ENOUGH and widths[0] <= rows:
            return ("sorted-pca", "random")
        return ("random",)


def settings_of(estimator: Any, *, streamed: bool) -> Settings:
    """The arguments of an estimator, or a sentence that says which one makes no sense.

    >>> from types import SimpleNamespace
    >>> settings_of(SimpleNamespace(hidden_layer_sizes=(8, 0)), streamed=False)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: hidden_layer_sizes must be whole numbers from 1 on, got 0
    """
    widths = _widths(estimator.hidden_layer_sizes)
    solver = _one_of("solver", estimator.solver, SOLVERS)
    if streamed and solver in ("pinv", "lstsq"):
        raise SettingsError(
            f"solver={solver!r} needs all rows in memory; with batches say 'cholesky', 'eigen' or "
            "'auto'"
        )
    if estimator.filters is None and (estimator.patch_size, estimator.pool) != (None, None):
        raise SettingsError("patch_size and pool are of filters; say how many, as filters=32")
    if streamed and estimator.filters is not None:
        raise SettingsError(
            "filters are patches of images in memory; with batches make the layer of some of them, "
            "patch_layer(images, filters), and give batches of its maps"
        )
    return Settings(
        widths=widths,
        activation=_activation(estimator.activation),
        projections=_projections(estimator.projection, 1 if widths is None else len(widths)),
        tries=_whole("n_tries", estimator.n_tries),
        target_scale=_number("target_scale", estimator.target_scale, positive=True),
        label_weight=_auto("label_weight", estimator.label_weight),
        ridge=_auto("ridge", estimator.ridge),
        solver=solver,
        ema=None if estimator.ema is None else _share("ema", estimator.ema),
        **{
            name: None
            if getattr(estimator, name) is None
            else _whole(name, getattr(estimator, name))
            for name in ("patience", "rank", "filters", "patch_size", "pool")
        },
        scale_inputs=_one_of("scale_inputs", estimator.scale_inputs, SCALES),
        seed=seed_of(estimator.random_state),
    )


def _widths(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, str) and value == "auto":
        return None
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = (value,)
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise SettingsError(
            "hidden_layer_sizes is 'auto' or a tuple with a width for each hidden layer, not "
            f"{shown(value)}"
        )
    return tuple(_whole("hidden_layer_sizes", each) for each in value)


def _activation(value: Any) -> Activation:
    name = isinstance(value, str)
    return activation_of(_one_of("activation", value, tuple(ACTIVATIONS)) if name else value)


def _projections(value: Any, layers: int) -> tuple[str, ...]:
    if isinstance(value, str):
        if value == "auto":
            return ()
        if value in NAMED:
            return NAMED[value]
        return (_one_of("projection", value, PROJECTIONS, ("auto", *NAMED)),)
    if not isinstance(value, Sequence) or not value:
        raise SettingsError(
            f"projection is a name or a tuple with one for each layer, not {shown(value)}"
        )
    if len(value) > layers:
        raise SettingsError(
            f"projection names {len(value)} layers, hidden_layer_sizes {layers}; drop the rest"
        )
    return tuple(_one_of("projection", each, PROJECTIONS) for each in value)


def _one_of(name: str, value: Any, known: Sequence[str], also: Sequence[str] = ()) -> str:
    choices = (*also, *known)
    if not isinstance(value, str) or value not in choices:
        near = nearest(value, choices) if isinstance(value, str) else ""
        raise SettingsError(
            f"{name} is one of {', '.join(choices)}; got {shown(value)}"
            + (near if "did you mean" in near else "")
        )
    return value


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        kind = "whole numbers" if name == "hidden_layer_sizes" else "a whole number"
        raise SettingsError(f"{name} must be {kind} from 1 on, got {shown(value)}")
    return int(value)


def _number(name: str, value: Any, *, positive: bool = False) -> float:
    wanted = "a positive number" if positive else "a number from 0 on"
    right = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not right or value < 0 or (positive and value == 0):
        raise SettingsError(f"{name} must be {wanted}, got {shown(value)}")
    return float(value)


def _auto(name: str, value: Any) -> float | str:
    if isinstance(value, str):
        if value != "auto":
            raise SettingsError(f"{name} must be 'auto' or a number from 0 on, got {shown(value)}")
        return value
    return _number(name, value)


def _share(name: str, share: Any) -> float:
    value = _number(name, share)
    if value > 1:
        raise SettingsError(f"{name} must be between 0 and 1, got {shown(share)}")
    return value
