"""What a judgement of scores says, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.core.records import Record
from dovetail.core.views import (
    Block,
    Cell,
    Figure,
    Heatmap,
    Series,
    Table,
    Text,
    View,
    refuse_mostly_empty,
)

__all__ = ["Choice", "Judged", "Judgement", "OnTarget", "Summary"]


@dataclass(frozen=True)
class Summary:
    """A mean over targets and its interval, which one target alone does not have.

    >>> Summary(0.7, 0.6, 0.8).value
    0.7
    """

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class OnTarget:
    """How a score did on one target, over the ``parts`` it has a value for."""

    target: str
    parts: int
    weighted_tau: float | None
    tau: float | None
    regret_1: float
    regret_3: float
    wins: float | None


@dataclass(frozen=True)
class Judged:
    """How a score did over all targets."""

    score: str
    parts: int
    weighted_tau: Summary
    tau: Summary
    regret_1: Summary
    regret_3: Summary
    wins: Summary
    on: tuple[OnTarget, ...]


@dataclass(frozen=True)
class Choice:
    """The score that the other targets recommend for this one, and what it costs here."""

    target: str
    score: str
    regret_1: float
    weighted_tau: float | None


@dataclass(frozen=True, kw_only=True)
class Judgement(Record, kind="judgement"):
    """Scores, best first: least regret, then the greatest weighted tau.

    ``ceiling`` is the weighted tau between two halves of the truth: what its own noise allows.
    ``parts`` says of how many parts each target knows the truth.
    """

    truth: str
    targets: tuple[str, ...]
    parts: dict[str, int]
    scores: tuple[Judged, ...]
    chosen_leave_one_out: tuple[Choice, ...]
    ceiling: Summary | None = None
    confidence: float = 0.9

    @property
    def title(self) -> str:
        """What the scores were held against."""
        return f"Scores against {self.truth}"

    @property
    def best(self) -> Judged:
        """The score with the least regret."""
        return self.scores[0]

    @property
    def chosen_regret(self) -> float | None:
        """The mean regret of choosing, for each target, the score that the others recommend."""
        regrets = [choice.regret_1 for choice in self.chosen_leave_one_out]
        return float(np.mean(regrets)) if regrets else None

    def __getitem__(self, score: str) -> Judged:
        """How a score did, by its name."""
        return next(judged for judged in self.scores if judged.score == score)

    def __repr__(self) -> str:
        return (
            f"Judgement({len(self.scores)} scores on {len(self.targets)} targets against "
            f"{self.truth}: best {self.best.score!r})"
        )

    def view(self) -> View:
        """The finding, the table, bars with intervals, score by target, and the choices."""
        blocks: list[Block] = [Text(self.summary), self._table(), self._bars()]
        if len(self.targets) > 1:
            blocks += [self._map(), *self._choices()]
        return tuple(blocks)

    @property
    def summary(self) -> str:
        """The finding in a few sentences."""
        best = self.best
        words = [
            f"{len(self.scores)} scores, {len(self.targets)} targets, {sum(self.parts.values())} "
            f"truths ({self.truth}). Least regret when its first choice is taken: {best.score}, "
            f"{_shown(best.regret_1.value)} (weighted tau {_shown(best.weighted_tau.value)})."
        ]
        if self.ceiling is not None:
            words.append(
                f"Two halves of the truth agree with weighted tau {_shown(self.ceiling.value)}: "
                "no score can be seen to do much better."
            )
        if self.chosen_regret is not None:
            words.append(
                "The score that the other targets recommend has a mean regret of "
                f"{_shown(self.chosen_regret)} on the target left out."
            )
        return " ".join(words)

    def _table(self) -> Table:
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (
                judged.score,
                _interval(judged.weighted_tau),
                _interval(judged.regret_1),
                _interval(judged.regret_3),
                judged.wins.value,
                judged.tau.value,
                len(judged.on),
                judged.parts,
            )
            for judged in self.scores
        )
        return Table(
            ("score", "weighted tau", "regret@1", "regret@3", "wins", "tau", "targets", "parts"),
            rows,
            formats=("", "", "", "", ".1%", ".3f", "", ""),
            caption=f"Means over targets; {self.confidence:.0%} intervals by resampling targets.",
        )

    def _bars(self) -> Figure:
        known = [j for j in self.scores if j.weighted_tau.value is not None]
        bounded = all(j.weighted_tau.low is not None for j in known)
        series = Series(
            "weighted tau",
            tuple(j.score for j in known),
            tuple(j.weighted_tau.value for j in known),
            tuple(j.weighted_tau.low or 0.0 for j in known) if bounded else (),
            tuple(j.weighted_tau.high or 0.0 for j in known) if bounded else (),
        )
        title = f"Agreement with {self.truth}, least regret first"
        return Figure("bar", title, (series,), "score", "weighted tau", ".2f")

    def _map(self) -> Heatmap:
        known = sum(len(judged.on) for judged in self.scores)
        refuse_mostly_empty(len(self.scores), len(self.targets), known)
        values = []
        for judged in self.scores:
            by_target = {each.target: each.weighted_tau for each in judged.on}
            values.append(tuple(by_target.get(target) for target in self.targets))
        return Heatmap(
            "Weighted tau of each score on each target",
            tuple(judged.score for judged in self.scores),
            self.targets,
            tuple(values),
            "score",
            "target",
            ".2f",
            -1.0,
            1.0,
        )

    def _choices(self) -> list[Block]:
        if not self.chosen_leave_one_out:
            return []
        rows = tuple(
            (c.target, c.score, c.regret_1, c.weighted_tau) for c in self.chosen_leave_one_out
        )
        columns = ("target", "score the others recommend", "regret@1", "weighted tau")
        return [Table(columns, rows, formats=("", "", ".4f", ".3f"))]


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _interval(summary: Summary) -> str:
    if summary.low is None or summary.high is None:
        return _shown(summary.value)
    return f"{_shown(summary.value)} ({summary.low:.3f} to {summary.high:.3f})"
