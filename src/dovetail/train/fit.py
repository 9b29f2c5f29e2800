"""What a trainer returns: new parts, and the record of how they came about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dovetail.core.declared import Column, Shown, curves, measures, of_each, table, text, when
from dovetail.core.records import Record
from dovetail.parts.part import Part

Row = dict[str, float]

WATCHED = "validation loss"
"""The measure that decides which epoch is the best."""

_MEASURES = ("validation accuracy", "validation r2")


def best_epoch(rows: Sequence[Row]) -> int:
    """Where the validation loss is lowest: the first of equals, and never a NaN.

    >>> best_epoch([{WATCHED: 0.5}, {WATCHED: 0.3}, {WATCHED: float("nan")}, {WATCHED: 0.3}])
    1
    """
    losses = [row.get(WATCHED, math.nan) for row in rows]
    return min(range(len(losses)), key=lambda i: (math.isnan(losses[i]), losses[i]))


def kept_epoch(rows: Sequence[Row], patience: int | None) -> int:
    """Which epoch's weights were kept, counted from 1: with patience the best, else the last.

    >>> rows = [{WATCHED: 0.3}, {WATCHED: 0.5}]
    >>> kept_epoch(rows, patience=3), kept_epoch(rows, patience=None)
    (1, 2)
    """
    watched = patience is not None and WATCHED in rows[-1]
    return best_epoch(rows) + 1 if watched else len(rows)


def named_measures(row: Row, names: Iterable[str]) -> str:
    """Those of the measures that a row has, in words.

    >>> named_measures({"loss": 0.5, "epoch": 3}, ("loss", WATCHED))
    'loss 0.5'
    """
    return ", ".join(f"{name} {row[name]:.4g}" for name in names if name in row)


def sifted_words(rows: Sequence[Row], of: int | None) -> str:
    """What a filter left of the samples, and what it took, in words; nothing without one.

    >>> rows = [{"epoch": 1, "samples": 40}, {"epoch": 2, "samples": 20, "filter seconds": 0.5}]
    >>> sifted_words(rows, 40)
    'The filter left 60 of 80 samples (75%); choosing them took 0.5 s.'
    """
    seen = [row["samples"] for row in rows if "samples" in row]
    if not seen or of is None:
        return ""
    all_, took = of * len(seen), sum(row.get("filter seconds", 0.0) for row in rows)
    return (
        f"The filter left {sum(seen):.0f} of {all_} samples ({sum(seen) / all_:.0%}); choosing "
        f"them took {took:.1f} s."
    )


class History:
    """One loop of a training: a row of measures an epoch; the ``kept`` one counts from 1."""

    rows: tuple[Row, ...]
    kept: int

    @property
    def final(self) -> Row:
        """The row of the epoch whose weights were kept; empty without rows."""
        return self.rows[self.kept - 1] if self.rows else {}

    @property
    def seconds(self) -> float:
        """The time spent in training steps."""
        return sum(row.get("seconds", 0.0) for row in self.rows)

    @property
    def samples(self) -> int | None:
        """How many samples all epochs saw together, where there was a filter."""
        seen = [int(row["samples"]) for row in self.rows if "samples" in row]
        return sum(seen) if seen else None


@dataclass(frozen=True, kw_only=True)
class Training(
    Record,
    History,
    kind="training",
    title="Training {part} on {task}",
    brief="{part} on {task}: {rows!n} epochs, {_reached}",
):
    """How a training went: one row of measures an epoch.

    >>> Training(part="mlp", task="digits", rows=({"epoch": 1, "loss": 0.5},))
    Training(mlp on digits: 1 epochs, loss 0.5)
    """

    part: str
    task: str
    rows: tuple[Row, ...]

    @property
    def kept(self) -> int:  # type: ignore[override]
        """The epoch whose weights were kept, from 1."""
        return kept_epoch(self.rows, self.settings.get("patience"))

    @property
    def _reached(self) -> str:
        return named_measures(self.final, ("loss", WATCHED, *_MEASURES))

    def _measures(self) -> Row:
        left_out = ("epoch", "seconds", "samples", "filter seconds")
        return {name: v for name, v in self.final.items() if name not in left_out}

    @property
    def _sifted(self) -> str:
        return sifted_words(self.rows, self.settings.get("filter_of"))

    shows: ClassVar[tuple[Shown, ...]] = (
        text("{rows!n} epochs in {seconds:.1f} s; the weights of epoch {kept} were kept."),
        text("{_sifted}"),
        measures(_measures),
        curves("Loss", ("loss", WATCHED), log_y=True),
        curves("On the validation split", _MEASURES),
        curves("Samples that the filter left", ("samples",)),
        curves("Sent to the other processes", ("bits a weight",)),
    )


@dataclass(frozen=True)
class ModuleHistory(History):
    """One module's training, and what it was trained towards; one that came frozen has no rows.

    >>> ModuleHistory("module1", "pairwise al", ({"epoch": 1, "proxy": 0.9},)).final["proxy"]
    0.9
    """

    name: str
    objective: str
    rows: tuple[Row, ...] = ()
    kept: int = 1

    @property
    def collapsed(self) -> bool:
        """Whether different examples are on average as near as examples that are alike."""
        same, different = (self.final.get(f"validation k {n}") for n in ("same", "different"))
        return same is not None and different is not None and same - different < 0.02


_SAMPLES = Column(
    "samples", when=lambda training: any(module.samples for module in training.modules)
)


def _reached_by_some(measure: str) -> Column:
    """What each module reached, a column if any has such a measure."""
    return Column(
        measure,
        lambda module: module.final.get(measure),
        ".4g",
        when=lambda training: any(measure in module.final for module in training.modules),
    )


@dataclass(frozen=True, kw_only=True)
class ModularTraining(
    Record,
    kind="modular-training",
    title="Training {part} on {task} in modules",
    brief="{part} on {task} in {modules!n} modules: {_reached}",
):
    """How a training in modules went: a history a module, the output module last.

    >>> head = ModuleHistory("head", "cross-entropy", ({"epoch": 1, "validation accuracy": 0.9},))
    >>> ModularTraining(part="mlp", task="digits", modules=(head,))
    ModularTraining(mlp on digits in 1 modules: validation accuracy 0.9)
    """

    part: str
    task: str
    modules: tuple[ModuleHistory, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, each with the number of its module, from 1."""
        return tuple(
            {"module": number, **row}
            for number, module in enumerate(self.modules, start=1)
            for row in module.rows
        )

    @property
    def final(self) -> Row:
        """What the output module reached, and the proxy of the module before it."""
        trained = [module.final for module in self.modules[:-1] if module.rows]
        proxy = {k: v for k, v in trained[-1].items() if "proxy" in k} if trained else {}
        return {**proxy, **self.modules[-1].final}

    @property
    def seconds(self) -> float:
        """The time spent in training steps."""
        return sum(module.seconds for module in self.modules)

    @property
    def _sifted(self) -> str:
        return sifted_words(self.rows, self.settings.get("filter_of"))

    @property
    def _reached(self) -> str:
        return named_measures(self.final, ("validation proxy", "validation accuracy"))

    shows = (
        text("{modules!n} modules, one after the other, in {seconds:.1f} s."),
        text("{_sifted}"),
        table(
            "modules",
            Column("module", "name"),
            Column("objective"),
            Column("epochs", lambda module: len(module.rows)),
            Column("seconds", spec=".1f"),
            _SAMPLES,
            _reached_by_some("proxy"),
            _reached_by_some("validation proxy"),
            _reached_by_some("validation k same"),
            _reached_by_some("validation k different"),
            _reached_by_some("loss"),
            _reached_by_some(WATCHED),
            _reached_by_some("validation accuracy"),
        ),
        of_each(
            "modules",
            when(
                "collapsed",
                text(
                    "{name} makes all examples alike (mean k of different ones "
                    "{final[validation k different]:.3f}): what follows cannot tell them apart. "
                    "Lower the learning rate, or build the network with a norm.",
                    "warning",
                ),
            ),
        ),
        of_each(
            "modules",
            curves("{name}: {objective}", ("proxy", "validation proxy")),
            curves(
                "{name}: mean kernel on validation",
                ("validation k same", "validation k different"),
                "k",
            ),
            curves("{name}: {objective}", ("loss", WATCHED)),
            curves("{name}: on the validation split", ("validation accuracy",)),
        ),
    )


@dataclass(frozen=True)
class Fit:
    """New parts, and the record of how they came about.

    A training in modules gives the modules, front first; ``whole`` is the network that they make,
    and ``names`` what each is called behind the name of the network.
    """

    parts: tuple[Part, ...]
    record: Record
    whole: Part | None = None
    names: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def part(self) -> Part:
        """The whole network; else the only part, or the first."""
        return self.parts[0] if self.whole is None else self.whole

    @property
    def pieces(self) -> dict[str, Part]:
        """The parts of a network by name: ``module1``, ..., ``head``."""
        return dict(zip(self.names, self.parts, strict=True)) if self.names else {}
