"""How candidates fared with a head that was ready, and with others, while they were fine-tuned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from dovetail.core.errors import SettingsError, nearest
from dovetail.core.records import Record
from dovetail.core.views import Cell, Figure, Series, Table, Text, View
from dovetail.parts.part import Part
from dovetail.train.fit import Fit

__all__ = ["READY", "TransferFit", "TransferTrial", "Tried"]

READY = "ready"
"""The name of the head that is tried."""


@dataclass(frozen=True)
class Tried:
    """One extractor with one head: accuracies on validation after so many steps of fine-tuning.

    ``test`` holds the accuracies on the test split before and after, ``fits`` says whether the two
    share a space.

    >>> Tried("a", "ready", (0, 10), (0.5, 0.9)).direct
    0.5
    """

    front: str
    head: str
    steps: tuple[int, ...]
    accuracy: tuple[float, ...]
    test: tuple[float, ...] = ()
    fits: bool = False

    @property
    def direct(self) -> float:
        """The accuracy without fine-tuning."""
        return self.accuracy[0]

    @property
    def final(self) -> float:
        """The accuracy after all of it."""
        return self.accuracy[-1]

    def after(self, step: int | None) -> float:
        """The accuracy after the last measured step that is not beyond ``step``."""
        if step is None:
            return self.final
        if step < 0:
            raise SettingsError(f"a step is at least 0, got {step}")
        return [a for s, a in zip(self.steps, self.accuracy, strict=True) if s <= step][-1]

    def first_with(self, accuracy: float) -> int | None:
        """The first measured step with at least this accuracy, if there is one.

        >>> Tried("a", "fresh", (0, 10, 30), (0.1, 0.4, 0.8)).first_with(0.5)
        30
        """
        reached = zip(self.steps, self.accuracy, strict=True)
        return next((step for step, found in reached if found >= accuracy), None)


@dataclass(frozen=True, kw_only=True)
class TransferTrial(Record, kind="transfer-trial"):
    """Candidate extractors with a ready head, beside other heads.  Selection is on validation.

    >>> tried = (Tried("a", READY, (0, 9), (0.5, 0.7)), Tried("b", READY, (0, 9), (0.6, 0.6)))
    >>> trial = TransferTrial(task="digits", chance=0.1, tried=tried)
    >>> trial.ranked(), trial.ranked(0)
    (('a', 'b'), ('b', 'a'))
    >>> trial
    TransferTrial(a first of 2 on digits: 0.500 at once, 0.700 after 9 steps)
    """

    task: str
    chance: float
    tried: tuple[Tried, ...]

    @property
    def title(self) -> str:
        """What was tried on what."""
        return f"Extractors tried on {self.task}"

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """The heads, the ready one first."""
        return tuple(dict.fromkeys(each.head for each in self.tried))

    @property
    def chosen(self) -> str:
        """The extractor that is best on validation after fine-tuning, with the ready head."""
        return self.ranked()[0]

    def ranked(self, step: int | None = None, *, head: str = READY) -> tuple[str, ...]:
        """The extractors, best first, by accuracy on validation after ``step`` steps (or all)."""
        if head not in self.heads:
            raise SettingsError(f"no head {head!r} was tried{nearest(head, self.heads)}")
        rows = [each for each in self.tried if each.head == head]
        return tuple(each.front for each in sorted(rows, key=lambda row: -row.after(step)))

    def of(self, front: str, head: str = READY) -> Tried:
        """What was found for one extractor with one head."""
        if (found := self._pairs.get((front, head))) is not None:
            return found
        pairs = [f"{each.front} with {each.head}" for each in self.tried]
        raise SettingsError(f"not tried{nearest(f'{front} with {head}', pairs)}")

    @cached_property
    def _pairs(self) -> dict[tuple[str, str], Tried]:
        return {(each.front, each.head): each for each in reversed(self.tried)}

    def view(self) -> View:
        """The candidates in their order, and a curve for each."""
        first = self.of(self.chosen)
        said = (
            f"{self.chosen} is first: with the ready head {first.direct:.1%} at once and "
            f"{first.final:.1%} after {first.steps[-1]} steps, on validation"
        )
        said += f"; {first.test[-1]:.1%} on test." if first.test else "."
        rows: list[tuple[Cell, ...]] = []
        for front in self.ranked():
            ready = self.of(front)
            for head in self.heads:
                row = self.of(front, head)
                needs = None if head == READY else row.first_with(ready.direct)
                fits = "yes" if row.fits else "no"
                test = row.test[-1] if row.test else None
                rows.append((front, head, fits, row.direct, row.final, test, needs))
        return (
            Text(f"{said} Guessing gives {self.chance:.1%}."),
            Table(
                (
                    "extractor",
                    "head",
                    "one space",
                    "at once",
                    "fine-tuned",
                    "on test",
                    "steps to the ready head's start",
                ),
                tuple(rows),
                ("", "", "", ".1%", ".1%", ".1%", "d"),
                "Accuracy on validation; fine-tuned also on test",
            ),
            *(self._curves(front) for front in self.ranked()),
        )

    def _curves(self, front: str) -> Figure:
        series = []
        for head in self.heads:
            row = self.of(front, head)
            series.append(Series(head, tuple(math.log10(1 + s) for s in row.steps), row.accuracy))
        title = f"{front}: accuracy on validation while it is fine-tuned"
        return Figure("line", title, tuple(series), "log10(1 + steps)", "", ".0%")

    def __repr__(self) -> str:
        first, count = self.of(self.chosen), len(self.ranked())
        found = f"{first.direct:.3f} at once, {first.final:.3f} after {first.steps[-1]} steps"
        return f"TransferTrial({self.chosen} first of {count} on {self.task}: {found})"


@dataclass(frozen=True)
class TransferFit(Fit):
    """Each candidate with the ready head, fine-tuned; ``whole`` is the chosen one."""

    networks: dict[str, Part] = field(default_factory=dict)
