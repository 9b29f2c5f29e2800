"""What was asked about a front and a head, and the one judge for every answer.

Whatever stands between the two, it is measured on the same images, among the same classes: those
of the task that the head knows by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from dovetail.core.errors import ContractError, DovetailError, TaskError
from dovetail.core.seeds import generator
from dovetail.measure.recombine import recombine
from dovetail.parts.norms import Norms, has_batch_norm
from dovetail.parts.part import Part
from dovetail.reuse.reasons import Reason, common_classes, reasons_against
from dovetail.shelf.store import Shelf
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Split, Task

__all__ = ["NORMS", "Question", "learnable", "one_line"]

NORMS: tuple[Norms, ...] = ("stored", "batch", "recalibrated")


@dataclass(frozen=True)
class Question:
    """Does this head work behind this front, and what would it take?"""

    front: Part
    head: Part
    task: Task | None
    reference: Part | None
    store: Shelf | None
    split: Split
    measure: bool
    epochs: int
    limit: int
    seed: int
    names: Mapping[str, str]

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """Everything against it."""
        return reasons_against(self.front, self.head, self.task, self.reference)

    @property
    def fits(self) -> bool:
        """What the contract says."""
        return not self.front.contract.mismatches(self.head.contract)

    @property
    def flows(self) -> bool:
        """Whether what the front gives can enter the head at all."""
        return not self.front.contract.obstacles(self.head.contract)

    @property
    def obstacle(self) -> str | None:
        """Why no accuracy can be measured, whatever stands between the two; if so."""
        if self.task is None:
            return None
        if self.task.kind != "classes":
            return f"{self.task.name!r} is of kind {self.task.kind!r}; accuracies are of classes."
        about = ("inputs", "kind", "classes")
        stops = [r.says for r in self.reasons if r.weight == "stops" and r.about in about]
        if not stops and self.task.size(self.split) == 0:
            stops = [f"{self.task.name!r} has no examples in its {self.split} split."]
        return " ".join(stops) or None

    @property
    def priced(self) -> Task | None:
        """The task, where figures can be had with it."""
        return None if self.obstacle is not None else self.task

    @property
    def learns_from(self) -> str:
        """The task as Python calls it in a training, which takes classes that the head knows."""
        if self.task is None or self.task.kind != "classes":
            return "task"
        shared = common_classes(self.head, self.task)
        return "task" if shared == self.task.classes else f"only_classes(task, {list(shared)})"

    @property
    def as_it_is(self) -> dict[str, float]:
        """The accuracy of front and head with nothing between, for every policy of norms."""
        return self._unmended[0]

    @property
    def problem(self) -> str | None:
        """Why there is nothing in :attr:`as_it_is`, although the tensors flow."""
        return self.obstacle or self._unmended[1]

    @cached_property
    def bound(self) -> dict[str, float]:
        """The accuracy of the reference and the head: what a repair is up against."""
        return {} if self.reference is None else self._tried(self.reference)[0]

    @cached_property
    def _unmended(self) -> tuple[dict[str, float], str | None]:
        return self._tried(self.front) if self.flows else ({}, None)

    def accuracies(
        self, front: Part, tail: Part, policies: tuple[Norms, ...] = NORMS
    ) -> dict[str, float]:
        """The share of right answers with each policy of norms that can be measured.

        Raises:
            ContractError: none can; the message says why.
        """
        wanted = policies if any(has_batch_norm(p.module) for p in (front, tail)) else NORMS[:1]
        found: dict[str, float] = {}
        problems = []
        for norms in wanted:
            try:
                found[norms] = self._accuracy(front, tail, norms)
            except DovetailError as error:
                problems.append(one_line(error))
        if not found:
            raise ContractError(problems[0])
        # Without batch norms there is nothing for a policy to decide.
        return found if wanted == policies else dict.fromkeys(policies, found["stored"])

    def _accuracy(self, front: Part, tail: Part, norms: Norms) -> float:
        if self.task is None:
            raise TaskError("without a task nothing can be measured")
        found = recombine(
            {"front": front},
            {"head": tail},
            self.task,
            norms=norms,
            split=self.split,
            calibration=self.limit,
            correlation=False,
            seed=self.seed,
        )
        return found.pairs[0].accuracy[norms]

    def _tried(self, front: Part) -> tuple[dict[str, float], str | None]:
        if self.priced is None:
            return {}, None
        try:
            return self.accuracies(front, self.head), None
        except DovetailError as error:
            return {}, one_line(error)


def learnable(head: Part, task: Task, limit: int | None = None, *, seed: int = 0) -> Task:
    """What a repair may learn the head's classes from: the task without others, and cut short.

    ``limit`` is for the training split alone, drawn at random.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(40, 4), ["cat", "dog"] * 20)
    >>> learnable(build("mlp", shape=(4,), classes=2), task, 10).size("train")
    10
    """
    shared = common_classes(head, task) if task.kind == "classes" else task.classes
    kept = task if shared == task.classes else only_classes(task, shared)
    rows = kept.indices("train")
    if limit is None or len(rows) <= limit:
        return kept
    drawn = torch.randperm(len(rows), generator=generator(seed, "learnable"))[:limit]
    indices: dict[Split, torch.Tensor] = {
        "train": rows[drawn].sort().values,
        "validation": kept.indices("validation"),
        "test": kept.indices("test"),
    }
    return kept.derived(kept.name, indices=indices)


def one_line(error: Exception) -> str:
    """A message of ours, which may list reasons below one another, as one line."""
    return " ".join(str(error).split())
