r"""How good a part is on a task: the measures of its outputs that suit the kind of target.

With logits :math:`z \in \mathbb{R}^{n \times c}` and targets :math:`y`, accuracy is
:math:`\frac1n \sum_i [\arg\max_j z_{ij} = y_i]` and the negative log-likelihood
:math:`-\frac1n \sum_i \log \mathrm{softmax}(z_i)_{y_i}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.declared import heatmap, text, when
from dovetail.core.errors import ContractError, TaskError
from dovetail.core.records import Record
from dovetail.core.seeds import generator
from dovetail.core.views import Table
from dovetail.measure.forward import outputs_of, refuse_other_inputs
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part, as_part
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record, kind="evaluation", title="{part} on {task}"):
    """A part's measures on one split of a task.

    For classes: ``accuracy`` lets the head choose among all its classes; ``masked accuracy``, when
    the head knows more classes than the task, only among the task's.  ``chance`` is one over the
    number of classes to choose from.

    >>> Evaluation(part="lenet5", task="digits", split="test", n=360, measures={"accuracy": 0.98})
    Evaluation('lenet5' on 'digits' test: accuracy 0.98, n 360)
    """

    part: str
    task: str
    split: str
    n: int
    measures: dict[str, float]
    chance: float | None = None
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()

    @property
    def accuracy(self) -> float:
        """The accuracy; an error for a task that has none."""
        if "accuracy" not in self.measures:
            raise TaskError(f"{self.task!r} is no classification: it has no accuracy")
        return self.measures["accuracy"]

    def _beside_chance(self) -> Table:
        chance = () if self.chance is None else (("chance", self.chance),)
        return Table(("measure", "value"), (*self.measures.items(), *chance), ("", ".4g"))

    def _shares(self) -> tuple[tuple[float, ...], ...]:
        """The rows of the confusion matrix, divided by their sums."""
        return tuple(tuple(n / max(sum(row), 1) for n in row) for row in self.confusion)

    shows = (
        text("{n} examples of the {split} split."),
        _beside_chance,
        when(
            "confusion",
            heatmap(
                "Who is taken for whom, among the task's classes",
                "classes",
                "classes",
                _shares,
                "true class",
                "predicted class",
                ".0%",
                (0.0, 1.0),
            ),
        ),
    )

    def __repr__(self) -> str:
        name, value = next(iter(self.measures.items()))
        where = f"{self.part!r} on {self.task!r} {self.split}"
        return f"Evaluation({where}: {name} {value:.4g}, n {self.n})"


def evaluate(
    part: Part | nn.Module, task: Task, *, split: Split = "test", batch_size: int = 512
) -> Evaluation:
    """Measure a part on one split of a task, matching classes by name.

    A part that normalises by the batch gets the examples in a fixed random order: data often lie
    class by class, and the statistics of one class are not those of the data.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20, name="noise")
    >>> evaluate(build("mlp", classes=3), task).n
    12
    """
    part = as_part(part)
    inputs, targets = task.subset(split)
    if len(inputs) == 0:
        raise TaskError(f"{task.name!r} has no examples in its {split} split")
    if task.kind == "pairs":
        raise TaskError(f"{task.name!r} has pair labels only; there is nothing to evaluate against")
    refuse_other_inputs(task, part.contract)
    columns = columns_of(part, task)
    mixed = uses_batch_statistics(part.module)
    if mixed:
        order = torch.randperm(len(inputs), generator=generator(0, "evaluation"))
        inputs, targets = inputs[order], targets[order]
    outputs = outputs_of(part, inputs, batch_size=batch_size)
    facts: dict[str, Any] = {
        "part": part.described,
        "task": task.name,
        "split": split,
        "n": len(inputs),
        "settings": {
            "split": split,
            "batch_size": batch_size,
            "norms": _norms(part),
            "order": "random" if mixed else "stored",
            "task_fingerprint": task.fingerprint,
            "part_digest": part.digest,
        },
    }
    _refuse_misnamed(part, outputs)
    if columns is None or task.kind == "multilabel":
        named = outputs if columns is None else outputs[:, columns]
        return Evaluation(measures=measure(named, targets, task), **facts)
    _refuse_narrow(outputs, task)
    if part.contract.classes is None and outputs.shape[1] != len(columns):
        raise TaskError(
            f"{part.described!r} gives {outputs.shape[1]} outputs without names, {task.name!r} has "
            f"{len(columns)} classes; say which they are: dt.adopt(module, classes=(...))"
        )
    measures = class_measures(outputs, columns[targets])
    if outputs.shape[1] > len(columns):
        masked = class_measures(outputs[:, columns], targets)
        measures |= {"masked accuracy": masked["accuracy"], "masked chance": 1 / len(columns)}
    counts = confusion(outputs[:, columns].argmax(1), targets, len(columns))
    return Evaluation(
        measures=measures,
        chance=1 / outputs.shape[1],
        classes=task.classes,
        confusion=tuple(tuple(row) for row in counts.tolist()),
        **facts,
    )


def measure(outputs: Tensor, targets: Tensor, task: Task) -> dict[str, float]:
    """The measures that suit the task's kind, for outputs in the order of its classes.

    >>> task = Task(torch.rand(8, 2), [0, 1] * 4)
    >>> sorted(measure(torch.rand(8, 2), task.targets, task))
    ['accuracy', 'nll']
    """
    _refuse_narrow(outputs, task)
    suited = {"classes": class_measures, "multilabel": label_measures}
    return suited.get(task.kind, number_measures)(outputs, targets)


def _norms(part: Part) -> str:
    if uses_batch_statistics(part.module):
        return "batch"
    recalibrated = part.origin.settings.get("norms") == "recalibrated"
    return "recalibrated" if recalibrated else "stored"


def columns_of(part: Part, task: Task) -> Tensor | None:
    """For each class of the task, the head's output of that name ``[classes]``, if it has any."""
    known = part.contract.classes
    if not task.classes:
        return None
    if known is None:
        return torch.arange(len(task.classes)) if task.kind == "classes" else None
    refuse_missing_classes(part, task, known)
    return torch.tensor([known.index(name) for name in task.classes])


