"""The record of a training in partitions: a row a partition, what it took and what it handed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dovetail.core.declared import Column, Shown, curves, figure, of_each, table, text, when
from dovetail.core.records import Record
from dovetail.train.fit import WATCHED, History, Row, named_measures
from dovetail.train.layerwise_record import judged

_REACHED = ("validation accuracy", "validation r2")


@dataclass(frozen=True)
class PartitionHistory(History):
    """One partition: its layers by the points they end at, how it went, what it took.

    ``working`` and ``waiting`` are the seconds in which it computed and in which it waited for
    others, ``megabytes`` what it sent (in one process: handed on), ``examples`` how many it was
    trained on over all epochs, ``weights`` how many are its own, without the decision block.

    >>> row = {"epoch": 1, "loss": 0.9}
    >>> PartitionHistory("partition1", ("conv1",), "linear", (row,)).final["loss"]
    0.9
    """

    name: str
    layers: tuple[str, ...]
    decision: str
    rows: tuple[Row, ...] = ()
    kept: int = 1
    weights: int = 0
    working: float = 0.0
    waiting: float = 0.0
    megabytes: float = 0.0
    examples: int = 0

    @property
    def reached(self) -> float | None:
        """Accuracy on validation, or what stands for it."""
        return judged(self.final)


def _measured(name: str) -> Column:
    return Column(
        name,
        lambda partition: partition.final.get(name),
        ".4g",
        when=lambda record: any(name in each.final for each in record.partitions),
    )


@dataclass(frozen=True, kw_only=True)
class PartitionedTraining(
    Record,
    kind="partitioned-training",
    title="Training {part} on {task} in partitions",
    brief="{part} on {task} in {partitions!n} partitions: {_reached}",
):
    """How a training in partitions went: a history a partition, from the input up.

    >>> one = PartitionHistory("partition1", ("fc1",), "linear", ({"epoch": 1, "loss": 0.5},))
    >>> PartitionedTraining(part="mlp", task="digits", order="at-once", partitions=(one,))
    PartitionedTraining(mlp on digits in 1 partitions: loss 0.5)
    """

    part: str
    task: str
    order: str
    partitions: tuple[PartitionHistory, ...]
    processes: int = 1
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, each with the number of its partition, from 1."""
        return tuple(
            {"partition": number, **row}
            for number, each in enumerate(self.partitions, start=1)
            for row in each.rows
        )

    @property
    def final(self) -> Row:
        """What the network reached."""
        return self.partitions[-1].final

    @property
    def seconds(self) -> float:
        """The time that it took: of all partitions, or at once of the slowest."""
        if self.order == "at-once" and self.processes > 1:
            return max((each.working + each.waiting for each in self.partitions), default=0.0)
        return sum(each.working + each.waiting for each in self.partitions)

    @property
    def _reached(self) -> str:
        return named_measures(self.final, ("loss", WATCHED, *_REACHED))

    @property
    def _busy(self) -> str:
        if self.processes == 1:
            return ""
        shares = [
            f"{each.name} {each.working / max(each.working + each.waiting, 1e-9):.0%}"
            for each in self.partitions
        ]
        return f"At work, not waiting: {', '.join(shares)}."

    shows: ClassVar[tuple[Shown, ...]] = (
        text("{partitions!n} partitions, {order}, in {seconds:.1f} s, processes: {processes}."),
        text("{_busy}"),
        of_each("notes", text("{}", "note")),
        table(
            "partitions",
            Column("partition", "name"),
            Column("ends at", lambda each: each.layers[-1] if each.layers else ""),
            Column("under", "decision"),
            Column("weights"),
            Column("epochs", lambda each: len(each.rows)),
            Column("examples"),
            Column("working, s", "working", ".1f"),
            Column("waiting, s", "waiting", ".1f"),
            Column("sent, MB", "megabytes", ".1f"),
            _measured("loss"),
            _measured(WATCHED),
            *map(_measured, _REACHED),
        ),
        when(
            lambda record: len(record.partitions) > 1,
            figure(
                "line",
                "On the validation split, a partition",
                "partitions",
                "name",
                {"reached": "reached"},
                "partition",
            ),
        ),
        of_each("partitions", curves("{name}: loss", ("loss", WATCHED), log_y=True)),
    )
