"""How a training for compatibility went, and the parts that came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dovetail.core.declared import Column, blocks, curves, heatmap, of_each, table, text, when
from dovetail.core.records import Record
from dovetail.core.views import View
from dovetail.parts.part import Part
from dovetail.train.fit import Fit, History, Row, kept_epoch

OWN = "validation accuracy"


@dataclass(frozen=True)
class Stage(History):
    """Networks trained at once: their names, a row of measures an epoch, and the row kept.

    >>> Stage(("a",), ({"epoch": 1, "a validation accuracy": 0.9},)).final["epoch"]
    1
    """

    networks: tuple[str, ...]
    rows: tuple[Row, ...]
    kept: int = 1

    @classmethod
    def of(cls, networks: tuple[str, ...], rows: tuple[Row, ...], patience: int | None) -> Stage:
        """The stage of a loop's rows."""
        return cls(networks, rows, kept_epoch(rows, patience))

    @property
    def together(self) -> str:
        """The names of the networks in one phrase."""
        return " and ".join(self.networks)

    def curves(self) -> View:
        """Accuracies on validation, of each network by itself or with a head; else the loss."""
        # named here and not taken from the rows, whose order JSON does not keep
        heads = ("", " dcc", " rp")
        lines = {f"{name}{head}": f"{name}{head} {OWN}" for name in self.networks for head in heads}
        title = "{together}: accuracy on validation"
        return blocks(self, (curves(title, lines),)) or blocks(self, (curves(title, ("loss",)),))


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
        return sum(stage.seconds for stage in self.stages)

    @property
    def recombination(self) -> float | None:
        """The mean accuracy of one network's front with another's head, on validation."""
        return _mean(self._exchanged(range(len(self.networks))))

    def _exchanged(self, places: Iterable[int]) -> list[float]:
        """Accuracies of two networks' parts together, where one of them is at these places."""
        wanted = set(places)
        return [
            value
            for i, row in enumerate(self.recombined)
            for j, value in enumerate(row)
            if value is not None and i != j and wanted & {i, j}
        ]

    def measured(self, place: int) -> dict[str, float]:
        """What the network at a place reached on its own, and with parts of the others."""
        own = self.final.get(f"{self.networks[place]} {OWN}")
        reached = {OWN: own, "validation recombination": _mean(self._exchanged([place]))}
        return {name: value for name, value in reached.items() if value is not None}

    def solved(self, head: str) -> dict[str, float]:
        """What a shared head reached, as a mean over the networks."""
        names = (f"{network} {head} {OWN}" for network in self.networks)
        mean = _mean([self.final[name] for name in names if name in self.final])
        return {} if mean is None else {OWN: mean}

    @property
    def summary(self) -> str:
        """How many networks, by what, in which time."""
        how = " + ".join(self.by) or "nothing"
        shared = "" if self.space is None else f" They share the space {self.space}."
        networks = f"{len(self.networks)} networks, {self.scheme}, by {how}"
        return f"{networks}, in {self.seconds:.1f} s.{shared}"

    @property
    def _sifted(self) -> str:
        if "filter_kept" not in self.settings:
            return ""
        rows = [row for stage in self.stages for row in stage.rows]
        took = sum(row.get("filter seconds", 0.0) for row in rows)
        kept, of = self.settings["filter_kept"], self.settings["filter_of"]
        return f"The filter left {kept} of {of} examples; choosing them took {took:.1f} s."

    @property
    def _began_alike(self) -> bool:
        return bool(self.settings.get("identical_starts")) and "iiw" not in self.by

    def _reached(self) -> list[tuple[str, float | None, float | None, float | None]]:
        final = self.final.get
        return [
            (n, final(f"{n} {OWN}"), final(f"{n} dcc {OWN}"), final(f"{n} rp {OWN}"))
            for n in self.networks
        ]

    shows = (
        text("{summary}"),
        text("{_sifted}"),
        table(
            _reached,
            Column("network", 0),
            Column("own task", 1, ".1%"),
            Column("common classes", 2, ".1%", when=lambda training: "dcc" in training.by),
            Column("pretext", 3, ".1%", when=lambda training: "rp" in training.by),
            caption="Accuracy on the validation split",
        ),
        when(
            "_began_alike",
            text(
                "The networks came with identical weights: they began alike although 'iiw' "
                "was not asked for. Build them with different seeds to tell the two apart.",
                "warning",
            ),
        ),
        when(
            lambda training: training.recombination is not None,
            heatmap(
                "Validation accuracy after recombining, batch statistics",
                "networks",
                "networks",
                "recombined",
                "front of",
                "head of",
                ".0%",
                (0.0, 1.0),
            ),
            text("Recombined on average: {recombination:.1%}."),
        ),
        of_each("stages", Stage.curves),
    )

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


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
