"""What a step is told: batches that are ready for a network, losses, targets; validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.core.seeds import generator
from dovetail.core.settings import need_least
from dovetail.measure.evaluate import measure
from dovetail.measure.forward import outputs_of, prepare
from dovetail.objectives.amplified import NegativeCorrelation, SparseCrossEntropy, SquaredError
from dovetail.parts.contract import Contract
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part
from dovetail.settings.train import LOSS_NAMES
from dovetail.tasks.arrays import as_float
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.features import Keeping

Loss = Callable[[Tensor, Tensor], Tensor]

KEPT_BYTES = 1 << 30
"""Without augmentation, a split up to this size is prepared once instead of batch by batch."""


def labelled_batches(
    contract: Contract,
    task: Task,
    augment: Augment | None,
    batch_size: int,
    seed: int,
    rows: Tensor | None = None,
    keeping: Keeping | None = None,
) -> Batches | Prepared:
    """Batches of the training split, or of these rows of the task, ready for the network."""
    return batches_behind(_entrance(contract), task, augment, batch_size, seed, rows, keeping)


class Prepared:
    """Batches whose inputs are made ready as they come; none is held when the next is asked for.

    >>> raw = Batches(torch.zeros(6, 2), torch.zeros(6), 4)
    >>> [len(ready) for ready, _ in Prepared(raw, lambda x: x + 1).epoch(0)]
    [4, 2]
    """

    def __init__(self, raw: Batches, ready: Callable[[Tensor], Tensor]) -> None:
        self.raw, self._ready = raw, ready
        self.size, self.places = raw.size, raw.places
        self.kept_bytes = 0

    def __len__(self) -> int:
        return len(self.raw)

    def take(self, places: Tensor) -> Tensor:
        """What enters for the rows at these places, without augmentation."""
        return self._ready(self.raw.take(places))

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, ready for the network."""
        raw = self.raw.epoch(number, start)
        for _ in range(start, self.raw.steps):
            yield self._made(*next(raw))

    def _made(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._ready(inputs), targets


def below(whole: Part, at: str | None) -> Part:
    """All that comes before a module: the front up to ``at``, or nothing but the preprocessing.

    >>> from dovetail.parts.part import build
    >>> below(build("mlp", shape=(4,), hidden=(8,)), "hidden1")
    Part(front of mlp at hidden1: 4 -> 8 after relu in ..., 40 weights)
    """
    if at is not None:
        front, _ = cut(whole, at=at)
        front.module.eval()
        return front
    return _entrance(whole.contract)


def _entrance(contract: Contract) -> Part:
    """What prepares a network's inputs and does nothing else."""
    entrance = Contract(contract.takes, contract.takes, contract.preprocess, inputs=contract.inputs)
    return Part(nn.Identity(), entrance)


class Supply:
    """What enters a module for some rows of raw inputs: kept in memory, or made as it is asked for.

    Without augmentation and batch statistics the frozen modules give the same for a row every time.
    So what they give is computed once, if it fits into memory.

    Args:
        before: What comes before the module, from :func:`below`.
        inputs: ``[n, ...]``, as a task stores them.
        rows: Of the inputs, the ones to use.
        augment: Changes of raw images.
        device: Where the module is.
        keeping: Where they are kept; by default in memory, up to :data:`KEPT_BYTES`.

    >>> from dovetail.parts.part import build
    >>> front = below(build("mlp", shape=(4,), hidden=(8,)), "hidden1")
    >>> supply = Supply(front, torch.rand(10, 4), torch.arange(5, 10))
    >>> supply.kept.shape, supply.take(torch.tensor([0, 2])).shape
    (torch.Size([5, 8]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        before: Part,
        inputs: Tensor,
        rows: Tensor,
        *,
        augment: Callable[[Tensor, Generator], Tensor] | None = None,
        device: torch.device | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self._before, self._inputs, self.rows = before, inputs, rows
        self._augment, self._device = augment, device or before.device
        self.kept: Tensor | None = None
        if augment is None:
            self.kept = (keeping or Keeping(limit=KEPT_BYTES)).kept(before, inputs, rows)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: Tensor, draw: Generator | None = None) -> Tensor:
        """What enters for the rows at these places; ``draw`` is for the augmentation."""
        if self.kept is not None:
            return self.kept.index_select(0, which).to(self._device)
        raw = as_float(self._inputs.index_select(0, self.rows.index_select(0, which)))
        if self._augment is not None:
            if draw is None:
                raise SettingsError("augmentation needs a generator to draw from")
            raw = self._augment(raw, draw)
        return self.ready(raw)

    def ready(self, raw: Tensor) -> Tensor:
        """What enters for raw inputs ``[n, ...]``."""
        return self.fed(self.prepared(raw))

    def prepared(self, raw: Tensor) -> Tensor:
        """What enters the network for raw inputs."""
        return prepare(raw, self._before.contract).to(self._device)

    def fed(self, x: Tensor) -> Tensor:
        """What comes of it before the module."""
        with torch.no_grad():
            made: Tensor = self._before.module(x)
        return made


def batches_behind(
    before: Part,
    task: Task,
    augment: Augment | None,
    batch_size: int,
    seed: int,
    rows: Tensor | None = None,
    keeping: Keeping | None = None,
) -> Batches | Prepared:
    """Batches of what frozen modules give for the training split, or for these rows; targets."""
    rows = task.indices("train") if rows is None else rows
    supply = Supply(before, task.inputs, rows, augment=augment, keeping=keeping)
    if supply.kept is not None:
        made = Batches(supply.kept, task.targets.index_select(0, rows), batch_size, seed=seed)
        made.kept_bytes = supply.kept.nbytes + 8 * len(rows)
        return made
    entering = Batches(
        task.inputs,
        task.targets,
        batch_size,
        seed=seed,
        augment=augment,
        rows=rows,
        prepare=supply.prepared,
    )
    return Prepared(entering, supply.fed)


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


_OF_CLASSES: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "mse": _squared_distance,
    "hinge": F.multi_margin_loss,
    "sparse-cross-entropy": SparseCrossEntropy(),
    "negative-correlation": NegativeCorrelation(),
    "squared-error": SquaredError(),
}
"""What :data:`~dovetail.settings.train.LOSS_NAMES` name."""


def loss_for(choice: str | Loss | None, task: Task) -> Loss:
    """The loss of a training: by name, as it is, or the usual one of the task's kind.

    Those with a name are for class scores ``[n, classes]`` and indices ``[n]``.

    >>> task = Task([[0.0], [1.0]] * 4, [0, 1] * 4)
    >>> loss_for("hinge", task)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """
    if choice is None:
        return LOSSES[task.kind]
    if not isinstance(choice, str):
        return choice
    if choice not in LOSS_NAMES:
        raise SettingsError(f"unknown loss {choice!r}{nearest(choice, LOSS_NAMES)}")
    if task.kind != "classes":
        raise TaskError(f"the loss {choice!r} is for classes, {task.name!r} is {task.kind}")
    return _OF_CLASSES[choice]


def loss_words(choice: str | Loss | None, task: Task) -> str:
    """What a loss is called in records: the same name for the same loss in every process.

    >>> loss_words(SquaredError(targets=(0, 1)), Task([[0.0], [1.0]] * 4, [0, 1] * 4))
    "SquaredError(targets=(0, 1), reduction='mean', ignore=-100)"
    """
    if isinstance(choice, str):
        return choice
    if is_dataclass(choice):
        return repr(choice)
    loss = choice or LOSSES[task.kind]
    return str(getattr(loss, "__name__", type(loss).__name__))


# Numbers to predict -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetScale:
    r"""A mean and a deviation a target, and the layer they belong into; without one, 0 and 1.

    Prices in the hundred thousands make the squared error overflow, and thousandths make it vanish.
    So a network that ends in a linear layer is trained on :math:`(y - \mu)/\sigma`, with the mean
    and deviation of the training targets, and the scale is folded into that layer afterwards:
    :math:`W \mapsto \sigma W`, :math:`b \mapsto \sigma b + \mu`.  The part then gives natural
    units.
    """

    mean: Tensor
    std: Tensor
    layer: nn.Linear | None

    def standard(self, targets: Tensor) -> Tensor:
        """Targets as the network sees them in training."""
        if self.layer is None:
            return targets
        return (targets - self.mean.to(targets)) / self.std.to(targets)

    def natural(self, outputs: Tensor) -> Tensor:
        """Outputs in the units of the task."""
        if self.layer is None:
            return outputs
        return outputs * self.std.to(outputs) + self.mean.to(outputs)

    @torch.no_grad()
    def fold(self) -> None:
        """Make the layer give natural units."""
        if self.layer is not None:
            weight, bias = self.layer.weight, self.layer.bias
            weight.mul_(self.std.to(weight)[:, None])
            bias.mul_(self.std.to(bias)).add_(self.mean.to(bias))

    @torch.no_grad()
    def unfold(self) -> None:
        """Undo :meth:`fold`, for a network that was trained before."""
        if self.layer is not None:
            weight, bias = self.layer.weight, self.layer.bias
            weight.div_(self.std.to(weight)[:, None])
            bias.sub_(self.mean.to(bias)).div_(self.std.to(bias))


NATURAL = TargetScale(torch.zeros(()), torch.ones(()), None)
"""Targets as they are."""


def target_scale(module: nn.Module, task: Task) -> TargetScale:
    """The scale for a task's training targets ``[n]`` or ``[n, k]``.

    >>> task = Task(torch.rand(40, 2), 1000 + 10 * torch.randn(40), kind="regression")
    >>> scale = target_scale(nn.Sequential(nn.Linear(2, 1)), task)
    >>> bool(scale.standard(task.targets).abs().max() < 5)
    True
    """
    last = module
    while isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    fits = isinstance(last, nn.Linear) and last.bias is not None
    if task.kind != "regression" or not isinstance(last, nn.Linear) or not fits:
        return NATURAL
    targets = task.targets[task.indices("train")].double().reshape(task.size("train"), -1)
    std = targets.std(0, correction=0)
    std[std < 1e-12] = 1.0
    return TargetScale(targets.mean(0).float(), std.float(), last)


def validation(
    part: Part,
    task: Task,
    loss: Loss,
    scale: TargetScale = NATURAL,
    *,
    inputs: Tensor | None = None,
    at_once: int = 512,
) -> Callable[[], dict[str, float]] | None:
    """Measures of the part on the validation split; nothing when there is none.

    ``inputs`` are what a head gets instead of the raw inputs of the split, ``at_once`` the most
    examples that go through at a time.
    """
    rows = task.indices("validation")
    if len(rows) == 0:
        return None

    def validate() -> dict[str, float]:
        if inputs is None:
            outputs = outputs_of(part, task.inputs, batch_size=at_once, rows=rows)
        else:
            outputs = outputs_of(part, inputs, batch_size=at_once)
        return judged(outputs, task.targets.index_select(0, rows), task, loss, scale, part.device)

    return validate


def judged(
    outputs: Tensor,
    targets: Tensor,
    task: Task,
    loss: Loss,
    scale: TargetScale = NATURAL,
    device: torch.device | None = None,
) -> dict[str, float]:
    """Measures of what a network gives on the validation split."""
    with torch.no_grad():
        value = float(loss(outputs.to(device), scale.standard(targets.to(device))))
    measures = measure(scale.natural(outputs), targets, task)
    return {"validation loss": value} | {f"validation {k}": v for k, v in measures.items()}


def validation_behind(
    before: Part,
    head: Part,
    whole: Part,
    task: Task,
    loss: Loss,
    scale: TargetScale = NATURAL,
    *,
    keeping: Keeping | None = None,
) -> Callable[[], dict[str, float]] | None:
    """As for the whole network, but what the frozen modules give is computed once if it fits."""
    rows = task.indices("validation")
    features = Supply(before, task.inputs, rows, keeping=keeping).kept if len(rows) else None
    network, at_once = (whole if features is None else head), (keeping or Keeping()).at_once
    return validation(network, task, loss, scale, inputs=features, at_once=at_once)


# Batches, the same whether or not a run was interrupted -------------------------------------------


class Batches:
    """Batches of inputs and targets whose order depends on seed, epoch and batch number only.

    One ``index_select`` a batch; uint8 inputs become floats batch by batch, so the data set stays
    a quarter of the size in memory.

    Args:
        inputs: ``[n, ...]``, as a task stores them.
        targets: ``[n, ...]``.
        batch_size: Examples a batch; the last batch of an epoch may be smaller.
        seed: For order and augmentation.
        augment: Called as ``augment(inputs, generator)`` on each batch of floats.
        prepare: Called on what comes of that.
        rows: Use these rows only, such as ``task.indices("train")``, without copying them first.

    Attributes:
        chosen: A mask of those that epochs are made of, as long as no other is set; else all.
        kept_bytes: Of inputs and targets, if they are a copy that was made for these batches.

    >>> batches = Batches(torch.arange(6.0)[:, None], torch.arange(6), 4, seed=1)
    >>> whole = [targets.tolist() for _, targets in batches.epoch(0)]
    >>> sorted(sum(whole, []))
    [0, 1, 2, 3, 4, 5]
    >>> [targets.tolist() for _, targets in batches.epoch(0, start=1)] == whole[1:]
    True
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        batch_size: int,
        *,
        seed: int = 0,
        augment: Callable[[Tensor, Generator], Tensor] | None = None,
        rows: Tensor | None = None,
        prepare: Callable[[Tensor], Tensor] = lambda inputs: inputs,
    ) -> None:
        need_least("batch_size", batch_size, 1)
        if len(inputs) != len(targets):
            raise SettingsError(f"{len(inputs)} inputs but {len(targets)} targets")
        self._inputs, self._targets, self._rows = inputs, targets, rows
        self._seed, self._augment, self.size = seed, augment, batch_size
        self._prepare = prepare
        self.count = len(inputs) if rows is None else len(rows)
        self.chosen: Tensor | None = None
        self.kept_bytes = 0
        if self.count == 0:
            raise SettingsError("there is nothing to make batches of")

    def __len__(self) -> int:
        """The number of batches an epoch of all rows."""
        return self._batches(self.count)

    @property
    def steps(self) -> int:
        """The number of batches an epoch of the chosen rows."""
        return len(self) if self.chosen is None else self._batches(int(self.chosen.sum()))

    def _batches(self, rows: int) -> int:
        full, rest = divmod(rows, self.size)
        # Batch norm cannot train on one example: it has no variance, and torch raises.  Leaving a
        # random example out of an epoch costs nothing.
        alone = rest == 1 and full > 0
        return full + (rest > 0 and not alone)

    def order(self, number: int) -> Tensor:
        """The places of all rows, in the order of an epoch."""
        return torch.randperm(self.count, generator=generator(self._seed, "order", number))

    def take(self, places: Tensor) -> Tensor:
        """The inputs of the rows at these places, as floats, without augmentation."""
        index = places if self._rows is None else self._rows[places]
        return self._prepare(as_float(self._inputs.index_select(0, index)))

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from batch ``start`` on.

        >>> batches = Batches(torch.zeros(6, 2), torch.zeros(6), 4)
        >>> [len(inputs) for inputs, _ in batches.epoch(0)]
        [4, 2]
        """
        for batch, places in enumerate(self.places(number)):
            if batch < start:
                continue
            index = places if self._rows is None else self._rows[places]
            # Bound to no name: what a step is done with is gone before the next is drawn.
            yield self._made(index, number, batch), self._targets.index_select(0, index)

    def _made(self, index: Tensor, number: int, batch: int) -> Tensor:
        # a copy even where a slice would do: a network may begin with an in-place operation
        inputs = as_float(self._inputs.index_select(0, index))
        if self._augment is not None:
            inputs = self._augment(inputs, generator(self._seed, "augment", number, batch))
        return self._prepare(inputs)

    def places(self, number: int) -> Iterator[Tensor]:
        """Of each batch of an epoch, which of the rows it has, counted from 0.

        >>> batches = Batches(torch.zeros(6, 2), torch.zeros(6), 4)
        >>> sorted(torch.cat(list(batches.places(0))).tolist())
        [0, 1, 2, 3, 4, 5]
        """
        order = self.order(number)
        order = order if self.chosen is None else order[self.chosen[order]]
        for batch in range(self.steps):
            yield order[batch * self.size : (batch + 1) * self.size]
