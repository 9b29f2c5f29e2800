r"""Networks trained together through shared auxiliary heads: the objective and its loop.

For network :math:`t` with front :math:`f_t` and head :math:`h_t`, a shared head :math:`c` for the
common classes :math:`\mathcal{C}`, and a shared head :math:`r` for a pretext with views
:math:`g(x, s)`, a step on a batch of task :math:`t` descends

.. math::

    \frac1n \sum_i \Big[ \ell\big(h_t(f_t(x_i)), y_i\big)
    + \ell\big(c(f_t(x_i)), y_i\big) \, 1[y_i \in \mathcal{C}]
    + \frac{1}{|S|} \sum_{s \in S} \ell\big(r(f_t(g(x_i, s))), s\big) \Big]

and the tasks take turns.  What makes fronts compatible is that :math:`c` and :math:`r` are one for
all of them; a frozen one makes a new front compatible with those it was trained with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.seeds import derived_seed
from dovetail.measure.forward import outputs_of
from dovetail.measure.joined import in_random_order
from dovetail.objectives.compatible_losses import (
    OTHER,
    common_class_loss,
    common_codes,
    project_conflicts,
)
from dovetail.objectives.pretext import Pretext
from dovetail.parts.norms import with_batch_statistics
from dovetail.parts.part import Part
from dovetail.tasks.task import Task
from dovetail.train.fit import WATCHED, Row
from dovetail.train.frame import Course, Rows
from dovetail.train.loop import EpochSource
from dovetail.train.self_supervised import answered
from dovetail.train.supervision import Loss, labelled_batches, validation

_CHECKED = 1000
"""So many validation images tell well enough how an auxiliary head gets on."""

_BATCH = 256


@dataclass(frozen=True)
class Member:
    """One network of a group: a front, its own head if it has one, and the task it learns from."""

    name: str
    front: Part
    head: Part | None
    task: Task


@dataclass(frozen=True)
class Auxiliary:
    """A head that all fronts of a group share: for common classes, or for a pretext.

    ``limit`` is how many training examples of a member teach common classes; none is all of them.
    """

    name: str
    head: Part
    pretext: Pretext | None = None
    weight: float = 1.0
    frozen: bool = False
    limit: int | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that it tells apart; none for a pretext's."""
        return () if self.pretext is not None else self.head.contract.classes or ()


