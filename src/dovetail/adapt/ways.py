"""Ways to adapt a part to few labels, side by side: fitted to the same, measured on the same."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.adapt.classifier import LinearizedClassifier
from dovetail.adapt.finetuned import FineTuned
from dovetail.adapt.probe import Probe, ProbeRegressor
from dovetail.adapt.regressor import LinearizedRegressor
from dovetail.adapt.ways_record import Adaptation, Band, Curve, Trial
from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.core.progress import progress
from dovetail.core.seeds import generator
from dovetail.measure.calibration import (
    brier,
    expected_calibration_error,
    nll,
    reliability,
)
from dovetail.measure.evaluate import number_measures
from dovetail.measure.intervals import coverage, gaussian_nll
from dovetail.parts.part import Part
from dovetail.settings.adapt import Adapt
from dovetail.tasks.derive import few
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

Labels = int | str
"""How many a class, or of numbers in all; or ``"all"`` that there are to train on."""

WAYS = ("linearized", "probe", "finetune")
"""Inference in the linearised network; a linear head on frozen features; training."""

FULL = 25  # examples, at least, in each bin of a reliability curve
GRID = 200  # inputs along which a band is drawn
NORMAL_90 = 1.6448536269514722


@dataclass(frozen=True)
class Choices:
    """How ways are set up; each way takes what concerns it.

    Attributes:
        params: Which parameters may move, as patterns (not of a probe).
        at: The cut point to take features at.
        frozen: Of fine-tuning: the cut point up to which nothing moves.
        around: Of the linearised network, for classes: its weights, see
            :class:`~dovetail.adapt.LinearizedClassifier`.
        mean: Of the linearised network: where its prior is centred.
        prior: Of the linearised network: ``"evidence"`` or ``"layers"``.
        method: Of the linearised network.
        link: Of the linearised network, for classes.
        temperature: ``"validation"`` to fit one to the validation split, or ``"none"``.
    """

    params: tuple[str, ...] | None = Adapt.params
    at: str | None = Adapt.at
    frozen: str | None = Adapt.frozen
    around: str = Adapt.around
    mean: str = Adapt.mean
    prior: str = Adapt.prior
    method: str = Adapt.method
    link: str = Adapt.link
    temperature: str = Adapt.temperature


@dataclass(frozen=True)
class Compared:
    """What was measured; the estimators of the first draw of the most labels; the same measures
    of those on the validation split, if there is one; and what was stopped, if it was (Ctrl-C)."""

    record: Adaptation
    estimators: dict[str, Any]
    validation: dict[str, dict[str, float]]
    stopped: str = ""

    @property
    def best(self) -> str:
        """The way that does best on the validation split: the most accurate, and of equals the one
        of the least log loss; of numbers the one of the least error.  Without one, the first."""
        if not self.validation:
            return next(iter(self.estimators))
        if self.record.main == "rmse":
            return min(self.validation, key=lambda how: self.validation[how]["rmse"])
        scores = {how: (said["accuracy"], -said["nll"]) for how, said in self.validation.items()}
        return max(scores, key=lambda how: scores[how])


def compare_ways(
    part: Part,
    task: Task,
    *,
    ways: Sequence[str] = WAYS,
    labels: Sequence[Labels] = (10,),
    draws: int = Adapt.draws,
    choices: Choices | None = None,
    seed: int = 0,
    name: str = "",
    show: bool | None = None,
) -> Compared:
    """Adapt a part to few labels of a task in several ways, and measure each on the test split.

    Args:
        part: Left as it is.
        task: Of classes or numbers.
        ways: Some of :data:`WAYS`.
        labels: How many a class to draw from the training split; of numbers, how many in all.
            ``"all"`` are all of it, once.
        draws: How often, with one seed after the other.
        choices: See :class:`Choices`.
        seed: The first.
        name: What the record calls the part.
        show: Progress bar: ``None`` on a terminal only.

    An interrupt (Ctrl-C) ends the fit that it meets.  If others were done by then, the result is
    theirs, and says what was stopped.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> found = compare_ways(build("mlp", hidden=(32,)), load_task("digits[0,1]"), ways=["probe"])
    >>> found.record.mean("probe", 10, "accuracy") > 0.9
    True
    """
    chosen = choices or Choices()
    labels = (labels,) if isinstance(labels, str) else labels
    refuse(part, task, ways, labels, draws, chosen)
    whole = count_of(task, "all") if "all" in labels else None
    counts = sorted({count_of(task, each) for each in labels})
    # The whole grid is drawn before any fit: too few examples are told at once.
    small = {
        (k, s): drawn(task, "all" if k == whole else k, seed=s)
        for k in counts
        for s in range(seed, seed + (1 if k == whole else draws))
    }
    trials: list[Trial] = []
    estimators: dict[str, Any] = {}
    now, stopped = "", ""
    with progress(f"adapting to {task.name}", len(small) * len(ways), show=show) as step:
        try:
            for (count, number), one in small.items():
                for how in ways:
                    now = f"{how} with {'all' if count == whole else count} labels"
                    fitted, trial = _trial(how, part, one, count, number, chosen)
                    if number == seed:  # of the most labels so far
                        most = trials[-1].labels if trials else count
                        estimators = (estimators if most == count else {}) | {how: fitted}
                    trials.append(trial)
                    step(now)
        except KeyboardInterrupt:
            if not trials:
                raise
            stopped = now
    first = small[trials[-1].labels, seed]
    flat = task.kind == "regression" and task.input_shape == (1,) and task.outputs == 1
    record = Adaptation(
        part=name or part.described,
        task=task.name,
        n=task.size("test"),
        trials=tuple(trials),
        curves=_curves(estimators, task) if task.kind == "classes" else (),
        bands=_bands(estimators, task) if flat else (),
        points=_points(first) if flat else (),
        settings={
            **{"seed": seed, "draws": draws, "labels": list(counts), "split": "test"},
            **{"all": whole, "stopped": stopped},
            **{"part_digest": part.digest, "task_fingerprint": task.fingerprint},
            **asdict(chosen),
        },
    )
    validation = {}
    if task.size("validation"):
        validation = {
            how: _measures(estimator, task, "validation") for how, estimator in estimators.items()
        }
    return Compared(record, estimators, validation, stopped)


def estimator_for(how: str, part: Part, kind: str, choices: Choices, *, seed: int = 0) -> Any:
    """The estimator of one way, not fitted yet.

    >>> from dovetail.parts.part import build
    >>> type(estimator_for("probe", build("mlp"), "regression", Choices())).__name__
    'ProbeRegressor'
    """
    params = None if choices.params is None else list(choices.params)
    classes = kind == "classes"
    if how == "finetune":
        where: dict[str, Any] = {"at": choices.at, "frozen": choices.frozen}
        return FineTuned(part, kind=kind, params=params, **where, random_state=seed)
    if how == "probe":
        if classes:
            return Probe(part, at=choices.at, random_state=seed)
        return ProbeRegressor(part, at=choices.at)
    about: dict[str, Any] = {
        **{"params": params, "at": choices.at, "prior": choices.prior},
        **{"method": choices.method, "mean": choices.mean, "random_state": seed},
    }
    if classes:
        return LinearizedClassifier(part, around=choices.around, link=choices.link, **about)
    return LinearizedRegressor(part, **about)


def count_of(task: Task, labels: Labels) -> int:
    """A number for all labels, too: those of the largest class, or of numbers how many there are.

    No draw of another number has as many, unless it is all of them.
    """
    if isinstance(labels, int):
        return labels
    if task.kind == "classes":
        return int(torch.bincount(task.subset("train")[1]).max())
    return task.size("train")


def drawn(task: Task, labels: Labels, *, seed: int = 0) -> Task:
    """The task with so many labels to train on: a class, or of numbers in all.

    >>> numbers = Task(torch.rand(40, 2), torch.rand(40), kind="regression", name="heat")
    >>> drawn(numbers, 5)
    Task('heat~5', regression to 1, 17 inputs 2, train 5 / validation 4 / test 8)
    """
    if isinstance(labels, str):
        return task
    if task.kind == "classes":
        return few(task, labels, seed=seed)
    rows = task.indices("train")
    if labels > len(rows):
        raise TaskError(f"{task.name!r} has {len(rows)} examples in train, not {labels}")
    some = rows[torch.randperm(len(rows), generator=generator(seed, "few"))[:labels]].sort().values
    kept: dict[Split, Tensor] = {
        "train": some,
        "validation": task.indices("validation"),
        "test": task.indices("test"),
    }
    return task.derived(f"{task.name}~{labels}", indices=kept)


def _trial(
    how: str, part: Part, task: Task, labels: int, seed: int, choices: Choices
) -> tuple[Any, Trial]:
    inputs, targets = _labelled(task, "train")
    began = time.perf_counter()
    estimator = estimator_for(how, part, task.kind, choices, seed=seed).fit(inputs, targets)
    temperature = None
    if choices.temperature == "validation":
        temperature = _calibrate(estimator, *_labelled(task, "validation"))
    fitted = time.perf_counter()
    measures = _measures(estimator, task, "test")
    return estimator, Trial(
        how=how,
        labels=labels,
        n=len(inputs),
        seed=seed,
        measures=measures,
        fit_seconds=fitted - began,
        predict_seconds=time.perf_counter() - fitted,
        temperature=temperature,
        chosen=getattr(estimator, "chosen_", getattr(estimator, "mean_", "")),
        why=getattr(estimator, "diagnostics_", {}).get("why", ""),
    )


def _labelled(task: Task, split: Split) -> tuple[Tensor, Any]:
    """Inputs, and classes by name or numbers, as estimators take them."""
    inputs, targets = task.subset(split)
    if task.kind == "classes":
        return inputs, np.array(task.classes)[targets.numpy()]
    return inputs, targets.numpy()


def _measures(estimator: Any, task: Task, split: Split) -> dict[str, float]:
    inputs, targets = task.subset(split)
    if task.kind == "classes":
        probs = _probabilities(estimator, inputs, task)
        return {
            "accuracy": float((probs.argmax(1) == targets).double().mean()),
            "nll": nll(probs, targets),
            "ece": expected_calibration_error(probs, targets),
            "brier": brier(probs, targets),
        }
    mean, std = _told(estimator, inputs)
    wanted = targets.double().reshape(mean.shape)
    measures = {"rmse": number_measures(mean, wanted)["rmse"]}
    if std is None:
        return measures
    return measures | {
        "nll": gaussian_nll(mean, std, wanted),
        "coverage": coverage(mean, std, wanted, 0.9),
    }


def _probabilities(estimator: Any, inputs: Tensor, task: Task) -> Tensor:
    """``[n, c]``, float64, in the order of the task's classes."""
    probs = torch.as_tensor(estimator.predict_proba(inputs)).double()
    places = estimator.classes_.tolist()
    return probs[:, [places.index(name) for name in task.classes]]


