"""One ranking for several tasks: the part, cut or checkpoint that serves them all best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.core.errors import SettingsError
from dovetail.core.records import Record
from dovetail.core.views import Block, Cell, Figure, Heatmap, Series, Table, Text, View
from dovetail.ranking.candidates import Parts
from dovetail.ranking.ranker import rank
from dovetail.ranking.records import Ranked, Ranking
from dovetail.ranking.scores import needs_network
from dovetail.tasks.task import Task

__all__ = ["RankingOver", "Served", "rank_over"]


@dataclass(frozen=True)
class Served:
    """A candidate over all tasks.

    ``values`` are what a head on it is expected to reach on each task (or its score, where nothing
    can be expected, or the score is of the whole network); ``behind`` is how far these lie behind
    the best candidate of each task, on average: the price of taking one for all.
    """

    part: str
    at: str | None
    epoch: int | None
    values: tuple[float, ...]
    mean: float
    behind: float

    @property
    def name(self) -> str:
        """The part and the cut in one word."""
        return self.part if self.at is None else f"{self.part} at {self.at}"


@dataclass(frozen=True, kw_only=True)
class RankingOver(Record, kind="ranking-over", title="One part for {tasks!l}"):
    """Candidates by what they give on average over several tasks, best first.

    >>> both = Served("lenet", None, 3, (0.9, 0.8), 0.85, 0.0)
    >>> RankingOver(tasks=("a", "b"), by="logme", measure="accuracy", places=(both,)).best.epoch
    3
    """

    tasks: tuple[str, ...]
    by: str
    measure: str
    places: tuple[Served, ...]
    rankings: tuple[Ranking, ...] = ()

    @property
    def best(self) -> Served:
        """The candidate that serves all tasks best."""
        return self.places[0]

    def view(self) -> View:
        """The finding, a table, a map of candidates and tasks, and curves along epochs."""
        best = self.best
        own = [f"{task}: {r.best.name}" for task, r in zip(self.tasks, self.rankings, strict=True)]
        said = (
            f"Over {len(self.tasks)} tasks {best.name} is best: {self.measure} "
            f"{best.mean:.1%} on average, {best.behind:.1%} behind the best of each task alone "
            f"({'; '.join(own)})."
            if self.measure
            else f"Over {len(self.tasks)} tasks {best.name} is best by the mean of {self.by}."
        )
        spec = ".1%" if self.measure else ".4g"
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (place.name, place.mean, place.behind, *place.values) for place in self.places
        )
        blocks: list[Block] = [
            Text(said),
            Table(
                ("candidate", "mean", "behind the best", *self.tasks),
                rows,
                ("", *(spec,) * (2 + len(self.tasks))),
            ),
        ]
        epochs = sorted((p for p in self.places if p.epoch is not None), key=lambda p: p.epoch or 0)
        if len(epochs) >= 3 and len({p.epoch for p in epochs}) == len(epochs):
            x = tuple(float(p.epoch or 0) for p in epochs)
            lines = [
                Series(task, x, tuple(p.values[i] for p in epochs))
                for i, task in enumerate(self.tasks)
            ]
            lines.append(Series("mean", x, tuple(p.mean for p in epochs)))
            words = f"expected {self.measure}" if self.measure else self.by
            blocks.append(Figure("line", "Epoch by epoch", tuple(lines), "epoch", words, spec))
        elif len(self.places) <= 40:
            blocks.append(
                Heatmap(
                    f"Expected {self.measure}" if self.measure else f"Score: {self.by}",
                    tuple(place.name for place in self.places),
                    self.tasks,
                    tuple(place.values for place in self.places),
                    "candidate",
                    "task",
                    ".0%" if self.measure else ".3g",
                )
            )
        return tuple(blocks)


def rank_over(parts: Parts, tasks: Task | Sequence[Task], **options: Any) -> RankingOver:
    """Rank the same candidates for each task, and for all of them together.

    The best checkpoint to transfer from is rarely the last: transferability rises, then falls,
    while the source accuracy still rises.  ``options`` are those of :func:`rank`.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.tasks.derive import only_classes
    >>> digits = load_task("digits")
    >>> halves = [only_classes(digits, classes) for classes in ("01234", "56789")]
    >>> nets = {f"{width} wide": build("mlp", hidden=(width,)) for width in (2, 64)}
    >>> rank_over(nets, halves, at="hidden1", samples=300).best.name
    '64 wide at hidden1'
    """
    tasks = [tasks] if isinstance(tasks, Task) else list(tasks)
    if not tasks:
        raise SettingsError("name at least one task to rank for")
    if len({task.kind for task in tasks}) > 1:
        kinds = ", ".join(f"{task.name} ({task.kind})" for task in tasks)
        raise SettingsError(f"these tasks have no measure in common, rank them one by one: {kinds}")
    rankings = [rank(parts, task, **options) for task in tasks]
    known = [{(p.part, p.at): p for p in ranking.places} for ranking in rankings]
    common = [key for key in known[0] if all(key in places for places in known[1:])]
    if not common:
        raise SettingsError("no candidate could be ranked for every one of the tasks")
    # What a head on frozen features will reach is beside the point if all weights are to move.
    expected = not needs_network(options.get("by")) and all(
        p.expected is not None for places in known for p in places.values()
    )
    best = [max(_value(places[key], expected) for key in common) for places in known]
    served = []
    for key in common:
        values = tuple(_value(places[key], expected) for places in known)
        behind = sum(top - value for top, value in zip(best, values, strict=True)) / len(values)
        epoch = known[0][key].epoch
        served.append(Served(*key, epoch, values, sum(values) / len(values), behind))
    return RankingOver(
        tasks=tuple(task.name for task in tasks),
        by=rankings[0].by,
        measure=rankings[0].measure if expected else "",
        places=tuple(sorted(served, key=lambda place: -place.mean)),
        rankings=tuple(rankings),
        settings=rankings[0].settings,
    )


def _value(place: Ranked, expected: bool) -> float:
    return float(place.plain if expected and place.plain is not None else place.score)
