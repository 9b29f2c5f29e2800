"""How a head came to know more classes, and what it is worth behind each extractor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import Record
from dovetail.core.views import Cell, Figure, Series, Table, Text, View
from dovetail.measure.joined import accuracy, answers
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part, parts_by_name
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Split, Task
from dovetail.train.fit import Fit
from dovetail.train.fitting.record import OWN, Stage

__all__ = [
    "ClassExtension",
    "ExtensionFit",
    "ExtensionJudgement",
    "Shares",
    "judge_extension",
    "shares",
]


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


def judge_extension(
    fronts: Mapping[str, Part] | Sequence[Part],
    old_head: Part,
    new_head: Part,
    task: Task,
    *,
    norms: Norms = "batch",
    split: Split = "test",
    seed: int = 0,
) -> ExtensionJudgement:
    """Measure every extractor with the new head, on images of all, old and new classes.

    Beside it stands what the old head reaches on images of its own classes.

    Args:
        fronts: Extractors by name, or in a row.
        old_head: The head before.
        new_head: The head after, which knows all classes of the task.
        task: With the old classes and the new.
        norms: Statistics of the batch norms.
        split: Which images.
        seed: For their order, which matters to batch statistics.

    >>> from dataclasses import replace
    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.heads import extend_head
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> digits = load_task("digits")
    >>> front, head = cut(build("mlp", hidden=(8,), classes=9), at="hidden1")
    >>> head = head.changed(contract=replace(head.contract, classes=digits.classes[:9]))
    >>> found = judge_extension({"mlp": front}, head, extend_head(head, ["9"]), digits)
    >>> round(found.floor, 1), sorted(found.after)
    (0.9, ['mlp'])
    """
    named = (
        dict(fronts)
        if isinstance(fronts, Mapping)
        else parts_by_name([fronts] if isinstance(fronts, Part) else fronts)
    )
    if not named:
        raise SettingsError("there are no extractors to judge")
    old, new = old_head.contract.classes, new_head.contract.classes
    if old is None or new is None:
        raise ContractError("both heads must name their classes")
    if unknown := [name for name in task.classes if name not in new]:
        raise TaskError(f"the new head does not know {', '.join(unknown[:8])} of {task.name!r}")
    count = task.size(split)
    if count == 0:
        raise TaskError(f"{task.name!r} has no examples in its {split} split")
    both = [name for name in task.classes if name in old]
    before: dict[str, float | None] = dict.fromkeys(named)
    floor = 0.0
    if len(both) > 1:
        olds = only_classes(task, both)
        floor = olds.size(split) / count
        if olds.size(split):
            before = {
                name: accuracy(front, old_head, olds, norms, split=split, seed=seed)
                for name, front in named.items()
            }
    return ExtensionJudgement(
        task=task.name,
        after={
            name: shares(front, new_head, task, old, norms=norms, split=split, seed=seed)
            for name, front in named.items()
        },
        before=before,
        floor=floor,
        n=count,
        settings={
            "split": split,
            "norms": norms,
            "seed": seed,
            "task_fingerprint": task.fingerprint,
            "front_digests": {name: front.digest for name, front in named.items()},
            "old_head": old_head.digest,
            "new_head": new_head.digest,
        },
    )


def shares(
    front: Part,
    head: Part,
    task: Task,
    old: Sequence[str],
    *,
    norms: Norms,
    split: Split,
    seed: int,
) -> Shares:
    """The share of right answers among images of all, old and new classes."""
    right, targets = answers(front, head, task, norms, split=split, seed=seed)
    older = torch.tensor([name in old for name in task.classes])[targets]

    def share(kept: Tensor) -> float | None:
        return float(right[kept].double().mean()) if kept.any() else None

    return Shares(float(right.double().mean()), share(older), share(~older))
