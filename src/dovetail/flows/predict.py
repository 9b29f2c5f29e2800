"""Predict class names for an array file or for a task's test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.views import Table
from dovetail.flows.locate import find_part
from dovetail.flows.outcome import Outcome
from dovetail.running.predict import predict as predict_inputs
from dovetail.tasks.builtin import load_task
from dovetail.tasks.readers import read_arrays

__all__ = ["predict"]

_KEYS = ("x", "X", "inputs", "x_test")


def predict(
    ref: str,
    source: str,
    *,
    most: int | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
) -> Outcome:
    """Predictions for ``source``: a .npy or .npz array of inputs, or a task's test split."""
    part = find_part(ref, shelf)
    if most is not None and most < 1:
        raise SettingsError(f"--most must be at least 1, got {most}")
    inputs, truths = _inputs(source, data)
    if most is not None and inputs.ndim > 0:
        inputs = inputs[:most]
    found = predict_inputs(part, inputs)
    said = [
        {"input": i, "class": label, "confidence": share}
        for i, (label, share) in enumerate(zip(found.labels, found.confidence, strict=True))
    ]
    columns: tuple[str, ...] = ("input", "class", "confidence")
    if truths is not None:
        columns = (*columns, "true class")
        for row, truth in zip(said, truths, strict=False):
            row["true class"] = truth
    rows = tuple(tuple(row.values()) for row in said)
    formats = ("", "", ".3f", "")[: len(columns)]
    return Outcome(
        view=(Table(columns, rows, formats),),  # type: ignore[arg-type]
        data={"predictions": said, "classes": found.classes},
    )


def _inputs(source: str, data: str | Path | None) -> tuple[Any, list[str] | None]:
    path = Path(source)
    if path.suffix in (".npy", ".npz"):
        arrays = read_arrays(path, single=True)
        found = next((key for key in _KEYS if key in arrays), None)
        if found is None:
            listed = ", ".join(sorted(arrays)) or "nothing"
            raise TaskError(f"{source}: no array named x or inputs; it holds {listed}")
        return arrays[found], None
    task = load_task(source, data=data)
    inputs, targets = task.subset("test")
    truths = [task.classes[i] for i in targets.tolist()] if task.kind == "classes" else None
    return inputs, truths
