"""Predict classes or numbers for images, rows of a table, an array file, or a task's test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from dovetail.core.errors import ContractError, TaskError
from dovetail.core.views import Table
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job
from dovetail.measure.forward import outputs_of, refuse_other_inputs
from dovetail.measure.predict import predict as predict_inputs
from dovetail.parts.contract import shown_shape
from dovetail.parts.part import Part
from dovetail.settings.show import Predict
from dovetail.tasks.array_files import read_arrays
from dovetail.tasks.image_files import image_paths, read_images
from dovetail.tasks.tables import is_table, read_new_rows

__all__ = ["predict"]

_KEYS = ("x", "X", "inputs", "x_test")


@job
def predict(frame: Frame, /, ref: str, source: str, *, most: int | None = Predict.most) -> Outcome:
    """Predictions for images, new rows of a table, an array file, or the test split of a task."""
    part = frame.part(ref)
    Predict.check({"most": most})
    asked = _inputs(frame, part, source)
    inputs = asked.inputs[:most] if most is not None and asked.inputs.ndim > 0 else asked.inputs
    if part.contract.kind == "regression":
        return _numbers(part, asked, inputs)
    predictions = predict_inputs(part, inputs)
    names = asked.names or range(len(predictions))
    rows = [
        {"input": name, "class": label, "confidence": share}
        for name, label, share in zip(
            names, predictions.labels, predictions.confidence, strict=False
        )
    ]
    columns: tuple[str, ...] = ("input", "class", "confidence")
    if asked.truths is not None:
        columns = (*columns, "true class")
        for row, truth in zip(rows, asked.truths, strict=False):
            row["true class"] = truth
    cells = tuple(tuple(row.values()) for row in rows)
    formats = ("", "", ".3f", "")[: len(columns)]
    return Outcome(
        view=(Table(columns, cells, formats),),  # type: ignore[arg-type]
        data={"predictions": rows, "classes": predictions.classes},
    )


def _numbers(part: Part, asked: _Asked, inputs: Any) -> Outcome:
    """What a part for numbers says: a column for each of them."""
    numbers = outputs_of(part, torch.as_tensor(inputs)).double().flatten(1)
    count = numbers.shape[1]
    columns = ["number"] if count == 1 else [f"number {i + 1}" for i in range(count)]
    names = asked.names or range(len(numbers))
    if asked.truths is not None:
        truths = torch.as_tensor(asked.truths).double().reshape(-1, count)[: len(numbers)]
        columns += [f"true {name}" for name in columns]
        numbers = torch.cat([numbers, truths], 1)
    columns = ["input", *columns]
    rows = tuple((name, *row) for name, row in zip(names, numbers.tolist(), strict=False))
    return Outcome(
        view=(Table(tuple(columns), rows, ("", *([".6g"] * numbers.shape[1]))),),
        data={"predictions": [dict(zip(columns, row, strict=True)) for row in rows]},
    )


class _Asked(NamedTuple):
    inputs: Any
    names: list[str] | None = None
    truths: Any = None


def _inputs(frame: Frame, part: Part, source: str) -> _Asked:
    path = Path(source)
    if path.suffix in (".npy", ".npz"):
        arrays = read_arrays(path, single=True)
        key = next((key for key in _KEYS if key in arrays), None)
        if key is None:
            names = ", ".join(sorted(arrays)) or "nothing"
            raise TaskError(f"{source}: no array named x or inputs; it holds {names}")
        return _Asked(arrays[key])
    if (paths := image_paths(path)) and not frame.task_options:
        channels, height, width = _image_shape(part)
        pixels = read_images(paths, channels=channels, size=(height, width))
        return _Asked(pixels, [file.name for file in paths])
    if is_table(path) and path.is_file() and not frame.task_options:
        new_rows = read_new_rows(path, part.contract.inputs)
        if new_rows is not None:
            return _Asked(new_rows[1], new_rows[0])
    task = frame.task(source)
    refuse_other_inputs(task, part.contract)
    inputs, targets = task.subset("test")
    if task.kind == "classes":
        return _Asked(inputs, truths=[task.classes[i] for i in targets.tolist()])
    return _Asked(inputs, truths=targets if task.kind == "regression" else None)


def _image_shape(part: Part) -> tuple[int, int, int]:
    how = part.contract.preprocess
    if how is not None and how.size is not None and how.channels is not None:
        return (how.channels, *how.size)
    shape = part.contract.takes[0].shape or ()
    sizes = [axis for axis in shape if axis is not None]
    if len(shape) != 3 or len(sizes) != 3:
        raise ContractError(f"{part.described!r} takes {shown_shape(shape)}, not images")
    return (sizes[0], sizes[1], sizes[2])
