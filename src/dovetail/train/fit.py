"""What a trainer returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Cell, Figure, Series, Table, Text, View
from dovetail.parts.part import Part

__all__ = ["Fit", "Training", "WATCHED", "best_epoch"]

WATCHED = "validation loss"
"""The measure that decides which epoch is the best."""

_MEASURES = ("accuracy", "r2")
_SENT = "bits a weight"


@dataclass(frozen=True, kw_only=True)
class Training(Record, kind="training"):
    """How a training went: one row of measures an epoch.

    >>> Training(part="mlp", task="digits", rows=({"epoch": 1, "loss": 0.5},))
    Training(mlp on digits: 1 epochs, loss 0.5)
    """

    part: str
    task: str
    rows: tuple[dict[str, float], ...]

    @property
    def title(self) -> str:
        """What was trained on what."""
        return f"Training {self.part} on {self.task}"

    @property
    def final(self) -> dict[str, float]:
        """The row of the epoch whose weights were kept."""
        if self.settings.get("patience") is not None and WATCHED in self.rows[-1]:
            return self.rows[best_epoch(self.rows)]
        return self.rows[-1]

    @property
    def seconds(self) -> float:
        """The time spent in training steps."""
        return sum(row.get("seconds", 0.0) for row in self.rows)

    def view(self) -> View:
        """Curves, and the row that was kept."""
        kept = self.final
        shown: list[tuple[Cell, ...]] = [
            (name, value) for name, value in kept.items() if name not in ("epoch", "seconds")
        ]
        blocks: View = (
            Text(
                f"{len(self.rows)} epochs in {self.seconds:.1f} s; "
                f"the weights of epoch {kept['epoch']:.0f} were kept."
            ),
            Table(("measure", "value"), tuple(shown), formats=("", ".4g")),
            self._curves("Loss", ("loss", "validation loss"), log_y=True),
        )
        measured = tuple(f"validation {name}" for name in _MEASURES)
        if any(name in kept for name in measured):
            blocks = (*blocks, self._curves("On the validation split", measured))
        if _SENT in kept:
            blocks = (*blocks, self._curves("Sent to the other processes", (_SENT,)))
        return blocks

    def __repr__(self) -> str:
        shown = ("loss", "validation loss", "validation accuracy", "validation r2")
        said = ", ".join(f"{name} {self.final[name]:.4g}" for name in shown if name in self.final)
        return f"Training({self.part} on {self.task}: {len(self.rows)} epochs, {said})"

    def _curves(self, title: str, names: tuple[str, ...], log_y: bool = False) -> Figure:
        drawn = [name for name in names if name in self.rows[0]]
        epochs = tuple(row["epoch"] for row in self.rows)
        series = tuple(Series(n, epochs, tuple(row.get(n) for row in self.rows)) for n in drawn)
        return Figure("line", title, series, "epoch", "", log_y=log_y)


def best_epoch(rows: Sequence[dict[str, float]]) -> int:
    """Where the validation loss is lowest: the first of equals, and never a NaN.

    >>> best_epoch([{WATCHED: 0.5}, {WATCHED: 0.3}, {WATCHED: float("nan")}, {WATCHED: 0.3}])
    1
    """
    losses = [row.get(WATCHED, math.nan) for row in rows]
    return min(range(len(losses)), key=lambda i: (math.isnan(losses[i]), losses[i]))


@dataclass(frozen=True)
class Fit:
    """New parts, and the record of how they came about.

    A training in modules gives the modules, front first; ``whole`` is the network that they make.
    """

    parts: tuple[Part, ...]
    record: Record
    whole: Part | None = None

    @property
    def part(self) -> Part:
        """The whole network; else the only part, or the first."""
        return self.parts[0] if self.whole is None else self.whole
