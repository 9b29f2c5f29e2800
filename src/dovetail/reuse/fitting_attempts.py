"""Attempts at a model: a network and a way to fit it, judged by labels that it has not seen.

Every attempt gives a part.  Where the validation split is large enough it says how good that is;
where it is small, and all of it quick, labels are held out in folds of training and validation
split together, and the part that counts is fitted to both.  The test split is in no task here.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold, StratifiedKFold
from torch import Tensor

from dovetail.adapt.ways import Choices, estimator_for
from dovetail.closed_form.solve import solve
from dovetail.core.errors import CutError, FormatError
from dovetail.core.folders import (
    Manifest,
    check_sizes,
    longest_header,
    open_tensors,
    read_listed,
    read_manifest,
    tensor_bytes,
    write_folder,
)
from dovetail.core.plain import MOST_BYTES, dumps, from_plain, parse_json
from dovetail.core.records import slug
from dovetail.measure.evaluate import measure
from dovetail.measure.forward import outputs_of, prepare, preprocess_for
from dovetail.parts.contract import Contract, Preprocess
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.reuse.fitting_candidates import upper_layers
from dovetail.tasks.task import Task
from dovetail.train.boosting import boost
from dovetail.train.end_to_end import end_to_end
from dovetail.train.fit import Fit

SCRATCH, SOLVED, BOOSTED = "from scratch", "closed form", "boosting"
UPPER = "upper layers"
"""Fine-tuned from :func:`~dovetail.reuse.fitting_candidates.upper_layers` on; below runs once."""

PASSES = {"probe": 1.0, "linearized": 6.0, UPPER: 18.0, "finetune": 24.0}
"""What ways to adapt a network cost, about, in passes over the examples of what they train.

Fine-tuning takes eight passes forwards and, twice as long each, backwards.  Upper layers have small
maps, and take less time than their share of the multiply-adds."""
SIDE, LEAST_SIDE = 32, 8
"""Of images that small networks begin with: larger ones are averaged."""
EPOCHS, STEPS, BATCH = 30, 600, 64
"""Of networks that begin with nothing: epochs at least, and steps."""
FOLDS, ENOUGH, ENOUGH_ROWS = 5, 50, 1000
"""Folds, and examples of images and of tables that validate without any."""
FEW = 300
"""With more labels, those of the validation split say whether fine-tuning helped."""


@dataclass(frozen=True)
class Attempt:
    """A network, and how it becomes a model for the task.

    >>> Attempt("efficientnet-lite0, 96 px", "probe").name
    'efficientnet-lite0, 96 px, probe'
    """

    network: str
    how: str

    @property
    def name(self) -> str:
        """Both in one line."""
        return f"{self.network}, {self.how}"


@dataclass(frozen=True, eq=False)
class Done:
    """An attempt's part, and its outputs ``[m, k]`` for rows ``[m]`` that it was not fitted to."""

    attempt: Attempt
    part: Part
    outputs: Tensor
    rows: Tensor
    seconds: float

    def measures(self, task: Task) -> dict[str, float]:
        """What it reaches on those rows; nothing where there are none."""
        return measure(self.outputs, task.targets[self.rows], task) if len(self.rows) else {}


def sealed(task: Task) -> Task:
    """The task without its test split: what is not there cannot decide anything."""
    none = torch.empty(0, dtype=torch.int64)
    known = {"train": task.indices("train"), "validation": task.indices("validation")}
    return task.derived(task.name, indices={**known, "test": none})  # type: ignore[dict-item]


def folds_for(task: Task) -> int:
    """In how many folds labels are held out; 0 where the validation split is enough, or nothing is.

    >>> folds_for(Task(torch.rand(40, 3), [0, 1] * 20))
    5
    """
    table = len(task.input_shape) == 1
    pool = torch.cat([task.indices("train"), task.indices("validation")])
    if task.size("validation") >= (ENOUGH_ROWS if table else ENOUGH):
        return 0
    least = len(pool)
    if task.kind == "classes":
        counts = task.targets[pool].bincount(minlength=len(task.classes))
        least = int(counts.min())
    return min(FOLDS, least) if least >= 2 else 0


