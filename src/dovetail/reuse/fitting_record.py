"""What fitting a task came to: the verdict, the mistakes, what was tried and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dovetail.core.declared import Column, figure, heatmap, of_each, table, text, when
from dovetail.core.records import Record
from dovetail.core.views import Figure, Heatmap, Picture, Pictures, View
from dovetail.core.words import counted


@dataclass(frozen=True)
class Tried:
    """An attempt: what was expected of it, what it reached on labels held out, what it cost.

    ``why_not`` says why it was not made.
    """

    network: str
    how: str
    expected: float | None = None
    held_out: float | None = None
    log_loss: float | None = None
    seconds: float | None = None
    why_not: str = ""


@dataclass(frozen=True)
class ClassScore:
    """How often examples of a class are recognised."""

    name: str
    n: int
    accuracy: float
    most_often_taken_for: str = ""


@dataclass(frozen=True, kw_only=True)
class Fitting(Record, kind="fitting", title="A model for {task}"):
    """From a task to a model: what it is, how good on the test split, and how sure that is.

    ``measure`` is ``"accuracy"`` or ``"r2"``; ``low`` and ``high`` bound ``value``.  ``peer`` is
    what gradient boosting reached on the labels held out, of tables.  ``not_packed`` says why the
    model is as large as its plain weights.

    >>> record = Fitting(
    ...     task="pets", network="efficientnet-lite0, 96 px", how="finetune", measure="accuracy",
    ...     value=0.912, low=0.89, high=0.93, n=600, held_out=0.9, rows=300, seconds=300.0,
    ... )
    >>> record.summary
    'efficientnet-lite0, 96 px, finetune: test accuracy 91.2% (90% interval 89.0% to 93.0%, ...).'
    """

    task: str
    network: str
    how: str
    measure: str
    value: float
    low: float
    high: float
    n: int
    held_out: float | None = None
    rows: int = 0
    folds: int = 0
    chance: float | None = None
    peer: float | None = None
    confidence: float = 0.9
    measures: dict[str, float] = field(default_factory=dict)
    temperature: float | None = None
    bytes: int = 0
    plain_bytes: int = 0
    not_packed: str = ""
    tried: tuple[Tried, ...] = ()
    per_class: tuple[ClassScore, ...] = ()
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[float, ...], ...] = ()
    mistakes: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def chosen(self) -> str:
        """The network and the way in one line."""
        return f"{self.network}, {self.how}"

    @property
    def summary(self) -> str:
        """The verdict, from the numbers."""
        name = "accuracy" if self.measure == "accuracy" else "R²"
        return (
            f"{self.chosen}: test {name} {self.value:.1%} ({self.confidence:.0%} interval "
            f"{self.low:.1%} to {self.high:.1%}, {self.n} examples)."
        )

    @property
    def how_chosen(self) -> str:
        """By what it was preferred to the others."""
        made = sum(each.held_out is not None for each in self.tried)
        if self.held_out is None:
            return "There were no labels to hold out: it is what was expected to be best."
        where = (
            f"{self.rows} labels held out in {self.folds} folds"
            if self.folds
            else (f"{self.rows} labels of the validation split")
        )
        return (
            f"Chosen among {counted(made, 'model')} by {where}, where it reached "
            f"{self.held_out:.1%}. The test split was looked at once, with this one."
        )

    @property
    def size(self) -> str:
        """How large it is, and before it was packed."""
        if not self.bytes:
            return ""
        size = f"{self.bytes / 1e6:.2f} MB"
        if self.not_packed:
            return f"{size}, not packed: {self.not_packed}."
        if self.plain_bytes > self.bytes:
            return f"{size}, {self.plain_bytes / self.bytes:.1f} times smaller than plain weights."
        return f"{size}."

    def brief(self) -> View:
        """What a terminal shows well: the verdict stands elsewhere, the pictures in the report."""
        left_out = (Figure, Heatmap, Pictures)
        return tuple(block for block in self.view()[1:] if not isinstance(block, left_out))

    def _beside_boosting(self) -> str:
        if self.peer is None or self.held_out is None:
            return ""
        if self.how == "boosting":
            return "Gradient boosting was best here, and it is what you get."
        gain = 100 * (self.held_out - self.peer)
        return f"Gradient boosting reached {self.peer:.1%} on the same labels ({gain:+.1f} points)."

    def _boosting(self) -> Iterator[str]:
        if said := self._beside_boosting():
            yield said

    def _pictures(self) -> Pictures | None:
        title = "The mistakes it was surest of"
        return Pictures(title, self.mistakes) if self.mistakes else None

    shows = (
        text("{summary}"),
        text("{how_chosen}"),
        of_each(_boosting, text("{}")),
        text("{size}", "note"),
        of_each("notes", text("{}", "note")),
        when(
            "per_class",
            figure(
                "bar",
                "Recognised, by class",
                "per_class",
                "name",
                {"test accuracy": "accuracy"},
                "class",
                "accuracy",
                ".0%",
            ),
            table(
                "per_class",
                Column("class", "name"),
                Column("test examples", "n"),
                Column("accuracy", "accuracy", ".1%"),
                Column("most often taken for", "most_often_taken_for"),
            ),
        ),
        when(
            "confusion",
            heatmap(
                "Who is taken for whom",
                "classes",
                "classes",
                "confusion",
                "true class",
                "predicted class",
                ".0%",
                (0.0, 1.0),
            ),
        ),
        _pictures,
        table(
            "tried",
            Column("network", "network"),
            Column("how", "how"),
            Column("expected", "expected", ".1%"),
            Column("held out", "held_out", ".1%"),
            Column("log loss", "log_loss", ".3f"),
            Column("seconds", "seconds", ".0f"),
            Column("why not", "why_not"),
            caption="What was tried",
        ),
    )
