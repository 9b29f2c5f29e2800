"""Runs from scratch, on frozen sources and fine-tuned, side by side: what a study found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev

from scipy.stats import spearmanr

from dovetail.core.declared import text, when
from dovetail.core.errors import SettingsError, nearest
from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, View
from dovetail.core.words import counted, listed

SCRATCH, FROZEN, FINE_TUNED = "scratch", "frozen", "fine-tuned"

_EPOCH = re.compile(r"(?:.*\D)?epoch[ _-]?0*(\d+)", re.IGNORECASE)
_FEWEST = 4
"""Points that a rank correlation is said of."""


@dataclass(frozen=True)
class TransferRun:
    """One training on the target.

    Errors are shares of mistakes, or 1 - R² of numbers; ``errors`` on validation, ``losses`` and
    ``deviations`` are epoch by epoch, ``layers`` the deviation of each layer at the end.
    """

    source: str
    way: str
    seed: int
    train_error: float
    test_error: float
    deviation: float
    layers: dict[str, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    errors: tuple[float | None, ...] = ()
    deviations: tuple[float | None, ...] = ()
    seconds: float = 0.0

    @property
    def generalisation(self) -> float:
        """How much larger the error is on examples that it has not seen."""
        return self.test_error - self.train_error

    def first_below(self, threshold: float) -> int | None:
        """The first epoch whose validation error is no larger, if there is one.

        >>> TransferRun("a", "frozen", 0, 0.0, 0.1, 1.0, errors=(0.5, 0.2, 0.1)).first_below(0.2)
        2
        """
        along = enumerate(self.errors, start=1)
        return next((n for n, error in along if error is not None and error <= threshold), None)


@dataclass(frozen=True)
class StudyRow:
    """Means over the seeds of one source and way; ``spread`` and such are standard deviations."""

    source: str
    way: str
    runs: int
    train_error: float
    test_error: float
    spread: float | None
    generalisation: float
    deviation: float
    deviation_spread: float | None
    improvement: float | None
    epochs: float | None
    reached: int
    seconds: float
    layers: dict[str, float]

    @property
    def name(self) -> str:
        """Both in one line."""
        return f"{self.source}, {self.way}" if self.source else self.way


@dataclass(frozen=True, kw_only=True)
class TransferStudy(
    Record,
    kind="transfer-study",
    title="Is transfer to {target} feasible?",
    brief="{sources!n} sources to {target}, {runs!n} runs: {_best}",
):
    """Trainings on a target in several ways, from several sources, over seeds.

    ``threshold`` is the validation error that counts as converged, if said; ``measured`` what each
    source reached on its own task, where that is known; ``stopped`` the run that was interrupted.

    >>> runs = (
    ...     TransferRun("", SCRATCH, 0, 0.0, 0.4, 3.0),
    ...     TransferRun("a", FINE_TUNED, 0, 0.0, 0.1, 1.0),
    ... )
    >>> study = TransferStudy(target="b", sources=("a",), n=100, runs=runs)
    >>> study.row("a", "fine-tuned").improvement
    0.75
    >>> study.summary
    'Fine-tuning from a leaves 10.0 % error on b, 75 % less than the 40.0 % from scratch.'
    """

    target: str
    sources: tuple[str, ...]
    n: int
    runs: tuple[TransferRun, ...]
    threshold: float | None = None
    measured: dict[str, float | None] = field(default_factory=dict)
    stopped: str = ""

    @cached_property
    def rows(self) -> tuple[StudyRow, ...]:
        """Means over seeds: scratch first, then source by source."""
        groups: dict[tuple[str, str], list[TransferRun]] = {}
        for run in self.runs:
            groups.setdefault((run.source, run.way), []).append(run)
        order = {name: place for place, name in enumerate(self.sources)}
        keys = sorted(groups, key=lambda key: (key[1] != SCRATCH, order.get(key[0], -1)))
        return tuple(self._row(groups[key]) for key in keys)

    def _row(self, runs: list[TransferRun]) -> StudyRow:
        first = runs[0]
        base, limit = self.scratch_error, self.converged_at
        error = fmean(run.test_error for run in runs)
        better = None if base is None or base == 0 or first.way == SCRATCH else 1 - error / base
        firsts = [] if limit is None else [run.first_below(limit) for run in runs]
        epochs = [epoch for epoch in firsts if epoch is not None]
        return StudyRow(
            source=first.source,
            way=first.way,
            runs=len(runs),
            train_error=fmean(run.train_error for run in runs),
            test_error=error,
            spread=_spread([run.test_error for run in runs]),
            generalisation=fmean(run.generalisation for run in runs),
            deviation=fmean(run.deviation for run in runs),
            deviation_spread=_spread([run.deviation for run in runs]),
            improvement=better,
            epochs=fmean(epochs) if epochs and len(epochs) == len(runs) else None,
            reached=len(epochs),
            seconds=fmean(run.seconds for run in runs),
            layers={
                name: fmean(run.layers.get(name, 0.0) for run in runs) for name in first.layers
            },
        )

    def row(self, source: str, way: str) -> StudyRow:
        """Of one source and way; the source of scratch is ``""`` where it is one network."""
        for row in self.rows:
            if (row.source, row.way) == (source, way):
                return row
        words = [row.name for row in self.rows]
        raise SettingsError(f"not in the study{nearest(f'{source}, {way}', words)}")

    @cached_property
    def scratch_error(self) -> float | None:
        """The mean test error from scratch, if there were such runs."""
        errors = [run.test_error for run in self.runs if run.way == SCRATCH]
        return fmean(errors) if errors else None

    @cached_property
    def converged_at(self) -> float | None:
        """The validation error whose first epoch is the speed of a run."""
        if self.threshold is not None:
            return self.threshold
        ends = [run.errors[-1] for run in self.runs if run.way == SCRATCH and run.errors]
        known = [end for end in ends if end is not None]
        return fmean(known) if known else None

    def correlation(self, way: str = FINE_TUNED, of: str = "test_error") -> float | None:
        """Spearman's, of deviation and error over the sources of one way; None of fewer than four.

        ``of`` may be ``"generalisation"`` as well: the error less that on training examples.
        """
        rows = [row for row in self.rows if row.way == way]
        moved, wrong = [row.deviation for row in rows], [getattr(row, of) for row in rows]
        if len(rows) < _FEWEST or min(len(set(moved)), len(set(wrong))) < 2:
            return None
        return float(spearmanr(moved, wrong)[0])

    @property
    def best(self) -> StudyRow:
        """The transfer with the least test error."""
        moved = [row for row in self.rows if row.way != SCRATCH] or list(self.rows)
        return min(moved, key=lambda row: row.test_error)

    @property
    def summary(self) -> str:
        """Whether transfer helped, and by how much."""
        best, base = self.best, self.scratch_error
        if best.way == SCRATCH:
            return f"From scratch {_share(best.test_error)} error is left on {self.target}."
        verb = "Fine-tuning from" if best.way == FINE_TUNED else "A head on the frozen"
        said = f"{verb} {best.source} leaves {_share(best.test_error)} error on {self.target}"
        if base is None:
            return f"{said}."
        if best.improvement is not None and best.improvement > 0:
            said += f", {best.improvement:.0%}".replace("%", " %")
            said += f" less than the {_share(base)} from scratch"
        else:
            said += f"; from scratch it is {_share(base)}: no source helps"
        if best.epochs is not None:
            said += f", and is as good as that after {counted(round(best.epochs), 'epoch')}"
        useless = [
            row.source
            for row in self.rows
            if row.way == best.way and row is not best and (row.improvement or 0) <= 0
        ]
        none = f" No gain from {listed(useless, 3)}." if useless and said.count(";") == 0 else ""
        return f"{said}.{none}"

    @property
    def _best(self) -> str:
        return f"{self.best.name} {self.best.test_error:.3f}"

    @property
    def _related(self) -> str:
        """What the ranks of deviations say of the errors."""
        known = {way: self.correlation(way) for way in (FINE_TUNED, FROZEN)}
        said = [f"{value:+.2f} {way}" for way, value in known.items() if value is not None]
        if not said:
            return ""
        return (
            f"Rank correlation of deviation and test error over sources: {', '.join(said)}; near "
            "+1 if weights that stay closer generalise better."
        )

    @property
    def _interrupted(self) -> str:
        return (
            f"Interrupted at {self.stopped}; the runs before it are shown." if self.stopped else ""
        )

    def _table(self) -> Table:
        limit = self.converged_at
        speed = "epochs to converge" if limit is None else f"epochs to {_share(limit)}"
        columns = (
            *("source", "way", "runs", "training error", "test error", "±", "less than scratch"),
            *("deviation", "±", speed, "seconds"),
        )
        cells = tuple(
            (
                *(row.source or "–", row.way, row.runs, row.train_error, row.test_error),
                *(row.spread, row.improvement, row.deviation, row.deviation_spread),
                *(row.epochs, row.seconds),
            )
            for row in self.rows
        )
        formats = ("", "", "d", ".1%", ".1%", ".1%", ".0%", ".3g", ".2g", ".1f", ".1f")
        caption = "Means over seeds, with their standard deviations; errors of the kept weights"
        return Table(columns, cells, formats, caption)

    def _errors(self) -> Figure:
        series = []
        for way in (SCRATCH, FROZEN, FINE_TUNED):
            rows = [row for row in self.rows if row.way == way]
            names = tuple(row.source or "no source" for row in rows)
            if rows:
                series.append(Series(way, names, tuple(row.test_error for row in rows)))
        return Figure("bar", "Test error", tuple(series), "source", "error", ".0%")

    def _curves(self) -> View:
        """Validation error and deviation while it learns, a line a source and way."""
        speed = self._along("errors")
        moves = self._along("deviations")
        return tuple(
            Figure("line", title, lines, "epoch", label, spec)
            for title, lines, label, spec in (
                ("Validation error", speed, "error", ".0%"),
                ("How far the weights have moved", moves, "deviation", ""),
            )
            if lines
        )

    def _along(self, of: str) -> tuple[Series, ...]:
        lines = []
        for row in self.rows:
            runs = [run for run in self.runs if (run.source, run.way) == (row.source, row.way)]
            curves = [getattr(run, of) for run in runs]
            length = min((len(curve) for curve in curves), default=0)
            columns = ([curve[i] for curve in curves] for i in range(length))
            means = tuple(None if None in column else fmean(column) for column in columns)
            if any(value is not None for value in means):
                lines.append(Series(row.name, tuple(range(1, length + 1)), means))
        return tuple(lines)

    def _layers(self) -> Figure | None:
        """The deviation of each layer, fine-tuned, a bar a source (and scratch)."""
        rows = [row for row in self.rows if row.way != FROZEN and row.layers]
        if not rows or len(rows[0].layers) > 12:
            return None
        series = tuple(Series(r.name, tuple(r.layers), tuple(r.layers.values())) for r in rows)
        return Figure("bar", "Deviation of each layer", series, "layer", "deviation")

    def _cloud(self) -> Figure | None:
        """Deviation against error, a point a run."""
        series = []
        for way in (SCRATCH, FROZEN, FINE_TUNED):
            runs = [run for run in self.runs if run.way == way]
            if runs:
                x = tuple(run.deviation for run in runs)
                series.append(Series(way, x, tuple(run.test_error for run in runs)))
        title = "Error against deviation, a point a run"
        return Figure("scatter", title, tuple(series), "deviation", "test error", ".0%")

    def _epochs(self) -> View:
        """Along the epochs of the source, where the sources are one network's."""
        found = {name: _EPOCH.fullmatch(name) for name in self.sources}
        if len(found) < 3 or not all(found.values()):
            return ()
        number = {name: int(match[1]) for name, match in found.items() if match}
        series = []
        for way in (FROZEN, FINE_TUNED):
            rows = sorted((number[r.source], r.test_error) for r in self.rows if r.way == way)
            if rows:
                along, errors = zip(*rows, strict=True)
                series.append(Series(way, along, tuple(1 - error for error in errors)))
        if self.scratch_error is not None and series:
            flat = tuple(1 - self.scratch_error for _ in series[0].x)
            series.append(Series(SCRATCH, series[0].x, flat))
        own = sorted((number[name], value) for name, value in self.measured.items() if value)
        if len(own) == len(found):
            epochs, reached = zip(*own, strict=True)
            series.append(Series("the source's own task", epochs, reached))
        title = "Accuracy on the target, by the epoch of the source"
        return (Figure("line", title, tuple(series), "epoch of the source", "accuracy", ".0%"),)

    shows = (
        text("{summary}"),
        text("{_interrupted}", "warning"),
        _table,
        text("{_related}", "note"),
        _epochs,
        _errors,
        _curves,
        _layers,
        when(lambda study: len(study.runs) > 2, _cloud),
    )


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _share(value: float) -> str:
    """A share for a sentence.

    >>> _share(0.125)
    '12.5 %'
    """
    return f"{100 * value:.1f} %"