def attempt(what: Attempt, task: Task, network: Part | None, *, folds: int, seed: int) -> Done:
    """Make the model and judge it; ``task`` is :func:`sealed`, ``network`` what is adapted."""
    began = time.perf_counter()

    def make(on: Task) -> Part:
        part = _make(what, on, network, folds=folds, seed=seed)
        origin = replace(part.origin, task=task.name, task_fingerprint=task.fingerprint)
        return part.changed(origin=origin)

    if folds == 0:
        rows = task.indices("validation")
        part = make(task)
        outputs = outputs_for(part, task, rows)
    else:
        part, outputs, rows = _in_folds(make, task, folds, seed)
    return Done(what, part, outputs.double(), rows, time.perf_counter() - began)


def outputs_for(part: Part, task: Task, rows: Tensor) -> Tensor:
    """What a part gives for rows of a task's inputs, a column for each of the task's classes."""
    if len(rows) == 0:
        return torch.empty(0, task.outputs)
    outputs = outputs_of(part, task.inputs[rows])
    known = part.contract.classes
    if known is None or known == task.classes:
        return outputs.reshape(len(rows), -1)
    return outputs[:, [known.index(name) for name in task.classes]]


def labels_by_name(task: Task) -> tuple[Tensor, Any]:
    """The training inputs, and their classes by name or their numbers, as estimators take them."""
    inputs, targets = task.subset("train")
    if task.kind == "classes":
        return inputs, np.array(task.classes)[targets.numpy()]
    return inputs, targets.numpy()


def _in_folds(
    make: Callable[[Task], Part], task: Task, folds: int, seed: int
) -> tuple[Part, Tensor, Tensor]:
    """The part of all rows, and outputs for each row of a part that had not seen it."""
    pool = torch.cat([task.indices("train"), task.indices("validation")]).sort().values
    none = pool[:0]

    def only(rows: Tensor) -> Task:
        return task.derived(task.name, indices={"train": rows, "validation": none, "test": none})

    kind = StratifiedKFold if task.kind == "classes" else KFold
    split = kind(folds, shuffle=True, random_state=seed).split(
        np.zeros(len(pool)), task.targets[pool].numpy()
    )
    outputs, rows = [], []
    for seen, held_out in split:
        part = make(only(pool[torch.from_numpy(seen)]))
        rows.append(pool[torch.from_numpy(held_out)])
        outputs.append(outputs_for(part, task, rows[-1]))
    return make(only(pool)), torch.cat(outputs), torch.cat(rows)


def _make(what: Attempt, task: Task, network: Part | None, *, folds: int, seed: int) -> Part:
    if what.how == SOLVED:
        return _solved(task, seed)
    if what.how == BOOSTED:
        return boost(task, seed=seed).part
    if what.how == SCRATCH:
        return trained(task, seed).part
    assert network is not None
    how, choices = what.how, Choices()
    if how == UPPER:
        layers = upper_layers(network)
        if layers is None:
            raise CutError(f"{what.network} cannot be cut below its upper layers")
        how, choices = "finetune", Choices(frozen=layers[0])
    estimator = estimator_for(how, network, task.kind, choices, seed=seed)
    inputs, labels = labels_by_name(task)
    if how == "finetune" and task.kind == "classes" and folds == 0 and len(labels) > FEW:
        estimator.set_params(folds=0)
    part: Part = estimator.fit(inputs, labels).to_part()
    return part


