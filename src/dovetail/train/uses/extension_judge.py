"""What a head with more classes is worth behind each of the extractors that share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Split, Task
from dovetail.train.recombined import accuracy, answers
from dovetail.train.uses.extension_record import ExtensionJudgement, Shares

__all__ = ["judge_extension", "shares"]


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
    named = dict(fronts) if isinstance(fronts, Mapping) else _numbered(fronts)
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


def _numbered(fronts: Sequence[Part] | Part) -> dict[str, Part]:
    """Parts under what they are, made unique."""
    found: dict[str, Part] = {}
    for front in [fronts] if isinstance(fronts, Part) else fronts:
        name, number = front.described, 2
        while name in found:
            name, number = f"{front.described}-{number}", number + 1
        found[name] = front
    return found
