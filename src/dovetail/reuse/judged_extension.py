"""What a head with more classes is worth behind each extractor: on all, old and new classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.declared import Column, table, text
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import Record
from dovetail.core.views import Cell
from dovetail.measure.joined import accuracy, answers
from dovetail.measure.pairs import choose_norms
from dovetail.parts.norms import Norms, Statistics
from dovetail.parts.part import Part, parts_by_name
from dovetail.reuse.judging import facts_of, refuse_unknown_classes
from dovetail.settings.reuse import Extend
from dovetail.tasks.derive import only_classes
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task


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
class ExtensionJudgement(
    Record,
    kind="extension-judgement",
    title="A head with new classes on {task}",
    brief="{_with_all} on {task}, floor {floor:.3f}, n {n}",
):
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
    def split(self) -> str:
        """Whose images."""
        return str(self.settings.get("split", "test"))

    @property
    def _with_all(self) -> str:
        return ", ".join(f"{name} {shares.all:.3f}" for name, shares in self.after.items())

    def _reached(self) -> list[tuple[Cell, ...]]:
        return [(name, s.all, s.old, s.new, self.before[name]) for name, s in self.after.items()]

    shows = (
        text(
            "{n} images of the {split} split. Knowing the old classes alone gives at most "
            "{floor:.1%}."
        ),
        table(
            _reached,
            Column("extractor", 0),
            Column("all classes", 1, ".1%"),
            Column("images of old", 2, ".1%"),
            Column("images of new", 3, ".1%"),
            Column("old head, old", 4, ".1%"),
            caption="Accuracy",
        ),
    )


def judge_extension(
    fronts: Mapping[str, Part] | Sequence[Part],
    old_head: Part,
    new_head: Part,
    task: Task,
    *,
    norms: Norms = Extend.norms,
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
    >>> from dovetail.tasks.load import load_task
    >>> digits = load_task("digits")
    >>> front, head = cut(build("mlp", hidden=(8,), classes=9), at="hidden1")
    >>> head = head.changed(contract=replace(head.contract, classes=digits.classes[:9]))
    >>> judgement = judge_extension({"mlp": front}, head, extend_head(head, ["9"]), digits)
    >>> round(judgement.floor, 1), sorted(judgement.after)
    (0.9, ['mlp'])
    """
    named = (
        dict(fronts)
        if isinstance(fronts, Mapping)
        else parts_by_name([fronts] if isinstance(fronts, Part) else fronts)
    )
    if not named:
        raise SettingsError("there are no extractors to judge")
    refuse_unknown_classes(new_head, task)
    old = old_head.contract.classes
    if old is None:
        raise ContractError(f"the old head, {old_head.described!r}, must name its classes, too")
    chosen = choose_norms(norms, task, *((front, new_head) for front in named.values()), seed=seed)
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
                name: accuracy(front, old_head, olds, chosen.norms, split=split, seed=seed)
                for name, front in named.items()
            }
    return ExtensionJudgement(
        task=task.name,
        after={
            name: shares_of(front, new_head, task, old, chosen.norms, split=split, seed=seed)
            for name, front in named.items()
        },
        before=before,
        floor=floor,
        n=count,
        settings=facts_of(task, split, chosen, seed, old_head=old_head, new_head=new_head)
        | {"front_digests": {name: front.digest for name, front in named.items()}},
    )


def shares_of(
    front: Part,
    head: Part,
    task: Task,
    old: Sequence[str],
    norms: Statistics,
    *,
    split: Split,
    seed: int = 0,
) -> Shares:
    """The share of right answers among images of all, old and new classes."""
    right, targets = answers(front, head, task, norms, split=split, seed=seed)
    older = torch.tensor([name in old for name in task.classes])[targets]

    def share(among: Tensor) -> float | None:
        return float(right[among].double().mean()) if among.any() else None

    return Shares(float(right.double().mean()), share(older), share(~older))
