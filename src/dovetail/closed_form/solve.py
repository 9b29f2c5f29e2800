"""Solve for a network for a task: the estimators as one more way to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
import torch

from dovetail.closed_form.estimators import PlatonicClassifier, PlatonicRegressor
from dovetail.core.errors import SettingsError, TaskError, argument
from dovetail.measure.evaluate import evaluate, with_measures
from dovetail.settings.train import ClosedForm
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit


def solve(
    task: Task,
    *,
    hidden: Sequence[int] | int | None = None,
    projection: Sequence[str] = ClosedForm.projection,
    tries: int = ClosedForm.tries,
    precision: str = ClosedForm.precision,
    seed: int = 0,
    **options: Any,
) -> Fit:
    """Fit a multi-layer perceptron to the training split of a task, in closed form.

    Args:
        task: Of classes or numbers.
        hidden: Widths of the hidden layers; by default the estimator's.
        projection: One, or one for each layer.
        tries: How many projections a layer tries.
        precision: What the part's weights are rounded to; the record notes what that costs on the
            test split.
        seed: Of random projections.
        options: Further arguments of the estimators, such as ``activation`` or ``scale_inputs``.

    >>> from dovetail.tasks.load import load_task
    >>> solve(load_task("digits"), hidden=(50,)).part.contract.kind
    'classes'
    """
    ClosedForm.check({"tries": tries, "precision": precision, **options})
    if task.kind not in ("classes", "regression"):
        raise TaskError(
            f"{task.name!r} is a task of kind {task.kind}; closed form fits classes and numbers"
        )
    settings: dict[str, Any] = {
        "projection": projection[0] if len(projection) == 1 else tuple(projection),
        "n_tries": tries,
        "random_state": seed,
        **options,
    }
    if hidden is not None:
        settings["hidden_layer_sizes"] = tuple(hidden) if isinstance(hidden, list) else hidden
    inputs, targets = task.subset("train")
    if task.kind == "classes":
        names = np.asarray(task.classes, dtype=object)[targets.numpy()]
        estimator = PlatonicClassifier(**settings).fit(inputs, names)
    else:
        estimator = PlatonicRegressor(**settings).fit(inputs, targets)
    part = estimator.to_part(getattr(torch, precision))
    facts = {**part.origin.settings, "precision": precision}
    origin = replace(part.origin, settings=facts, task=task.name, task_fingerprint=task.fingerprint)
    contract = replace(part.contract, inputs=task.input_names or None)
    part = part.changed(origin=origin, contract=contract)
    notes = [estimator.record_.note.replace("patience=1", "--patience 1")]
    if precision == "float64":
        notes.append("The weights are shelved in float64, as they were solved for.")
    elif task.size("test"):
        rounded, exact = (evaluate(p, task).measures for p in (part, estimator.to_part()))
        if any(isfinite(exact[name]) and not isfinite(rounded[name]) for name in exact):
            raise SettingsError(
                f"some layers give numbers beyond {precision}; say "
                f"{argument('precision', 'float64')}, or take fewer layers, a lower "
                f"{argument('target_scale')} or a bounded activation"
            )
        part = with_measures(part, {f"float64 test {name}": exact[name] for name in exact})
        name, value = next(iter(rounded.items()))
        notes.append(
            f"The weights are shelved in {precision}: test {name} {value:.4f}. In float64, as they "
            f"were solved for, it is {exact[name]:.4f}; --precision float64 keeps them so."
        )
    note = " ".join(filter(None, notes))
    return Fit((part,), replace(estimator.record_, settings=facts, note=note))
