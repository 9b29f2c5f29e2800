"""Training a whole network on one task: the plain way, and the yardstick for all others."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.device import choose_device
from dovetail.core.errors import TaskError
from dovetail.parts.contract import Contract, Preprocess
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part, as_part, ports_of
from dovetail.parts.structure import structure_of
from dovetail.running.evaluate import measure
from dovetail.running.forward import outputs_of
from dovetail.running.preprocess import prepare, preprocess_for
from dovetail.tasks.augment import Augment
from dovetail.tasks.batches import Batches
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit, Training
from dovetail.train.loop import run_loop
from dovetail.train.options import LoopOptions, Options, named
from dovetail.train.targets import NATURAL, TargetScale, target_scale

__all__ = ["end_to_end"]

Loss = Callable[[Tensor, Tensor], Tensor]

_PREPARED_BYTES = 1 << 30
"""Without augmentation, a split up to this size is preprocessed once instead of batch by batch."""


def end_to_end(
    model: Part | nn.Module,
    task: Task,
    *,
    loss: Loss | None = None,
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> Fit:
    """Train a copy of ``model`` on the training split of ``task``.

    Args:
        model: Its weights are the starting point; it is left as it is.
        task: Of kind classes (cross-entropy), multilabel (binary cross-entropy) or regression
            (squared error).
        loss: Another loss of ``(outputs, targets)``, lower is better.
        augment: Such as ``"flip,shift:2"``.
        preprocess: Default: the part's own, else standardisation by the training split.
        seed: Order of batches, augmentation, dropout.
        options: See :class:`Options`.

    Returns:
        The trained part, with the classes by name in its contract, and the record.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> fit = end_to_end(build("mlp", hidden=(32,)), load_task("digits"), epochs=5)
    >>> fit.record.final["validation accuracy"] > 0.9
    True
    """
    start, chosen = as_part(model), Options(**options)
    if task.kind == "pairs":
        raise TaskError(f"{task.name!r} has pair labels only; end to end needs targets")
    augmentation = _augmentation(augment)
    device = choose_device(chosen.device)
    part = start.changed(
        module=copy.deepcopy(start.module).to(device),
        contract=_contract(start, task, preprocess),
    )
    _try_once(part, task)
    own_loss = None if loss is None else named(loss)
    loss = loss or _LOSSES[task.kind]

    # A loss of one's own may be about natural units, such as counts; ours is about distances.
    scale = target_scale(part.module, task) if own_loss is None else NATURAL
    if start.contract.kind == "regression" and start.origin.how == "train":
        scale.unfold()

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return loss(part.module(inputs.to(device)), scale.standard(targets.to(device)))

    settings = {
        "how": "end-to-end",
        "seed": seed,
        "augment": None if augmentation is None else str(augmentation),
        "loss": getattr(loss, "__name__", type(loss).__name__),
        "task_fingerprint": task.fingerprint,
        "start_digest": start.digest,
        "device": str(device),
        **chosen.described(),
    }
    rows = run_loop(
        part.module,
        _batches(part.contract, task, augmentation, chosen.batch_size, seed),
        step,
        chosen,
        validate=_validation(part, task, loss, scale),
        seed=seed,
        identity={
            "preprocess": part.contract.preprocess,
            "own_loss": own_loss,
            "structure": _digest(structure_of(start.module)),
            "frozen": _digest(n for n, p in start.module.named_parameters() if not p.requires_grad),
            **settings,
        },
        label=task.name,
    )
    scale.fold()
    record = Training(part=part.described, task=task.name, rows=rows, settings=settings)
    return Fit((_finished(part, start, task, record, settings),), record)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _finished(
    part: Part, start: Part, task: Task, record: Training, settings: dict[str, Any]
) -> Part:
    origin = Origin(
        how="train",
        parents=(start.digest,),
        task=task.name,
        task_fingerprint=task.fingerprint,
        settings=settings,
        measured={k: v for k, v in record.final.items() if k.startswith("validation ")},
    )
    # Training renews what the part means: a space that the start may have had is not kept.
    gives = tuple(replace(port, space=None) for port in part.contract.gives)
    part.module.eval()
    return part.changed(origin=origin, contract=replace(part.contract, gives=gives))


def _contract(start: Part, task: Task, preprocess: Preprocess | None) -> Contract:
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


def _try_once(part: Part, task: Task) -> None:
    """Fail before the first epoch when network and task do not fit."""
    rows = task.indices("train")[:2]
    output = outputs_of(part, task.inputs[rows])
    if output.ndim != 2 or output.shape[1] != task.outputs:
        raise TaskError(
            f"the network gives {tuple(output.shape[1:])} numbers an example, {task.name!r} needs "
            f"{task.outputs}; build it with classes={task.outputs}"
        )


def _augmentation(augment: str | Augment | None) -> Augment | None:
    return Augment.parse(augment) if isinstance(augment, str) else augment


def _batches(
    contract: Contract, task: Task, augment: Augment | None, batch_size: int, seed: int
) -> Batches | _Prepared:
    rows = task.indices("train")
    if augment is None and task.inputs[0].numel() * len(rows) * 4 <= _PREPARED_BYTES:
        inputs, targets = task.subset("train")
        return Batches(prepare(inputs, contract), targets, batch_size, seed=seed)
    raw = Batches(task.inputs, task.targets, batch_size, seed=seed, augment=augment, rows=rows)
    return _Prepared(raw, contract)


class _Prepared:
    """Batches preprocessed as they come."""

    def __init__(self, raw: Batches, contract: Contract) -> None:
        self._raw, self._contract = raw, contract

    def __len__(self) -> int:
        return len(self._raw)

    def epoch(self, number: int, start: int = 0) -> Any:
        """The batches of an epoch, ready for the network."""
        for inputs, targets in self._raw.epoch(number, start):
            yield prepare(inputs, self._contract), targets


def _validation(
    part: Part, task: Task, loss: Loss, scale: TargetScale
) -> Callable[[], dict[str, float]] | None:
    inputs, targets = task.subset("validation")
    if len(inputs) == 0:
        return None

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


_LOSSES: dict[str, Loss] = {
    "classes": F.cross_entropy,
    "multilabel": F.binary_cross_entropy_with_logits,
    "regression": _squared_error,
}
