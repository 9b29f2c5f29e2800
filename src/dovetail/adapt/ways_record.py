"""What came of adapting a part to few labels in several ways, kept and shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import fmean, stdev

from dovetail.core.records import Record
from dovetail.core.views import Block, Cell, Figure, Series, Table, Text, View

COLUMNS = {
    "accuracy": ("accuracy", ".1%"),
    "rmse": ("RMSE", ".3g"),
    "nll": ("log loss", ".3f"),
    "ece": ("ECE", ".3f"),
    "brier": ("Brier", ".3f"),
    "coverage": ("in 90 % intervals", ".1%"),
}
"""How measures are called and shown, in this order."""


@dataclass(frozen=True)
class Trial:
    """One way, one draw of labels: what it reached on the test split, and in which time.

    ``labels`` is how many a class, or of numbers how many in all; of all labels, how many the
    largest class has.  ``n`` is how many in all.
    ``chosen`` is what a way that had a choice took, and ``why`` says the reason.
    """

    how: str
    labels: int
    n: int
    seed: int
    measures: dict[str, float]
    fit_seconds: float
    predict_seconds: float
    temperature: float | None = None
    chosen: str = ""
    why: str = ""


@dataclass(frozen=True)
class Curve:
    """The reliability of one way: how sure, and how often right, of examples equally many."""

    how: str
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Band:
    """What one way predicts along the only input; without bounds where it tells none."""

    how: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Adaptation(Record, kind="adaptation"):
    """Ways to adapt one part to few labels of one task, measured on its test split.

    ``curves`` and ``bands`` are of the most labels and the first draw, as are ``points``: the
    labels that the bands were fitted to.

    >>> trials = tuple(
    ...     Trial(how, 10, 50, seed, {"accuracy": right + seed / 50}, 0.1, 0.1)
    ...     for how, right in {"linearized": 0.9, "probe": 0.8}.items()
    ...     for seed in (0, 1)
    ... )
    >>> Adaptation(part="lenet", task="digits", n=180, trials=trials).summary
    'With 10 labels a class, 2 draws: linearized reaches 91.0%, probe 81.0%.'
    """

    part: str
    task: str
    n: int
    trials: tuple[Trial, ...]
    curves: tuple[Curve, ...] = ()
    bands: tuple[Band, ...] = ()
    points: tuple[tuple[float, float], ...] = ()

    @property
    def title(self) -> str:
        """What was adapted to what."""
        return f"Adapting {self.part} to {self.task}"

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """In the order they were asked for."""
        return tuple(dict.fromkeys(trial.how for trial in self.trials))

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """How many a class (of numbers: in all), ascending."""
        return tuple(sorted({trial.labels for trial in self.trials}))

    @property
    def main(self) -> str:
        """The measure that tells ways apart: accuracy, or of numbers the error."""
        return "accuracy" if "accuracy" in self.trials[0].measures else "rmse"

    @cached_property
    def draws(self) -> int:
        """Of labels, each with a seed of its own."""
        return len({trial.seed for trial in self.trials})

    @property
    def summary(self) -> str:
        """The finding in a sentence."""
        most, (_, spec) = self.labels[-1], COLUMNS[self.main]
        there = [how for how in self.ways if self._of(how, most)]
        said = [f"{how} {self.mean(how, most, self.main):{spec}}" for how in there]
        words = "reaches" if self.main == "accuracy" else "errs by"
        first = said[0].replace(" ", f" {words} ", 1)
        draws = f", {self.draws} draws" if self.draws > 1 else ""
        noun = "label" if most == 1 else "labels"
        per = f"{most} {noun}{' a class' if self.main == 'accuracy' else ''}"
        if self._called(most) == "all":
            per, draws = "all labels", ""
        return f"With {per}{draws}: {', '.join([first, *said[1:]])}."

    def mean(self, how: str, labels: int, measure: str) -> float:
        """Of a measure, over the draws."""
        return fmean(trial.measures[measure] for trial in self._of(how, labels))

    def view(self) -> View:
        """The finding, the table, and what there is to draw."""
        blocks: list[Block] = [Text(self.summary), self._table()]
        if len(self.labels) > 1:
            blocks.append(self._by_labels())
        if len(self.labels) > 1 or self.draws > 1:
            blocks.append(self._by_seconds())
        if self.curves:
            blocks.append(self._reliability())
        blocks += [self._band(band) for band in self.bands]
        blocks.append(self._note())
        return tuple(blocks)

    def brief(self) -> View:
        """The table, and how it grows with labels: what a terminal shows well."""
        grown = (self._by_labels(),) if len(self.labels) > 1 else ()
        return (self._table(), *grown, self._note())

    def _called(self, labels: int) -> Cell:
        """The number, or the word for all of them."""
        return "all" if labels == self.settings.get("all") else labels

    def _of(self, how: str, labels: int) -> list[Trial]:
        return self._groups.get((how, labels), [])

    @cached_property
    def _groups(self) -> dict[tuple[str, int], list[Trial]]:
        groups: dict[tuple[str, int], list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault((trial.how, trial.labels), []).append(trial)
        return groups

    def _table(self) -> Table:
        known = {name for trial in self.trials for name in trial.measures}
        measures = [name for name in COLUMNS if name in known]
        spread = self.draws > 1
        per = "labels a class" if self.main == "accuracy" else "labels"
        columns, formats = [per, "way"], ["", ""]
        for name in measures:
            words, spec = COLUMNS[name]
            columns.append(words)
            formats.append(spec)
            if spread and name == self.main:
                columns.append("±")
                formats.append(spec)
        rows = []
        for labels in self.labels:
            for how in self.ways:
                if not (trials := self._of(how, labels)):
                    continue  # it was stopped before
                row: list[Cell] = [self._called(labels), how]
                for name in measures:
                    values = [t.measures[name] for t in trials if name in t.measures]
                    row.append(fmean(values) if values else None)
                    if spread and name == self.main:
                        row.append(stdev(values) if len(values) > 1 else None)
                row += [
                    fmean(t.fit_seconds for t in trials),
                    fmean(t.predict_seconds for t in trials),
                ]
                rows.append(tuple(row))
        return Table((*columns, "fit, s", "predict, s"), tuple(rows), (*formats, ".2f", ".2f"))

    def _by_labels(self) -> Figure:
        words, spec = self._axis()
        lines = []
        for how in self.ways:
            there = [labels for labels in self.labels if self._of(how, labels)]
            bounded = [self._bounds(how, labels) for labels in there]
            lines.append(_bounded(how, [float(k) for k in there], bounded, self.draws))
        per = "labels a class" if self.main == "accuracy" else "labels"
        title = f"{words[0].upper()}{words[1:]} by the number of labels{self._spread_words()}"
        return Figure("line", title, tuple(lines), per, words, spec, log_x=True)

    def _by_seconds(self) -> Figure:
        words, spec = self._axis()
        clouds = []
        for how in self.ways:
            there = [labels for labels in self.labels if self._of(how, labels)]
            seconds = [fmean(t.fit_seconds for t in self._of(how, labels)) for labels in there]
            bounded = [self._bounds(how, labels) for labels in there]
            clouds.append(_bounded(how, seconds, bounded, self.draws))
        title = f"{words[0].upper()}{words[1:]} by the time to fit{self._spread_words()}"
        return Figure("scatter", title, tuple(clouds), "seconds", words, spec, log_x=True)

    def _reliability(self) -> Figure:
        lines = [Series(curve.how, curve.confidence, curve.accuracy) for curve in self.curves]
        diagonal = Series("if it were calibrated", (0.0, 1.0), (0.0, 1.0))
        most = self._called(self.labels[-1])
        per = "all labels" if most == "all" else f"{most} labels a class"
        title = f"Reliability with {per}: below is over-confident"
        return Figure("line", title, (*lines, diagonal), "confidence", "accuracy", ".0%")

    def _band(self, band: Band) -> Figure:
        name = f"{band.how}, with its 90 % band" if band.low else band.how
        mean = Series(name, band.x, band.mean, band.low, band.high)
        data = Series(
            "labels",
            tuple(x for x, _ in self.points),
            tuple(y for _, y in self.points),
            points=True,
        )
        return Figure("line", f"What {band.how} predicts", (mean, data), "input", "target")

    def _note(self) -> Text:
        chosen = self.settings.get("temperature") == "validation"
        beside = ", and the temperature to the validation split" if chosen else ""
        spread = f", ± one deviation over {self.draws} draws of labels" if self.draws > 1 else ""
        return Text(
            f"Each way was fitted to the same labels of the training split{beside}, and measured "
            f"on {self.n} examples of the test split{spread}.{self._taken()}{self._not_beaten()}"
            f"{self._stopped()}",
            style="note",
        )

    def _stopped(self) -> str:
        stopped = self.settings.get("stopped")
        return f" Stopped at {stopped}: what follows was not fitted." if stopped else ""

    def _taken(self) -> str:
        """What the ways that had a choice took, and how often."""
        taken = {how: Counter(t.chosen for t in self.trials if t.how == how) for how in self.ways}
        words = [
            f"{how} took {', '.join(f'{word} ({times})' for word, times in counts.most_common())}"
            for how, counts in taken.items()
            if any(counts) and "" not in counts
        ]
        return f" Of what they could take, {'; '.join(words)}." if words else ""

    def _not_beaten(self) -> str:
        """Which ways are not above the probe, with the most labels."""
        if "probe" not in self.ways or self.main != "accuracy":
            return ""
        most = self.labels[-1]
        there = [how for how in self.ways if self._of(how, most)]
        if "probe" not in there:
            return ""
        floor = self.mean("probe", most, "accuracy")
        below = [w for w in there if w != "probe" and self.mean(w, most, "accuracy") <= floor]
        return (
            f" The probe, which costs least, is not beaten by {', '.join(below)}." if below else ""
        )

    def _axis(self) -> tuple[str, str]:
        words, spec = COLUMNS[self.main]
        return words, ".0%" if self.main == "accuracy" else spec

    def _spread_words(self) -> str:
        return f", ± one deviation over {self.draws} draws" if self.draws > 1 else ""

    def _bounds(self, how: str, labels: int) -> tuple[float, float, float]:
        values = [trial.measures[self.main] for trial in self._of(how, labels)]
        middle, spread = fmean(values), stdev(values) if len(values) > 1 else 0.0
        most = 1.0 if self.main == "accuracy" else inf
        return max(middle - spread, 0.0), middle, min(middle + spread, most)

    def __repr__(self) -> str:
        return f"Adaptation({self.part!r} to {self.task!r}: {self.summary})"


def _bounded(
    name: str, x: Sequence[float], bounds: Sequence[tuple[float, float, float]], draws: int
) -> Series:
    """A series of means, with bounds where there were several draws."""
    low, middle, high = zip(*bounds, strict=True)
    return Series(name, tuple(x), middle, *((low, high) if draws > 1 else ()))
