"""A front and a head as one, or several: statistics of their norms, how good they are together."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, TaskError
from dovetail.core.seeds import generator
from dovetail.measure.evaluate import Evaluation, evaluate
from dovetail.measure.forward import outputs_of, prepare, refuse_other_inputs
from dovetail.parts.contract import shown_shape
from dovetail.parts.joining import join
from dovetail.parts.norms import Statistics, uses_batch_statistics, with_norms
from dovetail.parts.part import Part
from dovetail.settings.join import Recombine
from dovetail.tasks.splits import SPLITS, Split
from dovetail.tasks.task import Task

CALIBRATION = Recombine.calibration
"""So many training images, without their labels, are plenty for a mean and variance a channel."""

_BATCH = 512


def joined(front: Part, head: Part, task: Task, norms: Statistics, *, seed: int = 0) -> Part:
    """Front and head in one, as :func:`~dovetail.parts.joining.join` has it, fitting or not.

    ``"recalibrated"`` norms get the statistics of training images of the task.
    """
    if norms != "recalibrated":
        return join(front, head, norms=norms, force=True)
    batches = calibrating_batches(front, task, seed=seed)
    return join(front, head, norms=norms, force=True, data=batches)


def answers(
    front: Part, head: Part, task: Task, norms: Statistics, *, split: Split, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """For the images of a split, in a random order: whether front and head are right, and targets.

    The head chooses among all its classes, matched by name.  The order matters to batch
    statistics: of a batch with one class they are not the data's.

    Returns:
        ``right [n]``, booleans, and ``targets [n]``.
    """
    network, rows = joined(front, head, task, norms, seed=seed), task.indices(split)
    if len(rows) < 2 and uses_batch_statistics(network.module):
        raise TaskError(
            f"{task.name!r} has {len(rows)} examples in its {split} split, which have no "
            "statistics of a batch; say norms='stored'"
        )
    rows = torch.cat(random_batches(rows, seed))
    outputs = outputs_of(network, task.inputs[rows], batch_size=_BATCH)
    known = head.contract.classes or task.classes
    if outputs.shape[1:] != (len(known),):
        raise ContractError(
            f"{head.described!r} gives {shown_shape(tuple(outputs.shape[1:]))} numbers an example "
            f"for {len(known)} classes; give it a head for {task.name!r}"
        )
    targets = task.targets[rows]
    columns = torch.tensor([known.index(name) for name in task.classes])
    return outputs.argmax(1) == columns[targets], targets


def accuracy(
    front: Part, head: Part, task: Task, norms: Statistics, *, split: Split, seed: int = 0
) -> float:
    """The share of right :func:`answers`."""
    right, _ = answers(front, head, task, norms, split=split, seed=seed)
    return float(right.double().mean())


def judged(
    front: Part, head: Part, task: Task, norms: Statistics, *, split: Split, seed: int = 0
) -> Evaluation:
    """Front and head together on a split, its images in a random order: all measures."""
    network = joined(front, head, task, norms, seed=seed)
    return evaluate(network, in_random_order(task, split, seed), split=split, batch_size=_BATCH)


def in_random_order(task: Task, split: Split, seed: int) -> Task:
    """The task with the rows of one split in the order of :func:`random_batches`.

    Data may lie class by class, as folders of images do: then whole batches would be of one class,
    with statistics that a network which normalises by the batch never met.
    """
    indices: dict[Split, Tensor] = {each: task.indices(each) for each in SPLITS}
    indices[split] = torch.cat(random_batches(indices[split], seed))
    return task.derived(task.name, indices=indices)


def random_batches(rows: Tensor, seed: int, most: int = _BATCH) -> list[Tensor]:
    """The rows ``[n]`` in a fixed random order, in batches of like size, at most so many each.

    Data sets often lie on disk class by class, and the statistics of a batch of one class are not
    those of the data: an unshuffled order would measure that instead of the parts.  No batch is
    left with a few rows, whose variance is poor, or with a single one, which has none.

    >>> [len(batch) for batch in random_batches(torch.arange(513), seed=0)]
    [257, 256]
    """
    order = rows[torch.randperm(len(rows), generator=generator(seed, "batches"))]
    return list(order.tensor_split(max(1, math.ceil(len(order) / most))))


def calibrating_batches(
    front: Part, task: Task, most: int = CALIBRATION, *, seed: int = 0
) -> list[Tensor]:
    """Random training images as the front wants them, in batches of like size; no label is read.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(400, 4), [0, 1] * 200)
    >>> [len(batch) for batch in calibrating_batches(build("mlp", shape=(4,)), task)]
    [280]
    """
    rows = task.indices("train")
    if len(rows) < 2:
        raise TaskError(f"{task.name!r} has no two training images to recalibrate on")
    refuse_other_inputs(task, front.contract)
    drawn = rows[torch.randperm(len(rows), generator=generator(seed, "calibration"))[:most]]
    ready = prepare(task.inputs.index_select(0, drawn), front.contract).to(front.device)
    # None is left with a single image, which has no variance.
    return list(ready.tensor_split(-(-len(ready) // _BATCH)))


class Fan(nn.Module):
    """A front whose features every head receives; the tensors are the parts' own.

    >>> fan = Fan(nn.Flatten(), {"three": nn.Linear(4, 3), "two": nn.Linear(4, 2)})
    >>> {name: tuple(found.shape) for name, found in fan(torch.rand(5, 2, 2)).items()}
    {'three': (5, 3), 'two': (5, 2)}
    """

    def __init__(self, front: nn.Module, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.front = front
        self.names = list(heads)
        self.heads = nn.ModuleList(heads.values())  # no dictionary: names of parts hold dots

    def features(self, x: Tensor) -> tuple[Tensor, ...]:
        """What crosses from the front to a head."""
        crossing = self.front(x)
        return crossing if isinstance(crossing, tuple) else (crossing,)

    def through(self, name: str, features: tuple[Tensor, ...]) -> Tensor:
        """What one head makes of the features, where its weights are."""
        head = self.heads[self.names.index(name)]
        weight = next(iter(head.state_dict().values()), None)
        if weight is not None:
            features = tuple(tensor.to(weight.device) for tensor in features)
        output: Tensor = head(*features)
        return output

    def forward(self, x: Tensor, wanted: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The outputs of all heads, or of those wanted."""
        features = self.features(x)
        names = self.names if wanted is None else wanted
        return {name: self.through(name, features) for name in names}

    def with_norms(self, norms: Statistics, batches: Iterable[Tensor] = ()) -> Fan:
        """The fan with other statistics, as ``join`` of the front to each head would have them.

        ``"recalibrated"`` needs batches of prepared inputs.  The front's new statistics are the
        same behind every head, so one pass over the batches serves all; heads that share a batch
        norm still get statistics of their own.
        """
        if norms != "recalibrated":
            return with_norms(self, norms)
        heads = (copy.deepcopy(head) for head in self.heads)
        return with_norms(
            Fan(self.front, dict(zip(self.names, heads, strict=True))), norms, batches
        )
