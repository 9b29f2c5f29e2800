"""How several extractors came to share one head."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Cell, Figure, Series, Table, Text, View
from dovetail.train.fitting.record import OWN, Stage

__all__ = ["DeviceTraining"]


@dataclass(frozen=True, kw_only=True)
class DeviceTraining(Record, kind="device-training"):
    """Extractors of different architectures that one head was trained with.

    ``accuracy`` is that of each with the head on the validation split, with batch statistics;
    ``sizes`` counts the weights of each extractor.

    >>> DeviceTraining(
    ...     task="digits",
    ...     by=("dcc",),
    ...     stage=Stage(("phone",), ({"epoch": 1, "loss": 0.5},)),
    ...     accuracy={"phone": 0.9},
    ...     sizes={"phone": 900},
    ...     space="shared/1f",
    ... )
    DeviceTraining(one head for phone on digits: validation accuracy 0.900)
    """

    task: str
    by: tuple[str, ...]
    stage: Stage
    accuracy: dict[str, float]
    sizes: dict[str, int]
    space: str

    @property
    def title(self) -> str:
        """What was trained for whom."""
        return f"One head on {self.task} for {' and '.join(self.stage.networks)}"

    @property
    def rows(self) -> tuple[dict[str, float], ...]:
        """The measures of each epoch."""
        return self.stage.rows

    @property
    def final(self) -> dict[str, float]:
        """The row of the epoch whose weights were kept."""
        return self.stage.final

    def view(self) -> View:
        """What each extractor reached with the head, and the curves."""
        asked = "rp" in self.by
        seconds = sum(row.get("seconds", 0.0) for row in self.rows)
        reached: list[tuple[Cell, ...]] = [
            (
                name,
                self.sizes[name],
                self.accuracy.get(name),
                *((self.final.get(f"{name} rp {OWN}"),) if asked else ()),
            )
            for name in self.stage.networks
        ]
        return (
            Text(
                f"{len(self.stage.networks)} extractors and one head, {len(self.rows)} epochs in "
                f"{seconds:.1f} s. All of them give the space {self.space}."
            ),
            Table(
                ("extractor", "weights", "with the head", *(("pretext",) if asked else ())),
                tuple(reached),
                ("", ",", ".1%", *((".1%",) if asked else ())),
                "Accuracy on the validation split, with batch statistics",
            ),
            self._curves(),
        )

    def _curves(self) -> Figure:
        epochs = tuple(row["epoch"] for row in self.rows)
        series = tuple(
            Series(name, epochs, tuple(row.get(f"{name} dcc {OWN}") for row in self.rows))
            for name in self.stage.networks
        )
        title = "Accuracy on validation, with stored statistics"
        return Figure("line", title, series, "epoch", "")

    def __repr__(self) -> str:
        found = list(self.accuracy.values())
        said = f"validation accuracy {sum(found) / len(found):.3f}" if found else "trained"
        names = " and ".join(self.stage.networks)
        return f"DeviceTraining(one head for {names} on {self.task}: {said})"
