"""One module of a body: what it is trained towards, and how far it got."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

from torch import Tensor, nn

from dovetail.core.errors import SettingsError, TaskError
from dovetail.objectives.pairwise import Pairwise, mean_kernel
from dovetail.parts.modules import digest_of, evaluating
from dovetail.parts.part import Part
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Split, Task
from dovetail.train.fit import WATCHED
from dovetail.train.options import named
from dovetail.train.pair_batches import (
    FromLabels,
    FromPairs,
    PairBatch,
    PairSource,
    PairSupervision,
    WithViews,
)
from dovetail.train.supervision import Supply

__all__ = ["Body", "Objective", "objective_for", "objective_words"]

Objective = Callable[..., Tensor]


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
        before: What comes before it, frozen.
        task: Where rows come from.
        told: What is known of them.
        objective: Name, module or function.
        batch_size: Rows a batch.
        seed: For order and augmentation.
    """

    def __init__(
        self,
        part: Part,
        before: Part,
        task: Task,
        told: PairSupervision,
        objective: str | Objective,
        batch_size: int,
        seed: int,
    ) -> None:
        self._part, self._before, self._task, self._told = part, before, task, told
        self._size, self._seed = batch_size, seed
        self._objective = objective_for(objective, part.contract.gives[0].activation)
        if isinstance(self._objective, nn.Module):
            self._objective = self._objective.to(part.device)

    def batches(self) -> PairSource:
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

    def validation(self) -> Callable[[], dict[str, float]] | None:
        """Proxy and mean kernel on the validation split, over always the same batches.

        A proxy of a batch depends on its size, so the batches are as large as in training.
        """
        made = self._source("validation", None)
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

    def _source(self, split: Split, augment: Augment | None) -> tuple[PairSource, Supply] | None:
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
