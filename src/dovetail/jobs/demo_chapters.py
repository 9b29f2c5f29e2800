"""Chapters of the tour: parts that were made to fit, parts ranked for a task, a map of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from dovetail.core.records import Record
from dovetail.core.views import Heatmap, Text, View
from dovetail.jobs.frame import net_for
from dovetail.jobs.recombine import keep_fits
from dovetail.measure.features import features
from dovetail.measure.recombination import Recombination
from dovetail.measure.recombine import recombine
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part
from dovetail.ranking.candidates import sampled
from dovetail.ranking.heads import fit_head
from dovetail.ranking.ranker import rank
from dovetail.ranking.records import Ranking
from dovetail.ranking.scores import score
from dovetail.ranking.task_map import TaskMap, task_map
from dovetail.shelf.store import Shelf
from dovetail.tasks.derive import few, only_classes
from dovetail.tasks.task import Task
from dovetail.train.compatible import WAYS, compatible
from dovetail.train.modular import modular

Matrix = tuple[tuple[float | None, ...], ...]
SAMPLES = 300
MAPPED = ("1", "3", "5", "7", "8", "9")


@dataclass(frozen=True, kw_only=True)
class MadeToFit(Record, kind="made-to-fit", title="Trained apart, and made to fit"):
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
    record = MadeToFit(
        networks=tuple(tasks),
        apart=_among(apart, tasks),
        fitted=_among(joins, tasks),
        chance=1 / min(len(task.classes) for task in tasks.values()),
        settings={**joins.settings, "by": list(WAYS), "at": at, "epochs": epochs},
    )
    return record, fit.record


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


@dataclass(frozen=True)
class Forecast:
    """A ranking, the layers of its winner, and what the winner's head then reached on the test."""

    ranking: Ranking
    layers: Ranking
    reached: float

    @property
    def records(self) -> tuple[Record, ...]:
        """What goes into the report."""
        return (self.ranking, self.layers)

    def view(self) -> View:
        """The ranking, and whether it was right."""
        best = self.ranking.best
        low, high = best.expected_low or 0.0, best.expected_high or 0.0
        inside = "inside" if low <= self.reached <= high else "outside"
        return (
            *self.ranking.view()[:2],
            Text(
                f"The head on {best.name}, fitted in closed form to the same {self.ranking.n} "
                f"examples, reaches {self.reached:.1%} on the test images: {inside} the interval."
            ),
        )


def parts_for(parts: dict[str, Part], task: Task, *, seed: int) -> Forecast:
    """Rank whole networks for a task none of them was trained on, then check the winner."""
    untrained = net_for(task, "lenet5", {"norm": "batch"}, seed=seed + 100)
    candidates = {**parts, "untrained": untrained.changed(contract=parts["low"].contract)}
    ranking = rank(candidates, task, samples=SAMPLES, seed=seed)
    best = ranking.best
    layers = rank({best.part: candidates[best.part]}, task, at="every", samples=SAMPLES, seed=seed)
    return Forecast(ranking, layers, _reached(candidates[best.part], best.at, task, seed))


def map_of_digits(digits: Task, *, seed: int) -> TaskMap:
    """Every two of six digits make a task; each task's part is scored on all the others.

    The parts are trained in modules, so that each body has seen no more than which images are
    alike; the true transfer is the test accuracy of a head on twenty images a class.
    """
    tasks = {"".join(pair): only_classes(digits, pair) for pair in combinations(MAPPED, 2)}
    fronts = {}
    for i, (name, task) in enumerate(tasks.items()):
        net = net_for(task, "mlp", {"hidden": [16]}, seed=seed + i)
        fronts[name] = modular(net, task, epochs=6, batch_size=32, seed=seed + i).parts[0]
    estimated: dict[str, dict[str, float]] = {}
    true: dict[str, dict[str, float]] = {}
    for source, front in fronts.items():
        activation = front.contract.gives[0].activation
        estimated[source], true[source] = {}, {}
        for target, task in tasks.items():
            small = few(task, 20, seed=seed)
            rows, test = features(front, small), features(front, small, split="test")
            head = fit_head(rows.values, rows.targets)
            true[source][target] = head.accuracy(test.values, test.targets)
            estimated[source][target] = score(
                rows.values, rows.targets, by="al", activation=activation
            )
    return task_map(estimated, true, focus="38", by="al")


def _reached(part: Part, at: str | None, task: Task, seed: int) -> float:
    front = part if at is None else cut(part, at=at)[0]
    rows = features(front, sampled(task, SAMPLES, "train", seed))
    test = features(front, task, split="test")
    return fit_head(rows.values, rows.targets).accuracy(test.values, test.targets)