def _told(estimator: Any, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """Means, and deviations of new observations where the way tells them."""
    if isinstance(estimator, FineTuned):
        return torch.as_tensor(estimator.predict(inputs)).double(), None
    mean, std = estimator.predict(inputs, return_std=True)
    return torch.as_tensor(mean).double(), torch.as_tensor(std).double()


def _calibrate(estimator: Any, inputs: Tensor, names: Any) -> float:
    """Calibrate a way by labels that it has not seen: by what its temperature was multiplied."""
    before = estimator.temperature_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a mistake to learn from it stays as it was
        return float(estimator.calibrate(inputs, names).temperature_ / before)


def _curves(estimators: Mapping[str, Any], task: Task) -> tuple[Curve, ...]:
    inputs, targets = task.subset("test")
    bins = min(max(len(inputs) // FULL, 1), 10)
    series = []
    for how, estimator in estimators.items():
        probs = _probabilities(estimator, inputs, task)
        used = [b for b in reliability(probs, targets, bins, scheme="mass") if b.count]
        sure = tuple(b.confidence or 0.0 for b in used)
        series.append(Curve(how, sure, tuple(b.accuracy or 0.0 for b in used)))
    return tuple(series)


def _bands(estimators: Mapping[str, Any], task: Task) -> tuple[Band, ...]:
    inputs = torch.cat([task.subset(split)[0] for split in ("train", "test")])
    low, high = float(inputs.min()), float(inputs.max())
    grid = torch.linspace(low, high, GRID)[:, None]
    series = []
    for how, estimator in estimators.items():
        mean, std = _told(estimator, grid)
        mean = mean.reshape(-1)
        band = Band(how, tuple(grid[:, 0].tolist()), tuple(mean.tolist()))
        if std is not None:
            half = NORMAL_90 * std.reshape(-1)
            ends = tuple((mean - half).tolist()), tuple((mean + half).tolist())
            band = Band(band.how, band.x, band.mean, *ends)
        series.append(band)
    return tuple(series)


def _points(task: Task) -> tuple[tuple[float, float], ...]:
    inputs, targets = task.subset("train")
    return tuple(zip(inputs[:, 0].tolist(), targets.reshape(-1).tolist(), strict=True))


def refuse(
    part: Part,
    task: Task,
    ways: Sequence[str],
    labels: Sequence[Labels],
    draws: int,
    choices: Choices,
) -> None:
    """Tell what cannot be, before anything is fitted; see :func:`compare_ways`."""
    if task.kind not in ("classes", "regression"):
        raise TaskError(f"{task.name!r} is of kind {task.kind!r}; this needs classes or numbers")
    if task.size("test") == 0:
        raise TaskError(f"{task.name!r} has no test examples to measure on")
    if not ways:
        raise SettingsError(f"name a way to adapt: {', '.join(WAYS)}")
    for how in ways:
        if how not in WAYS:
            raise SettingsError(f"unknown way to adapt {how!r}{nearest(str(how), WAYS)}")
        if list(ways).count(how) > 1:
            raise SettingsError(f"the way {how!r} is named twice")
    counted = [each for each in labels if each != "all"]
    if not labels or not all(isinstance(each, int) and each > 0 for each in counted) or draws < 1:
        raise SettingsError("labels and draws are counts from 1, or of labels 'all'")
    if task.size("train") == 0:
        raise TaskError(f"{task.name!r} has no examples to train on")
    if choices.temperature not in ("none", "validation"):
        raise SettingsError(f"temperature is 'none' or 'validation', got {choices.temperature!r}")
    if choices.temperature == "validation":
        if task.kind != "classes":
            raise SettingsError("a temperature is for classes; numbers have none")
        if task.size("validation") == 0:
            raise TaskError(f"{task.name!r} has no validation examples to fit a temperature to")
    for how in ways:
        if how != "probe":  # which has none
            estimator_for(how, part, task.kind, choices)._refuse_settings()
