"""A module of a body: what it is told of pairs of rows, and what it is trained towards.

Batches say of two rows whether they are alike, and never of which class a row is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.objectives.pairwise import Relations, mean_kernel, relations_of_labels
from dovetail.parts.modules import evaluating, raw_bytes
from dovetail.parts.part import Part
from dovetail.settings.train import Modular
from dovetail.tasks.arrays import as_float
from dovetail.tasks.augment import Augment
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task
from dovetail.train.fit import WATCHED, Row
from dovetail.train.loop import EpochSource
from dovetail.train.supervision import Supply

Objective = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class PairSupervision:
    """What the body is told of the training split.

    Attributes:
        by: ``"labels"``, of every two rows of a batch; ``"pairs"``, of known pairs only.
        pairs: How many pairs.
        unlabelled: Further raw inputs ``[m, ...]``, of which nothing is known.
        augment: Changes of training images.
        seed: For which pairs are drawn.
    """

    by: Literal["labels", "pairs"]
    pairs: int | None = None
    unlabelled: Tensor | None = None
    augment: Augment | None = None
    seed: int = 0

    @classmethod
    def of(
        cls,
        task: Task,
        by: str,
        pairs: int | None,
        unlabelled: Tensor | Task | None,
        augment: Augment | None,
        seed: int,
    ) -> PairSupervision:
        """The choices of a user, checked.

        >>> x, y = torch.rand(8, 5), torch.rand(8)
        >>> PairSupervision.of(Task(x, y, kind="regression"), "labels", None, None, None, 0)
        Traceback (most recent call last):
        ...
        dovetail.core.errors.TaskError: 'task' is of kind 'regression', and training in modules ...
        """
        if task.kind not in ("classes", "pairs"):
            raise TaskError(
                f"{task.name!r} is of kind {task.kind!r}, and training in modules is about pairs "
                "of one class or of two; use end_to_end, or make classes of the targets"
            )
        Modular.check({"supervision": by})
        told: Literal["labels", "pairs"] = (
            "pairs" if by == "pairs" or task.kind == "pairs" else "labels"
        )
        if pairs is not None and told == "labels":
            raise SettingsError("pairs= counts pairs, which only supervision='pairs' uses")
        extra = None
        if unlabelled is not None:
            if augment is None:
                raise SettingsError(
                    "unlabelled inputs are used in two augmented views; say augment="
                )
            extra = _raw(unlabelled)
            if extra.shape[1:] != task.inputs.shape[1:]:
                raise TaskError(
                    f"unlabelled inputs are {list(extra.shape[1:])}, "
                    f"those of {task.name!r} {list(task.input_shape)}"
                )
        return cls(told, pairs, extra, augment, seed)

    def described(self) -> dict[str, Any]:
        """The choices as JSON values."""
        unlabelled = None
        if self.unlabelled is not None:
            unlabelled = hashlib.sha256(raw_bytes(self.unlabelled)).hexdigest()[:16]
        return {
            "supervision": self.by,
            "pairs": self.pairs,
            "unlabelled": unlabelled,
            "augment": None if self.augment is None else str(self.augment),
        }


def _raw(unlabelled: Tensor | Task) -> Tensor:
    if isinstance(unlabelled, Task):
        return unlabelled.inputs.index_select(0, unlabelled.indices("train"))
    if not isinstance(unlabelled, Tensor) or unlabelled.ndim < 2 or len(unlabelled) == 0:
        raise TaskError("unlabelled is a task, or a tensor of inputs [m, ...]")
    return unlabelled


class PairBatch(NamedTuple):
    """Inputs ``[n, ...]`` of a module, and what is known of each two of them."""

    inputs: Tensor
    relations: Relations


class _Batches:
    """Batches of rows and their relations; the last that fill no batch are left out of an epoch.

    A kind of batches says in which order its ``count`` items come, which rows of the supply some
    of them are, and what is known of these.
    """

    def __init__(self, supply: Supply, count: int, size: int, seed: int) -> None:
        self._supply, self._count, self._size, self._seed = supply, count, min(size, count), seed

    def __len__(self) -> int:
        return self._count // self._size

    def epoch(self, number: int, start: int = 0) -> Iterator[PairBatch]:
        """The batches of an epoch, from batch ``start`` on."""
        order = self._order(generator(self._seed, "order", number))
        for batch in range(start, len(self)):
            rows = self._rows(order[batch * self._size : (batch + 1) * self._size])
            inputs = self._supply.take(rows, generator(self._seed, "augment", number, batch))
            yield PairBatch(inputs, self._relations(rows))

    def _order(self, draw: Generator) -> Tensor:
        return torch.randperm(self._count, generator=draw)

    def _rows(self, items: Tensor) -> Tensor:
        return items

    def _relations(self, rows: Tensor) -> Relations:
        raise NotImplementedError


class FromLabels(_Batches):
    """Batches of labelled rows: of every two it is known whether they are alike.

    The last rows of an epoch fill no batch, and so few would make few pairs.

    >>> from dovetail.parts.part import build
    >>> from dovetail.train.supervision import below
    >>> entrance = below(build("mlp", shape=(4,)), None)
    >>> supply = Supply(entrance, torch.rand(10, 4), torch.arange(10))
    >>> source = FromLabels(supply, torch.arange(10) % 2, 4, seed=0)
    >>> [len(batch.inputs) for batch in source.epoch(0)]
    [4, 4]
    """

    def __init__(self, supply: Supply, labels: Tensor, batch_size: int, *, seed: int) -> None:
        super().__init__(supply, len(labels), batch_size, seed)
        self._labels = labels

    def _relations(self, rows: Tensor) -> Relations:
        return relations_of_labels(self._labels.index_select(0, rows))


class FromPairs(_Batches):
    """Batches of the ends of pairs: known is what the given pairs say of them, and nothing else.

    A batch begins with half as many pairs as it has rows, alike and different ones in the same
    proportion as among all; every given pair that has both ends in the batch counts.

    Args:
        supply: Where rows come from.
        pairs: Of places in the supply.
        batch_size: Rows a batch, at most.
        seed: For the order.

    >>> from dovetail.parts.part import build
    >>> from dovetail.train.supervision import below
    >>> entrance = below(build("mlp", shape=(4,)), None)
    >>> supply = Supply(entrance, torch.rand(10, 4), torch.arange(10))
    >>> pairs = Pairs(torch.arange(5), torch.arange(5, 10), torch.arange(5) < 3)
    >>> [batch.relations for batch in FromPairs(supply, pairs, 10, seed=0).epoch(0)]
    [Relations(10 samples, 3 pairs alike, 2 pairs different)]
    """

    def __init__(self, supply: Supply, pairs: Pairs, batch_size: int, *, seed: int) -> None:
        super().__init__(supply, len(pairs), max(batch_size // 2, 1), seed)
        self._pairs = pairs
        keys = self._keys(pairs.first, pairs.second)
        self._known, places = torch.unique(keys, return_inverse=True)
        self._alike = torch.zeros(len(self._known), dtype=torch.bool)
        self._alike[places[pairs.same]] = True
        self._refuse_contradiction(places)

    def _order(self, draw: Generator) -> Tensor:
        """A random order in which alike and different pairs are spread evenly."""
        place = torch.empty(len(self._pairs), dtype=torch.float64)
        for sort in (self._pairs.same, ~self._pairs.same):
            count = int(sort.sum())
            place[sort] = (torch.randperm(count, generator=draw).double() + 0.5) / max(count, 1)
        return place.argsort(stable=True)

    def _rows(self, items: Tensor) -> Tensor:
        drawn = self._pairs.take(items)
        rows: Tensor = torch.unique(torch.cat([drawn.first, drawn.second]))
        return rows

    def _relations(self, rows: Tensor) -> Relations:
        i, j = torch.triu_indices(len(rows), len(rows), offset=1)
        keys = self._keys(rows[i], rows[j])
        place = torch.searchsorted(self._known, keys).clamp(max=len(self._known) - 1)
        known = self._known[place] == keys
        same, different = torch.zeros(2, len(rows), len(rows), dtype=torch.bool)
        same[i, j] = known & self._alike[place]
        different[i, j] = known & ~self._alike[place]
        return Relations(same | same.T, different | different.T)

    def _keys(self, first: Tensor, second: Tensor) -> Tensor:
        """One number for each two places, whichever comes first."""
        return torch.minimum(first, second) * len(self._supply) + torch.maximum(first, second)

    def _refuse_contradiction(self, places: Tensor) -> None:
        wrong = (self._alike[places] & ~self._pairs.same).nonzero()
        if len(wrong):
            pair = int(wrong[0])
            ends = (self._pairs.first[pair], self._pairs.second[pair])
            i, j = (int(self._supply.rows[end]) for end in ends)
            raise TaskError(
                f"samples {i} and {j} are given both as alike and as different; "
                "leave out the pairs that you do not trust"
            )


class WithViews:
    """Batches with unlabelled images added: two changed views of each, alike, the rest unknown.

    Args:
        source: The batches to add to.
        supply: Makes raw inputs enter the module.
        images: Unlabelled raw inputs ``[m, ...]``.
        augment: How a view is made.
        count: Images a batch, each in two views.
        seed: For which images, and their views.
    """

    def __init__(
        self,
        source: EpochSource,
        supply: Supply,
        images: Tensor,
        augment: Callable[[Tensor, Generator], Tensor],
        *,
        count: int,
        seed: int,
    ) -> None:
        self._source, self._supply, self._images = source, supply, images
        self._augment, self._count, self._seed = augment, min(count, len(images)), seed

    def __len__(self) -> int:
        return len(self._source)

    def epoch(self, number: int, start: int = 0) -> Iterator[PairBatch]:
        """The batches of an epoch, from batch ``start`` on."""
        for batch, known in enumerate(self._source.epoch(number, start), start):
            draw = generator(self._seed, "unlabelled", number, batch)
            which = torch.randperm(len(self._images), generator=draw)[: self._count]
            raw = as_float(self._images.index_select(0, which))
            views = [self._supply.ready(self._augment(raw, draw)) for _ in range(2)]
            yield PairBatch(torch.cat([known.inputs, *views]), self._widened(known.relations))

    def _widened(self, known: Relations) -> Relations:
        n, m = len(known), self._count
        same, different = torch.zeros(2, n + 2 * m, n + 2 * m, dtype=torch.bool)
        same[:n, :n], different[:n, :n] = known.same, known.different
        one, other = torch.arange(n, n + m), torch.arange(n + m, n + 2 * m)
        same[one, other] = same[other, one] = True
        return Relations(same, different)


class Body:
    """A module that is trained towards a proxy of its own output.

    Args:
        part: The module and its contract; what it gives went through the activation named there.
        before: What comes before it, frozen.
        task: Where rows come from.
        told: What is known of them.
        objective: Of ``(features, same=, different=)``, higher is better.
        batch_size: Rows a batch.
        seed: For order and augmentation.
    """

    def __init__(
        self,
        part: Part,
        before: Part,
        task: Task,
        told: PairSupervision,
        objective: Objective,
        batch_size: int,
        seed: int,
    ) -> None:
        self._part, self._before, self._task, self._told = part, before, task, told
        self._size, self._seed = batch_size, seed
        self._objective = objective
        if isinstance(objective, nn.Module):
            objective.to(part.device)

    def batches(self) -> EpochSource:
        """The training split's batches."""
        made = self._source("train", self._told.augment)
        if made is None:
            raise TaskError(f"{self._task.name!r} has no two training examples to compare")
        source, supply = made
        if self._told.unlabelled is None or self._told.augment is None:
            return source
        return WithViews(
            source,
            supply,
            self._told.unlabelled,
            self._told.augment,
            count=max(self._size // 2, 1),
            seed=self._seed,
        )

    def step(self, batch: PairBatch) -> Tensor:
        """The loss of a batch: the proxy with its sign turned."""
        return -self._proxy(self._part(batch.inputs), batch)

    def validation(self) -> Callable[[], Row] | None:
        """Proxy and mean kernel on the validation split, over always the same batches.

        A proxy of a batch depends on its size, so the batches are as large as in training.
        """
        made = self._source("validation", None)
        if made is None:
            return None
        source, _ = made
        return lambda: self._measured(source)

    def _measured(self, source: EpochSource) -> Row:
        measured: dict[str, list[float]] = {}
        with evaluating(self._part.module):
            for batch in source.epoch(0):
                features = self._part(batch.inputs)
                known = batch.relations
                try:
                    proxy = float(self._proxy(features, batch))
                except TaskError:  # a batch without the pairs that this proxy needs says nothing
                    continue
                kernel = mean_kernel(features, same=known.same, different=known.different)
                values = {
                    WATCHED: -proxy,
                    "validation k same": kernel.same,
                    "validation k different": kernel.different,
                }
                for name, value in values.items():
                    if value is not None:
                        measured.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in measured.items()}

    def _proxy(self, features: Tensor, batch: PairBatch) -> Tensor:
        same, different = batch.relations.same, batch.relations.different
        return self._objective(
            features, same=same.to(features.device), different=different.to(features.device)
        )

    def _source(self, split: Split, augment: Augment | None) -> tuple[EpochSource, Supply] | None:
        rows = self._task.indices(split)
        if len(rows) < 2:
            return None
        supply = Supply(
            self._before, self._task.inputs, rows, augment=augment, device=self._part.device
        )
        if self._told.by == "labels":
            labels = self._task.targets.index_select(0, rows)
            return FromLabels(supply, labels, self._size, seed=self._seed), supply
        count = self._told.pairs if split == "train" else None
        pairs = self._task.pairs(split, count=count, seed=self._told.seed).within(rows)
        if len(pairs) == 0:
            return None
        if split == "train" and bool(pairs.same.all()):
            raise TaskError(
                f"no pair of {self._task.name!r} is known to differ: a body that is told only what "
                "is alike learns to make everything the same"
            )
        return FromPairs(supply, pairs, self._size, seed=self._seed), supply
