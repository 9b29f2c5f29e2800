r"""Fine-tuning that is kept only where labels held out say that it helps.

It begins with a linear head on frozen features, that of a probe or the network's own, moves the
weights under it (:mod:`dovetail.adapt.tuning`), and then fits the head anew.  The same is done in
folds: a network that has not seen a fold's labels says how well these are told at every mark on the
way, frozen features first.  The mark of the least log loss is where training on all labels stops;
where none is below that of frozen features, nothing moves, and the result *is* the probe.

Where the folds' weights are averaged, :math:`\bar\theta`, they may also go a part of their way,
:math:`\theta_0 + a (\bar\theta - \theta_0)`.  Near :math:`\theta_0` the logits go along, and those
of the labels held out are at hand for both ends:

.. math:: a = \arg\min_{a, T} \sum_i -\log \operatorname{softmax}\!\big(
          ((1 - a) g_0(x_i) + a\, g_1(x_i)) / T\big)_{y_i} .

It costs no further pass.  Ends of different heads make it an approximation, and yet it was better
than all or nothing in ``reproduce/real_adaptation_rule.py``.

With one label a class there is nothing to hold out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.adapt.linear_heads import folds_of
from dovetail.adapt.networks import Front
from dovetail.adapt.probe import FittedHead, fit_head
from dovetail.adapt.tuning import Moves, hot_temperature, moved
from dovetail.core.progress import progress
from dovetail.linalg.ridge_sums import Linear, Penalty
from dovetail.measure.estimators import temperature_of

DECADES = tuple(10.0**power for power in range(-3, 4))
"""Penalties of a head on features that have moved, in units of their scatter's mean eigenvalue."""

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the way that weights have gone, where folds are averaged."""

PATIENCE = 2
"""So many marks in a row that are no better end the search."""

ENOUGH = 200
"""So many labels held out decide; further folds are not trained."""

SOON = 2.0
"""Seconds that pass before there is a bar."""

BETTER = "on labels held out, its log loss was below that of the head alone"
PART_WAY = "labels held out were told best by part of it and part of the head alone"
NO_BETTER = "on labels held out, moving weights was no better than the head alone"

KNOWN = 0.75
"""Where no label can be held out for a probe, a head that is there already must cost less than
this share of guessing to be kept."""


@dataclass(frozen=True, eq=False)
class Guarded:
    """A front and its head, the temperature of its logits, and why it is this one.

    ``logits`` are those of the labels fitted to, ``[n, c]``, before the temperature.
    ``chosen`` is ``"fine-tuned"``, ``"probe"`` or ``"own head"``; ``losses`` are the log losses of
    labels held out, by the steps after which they were measured (0: frozen features); ``folds`` is
    how many folds those are, ``share`` how much of their way the weights went.
    """

    front: Front
    head: Linear
    logits: Tensor
    temperature: float
    chosen: str
    why: str
    steps: int = 0
    own: bool = False
    losses: dict[int, float] = field(default_factory=dict)
    folds: int = 0
    kind: str = "own"
    share: float = 1.0

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Plain facts for those who ask."""
        return {
            "why": self.why,
            "head": "own" if self.own else self.kind,
            "steps": self.steps,
            "share": self.share,
            "held_out_log_loss": {str(steps): loss for steps, loss in self.losses.items()},
        }