class Group(nn.Module):
    """The modules of a group, and the loss of a batch of one of its members.

    The parts' modules are trained in place: give copies.

    Args:
        members: The networks.
        auxiliaries: The heads that they share.
        conflicts: Project what is opposed out of the gradients of the losses, before their sum.
        unit_weight: Weight of a loss that draws features to unit length, ``(|f(x)| - 1)²``.
        loss: Of the members' own heads.
    """

    def __init__(
        self,
        members: Sequence[Member],
        auxiliaries: Sequence[Auxiliary],
        *,
        conflicts: bool = False,
        unit_weight: float = 0.0,
        loss: Loss = F.cross_entropy,
    ) -> None:
        super().__init__()
        self.members, self.auxiliaries = tuple(members), tuple(auxiliaries)
        self.conflicts, self.unit_weight, self._loss = conflicts, unit_weight, loss
        self.fronts = nn.ModuleList(member.front.module for member in members)
        self.heads = nn.ModuleList(
            nn.Identity() if member.head is None else member.head.module for member in members
        )
        for auxiliary in auxiliaries:
            if auxiliary.frozen:
                auxiliary.head.module.requires_grad_(False)
        # A frozen head's statistics are the first network's; the new features are normalised by
        # their own batch, as everywhere in training, and the stored ones stay what they are.
        self.shared = nn.ModuleList(
            with_batch_statistics(a.head.module) if a.frozen else a.head.module for a in auxiliaries
        )
        self._codes = [
            [common_codes(member.task.classes, a.classes) for a in auxiliaries]
            for member in members
        ]

    def losses(
        self, place: int, inputs: Tensor, targets: Tensor, taught: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Each loss of a batch ``[n, ...]`` of one member, weighted, by name.

        ``taught [n]`` marks the examples that may teach common classes; all may unless said.
        """
        member, front = self.members[place], self.fronts[place]
        features = front(inputs)
        each: dict[str, Tensor] = {}
        if member.head is not None:
            each["own"] = self._loss(self.heads[place](features), targets)
        if self.unit_weight:
            lengths = features.flatten(1).norm(dim=1)
            each["unit"] = self.unit_weight * (lengths - 1).square().mean()
        for auxiliary, shared, known in zip(
            self.auxiliaries, self.shared, self._codes[place], strict=True
        ):
            if auxiliary.pretext is None:
                codes = known.to(targets.device)[targets]
                if taught is not None:
                    codes = codes.masked_fill(~taught, OTHER)
                loss = common_class_loss(shared(features), codes)
            else:
                views, answers = auxiliary.pretext.views(inputs)
                # Rotated images are no part of the task: its stored statistics leave them out.
                with statistics_kept(front):
                    loss = auxiliary.pretext.loss(shared(front(views)), answers)
            each[auxiliary.name] = auxiliary.weight * loss
        return each

    def step(self, turn: tuple[int, tuple[Tensor, Tensor]]) -> Tensor:
        """What the loop descends: the sum of the losses of one batch of one member."""
        place, batch = turn
        device = next(self.parameters()).device  # a front may have no weights
        inputs, targets = (tensor.to(device) for tensor in batch)
        taught = targets[:, 1].bool() if targets.ndim == 2 else None
        labels = targets[:, 0] if targets.ndim == 2 else targets
        losses = list(self.losses(place, inputs, labels, taught).values())
        if self.conflicts and len(losses) > 1:
            return self._without_conflicts(losses)
        total: Tensor = torch.stack(losses).sum()
        return total

    def _without_conflicts(self, losses: list[Tensor]) -> Tensor:
        """The sum of the losses, with a gradient from which what is opposed was projected."""
        weights = [p for p in self.parameters() if p.requires_grad]
        gradients = [
            torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
            for loss in losses
        ]
        # Weights of networks whose turn it is not must stay without a gradient: one of zeros
        # would let momentum and weight decay move them.
        used = [any(g is not None for g in each) for each in zip(*gradients, strict=True)]
        wanted = zip(weights, project_conflicts(gradients), used, strict=True)
        # A linear function of the weights has the wanted gradient; its value is taken back.
        line = torch.stack([(w * g).sum() for w, g, touched in wanted if touched]).sum()
        return torch.stack(losses).sum().detach() + line - line.detach()

    def train_on(self, course: Course, *, seed: int, label: str, stage: str | None = None) -> Rows:
        """Run the loop; one row of measures an epoch."""
        sources = [
            labelled_batches(
                member.front.contract,
                self._marked(place),
                course.augment,
                course.options.batch_size,
                derived_seed(seed, "member", place),
            )
            for place, member in enumerate(self.members)
        ]
        return course.run(
            self,
            Alternating(sources),
            self.step,
            validate=self.validation(seed),
            seed=seed,
            label=label,
            stage=stage,
            samples=sum(member.task.size("train") for member in self.members),
        )

    def _marked(self, place: int) -> Task:
        """A member's task; where only some examples teach common classes, each target is marked."""
        task = self.members[place].task
        limits = [
            (a.limit, codes)
            for a, codes in zip(self.auxiliaries, self._codes[place], strict=True)
            if a.limit is not None
        ]
        if not limits:
            return task
        limit, codes = limits[0]
        rows = task.indices("train")
        common = codes[task.targets.index_select(0, rows)]
        marks = torch.zeros(len(task.targets), dtype=torch.int64)
        known = sorted(set(common.tolist()) - {OTHER})
        for code in known:
            marks[rows[common == code][: limit // len(known)]] = 1
        return task.derived(task.name, targets=torch.stack([task.targets, marks], 1))

    def validation(self, seed: int) -> Callable[[], Row] | None:
        """Own accuracies and what the auxiliaries solve, on the members' validation splits."""
        # A fixed random order: data may lie class by class, and what is frozen uses the batch.
        tasks = [in_random_order(member.task, "validation", seed) for member in self.members]
        if not any(task.size("validation") for task in tasks):
            return None

        def validate() -> Row:
            row: Row = {}
            for place, task in enumerate(tasks):
                row |= self._measured(place, task, seed)
            losses = [value for name, value in row.items() if name.endswith(f" {WATCHED}")]
            return {WATCHED: sum(losses) / len(losses), **row} if losses else row

        return validate

    def _measured(self, place: int, task: Task, seed: int) -> Row:
        """A loss and an accuracy of one member with its own head, and with each shared one."""
        member, row = self.members[place], {}
        if member.head is not None:
            own = validation(_chained(member, member.head.module), task, self._loss)
            row = {f"{member.name} {name}": v for name, v in (own() if own else {}).items()}
        rows = task.indices("validation")[:_CHECKED]
        for a, shared, known in zip(self.auxiliaries, self.shared, self._codes[place], strict=True):
            whole = _chained(member, shared)
            codes = known[task.targets.index_select(0, rows)]
            asked = rows if a.pretext is not None else rows[codes != OTHER]
            if len(asked) < 2:
                continue
            batches = asked.tensor_split(math.ceil(len(asked) / _BATCH))  # none is left to itself
            if a.pretext is not None:
                # What the front has stored are statistics of images that nobody turned.
                whole = whole.changed(module=with_batch_statistics(whole.module))
                loss, solved = answered(a.pretext, whole, task.inputs, batches, seed)
            else:
                codes, images = codes[codes != OTHER], task.inputs.index_select(0, asked)
                outputs = outputs_of(whole, images, batch_size=len(batches[0]))
                loss = float(F.cross_entropy(outputs, codes))
                solved = float((outputs.argmax(1) == codes).float().mean())
            name = f"{member.name} {a.name}"
            row |= {f"{name} {WATCHED}": loss, f"{name} validation accuracy": solved}
        return row


def _chained(member: Member, head: nn.Module) -> Part:
    """Front and head as one, to be run and no more."""
    return Part(nn.Sequential(member.front.module, head), member.front.contract)


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Batch norms normalise by the batch, as in training, but do not remember it.

    >>> norm = nn.BatchNorm1d(1)
    >>> with statistics_kept(norm):
    ...     _ = norm(torch.tensor([[10.0], [12.0]]))
    >>> norm.running_mean, norm.num_batches_tracked
    (tensor([0.]), tensor(0))
    """
    norms = [
        child
        for child in module.modules()
        if isinstance(child, nn.modules.batchnorm._BatchNorm)
        and child.training
        and child.track_running_stats
    ]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


class Alternating:
    """Batches of several sources by turns, ``(place, batch)``; a short source starts over.

    An epoch is over when the longest source has been seen once.  A source that is shorter goes
    through its own epochs meanwhile, and continues in the next where it stopped.

    >>> class Letters:
    ...     def __init__(self, letters):
    ...         self.letters = letters
    ...     def __len__(self):
    ...         return len(self.letters)
    ...     def epoch(self, number, start=0):
    ...         yield from (f"{letter}{number}" for letter in self.letters[start:])
    >>> source = Alternating([Letters("abc"), Letters("xy")])
    >>> [batch for _, batch in source.epoch(0)]
    ['a0', 'x0', 'b0', 'y0', 'c0', 'x1']
    >>> [batch for _, batch in source.epoch(1, start=1)]
    ['y1', 'b1', 'x2', 'c1', 'y2']
    """

    def __init__(self, sources: Sequence[EpochSource]) -> None:
        self._sources = tuple(sources)
        self._rounds = max(len(source) for source in self._sources)

    def __len__(self) -> int:
        return self._rounds * len(self._sources)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[int, Any]]:
        """The turns of an epoch, from turn ``start`` on."""
        turns = len(self._sources)
        first = number * self._rounds
        streams = [
            # Sources whose turn in the first round is over begin with the next one.
            _endless(source, first + start // turns + (place < start % turns))
            for place, source in enumerate(self._sources)
        ]
        for turn in range(start, len(self)):
            place = turn % turns
            yield place, next(streams[place])


def _endless(source: EpochSource, start: int) -> Iterator[Any]:
    """The batches of all epochs one after the other, from batch ``start`` on."""
    epoch, batch = divmod(start, len(source))
    yield from source.epoch(epoch, batch)
    for number in count(epoch + 1):
        yield from islice(source.epoch(number), len(source))