def _solved(task: Task, seed: int) -> Part:
    """In closed form: images by filters in front, at most 32 pixels wide."""
    if len(task.input_shape) == 1:
        return solve(task, seed=seed).part
    small, how = _small(task)
    wide = min(1000, max(100, task.size("train") // 2))
    part = solve(small, hidden=(wide,), filters=32, tries=1, seed=seed).part
    return part.changed(contract=replace(part.contract, preprocess=how))


def small_network(task: Task, seed: int) -> tuple[Part, int]:
    """A perceptron of tables, a small residual network of images; and epochs to train it for."""
    batches = max(1, task.size("train") // BATCH)
    epochs = min(max(EPOCHS, STEPS // batches), 100)
    shape, outputs = task.input_shape, task.outputs
    if len(shape) == 1:
        return build("mlp", shape=shape, hidden=(128, 128), classes=outputs, seed=seed), epochs
    side = _side(task)
    return build("resnet8", channels=shape[0], size=side, classes=outputs, seed=seed), epochs


def trained(task: Task, seed: int, epochs: int | None = None) -> Fit:
    """By gradients, from nothing; for ``epochs``, or as many as it usually takes."""
    net, usually = small_network(task, seed)
    usual: Any = {"epochs": epochs or usually, "batch_size": BATCH, "seed": seed, "show": False}
    if len(task.input_shape) == 1:
        return end_to_end(net, task, optimiser="adamw", lr=3e-3, weight_decay=0.01, **usual)
    side = _side(task)
    how = replace(preprocess_for(task), size=(side, side))
    return end_to_end(net, task, preprocess=how, lr=0.05, weight_decay=5e-4, **usual)


def _side(task: Task) -> int:
    """Of images that a residual network is given: no less than it takes."""
    return min(SIDE, max(LEAST_SIDE, *task.input_shape[1:]))


def _small(task: Task) -> tuple[Task, Preprocess | None]:
    """The task with images of at most 32 by 32, and what makes others such."""
    channels, *sides = task.input_shape
    if max(sides) <= SIDE:
        return task, None
    how = Preprocess(size=(SIDE, SIDE), channels=channels)
    blocks = torch.split(task.inputs, 1024)
    small = torch.cat([prepare(block, Contract(preprocess=how)) for block in blocks])
    return task.derived(task.name, inputs=small), how


# Kept between runs --------------------------------------------------------------------------------

_FORMAT, _MANIFEST, _FACTS, _JUDGED, _PART = (
    1,
    "attempt.json",
    "facts.json",
    "judged.safetensors",
    "part",
)
_MOST_JUDGED = 1 << 30


@dataclass(frozen=True)
class _Facts:
    network: str
    how: str
    seconds: float


def keep(done: Done, folder: Path) -> None:
    """Write an attempt to a folder of its own, whole or not at all."""
    what = done.attempt
    facts = _Facts(what.network, what.how, done.seconds)
    files = {
        _FACTS: dumps(facts).encode(),
        _JUDGED: tensor_bytes({"outputs": done.outputs, "rows": done.rows}),
    }
    write_folder(
        _place(what, folder),
        _MANIFEST,
        _FORMAT,
        files,
        replace=True,
        fill=lambda hidden: done.part.save_pretrained(hidden / _PART),
    )


def kept_attempt(what: Attempt, folder: Path | None, task: Task) -> Done | None:
    """The attempt as an earlier run left it; nothing if it did not come so far, or is damaged."""
    if folder is None or not (place := _place(what, folder)).is_dir():
        return None
    try:
        listed = read_manifest(Manifest, place, _MANIFEST, _FORMAT, "attempt").files
        check_sizes(place, listed, {_FACTS: MOST_BYTES, _JUDGED: _MOST_JUDGED})
        raw = read_listed(place / _FACTS, listed[_FACTS], most_bytes=MOST_BYTES)
        facts = from_plain(_Facts, parse_json(raw, _FACTS), _FACTS)
        with open_tensors(place / _JUDGED, longest_header(("outputs", "rows"))) as tensors:
            outputs, rows = tensors.get_tensor("outputs"), tensors.get_tensor("rows")
        part = from_pretrained(place / _PART)
    except (FormatError, KeyError):
        return None
    if Attempt(facts.network, facts.how) != what or outputs.shape != (len(rows), task.outputs):
        return None
    return Done(what, part, outputs, rows, facts.seconds)


def _place(what: Attempt, folder: Path) -> Path:
    mark = hashlib.sha256(dumps([what.network, what.how]).encode()).hexdigest()[:8]
    return folder / f"{slug(what.name)[:60]}-{mark}"