def tuned_if_better(
    front: Front,
    inputs: Tensor,
    codes: Tensor,
    classes: int,
    moves: Moves,
    *,
    own: Linear | None = None,
    free: Callable[[Front], bool],
    stops: int = 4,
    folds: int = 3,
    averaged: bool = False,
    label: str = "fine-tuning",
    seed: int = 0,
) -> Guarded:
    """Fine-tune a copy of the front for inputs ``[n, ...]`` with class codes ``[n]``, or leave it.

    Args:
        front: Left as it is.
        inputs: Raw.
        codes: From 0 to ``classes - 1``.
        classes: How many there are.
        moves: How far and how fast.
        own: A head on the front's rows that is there already, if it has one for the classes.
        free: Sets which weights of a front may move, and says whether there are any.
        stops: Where training may stop: after so many equal shares of the steps.
        folds: How many to hold out, one after the other; below 2 all steps are taken on trust.
        averaged: Take the mean of the folds' weights instead of training on all labels as well.
            Near where it began a network is linear in its weights, and there that is much the same.
        label: Of the progress bar.
        seed: Of the folds and the order of the labels.
    """
    rows = front.rows(inputs)
    start = _start(front, rows, codes, classes, own, seed)
    several = int(torch.bincount(codes).max()) > 1
    if not free(front):
        return replace(start, why="no weights but the head's may move")
    marks = sorted({math.ceil(moves.steps * share / stops) for share in range(1, stops + 1)})
    held_out = folds_of(codes, seed, folds) if folds > 1 and several else codes.new_zeros(0)
    there = int(held_out.max()) + 1 if len(held_out) else 0
    number = min(there, max(1, math.ceil(ENOUGH * folds / len(codes))))
    averaged = averaged and number == there > 0  # each label has its share in the mean
    total = (number + (not averaged)) * moves.steps
    with progress(label, total, after=SOON) as step:
        run = _Run(front, inputs, rows, codes, classes, moves, free, start, averaged, step, seed)
        if not number:
            why = "one label a class: none to hold out" if folds > 1 else "no folds were asked for"
            return run.tuned(run.on_all(marks[-1]), marks[-1], why)
        judged = run.in_folds(held_out, number, marks)
        if judged.best == 0:
            outcome = replace(start, why=NO_BETTER)
        else:
            mine = run.on_all(judged.best) if judged.mean is None else judged.mean
            outcome = run.tuned(mine, judged.best, BETTER if judged.share == 1.0 else PART_WAY)
            outcome = replace(outcome, temperature=judged.heat, share=judged.share)
    return replace(outcome, losses=judged.losses, folds=number)


def _start(
    front: Front, rows: Tensor, codes: Tensor, classes: int, own: Linear | None, seed: int
) -> Guarded:
    """A probe's head, or the network's own where that costs less on the same labels."""
    probe = fit_head(rows, codes, classes, seed=seed)
    if own is not None:
        logits = own(rows)
        heat = temperature_of(logits, codes)
        loss = float(F.cross_entropy(logits / heat, codes))
        bar = KNOWN * math.log(classes) if probe.loss is None else probe.loss
        if loss <= bar:
            return Guarded(front, own, logits, heat, "own head", "", own=True)
    head = _cool(probe)
    return Guarded(front, head, head(rows), 1.0, "probe", "", kind=probe.kind)


def _cool(fitted: FittedHead) -> Linear:
    """The head with its temperature in the weights."""
    head, by = fitted.head, fitted.temperature
    return Linear(head.weights / by, head.intercept / by, head.penalty)


def _laid_out(front: Front, layout: torch.memory_format) -> Front:
    """A copy of a front, its images laid out in memory like this."""
    if front.part is None:
        return front
    module = copy.deepcopy(front.part.module).eval()
    for tensor in module.parameters():
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=layout)
    return Front(front.part.changed(module=module), front.pooling)


