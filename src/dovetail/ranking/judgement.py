"""What a judgement of scores says, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.core.declared import Column, heatmap, table, text, when
from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, refuse_mostly_empty


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
class Judgement(
    Record,
    kind="judgement",
    title="Scores against {truth}",
    brief="{scores!n} scores on {targets!n} targets against {truth}: best {best.score!r}",
):
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

    def _bars(self) -> Figure:
        taus = {j.score: j.weighted_tau for j in self.scores if j.weighted_tau.value is not None}
        low, high = (tuple(getattr(t, end) for t in taus.values()) for end in ("low", "high"))
        bounds = () if None in low + high else (low, high)
        values = tuple(tau.value for tau in taus.values())
        series = Series("weighted tau", tuple(taus), values, *bounds)
        title = f"Agreement with {self.truth}, least regret first"
        return Figure("bar", title, (series,), "score", "weighted tau", ".2f")

    def _by_target(self) -> tuple[tuple[float | None, ...], ...]:
        """The weighted tau ``[scores][targets]``."""
        known = sum(len(judged.on) for judged in self.scores)
        refuse_mostly_empty(len(self.scores), len(self.targets), known)
        of_score = ({one.target: one.weighted_tau for one in judged.on} for judged in self.scores)
        return tuple(tuple(map(taus.get, self.targets)) for taus in of_score)

    shows = (
        text("{summary}"),
        table(
            "scores",
            Column("score"),
            Column("weighted tau", lambda judged: _interval(judged.weighted_tau)),
            Column("regret@1", lambda judged: _interval(judged.regret_1)),
            Column("regret@3", lambda judged: _interval(judged.regret_3)),
            Column("wins", "wins.value", ".1%"),
            Column("tau", "tau.value", ".3f"),
            Column("targets", lambda judged: len(judged.on)),
            Column("parts"),
            caption="Means over targets; {confidence:.0%} intervals by resampling targets.",
        ),
        _bars,
        when(
            lambda judgement: len(judgement.targets) > 1,
            heatmap(
                "Weighted tau of each score on each target",
                lambda judgement: tuple(judged.score for judged in judgement.scores),
                "targets",
                _by_target,
                "score",
                "target",
                ".2f",
                (-1.0, 1.0),
            ),
            table(
                "chosen_leave_one_out",
                Column("target"),
                Column("score the others recommend", "score"),
                Column("regret@1", "regret_1", ".4f"),
                Column("weighted tau", "weighted_tau", ".3f"),
            ),
        ),
    )


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _interval(summary: Summary) -> str:
    if summary.low is None or summary.high is None:
        return _shown(summary.value)
    return f"{_shown(summary.value)} ({summary.low:.3f} to {summary.high:.3f})"
