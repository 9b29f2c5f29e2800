"""What adapting to another domain brought, judged by labels that the adaptation never saw."""

from __future__ import annotations

from torch import Tensor

from dovetail.measures.paired import paired_difference
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.tasks.task import Split, Task
from dovetail.train.recombined import answers
from dovetail.train.uses.domain_record import JudgedAdaptation, Reading
from dovetail.train.uses.refusing import refuse_norms, refuse_unknown_classes

__all__ = ["judge_adaptation"]


def judge_adaptation(
    front: Part,
    adapted: Part,
    head: Part,
    task: Task,
    *,
    split: Split = "test",
    norms: Norms = "batch",
    seed: int = 0,
) -> JudgedAdaptation:
    """Compare the source front and the adapted one, each with the source head, on the target.

    Three readings: the source network as it was stored, the source network with ``norms``, and the
    adapted front with ``norms``.  The gain is the last over the second, on the same examples.

    Args:
        front: Of the source network.
        adapted: What :func:`~dovetail.train.domain.adapt_domain` made of it.
        head: Of the source network, for the classes.
        task: Of the target domain; its classes are matched with the head's by name.
        split: Which examples judge.
        norms: ``"batch"``; ``"recalibrated"`` on the target's training images; or ``"stored"``.
        seed: For the order of the examples, and for the images of the recalibration.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> net = end_to_end(build("mlp", hidden=(32,)), digits, epochs=2).part
    >>> front, head = cut(net, at="hidden1")
    >>> judge_adaptation(front, front, head, digits).gain.difference
    0.0
    """
    refuse_norms(norms)
    refuse_unknown_classes(head, task)
    asked: list[tuple[str, Part, Norms]] = [("source", front, "stored")]
    if norms != "stored":
        asked.append(("source", front, norms))
    asked.append(("adapted", adapted, norms))
    found = [answers(which, head, task, how, split=split, seed=seed) for _, which, how in asked]
    return JudgedAdaptation(
        task=task.name,
        split=split,
        readings=tuple(
            Reading(name, how, float(right.double().mean()), _class_mean(right, labels))
            for (name, _, how), (right, labels) in zip(asked, found, strict=True)
        ),
        gain=paired_difference(found[-2][0], found[-1][0]),
        chance=1 / len(head.contract.classes or task.classes),
        settings={
            "split": split,
            "norms": norms,
            "order": "random",
            "seed": seed,
            "task_fingerprint": task.fingerprint,
            "front_digest": front.digest,
            "adapted_digest": adapted.digest,
            "head_digest": head.digest,
        },
    )


def _class_mean(right: Tensor, labels: Tensor) -> float:
    shown = sorted(set(labels.tolist()))
    return sum(float(right[labels == label].double().mean()) for label in shown) / len(shown)