@dataclass(frozen=True, eq=False)
class _Run:
    """What all runs have in common: a front, its rows of the inputs, and the head to begin with."""

    front: Front
    inputs: Tensor
    rows: Tensor
    codes: Tensor
    classes: int
    moves: Moves
    free: Callable[[Front], bool]
    start: Guarded
    averaged: bool
    step: Callable[[str], None]
    seed: int

    def head_of(self, some: Tensor) -> Linear:
        """To begin with some of the labels: of the kind and penalty that all of them chose."""
        start = self.start
        if start.own:
            return start.head
        rows, codes = self.rows[some], self.codes[some]
        penalty = start.head.penalty
        return _cool(fit_head(rows, codes, self.classes, start.kind, penalty, seed=self.seed))

    def head_after(self, rows: Tensor, codes: Tensor) -> Linear:
        """Once weights have moved: classes are then far apart, and a closed form does."""
        if self.start.own:
            return self.start.head
        if int(torch.bincount(codes).max()) < 2:
            return _cool(fit_head(rows, codes, self.classes, seed=self.seed))
        penalties: Penalty = "auto"
        if self.averaged:  # few steps: a search in halves of decades would take as long as they do
            scatter = float((rows - rows.mean(0)).square().sum()) / min(rows.shape) or 1.0
            penalties = [decade * scatter for decade in DECADES]
        return _cool(fit_head(rows, codes, self.classes, "ridge", penalties, seed=self.seed))

    def begin(self, head: Linear, some: Tensor, marks: list[int]) -> tuple[Front, Iterator[int]]:
        """A copy of the front, and the iterator that moves its weights by some of the labels."""
        own = _laid_out(self.front, torch.channels_last)
        self.free(own)
        hot = hot_temperature(head(self.rows[some]), self.codes[some])
        warm = Linear(head.weights / hot, head.intercept / hot, head.penalty)
        trained = self.inputs[some], self.codes[some]
        return own, moved(own, warm, *trained, self.moves, marks, step=self.step, seed=self.seed)

    def on_all(self, mark: int) -> Front:
        """Trained on all labels, up to a mark."""
        mine, steps = self.begin(self.start.head, torch.arange(len(self.codes)), [mark])
        for _ in steps:
            pass
        return mine

    def tuned(self, mine: Front, steps: int, why: str) -> Guarded:
        """The result where weights have moved, its head fitted anew."""
        rows = mine.rows(self.inputs)
        head = self.head_after(rows, self.codes)
        mine = _laid_out(mine, torch.contiguous_format)
        found = replace(self.start, front=mine, head=head, logits=head(rows))
        return replace(found, chosen="fine-tuned", why=why, steps=steps)

    def in_folds(self, held_out: Tensor, number: int, marks: list[int]) -> _Judged:
        """Temperatures and log losses of labels held out, by steps; folds go abreast."""
        judged = (held_out >= 0) & (held_out < number)
        said = torch.zeros(len(self.codes), self.classes, dtype=torch.float64)
        trails = []
        for fold in range(number):
            fitted, held = (held_out != fold).nonzero()[:, 0], (held_out == fold).nonzero()[:, 0]
            head = self.head_of(fitted)
            said[held] = head(self.rows[held])
            trails.append((fitted, held, *self.begin(head, fitted, marks)))
        heats: dict[int, float] = {}
        losses: dict[int, float] = {}
        told: dict[int, Tensor] = {}
        mean, share, codes = None, 1.0, self.codes[judged]
        for mark in [0, *marks]:
            if mark:
                for fitted, held, mine, steps in trails:
                    next(steps)
                    now = mine.rows(self.inputs)
                    said[held] = self.head_after(now[fitted], self.codes[fitted])(now[held])
            heats[mark] = temperature_of(said[judged], codes)
            told[mark] = said[judged] / heats[mark]
            losses[mark] = float(F.cross_entropy(told[mark], codes))
            # Where folds are averaged the head comes in as a share, not as one of the marks.
            among = losses.keys() - {0} if self.averaged and mark else losses
            best = min(among, key=losses.__getitem__)
            if self.averaged and best == mark > 0:
                mean = _mean_of([mine for _, _, mine, _ in trails])
            if sum(each > best for each in losses) >= PATIENCE:
                break
        if mean is not None:
            share = _share(told[0], told[best], codes, losses[0])
            mean, best = _part_way(self.front, mean, share), best if share else 0
        return _Judged(heats, losses, best, mean, share)


class _Judged(NamedTuple):
    """Temperatures and log losses by steps, the steps to stop after, the folds' mean there, and the
    share of the way that it has gone."""

    heats: dict[int, float]
    losses: dict[int, float]
    best: int
    mean: Front | None
    share: float

    @property
    def heat(self) -> float:
        """The temperature there; a part of the way, a part of the way between the two."""
        heat: float = self.heats[0] ** (1 - self.share) * self.heats[self.best] ** self.share
        return heat


def _share(without: Tensor, moved: Tensor, codes: Tensor, loss: float) -> float:
    """How much of moved logits ``[n, c]`` beside those without tells labels held out best.

    >>> right, codes = torch.tensor([[4.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1])
    >>> _share(right.flip(0), right, codes, 0.7) > 0.5, _share(right, right.flip(0), codes, 0.02)
    (True, 0.0)
    """
    best = 0.0
    for share in SHARES:
        both = torch.lerp(without, moved, share)
        now = float(F.cross_entropy(both / temperature_of(both, codes), codes))
        if now < loss:
            best, loss = share, now
    return best


@torch.no_grad()
def _part_way(start: Front, end: Front, share: float) -> Front:
    """Weights a share of the way from one to the other, which is changed."""
    if share == 1.0:
        return end
    assert start.part is not None
    assert end.part is not None
    pairs = zip(end.part.module.parameters(), start.part.module.parameters(), strict=True)
    for own, first in pairs:
        own.copy_(torch.lerp(first, own, share))
    return end


@torch.no_grad()
def _mean_of(fronts: list[Front]) -> Front:
    """A copy whose weights are the means of several."""
    mine = _laid_out(fronts[0], torch.channels_last)
    assert mine.part is not None
    every = zip(*(f.part.module.parameters() for f in fronts if f.part is not None), strict=True)
    for own, several in zip(mine.part.module.parameters(), every, strict=True):
        if own.requires_grad:
            own.copy_(torch.stack(several).mean(0))
    return mine
