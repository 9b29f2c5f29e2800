"""The tour's chapters about ranking: which part for a new task, and how near tasks are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from dovetail.core.records import Record
from dovetail.core.views import Text, View
from dovetail.jobs.nets import net_for
from dovetail.measure.features import features
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part
from dovetail.ranking.candidates import sampled
from dovetail.ranking.heads import fit_head
from dovetail.ranking.ranker import rank
from dovetail.ranking.records import Ranking
from dovetail.ranking.scores import score
from dovetail.ranking.task_map import TaskMap, task_map
from dovetail.tasks.derive import few, only_classes
from dovetail.tasks.task import Task
from dovetail.train.modular import modular

__all__ = ["Forecast", "map_of_digits", "parts_for"]

SAMPLES = 300
MAPPED = ("1", "3", "5", "7", "8", "9")


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
