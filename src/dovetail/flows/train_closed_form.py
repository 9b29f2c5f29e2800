"""Fit a network to a task in closed form, and put it on the shelf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dovetail.closed_form.classifier import PlatonicClassifier
from dovetail.closed_form.regressor import PlatonicRegressor
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import slug
from dovetail.core.views import Text
from dovetail.flows.outcome import Outcome
from dovetail.flows.shelving import need_test, notes_of, with_measures
from dovetail.running.evaluate import evaluate
from dovetail.shelf.names import check_name
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task

__all__ = ["train_closed_form"]

STEPWISE = (
    *("epochs", "batch_size", "optimiser", "lr", "weight_decay", "schedule", "device"),
    *("resume", "checkpoint_seconds"),
)
"""What every training has that goes step by step; here there are none, so these say nothing."""


def train_closed_form(
    source: str,
    *,
    net: str | None = None,
    args: dict[str, Any] | None = None,
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    projection: Sequence[str] | None = None,
    tries: int = 5,
    ridge: float | str = "auto",
    solver: str = "auto",
    target_scale: float = 1.0,
    label_weight: float | str = "auto",
    ema: float | None = None,
    patience: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Outcome:
    """Fit a multi-layer perceptron by platonic projections, measure on the test split, shelve.

    ``args`` may say ``hidden`` and ``activation``, as for ``mlp``.
    """
    if net not in (None, "mlp"):
        raise SettingsError(
            f"closed form makes multi-layer perceptrons, not {net!r}; leave out --net and say the "
            "widths, as --set hidden=[64,32]"
        )
    if stray := [each for each, value in options.items() if each not in STEPWISE and value]:
        raise SettingsError(f"--{stray[0].replace('_', '-')} is about steps; closed form has none")
    known = {"hidden": (100,), "activation": "relu", **(args or {})}
    if other := sorted(set(known) - {"hidden", "activation"}):
        raise SettingsError(f"--set {other[0]}: closed form takes hidden= and activation= alone")
    hidden = known["hidden"] if isinstance(known["hidden"], list | tuple) else (known["hidden"],)
    task = load_task(source, data=data, **(task_options or {}))
    if task.kind not in ("classes", "regression"):
        raise TaskError(
            f"{task.name!r} is a task of kind {task.kind}; closed form fits classes and numbers"
        )
    need_test(task)
    name = check_name(name or f"mlp-{slug(task.name)}")
    settings = {
        "hidden_layer_sizes": tuple(hidden),
        "activation": known["activation"],
        "projection": "auto" if projection is None else _one_or_several(projection),
        "n_tries": tries,
        "target_scale": target_scale,
        "label_weight": label_weight,
        "ridge": ridge,
        "solver": solver,
        "random_state": seed,
        "ema": ema,
        "patience": patience,
    }
    inputs, targets = task.subset("train")
    if task.kind == "classes":
        estimator = PlatonicClassifier(**settings).fit(
            inputs, np.asarray(task.classes, dtype=object)[targets.numpy()]
        )
    else:
        estimator = PlatonicRegressor(**settings).fit(inputs, targets)
    part = estimator.to_part(dtype=torch.float32)
    origin = replace(part.origin, task=task.name, task_fingerprint=task.fingerprint)
    part = part.changed(origin=origin)
    test = evaluate(part, task)
    fitted = with_measures(part, {f"test {k}": value for k, value in test.measures.items()})
    store = Shelf(shelf)
    entry = store.add(fitted, name)
    headline = next(iter(test.measures.items()))
    said = (
        f"{entry.ref} is on the shelf '{store.folder}': "
        f"test {headline[0]} {headline[1]:.4f} on {test.n} examples"
    )
    return Outcome(
        view=(
            *notes_of([task], False),
            *estimator.record_.view(),
            Text(said, style="heading"),
        ),
        data={
            "ref": entry.ref,
            "measures": fitted.origin.measured,
            "layers": estimator.record_.to_plain()["data"],
            "notes": task.notes,
        },
        records=(estimator.record_, test),
    )


def _one_or_several(projection: Sequence[str]) -> str | tuple[str, ...]:
    return projection[0] if len(projection) == 1 else tuple(projection)
