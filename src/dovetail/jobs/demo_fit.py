"""The tour's chapter about training for it: the joins that failed, now with parts made to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from dovetail.core.records import Record
from dovetail.core.views import Heatmap, Text, View
from dovetail.jobs.nets import net_for
from dovetail.jobs.recombine import keep_fits
from dovetail.measure.recombination import Recombination
from dovetail.measure.recombine import recombine
from dovetail.shelf.store import Shelf
from dovetail.tasks.task import Task
from dovetail.train.compatible import WAYS, compatible

__all__ = ["MadeToFit", "made_to_fit"]

Matrix = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, kw_only=True)
class MadeToFit(Record, kind="made-to-fit"):
    """Each front with each head, of networks that were trained apart, and of ones made to fit.

    >>> tenths = ((0.9, 0.2), (0.1, 0.9)), ((0.9, 0.8), (0.7, 0.9))
    >>> found = MadeToFit(networks=("a", "b"), apart=tenths[0], fitted=tenths[1], chance=0.1)
    >>> print(found.summary)
    Trained apart, a and b reach 15.0% with each other's heads (chance 10.0%); made to fit, 75.0%.
    """

    networks: tuple[str, ...]
    apart: Matrix
    fitted: Matrix
    chance: float

    @property
    def title(self) -> str:
        """What was measured."""
        return "Trained apart, and made to fit"

    @property
    def summary(self) -> str:
        """The finding, from the numbers."""
        return (
            f"Trained apart, {' and '.join(self.networks)} reach {_exchanged(self.apart):.1%} with "
            f"each other's heads (chance {self.chance:.1%}); made to fit, "
            f"{_exchanged(self.fitted):.1%}."
        )

    def view(self) -> View:
        """One matrix below the other."""
        return (
            self._drawn("Trained apart, batch statistics", self.apart),
            self._drawn("Made to fit, batch statistics", self.fitted),
            Text(self.summary),
        )

    def _drawn(self, title: str, values: Matrix) -> Heatmap:
        names = self.networks
        return Heatmap(title, names, names, values, "front", "head", ".0%", 0.0, 1.0)


def made_to_fit(
    tasks: Mapping[str, Task],
    apart: Recombination,
    shelf: Shelf,
    *,
    at: str,
    epochs: int,
    seed: int,
) -> tuple[MadeToFit, Record]:
    """Train a network on each task for compatibility, shelve the halves, exchange the heads.

    Returns what came of it beside what ``apart`` had measured, and the record of the training.
    """
    nets = [net_for(task, "lenet5", {"norm": "batch"}, seed=seed) for task in tasks.values()]
    fit = compatible(nets, list(tasks.values()), at=at, epochs=epochs, seed=seed)
    fronts = dict(zip(tasks, fit.fronts, strict=True))
    heads = dict(zip(tasks, fit.heads, strict=True))
    joins = recombine(fronts, heads, tasks, correlation=False, seed=seed)
    for name in tasks:
        shelf.add(fronts[name], f"fit-{name}.front")
        shelf.add(heads[name], f"fit-{name}.head")
    keep_fits(joins, shelf)
    found = MadeToFit(
        networks=tuple(tasks),
        apart=_among(apart, tasks),
        fitted=_among(joins, tasks),
        chance=1 / min(len(task.classes) for task in tasks.values()),
        settings={**joins.settings, "by": list(WAYS), "at": at, "epochs": epochs},
    )
    return found, fit.record


def _among(joins: Recombination, names: Mapping[str, Task]) -> Matrix:
    """The accuracies with batch statistics, of these fronts with these heads."""
    table = joins.accuracy_with("batch")
    return tuple(tuple(table[front][head] for head in names) for front in names)


def _exchanged(values: Matrix) -> float:
    """The mean off the diagonal."""
    return fmean(
        value
        for i, row in enumerate(values)
        for j, value in enumerate(row)
        if i != j and value is not None
    )
