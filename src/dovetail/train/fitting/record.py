"""How a training for compatibility went, and the parts that came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from dovetail.core.records import Record
from dovetail.core.views import Cell, Figure, Heatmap, Series, Table, Text, View
from dovetail.parts.part import Part
from dovetail.train.fit import WATCHED, Fit, best_epoch

__all__ = ["CompatibleFit", "CompatibleTraining", "Stage"]

OWN = "validation accuracy"


@dataclass(frozen=True)
class Stage:
    """Networks trained at once: their names, a row of measures an epoch, and the row kept.

    >>> Stage(("a",), ({"epoch": 1, "a validation accuracy": 0.9},)).final["epoch"]
    1
    """

    networks: tuple[str, ...]
    rows: tuple[dict[str, float], ...]
    kept: int = 1

    @classmethod
    def of(
        cls, networks: tuple[str, ...], rows: tuple[dict[str, float], ...], patience: int | None
    ) -> Stage:
        """The stage of a loop's rows."""
        watched = patience is not None and WATCHED in rows[-1]
        return cls(networks, rows, best_epoch(rows) + 1 if watched else len(rows))

    @property
    def final(self) -> dict[str, float]:
        """The row of the epoch whose weights were kept."""
        return self.rows[self.kept - 1]


@dataclass(frozen=True, kw_only=True)
class CompatibleTraining(Record, kind="compatible-training"):
    """How networks were made to fit each other.

    ``recombined[i][j]`` is the accuracy of front ``i`` with head ``j`` on the validation images of
    front ``i``'s task, with batch statistics, among the classes that both know.

    >>> stage = Stage(("a",), ({"epoch": 1, "a validation accuracy": 0.9},))
    >>> CompatibleTraining(networks=("a",), by=("rp",), scheme="joint", stages=(stage,))
    CompatibleTraining(a by rp, joint: own validation accuracy 0.900)
    """

    networks: tuple[str, ...]
    by: tuple[str, ...]
    scheme: str
    stages: tuple[Stage, ...]
    recombined: tuple[tuple[float | None, ...], ...] = ()
    space: str | None = None

    @property
    def title(self) -> str:
        """What was trained."""
        return f"{' and '.join(self.networks)}, made to fit"

    @cached_property
    def final(self) -> dict[str, float]:
        """The kept rows of all stages together; what they share is the last one's."""
        return {name: value for stage in self.stages for name, value in stage.final.items()}

    @property
    def seconds(self) -> float:
        """The time spent in training steps."""
        return sum(row.get("seconds", 0.0) for stage in self.stages for row in stage.rows)

    @property
    def recombination(self) -> float | None:
        """The mean accuracy of one network's front with another's head, on validation."""
        found = [
            value
            for i, row in enumerate(self.recombined)
            for j, value in enumerate(row)
            if i != j and value is not None
        ]
        return sum(found) / len(found) if found else None

    def view(self) -> View:
        """What each network and each shared head reached, the recombinations, the curves."""
        how = " + ".join(self.by) or "nothing"
        blocks: View = (
            Text(
                f"{len(self.networks)} networks, {self.scheme}, by {how}, in {self.seconds:.1f} s."
                + ("" if self.space is None else f" They share the space {self.space}.")
            ),
            self._reached(),
        )
        if self.settings.get("identical_starts") and "iiw" not in self.by:
            blocks += (
                Text(
                    "The networks came with identical weights: they began alike although 'iiw' "
                    "was not asked for. Build them with different seeds to tell the two apart.",
                    style="warning",
                ),
            )
        if self.recombination is not None:
            blocks += (
                Heatmap(
                    "Validation accuracy after recombining, batch statistics",
                    self.networks,
                    self.networks,
                    self.recombined,
                    "front of",
                    "head of",
                    ".0%",
                    0.0,
                    1.0,
                ),
                Text(f"Recombined on average: {self.recombination:.1%}."),
            )
        return blocks + tuple(self._curves(stage) for stage in self.stages)

    def _reached(self) -> Table:
        asked = [name for name in ("dcc", "rp") if name in self.by]
        rows: list[tuple[Cell, ...]] = [
            (
                name,
                self.final.get(f"{name} {OWN}"),
                *(self.final.get(f"{name} {each} {OWN}") for each in asked),
            )
            for name in self.networks
        ]
        words = {"dcc": "common classes", "rp": "pretext"}
        return Table(
            ("network", "own task", *(words[each] for each in asked)),
            tuple(rows),
            ("", ".1%", *(".1%" for _ in asked)),
            "Accuracy on the validation split",
        )

    def _curves(self, stage: Stage) -> Figure:
        epochs = tuple(row["epoch"] for row in stage.rows)
        # named here and not taken from the rows, whose order JSON does not keep
        asked = [
            f"{n}{of} {OWN}" for n in dict.fromkeys(stage.networks) for of in ("", " dcc", " rp")
        ]
        drawn = [name for name in asked if name in stage.rows[0]] or ["loss"]
        series = tuple(
            Series(name.removesuffix(f" {OWN}"), epochs, tuple(row.get(name) for row in stage.rows))
            for name in drawn
        )
        title = f"{' and '.join(stage.networks)}: accuracy on validation"
        return Figure("line", title, series, "epoch", "")

    def __repr__(self) -> str:
        own = [self.final[f"{n} {OWN}"] for n in self.networks if f"{n} {OWN}" in self.final]
        said = f"own validation accuracy {sum(own) / len(own):.3f}" if own else "trained"
        if self.recombination is not None:
            said += f", recombined {self.recombination:.3f}"
        how = "+".join(self.by) or "nothing"
        return f"CompatibleTraining({' and '.join(self.networks)} by {how}, {self.scheme}: {said})"


@dataclass(frozen=True)
class CompatibleFit(Fit):
    """Networks, and what they are made of: all fronts and all heads in one space.

    ``auxiliaries`` are the shared heads by name (``"dcc"``, ``"rp"``): give them to a later call to
    train a network that fits these.
    """

    networks: tuple[Part, ...] = ()
    fronts: tuple[Part, ...] = ()
    heads: tuple[Part, ...] = ()
    auxiliaries: dict[str, Part] = field(default_factory=dict)
