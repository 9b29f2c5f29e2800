"""One module of a body: what it is told, what it is trained towards, how far it got."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dovetail.core.errors import SettingsError, TaskError
from dovetail.objectives.pairwise import Pairwise, mean_kernel
from dovetail.parts.modes import evaluating
from dovetail.parts.part import Part
from dovetail.parts.weights import digest_of, raw_bytes
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Split, Task
from dovetail.train.fit import WATCHED
from dovetail.train.module_inputs import Supply
from dovetail.train.options import named
from dovetail.train.pair_batches import FromLabels, FromPairs, PairBatch, PairSource, WithViews

__all__ = ["Body", "Objective", "Supervision", "objective_for", "objective_words"]

Objective = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Supervision:
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
    ) -> Supervision:
        """The choices of a user, checked.

        >>> x, y = torch.rand(8, 5), torch.rand(8)
        >>> Supervision.of(Task(x, y, kind="regression"), "labels", None, None, None, 0)
        Traceback (most recent call last):
        ...
        dovetail.core.errors.TaskError: 'task' is of kind 'regression', and training in modules ...
        """
        _refuse_other_kinds(task)
        if by not in ("labels", "pairs"):
            raise SettingsError(f"supervision must be 'labels' or 'pairs', got {by!r}")
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


def _refuse_other_kinds(task: Task) -> None:
    if task.kind not in ("classes", "pairs"):
        raise TaskError(
            f"{task.name!r} is of kind {task.kind!r}, and training in modules is about pairs of "
            "one class or of two; use end_to_end, or make classes of the targets"
        )


def objective_for(choice: str | Objective, activation: str) -> Objective:
    """What a module's output is judged by: one of ours by name, or a user's own.

    >>> objective_for("al", "tanh")
    Pairwise('al', activation='tanh')
    >>> objective_for(lambda features, labels: 0, "relu")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: an objective is called as objective(features, same=..., ...
    """
    if isinstance(choice, str):
        return Pairwise(choice, activation)
    called = choice.forward if isinstance(choice, nn.Module) else choice
    try:
        inspect.signature(called).bind(None, same=None, different=None)
    except (TypeError, ValueError):
        raise SettingsError(
            "an objective is called as objective(features, same=..., different=...) with two "
            f"boolean masks [n, n]; {objective_words(choice)} does not take that"
        ) from None
    return copy.deepcopy(choice) if isinstance(choice, nn.Module) else choice


def objective_words(choice: str | Objective) -> str:
    """An objective's name, the same in every process.

    >>> objective_words("al"), objective_words(Pairwise("cts"))
    ('al', "Pairwise('cts', activation='relu')")
    """
    if isinstance(choice, str):
        return choice
    if isinstance(choice, nn.Module):
        weights = f" {digest_of(choice)[:8]}" if choice.state_dict() else ""
        return f"{choice!r}{weights}"
    return named(choice)


class Body:
    """A module that is trained towards a proxy of its own output.

    Args:
        part: The module and its contract; what it gives went through the activation named there.
        task: Where rows come from.
        told: What is known of them.
        objective: Name, module or function.
        batch_size: Rows a batch.
        seed: For order and augmentation.
    """

    def __init__(
        self,
        part: Part,
        task: Task,
        told: Supervision,
        objective: str | Objective,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self._part, self._task, self._told = part, task, told
        self._size, self._seed, self._device = batch_size, seed, device
        self._objective = objective_for(objective, part.contract.gives[0].activation)
        if isinstance(self._objective, nn.Module):
            self._objective = self._objective.to(device)

    def batches(self, before: Part) -> PairSource:
        """The training split's batches, entering from ``before``."""
        made = self._source(before, "train", self._told.augment)
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

    def validation(self, before: Part) -> Callable[[], dict[str, float]] | None:
        """Proxy and mean kernel on the validation split, over always the same batches.

        A proxy of a batch depends on its size, so the batches are as large as in training.
        """
        made = self._source(before, "validation", None)
        if made is None:
            return None
        source, _ = made
        return lambda: self._measured(source)

    def _measured(self, source: PairSource) -> dict[str, float]:
        found: dict[str, list[float]] = {}
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
                        found.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in found.items()}

    def _proxy(self, features: Tensor, batch: PairBatch) -> Tensor:
        same, different = batch.relations.same, batch.relations.different
        return self._objective(
            features, same=same.to(features.device), different=different.to(features.device)
        )

    def _source(
        self, before: Part, split: Split, augment: Augment | None
    ) -> tuple[PairSource, Supply] | None:
        rows = self._task.indices(split)
        if len(rows) < 2:
            return None
        supply = Supply(before, self._task.inputs, rows, augment=augment, device=self._device)
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
