"""The record of a training layer by layer: a row a stage, and which network came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dovetail.core.declared import Column, Shown, curves, figure, of_each, table, text, when
from dovetail.core.records import Record
from dovetail.train.fit import WATCHED, History, Row, Training, named_measures, sifted_words

ALL_AT_ONCE, CHECKPOINTING = "all layers at once", "checkpointing"

_REACHED = ("validation accuracy", "validation r2")


def judged(row: Row) -> float | None:
    """What a stage is judged by on validation, higher is better; nothing without validation.

    >>> judged({"validation loss": 0.5, "validation accuracy": 0.9}), judged({"loss": 1.0})
    (0.9, None)
    """
    for name in _REACHED:
        if name in row:
            return row[name]
    return -row[WATCHED] if WATCHED in row else None


@dataclass(frozen=True)
class StageHistory(History):
    """One stage: its layers by the points they end at, what they were trained under, how it went.

    ``feeding`` are the seconds in which the frozen layers were run for it beforehand;
    ``peak_bytes`` what a step held at most, where that was measured, and ``kept_bytes`` what is
    kept in memory of what enters the stage.  ``stable_rank`` is the mean of its weight matrices;
    ``distance`` and ``redundancy`` are the least-squares distance and the k-redundancy of what it
    gives for so many ``examples`` of the validation split (:mod:`~dovetail.train.stage_looks`).

    >>> StageHistory("layer1", ("conv1",), "linear", ({"epoch": 1, "loss": 0.9},)).final["loss"]
    0.9
    """

    name: str
    layers: tuple[str, ...]
    decision: str
    rows: tuple[Row, ...] = ()
    kept: int = 1
    feeding: float = 0.0
    stable_rank: float | None = None
    peak_bytes: int | None = None
    kept_bytes: int = 0
    distance: float | None = None
    redundancy: float | None = None
    examples: int = 0

    @property
    def reached(self) -> float | None:
        """Accuracy on validation, or what stands for it."""
        return judged(self.final)

    @property
    def mib(self) -> float | None:
        """The peak in MiB."""
        return None if self.peak_bytes is None else self.peak_bytes / 2**20


@dataclass(frozen=True)
class OtherWay:
    """All layers at once, plainly or with activations that are run again, to compare with.

    ``reached`` and ``seconds`` are there where a training was put beside
    (:meth:`LayerwiseTraining.beside`).

    >>> OtherWay("all layers at once", 2**20).mib
    1.0
    """

    name: str
    peak_bytes: int
    reached: float | None = None
    seconds: float | None = None
    epochs: int | None = None

    @property
    def mib(self) -> float:
        """The peak in MiB."""
        return self.peak_bytes / 2**20


def _looked_at(record: LayerwiseTraining) -> bool:
    return any(stage.examples for stage in record.stages)


def _measured(name: str) -> Column:
    return Column(
        name,
        lambda stage: stage.final.get(name),
        ".4g",
        when=lambda record: any(name in stage.final for stage in record.stages),
    )


@dataclass(frozen=True, kw_only=True)
class LayerwiseTraining(
    Record,
    kind="layerwise-training",
    title="Training {part} on {task} layer by layer",
    brief="{part} on {task} in {stages!n} stages: {_reached}",
):
    """How a training layer by layer went: a history a stage, from the input up.

    ``taken`` is the stage, from 1, whose network is the result: the last, or where growth stopped.
    ``full_bytes`` is what a step of the whole network would hold.

    >>> stage = StageHistory("layer1", ("fc1",), "linear", ({"epoch": 1, "loss": 0.5},))
    >>> LayerwiseTraining(part="mlp", task="digits", stages=(stage,), taken=1)
    LayerwiseTraining(mlp on digits in 1 stages: loss 0.5)
    """

    part: str
    task: str
    stages: tuple[StageHistory, ...]
    taken: int
    full_bytes: int | None = None
    others: tuple[OtherWay, ...] = ()
    notes: tuple[str, ...] = ()

    def beside(self, *trainings: Training) -> LayerwiseTraining:
        """The same record with trainings of all layers at once beside it.

        One that had a memory budget goes for checkpointing, with the peak that it was given.
        """
        others = {other.name: other for other in self.others}
        for training in trainings:
            again = "recomputed" in training.settings
            name = CHECKPOINTING if again else ALL_AT_ONCE
            bytes_ = training.settings["peak_bytes"] if again else self.full_bytes
            others[name] = OtherWay(
                name,
                bytes_ or 0,
                judged(training.final),
                sum(row["seconds"] for row in training.rows),
                len(training.rows),
            )
        return replace(self, others=tuple(others.values()))

    @property
    def bars(self) -> tuple[StageHistory | OtherWay, ...]:
        """The stages and the other ways, whose memory is drawn."""
        return (*self.stages, *self.others)

    @property
    def _examples(self) -> str:
        examples = max((stage.examples for stage in self.stages), default=0)
        if not examples:
            return ""
        return (
            f"LSD is the least-squares distance, k-redundancy the share whose 10 nearest are of "
            f"their class, of {examples} validation examples."
        )

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, each with the number of its stage, from 1."""
        return tuple(
            {"stage": number, **row}
            for number, stage in enumerate(self.stages, start=1)
            for row in stage.rows
        )

    @property
    def final(self) -> Row:
        """What the network that was taken reached."""
        return self.stages[self.taken - 1].final

    @property
    def seconds(self) -> float:
        """The time spent in training steps."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def feeding(self) -> float:
        """The time in which frozen layers were run beforehand."""
        return sum(stage.feeding for stage in self.stages)

    @property
    def _reached(self) -> str:
        return named_measures(self.final, ("loss", WATCHED, *_REACHED))

    @property
    def _sifted(self) -> str:
        return sifted_words(self.rows, self.settings.get("filter_of"))

    @property
    def _share(self) -> str:
        peaks = [stage.peak_bytes for stage in self.stages if stage.peak_bytes is not None]
        if not peaks or not self.full_bytes:
            return ""
        return (
            f"The largest stage holds {max(peaks) / 2**20:.1f} MiB in a step, "
            f"{max(peaks) / self.full_bytes:.0%} of the {self.full_bytes / 2**20:.1f} MiB of the "
            "whole network."
        )

    shows: ClassVar[tuple[Shown, ...]] = (
        text(
            "{stages!n} stages in {seconds:.1f} s of steps and {feeding:.1f} s of feeding; the "
            "network ends with stage {taken}."
        ),
        text("{_share}"),
        text("{_sifted}"),
        of_each("notes", text("{}", "note")),
        table(
            "stages",
            Column("stage", "name"),
            Column("ends at", lambda stage: stage.layers[-1] if stage.layers else ""),
            Column("under", "decision"),
            Column("epochs", lambda stage: len(stage.rows)),
            Column("seconds", spec=".1f"),
            Column("feeding, s", "feeding", ".1f"),
            Column("samples", when=lambda record: any(stage.samples for stage in record.stages)),
            _measured("loss"),
            _measured(WATCHED),
            *map(_measured, _REACHED),
            Column("stable rank", "stable_rank", ".3g"),
            Column("LSD", "distance", ".3f", when=_looked_at),
            Column("k-redundancy", "redundancy", ".3f", when=_looked_at),
            Column(
                "MiB",
                "mib",
                ".1f",
                when=lambda record: any(stage.peak_bytes for stage in record.stages),
            ),
        ),
        text("{_examples}"),
        table(
            "others",
            Column("beside", "name"),
            Column("epochs"),
            Column("seconds", spec=".1f"),
            Column("reached", spec=".4g"),
            Column("MiB", "mib", ".1f"),
            caption="All layers at once",
        ),
        when(
            lambda record: len(record.stages) > 1,
            figure(
                "line",
                "On the validation split, a stage",
                "stages",
                "name",
                {"reached": "reached"},
                "stage",
            ),
            figure(
                "line", "Stable rank", "stages", "name", {"stable rank": "stable_rank"}, "stage"
            ),
            figure(
                "line",
                "How far features separate the classes",
                "stages",
                "name",
                {"least-squares distance": "distance", "k-redundancy": "redundancy"},
                "stage",
            ),
            figure("bar", "Memory of a step", "bars", "name", {"MiB": "mib"}, "", "MiB"),
        ),
        of_each("stages", curves("{name}: loss", ("loss", WATCHED), log_y=True)),
    )
