"""What trainers share: a copy of the network with the task's contract, losses, batches, origins."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.measure.evaluate import measure
from dovetail.measure.forward import outputs_of
from dovetail.measure.preprocess import prepare, preprocess_for
from dovetail.parts.contract import Contract, Preprocess
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part, ports_of
from dovetail.parts.structure import structure_of
from dovetail.tasks.arrays import take_rows
from dovetail.tasks.augment import Augment
from dovetail.tasks.batches import Batches
from dovetail.tasks.task import Task
from dovetail.train.targets import NATURAL, TargetScale

__all__ = [
    "KEPT_BYTES",
    "LOSSES",
    "Loss",
    "Prepared",
    "augmentation",
    "contract_for",
    "finished",
    "head_loss",
    "labelled_batches",
    "starting_facts",
    "try_once",
    "twin",
    "validation",
]

Loss = Callable[[Tensor, Tensor], Tensor]

KEPT_BYTES = 1 << 30
"""Without augmentation, a split up to this size is prepared once instead of batch by batch."""


def twin(start: Part, task: Task, preprocess: Preprocess | None, device: torch.device) -> Part:
    """A copy of the network on the device, with the contract that training on ``task`` gives it."""
    return start.changed(
        module=copy.deepcopy(start.module).to(device),
        contract=contract_for(start, task, preprocess),
    )


def contract_for(start: Part, task: Task, preprocess: Preprocess | None) -> Contract:
    """The start's contract with the task's classes, preprocessing and inputs."""
    how = preprocess or start.contract.preprocess or preprocess_for(task)
    contract = replace(
        start.contract,
        preprocess=how,
        classes=task.classes if task.kind in ("classes", "multilabel") else None,
        kind="classes" if task.kind == "pairs" else task.kind,
        inputs=task.input_names or None,
    )
    sample = task.inputs[task.indices("train")[:1]]
    if contract.takes[0].shape is None:
        return replace(contract, takes=ports_of(prepare(sample, contract)))
    return contract


def try_once(part: Part, task: Task) -> None:
    """Fail before the first epoch when network and task do not fit."""
    rows = task.indices("train")[:2]
    output = outputs_of(part, task.inputs[rows])
    if output.ndim != 2 or output.shape[1] != task.outputs:
        raise TaskError(
            f"the network gives {tuple(output.shape[1:])} numbers an example, {task.name!r} needs "
            f"{task.outputs}; build it with classes={task.outputs}"
        )


def starting_facts(start: Part) -> dict[str, Any]:
    """What, beside the weights, tells one start from another: structure, and what is frozen."""
    return {
        "structure": _digest(structure_of(start.module)),
        "frozen": _digest(n for n, p in start.module.named_parameters() if not p.requires_grad),
    }


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def finished(
    part: Part, start: Part, task: Task, measures: dict[str, float], settings: dict[str, Any]
) -> Part:
    """The trained part: in evaluation mode, with where it came from and what it reached."""
    origin = Origin(
        how="train",
        parents=(start.digest,),
        task=task.name,
        task_fingerprint=task.fingerprint,
        settings=settings,
        measured={k: v for k, v in measures.items() if k.startswith("validation ")},
    )
    # Training renews what the part means: a space that the start may have had is not kept.
    gives = tuple(replace(port, space=None) for port in part.contract.gives)
    part.module.eval()
    return part.changed(origin=origin, contract=replace(part.contract, gives=gives))


def augmentation(augment: str | Augment | None) -> Augment | None:
    """The changes of training images that were asked for.

    >>> augmentation("flip"), augmentation(None)
    (Augment(steps=(('flip', 0.0),)), None)
    """
    return Augment.parse(augment) if isinstance(augment, str) else augment


def labelled_batches(
    contract: Contract,
    task: Task,
    augment: Augment | None,
    batch_size: int,
    seed: int,
    rows: Tensor | None = None,
) -> Batches | Prepared:
    """Batches of the training split, or of these rows of the task, ready for the network."""
    rows = task.indices("train") if rows is None else rows
    if augment is None and task.inputs[0].numel() * len(rows) * 4 <= KEPT_BYTES:
        inputs, targets = take_rows(task.inputs, rows), take_rows(task.targets, rows)
        return Batches(prepare(inputs, contract), targets, batch_size, seed=seed)
    raw = Batches(task.inputs, task.targets, batch_size, seed=seed, augment=augment, rows=rows)
    return Prepared(raw, lambda inputs: prepare(inputs, contract))


class Prepared:
    """Batches whose inputs are made ready as they come."""

    def __init__(self, raw: Batches, ready: Callable[[Tensor], Tensor]) -> None:
        self._raw, self._ready = raw, ready

    def __len__(self) -> int:
        return len(self._raw)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, ready for the network."""
        for inputs, targets in self._raw.epoch(number, start):
            yield self._ready(inputs), targets


def validation(
    part: Part,
    task: Task,
    loss: Loss,
    scale: TargetScale = NATURAL,
    *,
    inputs: Tensor | None = None,
) -> Callable[[], dict[str, float]] | None:
    """Measures of the part on the validation split; nothing when there is none.

    ``inputs`` are what a head gets instead of the raw inputs of the split.
    """
    rows = task.indices("validation")
    if len(rows) == 0:
        return None
    targets = task.targets.index_select(0, rows)
    inputs = task.inputs.index_select(0, rows) if inputs is None else inputs

    def validate() -> dict[str, float]:
        outputs = outputs_of(part, inputs)
        with torch.no_grad():
            device = part.device
            value = float(loss(outputs.to(device), scale.standard(targets.to(device))))
        measures = measure(scale.natural(outputs), targets, task)
        return {"validation loss": value} | {f"validation {k}": v for k, v in measures.items()}

    return validate


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs.reshape(len(targets), -1), targets.reshape(len(targets), -1))


LOSSES: dict[str, Loss] = {
    "classes": F.cross_entropy,
    "multilabel": F.binary_cross_entropy_with_logits,
    "regression": _squared_error,
}
"""The loss for each kind of task."""


def _squared_distance(outputs: Tensor, targets: Tensor) -> Tensor:
    """To one for the class, zero for the others."""
    return F.mse_loss(outputs, F.one_hot(targets, outputs.shape[1]).to(outputs))


_HEAD_LOSSES: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "mse": _squared_distance,
    "hinge": F.multi_margin_loss,
}


def head_loss(choice: str | Loss) -> Loss:
    """A loss for class scores ``[n, classes]`` and indices ``[n]``, by name or as it is.

    >>> head_loss("hinge")(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """
    if not isinstance(choice, str):
        return choice
    if choice not in _HEAD_LOSSES:
        raise SettingsError(f"unknown head_loss {choice!r}{nearest(choice, _HEAD_LOSSES)}")
    return _HEAD_LOSSES[choice]
