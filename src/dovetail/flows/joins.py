"""Every front with every head, and one pair at every depth, with the contract's word beside."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Figure, Heatmap, Series, Table, Text, View
from dovetail.parts.cutting import cut, cut_points
from dovetail.parts.joining import join
from dovetail.parts.part import Part
from dovetail.running.evaluate import evaluate
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task

__all__ = ["DepthOfJoin", "Joins", "every_join", "joins_by_depth"]


@dataclass(frozen=True)
class Pair:
    """One front with one head, on the front's test images of the classes both know.

    ``stored`` and ``batch`` are accuracies with the head's own batch-norm statistics and with those
    of the test batch, choosing among the common classes.
    """

    front: str
    head: str
    common: int
    why_not: tuple[str, ...]
    stored: float
    batch: float

    @property
    def fits(self) -> bool:
        """What the contract says."""
        return not self.why_not


@dataclass(frozen=True, kw_only=True)
class Joins(Record, kind="joins"):
    """All pairs of fronts and heads."""

    pairs: tuple[Pair, ...]

    @property
    def title(self) -> str:
        """What was measured."""
        return "Every front with every head"

    @property
    def summary(self) -> str:
        """The finding in two sentences, from the numbers."""
        fit = [pair.stored for pair in self.pairs if pair.fits]
        misfit = [pair.stored for pair in self.pairs if not pair.fits]
        chance = [1 / pair.common for pair in self.pairs if not pair.fits]
        if not misfit:
            return f"All {len(fit)} pairs fit and score {min(fit):.1%} or more."
        mean = sum(misfit) / len(misfit)
        return (
            f"The {len(fit)} pairs whose contract allows the join score {min(fit):.1%} or more. "
            f"The {len(misfit)} pairs that match in shape only average {mean:.1%} (chance "
            f"{sum(chance) / len(chance):.1%}), and the contract refused each of them beforehand."
        )

    def view(self) -> View:
        """Heat map, table of reasons, finding."""
        fronts = tuple(dict.fromkeys(pair.front for pair in self.pairs))
        heads = tuple(dict.fromkeys(pair.head for pair in self.pairs))
        cells = {(pair.front, pair.head): pair for pair in self.pairs}
        values = tuple(tuple(cells[f, h].stored for h in heads) for f in fronts)
        rows = tuple(
            (
                f"{pair.front} + {pair.head}",
                "fits" if pair.fits else pair.why_not[0],
                pair.stored,
                pair.batch,
                1 / pair.common,
            )
            for pair in self.pairs
        )
        return (
            Heatmap(
                "Accuracy after joining",
                fronts,
                heads,
                values,
                "front of",
                "head of",
                ".0%",
                0.0,
                1.0,
            ),
            Table(
                ("join", "what the contract says", "accuracy", "with batch norms", "chance"),
                rows,
                ("", "", ".1%", ".1%", ".1%"),
                "Measured by force on the front's test images of the classes both know",
            ),
            Text(self.summary),
        )


@dataclass(frozen=True, kw_only=True)
class DepthOfJoin(Record, kind="depth-of-join"):
    """One network's front with its twin's head, cut at every point."""

    at: tuple[str, ...]
    own: tuple[float, ...]
    other: tuple[float, ...]
    chance: float

    @property
    def title(self) -> str:
        """What was measured."""
        return "One network's front with its twin's head, by cut point"

    def view(self) -> View:
        """Own halves, foreign halves and chance along the network."""
        lines = (
            Series("own head", self.at, self.own),
            Series("twin's head", self.at, self.other),
            Series("chance", self.at, (self.chance,) * len(self.at)),
        )
        best = max(range(len(self.at)), key=self.other.__getitem__)
        return (
            Figure("line", "Accuracy after joining", lines, "cut after", "accuracy", ".0%"),
            Text(
                f"Same data, same architecture, another random start: the twin's head reaches at "
                f"most {self.other[best]:.1%} (cut after {self.at[best]}), its own head "
                f"{self.own[best]:.1%} everywhere."
            ),
        )


def every_join(halves: dict[str, tuple[Part, Part]], tasks: dict[str, Task]) -> Joins:
    """Force each front onto each head and measure on the front's test images."""
    pairs = []
    for front_name, (front, _) in halves.items():
        for head_name, (_, head) in halves.items():
            task = _shared(tasks[front_name], head)
            scores = []
            for norms in ("stored", "batch"):
                joined = join(front, head, norms=norms, force=True)
                measured = evaluate(joined, task).measures
                scores.append(measured.get("masked accuracy", measured["accuracy"]))
            reasons = tuple(front.contract.mismatches(head.contract))
            pairs.append(
                Pair(front_name, head_name, len(task.classes), reasons, scores[0], scores[1])
            )
    return Joins(pairs=tuple(pairs), settings={"split": "test", "norms": ["stored", "batch"]})


def joins_by_depth(one: Part, twin: Part, task: Task) -> DepthOfJoin:
    """Cut both at every point outside of a layer's inner steps and exchange the heads."""
    names = [point.name for point in cut_points(one) if "." not in point.name]
    own, other = [], []
    for at in names:
        front, back = cut(one, at=at)
        _, foreign = cut(twin, at=at)
        own.append(evaluate(join(front, back), task).accuracy)
        other.append(evaluate(join(front, foreign, force=True), task).accuracy)
    return DepthOfJoin(
        at=tuple(names),
        own=tuple(own),
        other=tuple(other),
        chance=1 / len(task.classes),
        settings={"split": "test", "norms": "stored"},
    )


def _shared(task: Task, head: Part) -> Task:
    known = head.contract.classes or task.classes
    return only_classes(task, [name for name in task.classes if name in known])
