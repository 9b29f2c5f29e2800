r"""Faster transfer: one ready head tried behind many extractors.

To reuse an extractor for a task, one usually puts a fresh head behind it and fine-tunes the whole.
With a head for the task that is already trained in the extractors' space, the benefit of each
extractor shows at once, without any step, and a few steps capitalise on it:

.. math:: A_f(t) = \text{accuracy of } (h \circ f) \text{ after } t \text{ steps}, \qquad
    f^* = \arg\max_f A_f(T) \text{ on validation.}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.declared import text
from dovetail.core.errors import ContractError, SettingsError, TaskError, argument, nearest
from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, View
from dovetail.measure.forward import preprocess_for
from dovetail.measure.joined import accuracy, joined
from dovetail.measure.pairs import choose_norms
from dovetail.parts.heads import head_like
from dovetail.parts.joining import join
from dovetail.parts.norms import Norms, Statistics
from dovetail.parts.part import Part
from dovetail.reuse.judging import chance_for
from dovetail.settings.reuse import Transfer
from dovetail.tasks.augment import Augment
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit
from dovetail.train.frame import Course
from dovetail.train.options import LoopOptions
from dovetail.train.supervision import labelled_batches

READY, REINITIALISED = "ready", "reinitialised"
"""The names of the head that is tried, and of the same one drawn anew."""


@dataclass(frozen=True)
class Tried:
    """One extractor with one head: accuracies on validation after so many steps of fine-tuning.

    ``test`` holds the accuracies on the test split before and after, ``fits`` says whether the two
    share a space.

    >>> Tried("a", "ready", (0, 10), (0.5, 0.9)).direct
    0.5
    """

    front: str
    head: str
    steps: tuple[int, ...]
    accuracy: tuple[float, ...]
    test: tuple[float, ...] = ()
    fits: bool = False

    @property
    def direct(self) -> float:
        """The accuracy without fine-tuning."""
        return self.accuracy[0]

    @property
    def final(self) -> float:
        """The accuracy after all of it."""
        return self.accuracy[-1]

    def after(self, step: int | None) -> float:
        """The accuracy after the last measured step that is not beyond ``step``."""
        if step is None:
            return self.final
        if step < 0:
            raise SettingsError(f"a step is at least 0, got {step}")
        return [a for s, a in zip(self.steps, self.accuracy, strict=True) if s <= step][-1]

    def first_with(self, accuracy: float) -> int | None:
        """The first measured step with at least this accuracy, if there is one.

        >>> Tried("a", "fresh", (0, 10, 30), (0.1, 0.4, 0.8)).first_with(0.5)
        30
        """
        curve = zip(self.steps, self.accuracy, strict=True)
        return next((step for step, reached in curve if reached >= accuracy), None)


@dataclass(frozen=True, kw_only=True)
class TransferTrial(Record, kind="transfer-trial", title="Extractors tried on {task}"):
    """Candidate extractors with a ready head, beside other heads.  Selection is on validation.

    >>> tried = (Tried("a", READY, (0, 9), (0.5, 0.7)), Tried("b", READY, (0, 9), (0.6, 0.6)))
    >>> trial = TransferTrial(task="digits", chance=0.1, tried=tried)
    >>> trial.ranked(), trial.ranked(0)
    (('a', 'b'), ('b', 'a'))
    >>> trial
    TransferTrial(a first of 2 on digits: 0.500 at once, 0.700 after 9 steps)
    """

    task: str
    chance: float
    tried: tuple[Tried, ...]

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """The heads, the ready one first."""
        return tuple(dict.fromkeys(row.head for row in self.tried))

    @property
    def chosen(self) -> str:
        """The extractor that is best on validation after fine-tuning, with the ready head."""
        return self.ranked()[0]

    def ranked(self, step: int | None = None, *, head: str = READY) -> tuple[str, ...]:
        """The extractors, best first, by accuracy on validation after ``step`` steps (or all)."""
        if head not in self.heads:
            raise SettingsError(f"no head {head!r} was tried{nearest(head, self.heads)}")
        rows = [row for row in self.tried if row.head == head]
        return tuple(row.front for row in sorted(rows, key=lambda row: -row.after(step)))

    def of(self, front: str, head: str = READY) -> Tried:
        """What was found for one extractor with one head."""
        if (front, head) in self._pairs:
            return self._pairs[front, head]
        pairs = [f"{row.front} with {row.head}" for row in self.tried]
        raise SettingsError(f"not tried{nearest(f'{front} with {head}', pairs)}")

    @cached_property
    def _pairs(self) -> dict[tuple[str, str], Tried]:
        return {(row.front, row.head): row for row in reversed(self.tried)}

    @property
    def summary(self) -> str:
        """Which extractor is first, and what it reaches."""
        first = self.of(self.chosen)
        test = f"; {first.test[-1]:.1%} on test" if first.test else ""
        return (
            f"{self.chosen} is first: with the ready head {first.direct:.1%} at once and "
            f"{first.final:.1%} after {first.steps[-1]} steps, on validation{test}. Guessing gives "
            f"{self.chance:.1%}."
        )

    def _best_first(self) -> list[Tried]:
        return [self.of(front, head) for front in self.ranked() for head in self.heads]

    def _table(self) -> Table:
        rows = []
        for row in self._best_first():
            start = self.of(row.front).direct
            test = row.test[-1] if row.test else None
            steps = None if row.head == READY else row.first_with(start)
            fits = "yes" if row.fits else "no"
            rows.append((row.front, row.head, fits, row.direct, row.final, test, steps))
        return Table(
            (
                "extractor",
                "head",
                "one space",
                "at once",
                "fine-tuned",
                "on test",
                "steps to the ready head's start",
            ),
            tuple(rows),
            ("", "", "", ".1%", ".1%", ".1%", "d"),
            "Accuracy on validation; fine-tuned also on test",
        )

    def _curves(self) -> View:
        series: dict[str, list[Series]] = {}
        for row in self._best_first():
            along = tuple(math.log10(1 + step) for step in row.steps)
            series.setdefault(row.front, []).append(Series(row.head, along, row.accuracy))
        title = "accuracy on validation while it is fine-tuned"
        return tuple(
            Figure("line", f"{front}: {title}", tuple(lines), "log10(1 + steps)", "", ".0%")
            for front, lines in series.items()
        )

    shows = (text("{summary}"), _table, _curves)

    def __repr__(self) -> str:
        first, count = self.of(self.chosen), len(self.ranked())
        reached = f"{first.direct:.3f} at once, {first.final:.3f} after {first.steps[-1]} steps"
        return f"TransferTrial({self.chosen} first of {count} on {self.task}: {reached})"


@dataclass(frozen=True)
class TransferFit(Fit):
    """Each candidate with the ready head, fine-tuned; ``whole`` is the chosen one."""

    networks: dict[str, Part] = field(default_factory=dict)


def transfer(
    fronts: Mapping[str, Part],
    head: Part,
    task: Task,
    *,
    steps: Sequence[int] | None = None,
    against: Sequence[str] = (REINITIALISED,),
    others: Mapping[str, Part] | None = None,
    norms: Norms = Transfer.norms,
    augment: str | Augment | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> TransferFit:
    """Try copies of extractors with a ready head: at once, and fine-tuned for a while.

    Every pair is fine-tuned on the same batches in the same order, extractor and head together.

    Args:
        fronts: The candidates by name.  One that is not of the head's space is tried too; the
            record says so.
        head: Trained for the task, in the space that the candidates give.
        task: With classes that the head knows by name.
        steps: After how many steps to measure on validation, beside the beginning and the end; by
            default 1, 3, 10, 30, 100 and so on.  Those beyond the end are left out.
        against: What else to put behind each candidate: ``"reinitialised"``, the same head drawn
            anew.  An empty tuple for nothing.
        others: Further heads by name, such as one that was trained on its own.
        norms: Statistics of the batch norms wherever accuracy is measured; by default those that
            the candidates and the head were trained for, one choice for all.
        augment: Such as ``"flip,shift:2"``.
        seed: The fresh head, order of batches, augmentation, dropout.
        options: See :class:`Options`.  Unless said ``epochs`` is 1 and ``lr`` 0.01; of 0 epochs
            comes what is there at once, and no more.

    Returns:
        ``fit.networks``, each candidate fine-tuned with the ready head; ``fit.part``, the one that
        is best on validation; and the record, with curves, an order and accuracies on test.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> net = end_to_end(build("mlp", hidden=(64, 64)), digits, epochs=4).part
    >>> front, head = cut(net, at="hidden1")
    >>> stranger, _ = cut(build("mlp", hidden=(64, 64), seed=1), at="hidden1")
    >>> trial = transfer({"own": front, "stranger": stranger}, head, digits).record
    >>> trial.chosen, trial.of("own").direct > 0.9 > 0.3 > trial.of("stranger").direct
    ('own', True)
    """
    heads = _heads(fronts, head, against, others, seed)
    epochs = options.get("epochs", Transfer.epochs)
    Transfer.check({"epochs": epochs})
    # What is ready should be improved on, not overwritten: smaller steps than usual.
    settled: LoopOptions = {"lr": Transfer.lr, **options, "epochs": max(epochs, 1)}
    course = Course("transfer", task, settled, augment=augment, seed=seed)
    if course.options.checkpoint is not None or course.options.patience is not None:
        raise SettingsError(
            f"a trial fine-tunes for exactly {argument('epochs', ...)} and starts anew when "
            f"interrupted: leave {argument('checkpoint', ...)} and {argument('patience', ...)} out"
        )
    _refuse_misfits(fronts, heads, task)
    pairs = [(front, head) for front in fronts.values()]
    # Accuracy is measured after many a step: statistics that are estimated each time cost too much.
    chosen = choose_norms(norms, task, *pairs, among=("stored", "batch"), seed=seed)
    course.settings |= {
        **chosen.settings,
        "front_digests": {name: part.digest for name, part in fronts.items()},
        "head_digests": {name: part.digest for name, part in heads.items()},
        "epochs": epochs,
    }
    tried, networks = [], {}
    for name, front in fronts.items():
        for other, behind in heads.items():
            curve, test, pair = _trial(course, front, behind, chosen.norms, steps)
            reached, fits = tuple(curve.values()), not front.contract.mismatches(behind.contract)
            tried.append(Tried(name, other, tuple(curve), reached, test, fits))
            if other == READY:
                origin = course.origin([front, behind], {"validation accuracy": reached[-1]})
                networks[name] = joined(*pair, task, chosen.norms, seed=seed).changed(
                    origin=origin if epochs else replace(origin, how="join")
                )
    record = TransferTrial(
        task=task.name,
        chance=chance_for(head, task),
        tried=tuple(tried),
        settings=course.settings,
    )
    return TransferFit(tuple(networks.values()), record, networks[record.chosen], networks)


def _trial(
    course: Course, front: Part, head: Part, norms: Statistics, steps: Sequence[int] | None
) -> tuple[dict[int, float], tuple[float, ...], tuple[Part, Part]]:
    """Fine-tune copies of a front and a head: accuracies by step, those on test, the copies."""
    (task,), seed, epochs = course.tasks, course.seed, course.settings["epochs"]
    contract = front.contract
    if contract.preprocess is None:  # who says nothing of inputs gets the task's statistics
        contract = replace(contract, preprocess=preprocess_for(task))
    front, head = course.copied(front.changed(contract=contract)), course.copied(head)
    network = join(front, head, norms="stored", force=True)
    known = head.contract.classes or task.classes
    columns = torch.tensor([known.index(name) for name in task.classes], device=course.device)
    batches = labelled_batches(contract, task, course.augment, course.options.batch_size, seed)
    digits = len(str(course.options.epochs * len(batches)))
    half_decades = [n * 10**k for k in range(digits) for n in (1, 3)]
    wanted = {0, *(half_decades if steps is None else steps)}
    curve: dict[int, float] = {}
    done = 0

    def on(split: Split) -> float:
        return accuracy(front, head, task, norms, split=split, seed=seed)

    def on_test() -> tuple[float, ...]:
        return (on("test"),) if task.size("test") else ()

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal done
        if done in wanted:
            curve[done] = on("validation")
        done += 1
        inputs, targets = (tensor.to(course.device) for tensor in batch)
        return F.cross_entropy(network(inputs), columns[targets])

    test = on_test()
    if epochs:
        course.run(network.module.requires_grad_(True), batches, step)
        test += on_test()
    curve[done] = on("validation")
    return curve, test, (front, head)


def _heads(
    fronts: Mapping[str, Part],
    head: Part,
    against: Sequence[str],
    others: Mapping[str, Part] | None,
    seed: int,
) -> dict[str, Part]:
    """The heads to try behind each candidate, by name."""
    if not isinstance(fronts, Mapping) or not fronts:
        raise SettingsError(
            f"{argument('fronts', ...)} are the candidates by name, such as {{'resnet': front}}"
        )
    heads = {READY: head}
    for name in (against,) if isinstance(against, str) else against:
        if name != REINITIALISED:
            raise SettingsError(
                f"unknown comparison {name!r}{nearest(name, (REINITIALISED,))}; give other heads "
                f"by name in {argument('others', ...)}"
            )
        outputs = head.contract.classes or (head.contract.gives[0].shape or (None,))[0]
        if outputs is None:
            raise ContractError(
                f"the head does not say how many numbers it gives; say {argument('against', ())}"
            )
        heads[name] = head_like(head, outputs, seed=seed)
    for name, part in (others or {}).items():
        if name in heads:
            raise SettingsError(
                f"{argument('others', ...)} may not be called {name!r}: that head is there already"
            )
        heads[name] = part
    return heads


def _refuse_misfits(fronts: Mapping[str, Part], heads: Mapping[str, Part], task: Task) -> None:
    if not isinstance(task, Task) or task.kind != "classes":
        raise TaskError("extractors are tried on a Task of kind 'classes'")
    if task.size("validation") == 0:
        raise TaskError(
            f"{task.name!r} has no validation split, on which the extractors are compared"
        )
    for other, head in heads.items():
        known = head.contract.classes
        if known is not None and (lost := [name for name in task.classes if name not in known]):
            raise TaskError(
                f"the head {other!r} does not know {', '.join(lost[:8])} of {task.name!r}; extend "
                "it first (reuse.extend_classes, dovetail reuse extend)"
            )
        for name, front in fronts.items():
            if obstacles := front.contract.obstacles(head.contract):
                raise ContractError(
                    f"the head {other!r} cannot follow the extractor {name!r}: "
                    f"{'; '.join(obstacles)}. Cut where the shapes agree, or stitch them first"
                )
