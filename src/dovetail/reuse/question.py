"""What was asked about a front and a head, what is against them, and one judge for every answer.

Reasons are sentences that say what to do.  Whatever stands between the two, it is measured on the
same images, among the same classes: those of the task that the head knows by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from dovetail.core.errors import ContractError, DovetailError, TaskError
from dovetail.core.seeds import generator
from dovetail.core.words import counted, listed
from dovetail.measure.forward import prepare, refuse_other_inputs
from dovetail.measure.recombine import recombine
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.cutting import cut_first
from dovetail.parts.norms import STRANGERS, Statistics, has_batch_norm, norms_for
from dovetail.parts.part import Part
from dovetail.reuse.fit_report import Reason, Weight
from dovetail.shelf.store import Shelf
from dovetail.tasks.derive import only_classes
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

NORMS: tuple[Statistics, ...] = ("stored", "batch", "recalibrated")


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
        self, front: Part, tail: Part, policies: tuple[Statistics, ...] = NORMS
    ) -> dict[str, float]:
        """The share of right answers with each policy of norms that can be measured.

        Raises:
            ContractError: none can; the message says why.
        """
        wanted = policies if any(has_batch_norm(p.module) for p in (front, tail)) else NORMS[:1]
        reached: dict[str, float] = {}
        problems = []
        for norms in wanted:
            try:
                reached[norms] = self._accuracy(front, tail, norms)
            except DovetailError as error:
                problems.append(error.marked)
        if not reached:
            raise ContractError(problems[0])
        # Without batch norms there is nothing for a policy to decide.
        return reached if wanted == policies else dict.fromkeys(policies, reached["stored"])

    def _accuracy(self, front: Part, tail: Part, norms: Statistics) -> float:
        if self.task is None:
            raise TaskError("without a task nothing can be measured")
        recombined = recombine(
            {"front": front},
            {"head": tail},
            self.task,
            norms=norms,
            split=self.split,
            calibration=self.limit,
            correlation=False,
            seed=self.seed,
        )
        return recombined.pairs[0].accuracy[norms]

    def _tried(self, front: Part) -> tuple[dict[str, float], str | None]:
        if self.priced is None:
            return {}, None
        try:
            return self.accuracies(front, self.head), None
        except DovetailError as error:
            return {}, in_one_line(error)


def common_classes(head: Part, task: Task) -> tuple[str, ...]:
    """The task's classes that the head knows by name; all of them where it names none.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(8, 4), ["cat", "dog"] * 4)
    >>> common_classes(build("mlp", shape=(4,), classes=2), task)
    ('cat', 'dog')
    """
    known = head.contract.classes
    return tuple(name for name in task.classes if known is None or name in known)


def learnable(head: Part, task: Task, limit: int | None = None, *, seed: int = 0) -> Task:
    """What a repair may learn the head's classes from: the task without others, and cut short.

    ``limit`` is for the training split alone, drawn at random.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(40, 4), ["cat", "dog"] * 20)
    >>> learnable(build("mlp", shape=(4,), classes=2), task, 10).size("train")
    10
    """
    shared = common_classes(head, task) if task.kind == "classes" else task.classes
    known = task if shared == task.classes else only_classes(task, shared)
    rows = known.indices("train")
    if limit is None or len(rows) <= limit:
        return known
    drawn = torch.randperm(len(rows), generator=generator(seed, "learnable"))[:limit]
    indices: dict[Split, torch.Tensor] = {
        "train": rows[drawn].sort().values,
        "validation": known.indices("validation"),
        "test": known.indices("test"),
    }
    return known.derived(known.name, indices=indices)


def in_one_line(error: Exception) -> str:
    """A message of ours, which may list reasons below one another, as one line."""
    return " ".join(str(error).split())


def reasons_against(
    front: Part, head: Part, task: Task | None = None, reference: Part | None = None
) -> tuple[Reason, ...]:
    """Everything that is against ``head`` behind ``front``, the worst first.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> front, head = cut(build("mlp", hidden=(8,)), at="hidden1")
    >>> reasons_against(front, head)
    ()
    >>> wide, _ = cut(build("mlp", hidden=(16,)), at="hidden1")
    >>> [reason.about for reason in reasons_against(wide, head)]
    ['channels', 'space']
    """
    reasons = [
        *_whole(front, head),
        *_between(front.contract, head.contract),
        *_norms(front, head),
        *_preparation(front, head, reference),
        *([] if task is None else [*_inputs(front, task), *_classes(head, task)]),
    ]
    order = ("stops", "spoils", "mind")
    return tuple(sorted(reasons, key=lambda reason: order.index(reason.weight)))


def _whole(front: Part, head: Part) -> list[Reason]:
    """Whole networks in place of halves: what else is against them follows from that."""
    says = cut_first(front, head) if front.contract.obstacles(head.contract) else None
    return [] if says is None else [Reason("whole", f"{says}.", "stops")]


def _between(front: Contract, head: Contract) -> list[Reason]:
    if len(front.gives) != len(head.takes):
        says = (
            f"The front gives {counted(len(front.gives), 'tensor')}, the head takes "
            f"{len(head.takes)}. Cut both networks where exactly one tensor crosses."
        )
        return [Reason("tensors", says, "stops")]
    reasons = []
    for i, (gives, takes) in enumerate(zip(front.gives, head.takes, strict=True)):
        which = f"Tensor {i}: " if len(front.gives) > 1 else ""
        reasons += [
            Reason(about, which + says, weight) for about, says, weight in _port(gives, takes)
        ]
    return reasons


def _port(gives: Port, takes: Port) -> list[tuple[str, str, Weight]]:
    reasons: list[tuple[str, str, Weight]] = []
    for about, says in _shapes(gives, takes):
        reasons.append((about, says, "stops"))
    if gives.dtype != takes.dtype:
        says = f"The front gives {gives.dtype}, the head takes {takes.dtype}."
        reasons.append(("dtype", says, "stops"))
    agree = gives.space is not None and gives.space == takes.space
    if not agree and gives.activation != takes.activation:
        says = (
            f"The head was made for what comes out of {_after(takes)}, the front ends in "
            f"{_after(gives)}: the range of the features is another."
        )
        reasons.append(("activation", says, "spoils"))
    if not agree:
        reasons.append(("space", _spaces(gives.space, takes.space), "spoils"))
    return reasons


def _shapes(gives: Port, takes: Port) -> list[tuple[str, str]]:
    if gives.shape is None or takes.shape is None:
        return []
    shapes = f"{shown_shape(gives.shape)} meets {shown_shape(takes.shape)}"
    if len(gives.shape) != len(takes.shape):
        says = f"The one is a vector, the other a map: {shapes}. Cut one of the two elsewhere."
        return [("axes", says)]
    unequal = [
        a is not None and b is not None and a != b
        for a, b in zip(gives.shape, takes.shape, strict=True)
    ]
    reasons = []
    if unequal[:1] == [True]:
        noun = "numbers" if len(gives.shape) == 1 else "channels"
        says = f"The front gives {gives.shape[0]} {noun}, the head takes {takes.shape[0]}."
        reasons.append(("channels", says))
    if any(unequal[1:]):
        says = (
            f"The maps are of other sizes: {shapes}. Cut where they agree, or give both networks "
            "inputs of one size."
        )
        reasons.append(("size", says))
    return reasons


def _spaces(gives: str | None, takes: str | None) -> str:
    if gives is not None and takes is not None:
        return (
            f"The front gives the space {gives!r}, the head takes {takes!r}: the features were "
            "never made to agree, and without a repair the accuracy is near chance."
        )
    who = "the front gives" if gives is None else "the head takes"
    who = "either of them means" if gives is None and takes is None else who
    return (
        f"Nobody has said which space {who}. Take the halves from dt.cut, which names it, or "
        "train them to agree (dt.train.compatible)."
    )


def _norms(front: Part, head: Part) -> list[Reason]:
    """Statistics in a head are those of the front it was trained behind."""
    chosen = norms_for(front, head)
    if chosen.norms == "stored":
        return []
    says = "Batch norms should not use what they have stored: "
    if chosen.why == STRANGERS:
        says = "Batch norms may do better with other statistics than they have stored: "
    says += (
        f"{chosen.why}. Use the statistics of each batch ('batch' norms), or estimate them anew "
        "('recalibrated' norms)."
    )
    return [Reason("norms", says, "mind")]


def _preparation(front: Part, head: Part, reference: Part | None) -> list[Reason]:
    mine, reasons = front.contract.preprocess, []
    if reference is not None and reference.contract.preprocess != mine:
        says = (
            "The reference prepares its inputs in another way than the front. A stitch lets each "
            "of them do so; a join uses the front's."
        )
        reasons.append(Reason("preprocessing", says, "mind"))
    theirs = head.contract.preprocess
    if theirs is not None and theirs != mine:
        says = "The head has a preprocessing of its own, which a join leaves out."
        reasons.append(Reason("preprocessing", says, "mind"))
    return reasons


def _inputs(front: Part, task: Task) -> list[Reason]:
    try:
        refuse_other_inputs(task, front.contract)
        prepare(task.inputs[:1], front.contract)
    except ContractError as error:
        says = f"The front does not take the inputs of {task.name!r}: {error}."
        return [Reason("inputs", says, "stops")]
    return []


def _classes(head: Part, task: Task) -> list[Reason]:
    if task.kind != head.contract.kind:
        says = f"The head is for {head.contract.kind}, {task.name!r} is a task of {task.kind}."
        return [Reason("kind", says, "stops")]
    known = head.contract.classes
    if task.kind != "classes":
        return []
    if known is None:
        says = (
            "The head does not name its outputs; they are taken for the classes of "
            f"{task.name!r}, in their order."
        )
        return [Reason("classes", says, "mind")]
    shared = common_classes(head, task)
    both = f"{task.name!r} has {listed(task.classes, 10)}; the head knows {listed(known, 10)}."
    if len(shared) < 2:
        which = f"Only the class {shared[0]!r} is common" if shared else "No class is common"
        says = f"{which}: {both} Classes are matched by name, and a choice takes two."
        return [Reason("classes", says, "stops")]
    if len(shared) < len(task.classes):
        says = f"Only {listed(shared, 10)} are common: {both} Measured and trained on those alone."
        return [Reason("classes", says, "mind")]
    return []


def _after(port: Port) -> str:
    return "no activation" if port.activation == "identity" else port.activation
