"""How a head came to know more classes, and what it is worth behind each extractor."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Cell, Figure, Series, Table, Text, View
from dovetail.parts.part import Part
from dovetail.train.fit import Fit
from dovetail.train.fitting.record import OWN, Stage

__all__ = ["ClassExtension", "ExtensionFit", "ExtensionJudgement", "Shares"]


@dataclass(frozen=True)
class Shares:
    """The share of right answers among images of all, of old and of new classes.

    The head chooses among all classes each time.

    >>> Shares(0.9, 0.95, 0.85).new
    0.85
    """

    all: float
    old: float | None = None
    new: float | None = None


@dataclass(frozen=True, kw_only=True)
class ClassExtension(Record, kind="class-extension"):
    """How a head was taught further classes behind one extractor.

    >>> stage = Stage(("reference",), ({"epoch": 1, "loss": 0.5},))
    >>> ClassExtension(task="digits", old=("0", "1"), new=("2",), moving=False, stage=stage)
    ClassExtension(2 + 1 classes of digits, extractor frozen)
    """

    task: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    moving: bool
    stage: Stage
    accuracy: Shares | None = None

    @property
    def title(self) -> str:
        """What was learnt."""
        return f"{len(self.new)} new classes of {self.task}"

    @property
    def rows(self) -> tuple[dict[str, float], ...]:
        """The measures of each epoch."""
        return self.stage.rows

    @property
    def final(self) -> dict[str, float]:
        """The row of the epoch whose weights were kept."""
        return self.stage.final

    def view(self) -> View:
        """What was reached on old and new classes, and the curve."""
        how = "moved, held by the frozen pretext head" if self.moving else "stayed as it was"
        seconds = sum(row.get("seconds", 0.0) for row in self.rows)
        blocks: View = (
            Text(
                f"The head knew {', '.join(self.old)} and learnt {', '.join(self.new)} in "
                f"{len(self.rows)} epochs and {seconds:.1f} s; the extractor {how}."
            ),
        )
        if self.accuracy is not None:
            found = self.accuracy
            blocks += (
                Table(
                    ("images of", "accuracy"),
                    (("all classes", found.all), ("old", found.old), ("new", found.new)),
                    ("", ".1%"),
                    "On the validation split",
                ),
            )
        epochs = tuple(row["epoch"] for row in self.rows)
        name = f"reference {OWN}"
        if name in self.final:
            curve = Series("reference", epochs, tuple(row.get(name) for row in self.rows))
            blocks += (Figure("line", "Accuracy on validation", (curve,), "epoch", ""),)
        return blocks

    def __repr__(self) -> str:
        how = "moving" if self.moving else "frozen"
        said = "" if self.accuracy is None else f": validation accuracy {self.accuracy.all:.3f}"
        counts = f"{len(self.old)} + {len(self.new)}"
        return f"ClassExtension({counts} classes of {self.task}, extractor {how}{said})"


@dataclass(frozen=True, kw_only=True)
class ExtensionJudgement(Record, kind="extension-judgement"):
    """What a head with more classes is worth behind each extractor.

    ``after`` is the new head's; ``before`` the accuracy of the old head on images of its classes;
    ``floor`` the share of those images in all: what a head that is never wrong about old classes
    and knows no new ones reaches.

    >>> ExtensionJudgement(
    ...     task="digits", after={"phone": Shares(0.9)}, before={"phone": 0.95}, floor=0.5, n=360
    ... )
    ExtensionJudgement(phone 0.900 on digits, floor 0.500, n 360)
    """

    task: str
    after: dict[str, Shares]
    before: dict[str, float | None]
    floor: float
    n: int

    @property
    def title(self) -> str:
        """What was judged."""
        return f"A head with new classes on {self.task}"

    def view(self) -> View:
        """A row for each extractor."""
        rows: list[tuple[Cell, ...]] = [
            (name, found.all, found.old, found.new, self.before[name])
            for name, found in self.after.items()
        ]
        return (
            Text(
                f"{self.n} images of the {self.settings.get('split', 'test')} split. Knowing the "
                f"old classes alone gives at most {self.floor:.1%}."
            ),
            Table(
                ("extractor", "all classes", "images of old", "images of new", "old head, old"),
                tuple(rows),
                ("", ".1%", ".1%", ".1%", ".1%"),
                "Accuracy",
            ),
        )

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {shares.all:.3f}" for name, shares in self.after.items())
        return f"ExtensionJudgement({found} on {self.task}, floor {self.floor:.3f}, n {self.n})"


@dataclass(frozen=True)
class ExtensionFit(Fit):
    """A head with more classes, and the extractor it was trained behind.

    ``front`` is the reference itself, or what became of it if it was allowed to move; ``whole`` is
    the two together.
    """

    head: Part | None = None
    front: Part | None = None
