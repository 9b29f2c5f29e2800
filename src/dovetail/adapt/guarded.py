"""Fine-tuning that is kept only where labels held out say that it helps.

It begins with a linear head on frozen features, that of a probe or the network's own, moves the
weights under it (:mod:`dovetail.adapt.tuning`), and then fits the head anew.  The same is done in
folds: a network that has not seen a fold's labels says how well these are told at every mark on the
way, frozen features first.  The mark of the least log loss is where training on all labels stops;
where none is below that of frozen features, nothing moves, and the result *is* the probe.

With one label a class there is nothing to hold out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.adapt.linear_heads import folds_of
from dovetail.adapt.networks import Front
from dovetail.adapt.probe import FittedHead, fit_head
from dovetail.adapt.tuning import Moves, hot_temperature, moved
from dovetail.linalg.ridge_sums import Linear
from dovetail.measure.estimators import temperature_of

__all__ = ["Guarded", "tuned_if_better"]

MARKS = 4
"""Where training may stop: after so many equal shares of the steps."""

PATIENCE = 2
"""So many marks in a row that are no better end the search."""

ENOUGH = 200
"""So many labels held out decide; further folds are not trained."""

KNOWN = 0.75
"""Where no label can be held out for a probe, a head that is there already must cost less than
this share of guessing to be kept."""


@dataclass(frozen=True, eq=False)
class Guarded:
    """A front and its head, the temperature of its logits, and why it is this one.

    ``chosen`` is ``"fine-tuned"``, ``"probe"`` or ``"own head"``; ``losses`` are the log losses of
    labels held out, by the steps after which they were measured (0: frozen features); ``folds`` is
    how many folds those are.
    """

    front: Front
    head: Linear
    temperature: float
    chosen: str
    why: str
    steps: int = 0
    own: bool = False
    losses: dict[int, float] = field(default_factory=dict)
    folds: int = 0
    kind: str = "own"

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Plain facts for those who ask."""
        return {
            "why": self.why,
            "head": "own" if self.own else self.kind,
            "steps": self.steps,
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
    folds: int = 3,
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
        folds: How many to hold out, one after the other; below 2 all steps are taken on trust.
        seed: Of the folds and the order of the labels.
    """
    rows = front.rows(inputs)
    start = _start(front, rows, codes, classes, own, seed)
    several = int(torch.bincount(codes).max()) > 1
    if not free(front):
        return replace(start, why="no weights but the head's may move")
    marks = sorted({math.ceil(moves.steps * share / MARKS) for share in range(1, MARKS + 1)})
    run = _Run(inputs, codes, classes, moves, free, own if start.own else None, seed)
    if folds < 2 or not several:
        why = "one label a class: none to hold out" if folds >= 2 else "no folds were asked for"
        return run.on_all(front, start, marks[-1:], marks[-1], why)
    held_out = folds_of(codes, seed, folds)
    number = min(int(held_out.max()) + 1, max(1, math.ceil(ENOUGH * folds / len(codes))))
    heats, losses = run.in_folds(front, rows, held_out, number, marks)
    best = min(losses, key=losses.__getitem__)
    if best == 0:
        why = "on labels held out, moving weights was no better than the head alone"
        return replace(start, why=why, losses=losses, folds=number)
    why = "on labels held out, its log loss was below that of the head alone"
    tuned = run.on_all(front, start, [best], best, why)
    return replace(tuned, temperature=heats[best], losses=losses, folds=number)


def _start(
    front: Front, rows: Tensor, codes: Tensor, classes: int, own: Linear | None, seed: int
) -> Guarded:
    """A probe's head, or the network's own where that costs less on the same labels."""
    probe = fit_head(rows, codes, classes, seed=seed)
    if own is not None:
        heat = temperature_of(own(rows), codes)
        loss = float(F.cross_entropy(own(rows) / heat, codes))
        bar = KNOWN * math.log(classes) if probe.loss is None else probe.loss
        if loss <= bar:
            return Guarded(front, own, heat, "own head", "", own=True)
    return Guarded(front, _cool(probe), 1.0, "probe", "", kind=probe.kind)


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
    inputs: Tensor
    codes: Tensor
    classes: int
    moves: Moves
    free: Callable[[Front], bool]
    own: Linear | None
    seed: int

    def head(self, rows: Tensor, codes: Tensor, kind: str = "auto") -> Linear:
        """Fitted to these rows; or the network's own, where that was chosen."""
        return self.own or _cool(fit_head(rows, codes, self.classes, kind, seed=self.seed))

    def head_after(self, rows: Tensor, codes: Tensor) -> Linear:
        """The same once weights have moved: classes are then far apart, and a closed form does."""
        several = int(torch.bincount(codes).max()) > 1
        return self.head(rows, codes, "ridge" if several else "auto")

    def begin(
        self, front: Front, head: Linear, rows: Tensor, some: Tensor, marks: list[int]
    ) -> tuple[Front, Iterator[int]]:
        """A copy of the front, and the iterator that moves its weights by some of the labels."""
        own = _laid_out(front, torch.channels_last)
        self.free(own)
        hot = hot_temperature(head(rows[some]), self.codes[some])
        warm = Linear(head.weights / hot, head.intercept / hot, head.penalty)
        return own, moved(
            own, warm, self.inputs[some], self.codes[some], self.moves, marks, seed=self.seed
        )

    def on_all(
        self, front: Front, start: Guarded, marks: list[int], best: int, why: str
    ) -> Guarded:
        rows, every = front.rows(self.inputs), torch.arange(len(self.codes))
        mine, steps = self.begin(front, start.head, rows, every, marks)
        for _ in steps:
            pass
        head = self.head_after(mine.rows(self.inputs), self.codes)
        mine = _laid_out(mine, torch.contiguous_format)
        return replace(start, front=mine, head=head, chosen="fine-tuned", why=why, steps=best)

    def in_folds(
        self, front: Front, rows: Tensor, held_out: Tensor, number: int, marks: list[int]
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Temperatures and log losses of labels held out, by steps; folds go abreast."""
        judged = (held_out >= 0) & (held_out < number)
        said = torch.zeros(len(self.codes), self.classes, dtype=torch.float64)
        trails = []
        for fold in range(number):
            fitted, held = (held_out != fold).nonzero()[:, 0], (held_out == fold).nonzero()[:, 0]
            head = self.head(rows[fitted], self.codes[fitted])
            said[held] = head(rows[held])
            mine, steps = self.begin(front, head, rows, fitted, marks)
            trails.append((fitted, held, mine, steps))
        heats: dict[int, float] = {}
        losses: dict[int, float] = {}
        for mark in [0, *marks]:
            if mark:
                for fitted, held, mine, steps in trails:
                    next(steps)
                    now = mine.rows(self.inputs)
                    said[held] = self.head_after(now[fitted], self.codes[fitted])(now[held])
            heats[mark] = temperature_of(said[judged], self.codes[judged])
            losses[mark] = float(F.cross_entropy(said[judged] / heats[mark], self.codes[judged]))
            best = min(losses, key=losses.__getitem__)
            if sum(each > best for each in losses) >= PATIENCE:
                break
        return heats, losses
