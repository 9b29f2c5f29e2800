"""How a training in modules went."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Cell, Figure, Series, Table, Text, View

__all__ = ["ModularTraining", "ModuleHistory"]

_SHOWN = (
    "proxy",
    "validation proxy",
    "validation k same",
    "validation k different",
    "loss",
    "validation loss",
    "validation accuracy",
)


@dataclass(frozen=True)
class ModuleHistory:
    """One module's training: a row of measures an epoch, and which epoch's weights were kept.

    A module that came frozen has no rows.

    >>> ModuleHistory("module1", "pairwise al", ({"epoch": 1, "proxy": 0.9},)).final["proxy"]
    0.9
    """

    name: str
    objective: str
    rows: tuple[dict[str, float], ...] = ()
    kept: int = 1

    @property
    def final(self) -> dict[str, float]:
        """The row of the epoch whose weights were kept; empty without rows."""
        return self.rows[self.kept - 1] if self.rows else {}

    @property
    def seconds(self) -> float:
        """The time spent in training steps."""
        return sum(row.get("seconds", 0.0) for row in self.rows)

    @property
    def collapsed(self) -> bool:
        """Whether different examples are on average as near as examples that are alike."""
        same, different = (self.final.get(f"validation k {n}") for n in ("same", "different"))
        return same is not None and different is not None and same - different < 0.02

    def figures(self) -> tuple[Figure, ...]:
        """The curves that there are."""
        drawn = (
            (f"{self.name}: {self.objective}", ("proxy", "validation proxy"), ""),
            (
                f"{self.name}: mean kernel on validation",
                ("validation k same", "validation k different"),
                "k",
            ),
            (f"{self.name}: {self.objective}", ("loss", "validation loss"), ""),
            (f"{self.name}: on the validation split", ("validation accuracy",), ""),
        )
        made = (self._curves(title, names, label) for title, names, label in drawn)
        return tuple(figure for figure in made if figure is not None)

    def _curves(self, title: str, names: tuple[str, ...], label: str) -> Figure | None:
        there = [name for name in names if any(name in row for row in self.rows)]
        epochs = tuple(row["epoch"] for row in self.rows)
        series = tuple(Series(n, epochs, tuple(row.get(n) for row in self.rows)) for n in there)
        return Figure("line", title, series, "epoch", label) if series else None


@dataclass(frozen=True, kw_only=True)
class ModularTraining(Record, kind="modular-training"):
    """How a training in modules went: a history a module, the output module last.

    >>> head = ModuleHistory("head", "cross-entropy", ({"epoch": 1, "validation accuracy": 0.9},))
    >>> ModularTraining(part="mlp", task="digits", modules=(head,))
    ModularTraining(mlp on digits in 1 modules: validation accuracy 0.9)
    """

    part: str
    task: str
    modules: tuple[ModuleHistory, ...]

    @property
    def title(self) -> str:
        """What was trained on what."""
        return f"Training {self.part} on {self.task} in modules"

    @property
    def rows(self) -> tuple[dict[str, float], ...]:
        """All rows, each with the number of its module, from 1."""
        return tuple(
            {"module": number, **row}
            for number, module in enumerate(self.modules, start=1)
            for row in module.rows
        )

    @property
    def final(self) -> dict[str, float]:
        """What the output module reached, and the proxy of the module before it."""
        trained = [module.final for module in self.modules[:-1] if module.rows]
        proxy = {k: v for k, v in trained[-1].items() if "proxy" in k} if trained else {}
        return {**proxy, **self.modules[-1].final}

    @property
    def seconds(self) -> float:
        """The time spent in training steps."""
        return sum(module.seconds for module in self.modules)

    def view(self) -> View:
        """A line a module, and its curves."""
        names = [n for n in _SHOWN if any(n in module.final for module in self.modules)]
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (
                module.name,
                module.objective,
                len(module.rows),
                module.seconds,
                *(module.final.get(name) for name in names),
            )
            for module in self.modules
        )
        return (
            Text(f"{len(self.modules)} modules, one after the other, in {self.seconds:.1f} s."),
            Table(
                ("module", "objective", "epochs", "seconds", *names),
                rows,
                ("", "", "", ".1f", *(".4g" for _ in names)),
            ),
            *(_collapse(module) for module in self.modules if module.collapsed),
            *(figure for module in self.modules for figure in module.figures()),
        )

    def __repr__(self) -> str:
        shown = ("validation proxy", "validation accuracy")
        said = ", ".join(f"{name} {self.final[name]:.4g}" for name in shown if name in self.final)
        where = f"{self.part} on {self.task}"
        return f"ModularTraining({where} in {len(self.modules)} modules: {said})"


def _collapse(module: ModuleHistory) -> Text:
    return Text(
        f"{module.name} makes all examples alike (mean k of different ones "
        f"{module.final['validation k different']:.3f}): what follows cannot tell them apart. "
        "Lower the learning rate, or build the network with a norm.",
        style="warning",
    )