def refuse_missing_classes(part: Part, task: Task, known: Sequence[str]) -> None:
    """Refuse a task with a class that is not among those the part tells apart."""
    missing = [name for name in task.classes if name not in known]
    if missing:
        raise TaskError(
            f"{part.described!r} does not know the class {missing[0]!r} of {task.name!r}; it knows "
            f"{', '.join(known[:10])}. Restrict the task to the classes that both have, with "
            "tasks.derive.only_classes"
        )


def _refuse_misnamed(part: Part, outputs: Tensor) -> None:
    known = part.contract.classes
    if known is not None and (outputs.ndim != 2 or outputs.shape[1] != len(known)):
        raise ContractError(
            f"{part.described!r} has {len(known)} classes but gives outputs of shape "
            f"{tuple(outputs.shape[1:])}"
        )


def _refuse_narrow(outputs: Tensor, task: Task) -> None:
    width = outputs.shape[1] if outputs.ndim == 2 else 0
    if width < task.outputs or (task.kind != "classes" and width != task.outputs):
        raise TaskError(
            f"the part gives outputs of shape {tuple(outputs.shape[1:])}, but {task.name!r} needs "
            f"{task.outputs} numbers an example; give it a head for this task"
        )


def need_test(*tasks: Task) -> None:
    """Refuse, before a training, a task that nothing could be measured on afterwards."""
    for task in tasks:
        if task.size("test") == 0:
            raise TaskError(f"{task.name!r} has no test examples to measure on")


def with_measures(part: Part, measures: Mapping[str, float]) -> Part:
    """The part with more measures in its origin.

    >>> from dovetail.parts.part import build
    >>> with_measures(build("mlp"), {"test accuracy": 0.5}).origin.measured
    {'test accuracy': 0.5}
    """
    measured = {**part.origin.measured, **measures}
    return part.changed(origin=replace(part.origin, measured=measured))


def class_measures(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Accuracy and negative log-likelihood (nats) of ``[n, c]`` logits for ``[n]`` classes.

    >>> class_measures(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1]))["accuracy"]
    0.5
    """
    nll = F.cross_entropy(logits.double(), targets)
    right = (logits.argmax(1) == targets).double().mean()
    return {"accuracy": float(right), "nll": float(nll)}


def label_measures(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Share of right labels, share of rows right as a whole, and binary cross-entropy.

    >>> label_measures(torch.tensor([[9.0, -9.0]]), torch.tensor([[1.0, 1.0]]))["accuracy"]
    0.5
    """
    right = (logits > 0) == (targets > 0.5)
    bce = F.binary_cross_entropy_with_logits(logits.double(), targets.double())
    return {
        "accuracy": float(right.double().mean()),
        "exact": float(right.all(1).double().mean()),
        "nll": float(bce),
    }


def number_measures(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    r"""Mean squared error, its root, and :math:`R^2 = 1 - \mathrm{mse} / \mathrm{var}(y)`.

    >>> number_measures(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 3.0]))["r2"]
    1.0
    """
    y = targets.double().reshape(len(targets), -1)
    mse = float((outputs.double().reshape(y.shape) - y).square().mean())
    spread = float((y - y.mean(0)).square().mean())
    r2 = 1 - mse / spread if spread > 0 else float("nan")
    return {"r2": r2, "rmse": mse**0.5, "mse": mse}


def confusion(predicted: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Counts ``[classes, classes]``: row the true class, column the predicted one.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    tensor([[1, 1],
            [0, 1]])
    """
    cells = targets * classes + predicted
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes)
