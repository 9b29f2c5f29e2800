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


def settings_of(given: Any, *, streamed: bool) -> Settings:
    """The arguments of an estimator, or a sentence that says which one makes no sense.

    >>> from types import SimpleNamespace
    >>> settings_of(SimpleNamespace(hidden_layer_sizes=(8, 0)), streamed=False)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: hidden_layer_sizes must be whole numbers from 1 on, got 0
    """
    widths = _widths(given.hidden_layer_sizes)
    solver = _one_of("solver", given.solver, SOLVERS)
    if streamed and solver in ("pinv", "lstsq"):
        raise SettingsError(
            f"solver={solver!r} needs all rows in memory; with batches say 'cholesky', 'eigen' or "
            "'auto'"
        )
    if given.filters is None and (given.patch_size, given.pool) != (None, None):
        raise SettingsError("patch_size and pool are of filters; say how many, as filters=32")
    if streamed and given.filters is not None:
        raise SettingsError(
            "filters are patches of images in memory; with batches make the layer of some of them, "
            "patch_layer(images, filters), and give batches of its maps"
        )
    return Settings(
        widths=widths,
        activation=_activation(given.activation),
        projections=_projections(given.projection, 1 if widths is None else len(widths)),
        tries=_whole("n_tries", given.n_tries),
        target_scale=_number("target_scale", given.target_scale, positive=True),
        label_weight=_auto("label_weight", given.label_weight),
        ridge=_auto("ridge", given.ridge),
        solver=solver,
        ema=None if given.ema is None else _share("ema", given.ema),
        **{
            name: None if getattr(given, name) is None else _whole(name, getattr(given, name))
            for name in ("patience", "rank", "filters", "patch_size", "pool")
        },
        scale_inputs=_one_of("scale_inputs", given.scale_inputs, SCALES),
        seed=seed_of(given.random_state),
    )


def _widths(given: Any) -> tuple[int, ...] | None:
    if isinstance(given, str) and given == "auto":
        return None
    if isinstance(given, Integral) and not isinstance(given, bool):
        given = (given,)
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise SettingsError(
            "hidden_layer_sizes is 'auto' or a tuple with a width for each hidden layer, not "
            f"{shown(given)}"
        )
    return tuple(_whole("hidden_layer_sizes", each) for each in given)


def _activation(given: Any) -> Activation:
    name = isinstance(given, str)
    return activation_of(_one_of("activation", given, tuple(ACTIVATIONS)) if name else given)


def _projections(given: Any, layers: int) -> tuple[str, ...]:
    if isinstance(given, str):
        if given == "auto":
            return ()
        if given in NAMED:
            return NAMED[given]
        return (_one_of("projection", given, PROJECTIONS, ("auto", *NAMED)),)
    if not isinstance(given, Sequence) or not given:
        raise SettingsError(
            f"projection is a name or a tuple with one for each layer, not {shown(given)}"
        )
    if len(given) > layers:
        raise SettingsError(
            f"projection names {len(given)} layers, hidden_layer_sizes {layers}; drop the rest"
        )
    return tuple(_one_of("projection", each, PROJECTIONS) for each in given)


def _one_of(name: str, given: Any, known: Sequence[str], also: Sequence[str] = ()) -> str:
    choices = (*also, *known)
    if not isinstance(given, str) or given not in choices:
        near = nearest(given, choices) if isinstance(given, str) else ""
        raise SettingsError(
            f"{name} is one of {', '.join(choices)}; got {shown(given)}"
            + (near if "did you mean" in near else "")
        )
    return given


def _whole(name: str, given: Any) -> int:
    if not isinstance(given, Integral) or isinstance(given, bool) or given < 1:
        kind = "whole numbers" if name == "hidden_layer_sizes" else "a whole number"
        raise SettingsError(f"{name} must be {kind} from 1 on, got {shown(given)}")
    return int(given)


def _number(name: str, given: Any, *, positive: bool = False) -> float:
    wanted = "a positive number" if positive else "a number from 0 on"
    right = isinstance(given, Real) and not isinstance(given, bool) and math.isfinite(given)
    if not right or given < 0 or (positive and given == 0):
        raise SettingsError(f"{name} must be {wanted}, got {shown(given)}")
    return float(given)


def _auto(name: str, given: Any) -> float | str:
    if isinstance(given, str):
        if given != "auto":
            raise SettingsError(f"{name} must be 'auto' or a number from 0 on, got {shown(given)}")
        return given
    return _number(name, given)


def _share(name: str, given: Any) -> float:
    value = _number(name, given)
    if value > 1:
        raise SettingsError(f"{name} must be between 0 and 1, got {shown(given)}")
    return value
