"""Fit a network to a task in closed form, in the words of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
import torch

from dovetail.closed_form.classifier import PlatonicClassifier
from dovetail.closed_form.fit_record import PlatonicFit
from dovetail.closed_form.regressor import PlatonicRegressor
from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.measure.evaluate import Evaluation, evaluate, with_measures
from dovetail.parts.part import Part
from dovetail.tasks.task import Task

__all__ = ["PRECISIONS", "network_asked", "solve"]

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
"""What the weights may be kept in; they are solved for in float64."""

_SCALED = {
    "each": "Each column was divided by its own deviation, which is in the weights; --set "
    "scale_inputs=together takes one number for all.",
    "together": "All columns were divided by one number; without --set scale_inputs=together each "
    "is by its own deviation.",
}
"""What is said of a table."""


def network_asked(net: str | None, args: dict[str, Any] | None) -> dict[str, Any]:
    """The arguments of an estimator that ``--net`` and ``--set`` stand for.

    >>> network_asked(None, {"hidden": [256, 64]})
    {'hidden_layer_sizes': (256, 64)}
    """
    if net not in (None, "mlp"):
        raise SettingsError(
            f"closed form makes multi-layer perceptrons, not {net!r}; leave out --net and say the "
            "widths, as --set hidden=[256,64]"
        )
    asked = dict(args or {})
    if other := sorted(set(asked) - {"hidden", "activation", "scale_inputs"}):
        raise SettingsError(
            f"--set {other[0]}: closed form takes hidden=, activation= and scale_inputs= alone"
        )
    if "hidden" in asked:
        hidden = asked.pop("hidden")
        asked["hidden_layer_sizes"] = tuple(hidden) if isinstance(hidden, list) else hidden
    return asked


def solve(
    task: Task,
    network: dict[str, Any],
    *,
    projection: Sequence[str] | None = None,
    tries: int = 5,
    precision: str = "float32",
    seed: int = 0,
    **options: Any,
) -> tuple[Part, PlatonicFit, Evaluation]:
    """Fit a multi-layer perceptron to the training split, and measure it on the test split.

    Args:
        task: Of classes or numbers.  The columns of a table are of unlike units, and are divided by
            their deviations each, unless ``network`` says otherwise.
        network: What :func:`network_asked` gives.
        projection: One, or one for each layer.
        tries: How many projections a layer tries.
        precision: What the part's weights are rounded to; the record notes what that costs.
        seed: Of random projections.
        options: Further arguments of the estimators.
    """
    if precision not in PRECISIONS:
        raise SettingsError(f"unknown precision {precision!r}{nearest(precision, PRECISIONS)}")
    if task.kind not in ("classes", "regression"):
        raise TaskError(
            f"{task.name!r} is a task of kind {task.kind}; closed form fits classes and numbers"
        )
    table = bool(task.input_names)
    settings = {
        "scale_inputs": "each" if table else "together",
        **network,
        "projection": "auto" if projection is None else _one_or_several(projection),
        "n_tries": tries,
        "random_state": seed,
        **options,
    }
    inputs, targets = task.subset("train")
    if task.kind == "classes":
        estimator = PlatonicClassifier(**settings).fit(
            inputs, np.asarray(task.classes, dtype=object)[targets.numpy()]
        )
    else:
        estimator = PlatonicRegressor(**settings).fit(inputs, targets)
    part = estimator.to_part(PRECISIONS[precision])
    told = {**estimator.record_.settings, "precision": precision}
    origin = replace(part.origin, settings=told, task=task.name, task_fingerprint=task.fingerprint)
    contract = replace(part.contract, inputs=task.input_names or None)
    part, test = part.changed(origin=origin, contract=contract), evaluate(part, task)
    if precision == "float64":
        kept = "The weights are shelved in float64, as they were solved for."
    else:
        exact = evaluate(estimator.to_part(), task).measures
        if any(isfinite(exact[name]) and not isfinite(test.measures[name]) for name in exact):
            raise SettingsError(
                f"some layers give numbers beyond {precision}; say --precision float64, or take "
                "fewer layers, a lower --target-scale or a bounded activation"
            )
        part = with_measures(part, {f"float64 test {name}": exact[name] for name in exact})
        name, value = next(iter(test.measures.items()))
        kept = (
            f"The weights are shelved in {precision}: test {name} {value:.4f}. In float64, as they "
            f"were solved for, it is {exact[name]:.4f}; --precision float64 keeps them so."
        )
    notes = [estimator.record_.note.replace("patience=1", "--patience 1"), kept]
    if table:
        notes.insert(0, _SCALED[told["scale_inputs"]])
    note = " ".join(each for each in notes if each)
    return part, replace(estimator.record_, settings=told, note=note), test


def _one_or_several(projection: Sequence[str]) -> str | tuple[str, ...]:
    return projection[0] if len(projection) == 1 else tuple(projection)
