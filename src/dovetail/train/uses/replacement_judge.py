"""What switching from an old front to a new one costs behind the same head, before the switch."""

from __future__ import annotations

from dovetail.measures.paired import paired_difference
from dovetail.parts.norms import Norms, has_batch_norm
from dovetail.parts.part import Part
from dovetail.tasks.task import Split, Task
from dovetail.train.recombined import answers
from dovetail.train.uses.refusing import refuse_norms, refuse_unknown_classes
from dovetail.train.uses.replacement_record import JudgedReplacement, Switch

__all__ = ["judge_replacement", "policies_for", "switch_between"]


def judge_replacement(
    old: Part,
    new: Part,
    head: Part,
    task: Task,
    *,
    split: Split = "test",
    norms: Norms = "stored",
    seed: int = 0,
) -> JudgedReplacement:
    """Compare two fronts behind one head on the same examples: all of them, and class by class.

    Where there are batch norms, stored and batch statistics are both reported, those asked for
    first: a head in production has the stored ones, because requests come one at a time.

    Args:
        old: The front that runs today.
        new: The front to put in its place.
        head: What stays.
        task: Its classes are matched with the head's by name.
        split: Which examples judge.
        norms: Statistics of batch norms, for both fronts.
        seed: For the order of the examples, and for the images of a recalibration.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> front, head = cut(end_to_end(build("mlp", hidden=(32,)), digits, epochs=3).part, "hidden1")
    >>> other, _ = cut(build("mlp", hidden=(32,), seed=1), at="hidden1")
    >>> judge_replacement(front, other, head, digits).change.difference < -0.5
    True
    """
    refuse_norms(norms)
    refuse_unknown_classes(head, task)
    policies = policies_for(norms, old, new, head)
    return JudgedReplacement(
        task=task.name,
        split=split,
        switches=tuple(switch_between(old, new, head, task, split, how, seed) for how in policies),
        chance=1 / len(head.contract.classes or task.classes),
        settings={
            "split": split,
            "norms": list(policies),
            "order": "random",
            "seed": seed,
            "task_fingerprint": task.fingerprint,
            "old_digest": old.digest,
            "new_digest": new.digest,
            "head_digest": head.digest,
        },
    )


def policies_for(norms: Norms, *parts: Part) -> tuple[Norms, ...]:
    """The policy asked for, then stored and batch statistics where they make a difference."""
    if not any(has_batch_norm(part.module) for part in parts):
        return (norms,)
    both: tuple[Norms, ...] = ("stored", "batch")
    return (norms, *(each for each in both if each != norms))


def switch_between(
    old: Part,
    new: Part,
    head: Part,
    task: Task,
    split: Split,
    norms: Norms,
    seed: int = 0,
) -> Switch:
    """The change from one front to the other with one policy of norms."""
    before, labels = answers(old, head, task, norms, split=split, seed=seed)
    after, _ = answers(new, head, task, norms, split=split, seed=seed)
    by_class = {
        name: paired_difference(before[labels == place], after[labels == place])
        for place, name in enumerate(task.classes)
        if (labels == place).any()
    }
    return Switch(norms, paired_difference(before, after), by_class)
