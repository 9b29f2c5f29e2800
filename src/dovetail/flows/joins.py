"""One pair of networks, their heads exchanged at every depth."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Text, View
from dovetail.parts.cutting import cut, cut_points
from dovetail.parts.joining import join
from dovetail.parts.part import Part
from dovetail.running.evaluate import evaluate
from dovetail.tasks.task import Task

__all__ = ["DepthOfJoin", "joins_by_depth"]


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
