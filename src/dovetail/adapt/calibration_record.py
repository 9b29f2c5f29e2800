"""How honest a classifier's confidence or a regressor's error bars are, kept and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.core.records import Record
from dovetail.core.views import Cell, Figure, Series, Table, Text, View
from dovetail.measure.calibration import (
    Bin,
    Scheme,
    brier,
    doubles,
    ece_by_luck,
    expected_calibration_error,
    nll,
    overconfidence,
    reliability,
)
from dovetail.measure.evaluate import number_measures
from dovetail.measure.intervals import (
    LEVELS,
    Covered,
    coverage_curve,
    crps,
    gaussian_nll,
    share_interval,
)


@dataclass(frozen=True, kw_only=True)
class Calibration(Record, kind="calibration"):
    """A classifier's probabilities on one split of a task, held against the labels.

    ``ece_by_luck`` and ``ece_by_luck_high`` are the mean and the 95 % quantile of the error that a
    calibrated classifier of the same confidences shows on so many examples.

    >>> calibration_of([[0.25, 0.75]] * 4, [1, 1, 1, 0], method="probe", task="digits")
    Calibration('probe' on 'digits' test: ece 0.000, sure 75.0%, right 75.0%, n 4)
    """

    method: str
    task: str
    split: str
    n: int
    accuracy: float
    nll: float
    brier: float
    ece: float
    ece_by_luck: float
    ece_by_luck_high: float
    overconfidence: float
    temperature: float | None
    bins: tuple[Bin, ...]

    @property
    def confidence(self) -> float:
        """The mean probability of the answers given."""
        return self.accuracy + self.overconfidence

    @property
    def consistent(self) -> bool:
        """Whether an error of this size may be luck."""
        return self.ece <= self.ece_by_luck_high

    @property
    def title(self) -> str:
        """Whose probabilities, on which task."""
        return f"Calibration of {self.method} on {self.task}"

    @property
    def summary(self) -> str:
        """The finding in two sentences."""
        points = 100 * self.overconfidence
        way = f"{'over' if points > 0 else 'under'}-confident by {abs(points):.1f} points"
        verdict = (
            "which luck alone may give"
            if self.consistent
            else f"more than luck gives in 95 of 100 draws ({self.ece_by_luck_high:.3f})"
        )
        return (
            f"{self.n} examples of the {self.split} split: sure of {self.confidence:.1%}, right in "
            f"{self.accuracy:.1%}: {way}. The calibration error is {self.ece:.3f}, {verdict}; "
            f"a calibrated classifier would show {self.ece_by_luck:.3f} on average."
        )

    def view(self) -> View:
        """The finding, the measures, the reliability diagram, and where the examples lie."""
        blocks: View = (Text(self.summary), self._table(), self._diagram())
        # Bins of equal mass hold the same share each: bars would say nothing.
        return blocks if self.settings.get("scheme") == "mass" else (*blocks, self._shares())

    def _table(self) -> Table:
        rows: tuple[tuple[Cell, ...], ...] = (
            ("accuracy", self.accuracy),
            ("mean confidence", self.confidence),
            ("over-confidence", self.overconfidence),
            ("negative log-likelihood (nats)", self.nll),
            ("Brier score (0 to 2)", self.brier),
            ("expected calibration error", self.ece),
            ("the same by luck", self.ece_by_luck),
            ("temperature", self.temperature),
        )
        return Table(("measure", "value"), rows, formats=("", ".4f"))

    def _diagram(self) -> Figure:
        used = [each for each in self.bins if each.count]
        bounds = [share_interval(round((b.accuracy or 0.0) * b.count), b.count) for b in used]
        series = Series(
            "accuracy, with its 95 % interval",
            tuple(each.confidence or 0.0 for each in used),
            tuple(each.accuracy for each in used),
            tuple(low for low, _ in bounds),
            tuple(high for _, high in bounds),
        )
        return _against_the_diagonal(
            "Reliability: below the diagonal is over-confident", series, "confidence", "accuracy"
        )

    def _shares(self) -> Figure:
        series = Series(
            "examples",
            tuple(f"{each.low:.2f}–{each.high:.2f}" for each in self.bins),
            tuple(each.count / self.n for each in self.bins),
        )
        title = "How sure the answers are"
        return Figure("bar", title, (series,), "confidence", "share of the examples", ".0%")

    def __repr__(self) -> str:
        return (
            f"Calibration({self.method!r} on {self.task!r} {self.split}: ece {self.ece:.3f}, "
            f"sure {self.confidence:.1%}, right {self.accuracy:.1%}, n {self.n})"
        )


@dataclass(frozen=True, kw_only=True)
class Coverage(Record, kind="coverage"):
    """A regressor's Gaussian error bars on one split of a task, held against the observations.

    >>> coverage_of([0.0] * 4, [1.0] * 4, [0.1, -0.4, 1.0, 2.0], method="probe", task="waves")
    Coverage('probe' on 'waves' test: 90% intervals hold 75.0%, rmse 1.137, n 4)
    """

    method: str
    task: str
    split: str
    n: int
    rmse: float
    nll: float
    crps: float
    curve: tuple[Covered, ...]

    @property
    def levels(self) -> tuple[float, ...]:
        """The nominal levels."""
        return tuple(each.level for each in self.curve)

    @property
    def covered(self) -> tuple[float, ...]:
        """The share of observations inside, for each level."""
        return tuple(each.share for each in self.curve)

    @property
    def error(self) -> float:
        """The mean distance of the shares from their levels."""
        return sum(abs(each.share - each.level) for each in self.curve) / len(self.curve)

    @property
    def main(self) -> Covered:
        """What is reported in a sentence: the level nearest to 90 %."""
        return min(self.curve, key=lambda each: abs(each.level - 0.9))

    @property
    def title(self) -> str:
        """Whose error bars, on which task."""
        return f"Coverage of {self.method} on {self.task}"

    @property
    def summary(self) -> str:
        """The finding in a sentence."""
        main = self.main
        if main.consistent:
            verdict = "as they should, but for luck"
        else:
            verdict = "too few" if main.share < main.level else "more than they claim"
        return (
            f"{self.n} observations of the {self.split} split: {main.level:.0%} intervals hold "
            f"{main.share:.1%} ({main.low:.1%} to {main.high:.1%}), {verdict}. Their mean width is "
            f"{main.width:.3g}, the root mean squared error {self.rmse:.3g}."
        )

    def view(self) -> View:
        """The finding, the measures, the levels, and the curve of observed over nominal."""
        rows: tuple[tuple[Cell, ...], ...] = (
            ("root mean squared error", self.rmse),
            ("negative log-likelihood (nats)", self.nll),
            ("CRPS", self.crps),
            ("mean distance from the levels", self.error),
        )
        levels: tuple[tuple[Cell, ...], ...] = tuple(
            (each.level, each.share, f"{each.low:.1%} to {each.high:.1%}", each.width)
            for each in self.curve
        )
        return (
            Text(self.summary),
            Table(("measure", "value"), rows, formats=("", ".4g")),
            self._diagram(),
            Table(
                ("level", "observed", "95 % interval", "mean width"),
                levels,
                formats=(".0%", ".1%", "", ".4g"),
            ),
        )

    def _diagram(self) -> Figure:
        curve = sorted(self.curve, key=lambda each: each.level)
        series = Series(
            "observed, with its 95 % interval",
            tuple(each.level for each in curve),
            tuple(each.share for each in curve),
            tuple(each.low for each in curve),
            tuple(each.high for each in curve),
        )
        return _against_the_diagonal(
            "Coverage: below the diagonal is over-confident", series, "level", "share inside"
        )

    def __repr__(self) -> str:
        return (
            f"Coverage({self.method!r} on {self.task!r} {self.split}: {self.main.level:.0%} "
            f"intervals hold {self.main.share:.1%}, rmse {self.rmse:.4g}, n {self.n})"
        )


def calibration_of(
    probs: Any,
    labels: Any,
    *,
    method: str,
    task: str,
    split: str = "test",
    temperature: float | None = None,
    bins: int = 15,
    scheme: Scheme = "width",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Calibration:
    """Hold probabilities ``[n, c]`` against class indices ``[n]``.

    ``temperature`` only says what the probabilities were made with; ``settings`` are kept beside
    those of the bins.

    >>> found = calibration_of([[0.1, 0.9]] * 3, [1, 1, 0], method="probe", task="digits", bins=5)
    >>> round(found.overconfidence, 3), found.bins[-1].count, found.settings["bins"]
    (0.233, 3, 5)
    """
    diagram = reliability(probs, labels, bins, scheme=scheme)
    n = sum(each.count for each in diagram)
    luck, luck_high = ece_by_luck(probs, bins, scheme=scheme, seed=seed)
    return Calibration(
        method=method,
        task=task,
        split=split,
        n=n,
        accuracy=sum(each.count * (each.accuracy or 0.0) for each in diagram) / n,
        nll=nll(probs, labels),
        brier=brier(probs, labels),
        ece=expected_calibration_error(probs, labels, bins, scheme=scheme),
        ece_by_luck=luck,
        ece_by_luck_high=luck_high,
        overconfidence=overconfidence(probs, labels),
        temperature=temperature,
        bins=diagram,
        settings={"bins": bins, "scheme": scheme, "seed": seed, **(settings or {})},
    )


def coverage_of(
    mean: Any,
    std: Any,
    y: Any,
    *,
    method: str,
    task: str,
    split: str = "test",
    levels: Sequence[float] = LEVELS,
    settings: Mapping[str, Any] | None = None,
) -> Coverage:
    """Hold means and standard deviations (of observations, noise included) against observations.

    All three are ``[n]`` or ``[n, o]``.

    >>> found = coverage_of([0.0, 0.0], [1.0, 1.0], [0.5, 2.0], method="probe", task="waves")
    >>> found.levels[4], found.covered[4]
    (0.5, 0.5)
    """
    curve = coverage_curve(mean, std, y, levels)
    observed = doubles(y)
    return Coverage(
        method=method,
        task=task,
        split=split,
        n=len(observed),
        rmse=number_measures(doubles(mean), observed)["rmse"],
        nll=gaussian_nll(mean, std, y),
        crps=crps(mean, std, y),
        curve=curve,
        settings=dict(settings or {}),
    )


def _against_the_diagonal(title: str, series: Series, x_label: str, y_label: str) -> Figure:
    diagonal = Series("if it were calibrated", (0.0, 1.0), (0.0, 1.0))
    return Figure("line", title, (series, diagonal), x_label, y_label, ".0%")
