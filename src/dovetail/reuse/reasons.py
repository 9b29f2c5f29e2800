"""Why a head should not follow a front, in sentences that say what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dovetail.core.errors import ContractError
from dovetail.measure.preprocess import prepare, refuse_other_inputs
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.norms import has_batch_norm
from dovetail.parts.part import Part
from dovetail.tasks.task import Task

__all__ = ["Reason", "common_classes", "reasons_against"]

Weight = Literal["stops", "spoils", "mind"]


@dataclass(frozen=True)
class Reason:
    """One thing that is wrong between a front, a head and a task.

    What ``"stops"`` leaves nothing to measure; what ``"spoils"`` lets the tensors flow, but the
    contract refuses it; what to ``"mind"`` no contract refuses, yet it decides the accuracy.

    >>> Reason("space", "The features were never made to agree.", "spoils").weight
    'spoils'
    """

    about: str
    says: str
    weight: Weight


def reasons_against(
    front: Part, head: Part, task: Task | None = None, reference: Part | None = None
) -> tuple[Reason, ...]:
    """Everything that is against ``head`` behind ``front``, the worst first.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> front, head = cut(build("mlp", hidden=(8,)), at="hidden1")
    >>> reasons_against(front, head)
    ()
    >>> wide, _ = cut(build("mlp", hidden=(16,)), at="hidden1")
    >>> [reason.about for reason in reasons_against(wide, head)]
    ['channels', 'space']
    """
    found = [
        *_between(front.contract, head.contract),
        *_norms(front, head),
        *_preparation(front, head, reference),
        *([] if task is None else [*_inputs(front, task), *_classes(head, task)]),
    ]
    order = ("stops", "spoils", "mind")
    return tuple(sorted(found, key=lambda reason: order.index(reason.weight)))


def common_classes(head: Part, task: Task) -> tuple[str, ...]:
    """The task's classes that the head knows by name; all of them where it names none.

    >>> from dovetail.parts.part import build
    >>> import torch
    >>> task = Task(torch.rand(8, 4), ["cat", "dog"] * 4)
    >>> common_classes(build("mlp", shape=(4,), classes=2), task)
    ('cat', 'dog')
    """
    known = head.contract.classes
    return tuple(name for name in task.classes if known is None or name in known)


def _between(front: Contract, head: Contract) -> list[Reason]:
    if len(front.gives) != len(head.takes):
        says = (
            f"The front gives {_counted(len(front.gives), 'tensor')}, the head takes "
            f"{len(head.takes)}. Cut both networks where exactly one tensor crosses."
        )
        return [Reason("tensors", says, "stops")]
    found = []
    for i, (given, taken) in enumerate(zip(front.gives, head.takes, strict=True)):
        which = f"Tensor {i}: " if len(front.gives) > 1 else ""
        found += [
            Reason(about, which + says, weight) for about, says, weight in _port(given, taken)
        ]
    return found


def _port(given: Port, taken: Port) -> list[tuple[str, str, Weight]]:
    found: list[tuple[str, str, Weight]] = []
    for about, says in _shapes(given, taken):
        found.append((about, says, "stops"))
    if given.dtype != taken.dtype:
        says = f"The front gives {given.dtype}, the head takes {taken.dtype}."
        found.append(("dtype", says, "stops"))
    agree = given.space is not None and given.space == taken.space
    if not agree and given.activation != taken.activation:
        says = (
            f"The head was made for what comes out of {_after(taken)}, the front ends in "
            f"{_after(given)}: the range of the features is another."
        )
        found.append(("activation", says, "spoils"))
    if not agree:
        found.append(("space", _spaces(given.space, taken.space), "spoils"))
    return found


def _shapes(given: Port, taken: Port) -> list[tuple[str, str]]:
    if given.shape is None or taken.shape is None:
        return []
    shapes = f"{shown_shape(given.shape)} meets {shown_shape(taken.shape)}"
    if len(given.shape) != len(taken.shape):
        says = f"The one is a vector, the other a map: {shapes}. Cut one of the two elsewhere."
        return [("axes", says)]
    unequal = [
        a is not None and b is not None and a != b
        for a, b in zip(given.shape, taken.shape, strict=True)
    ]
    found = []
    if unequal[:1] == [True]:
        noun = "numbers" if len(given.shape) == 1 else "channels"
        says = f"The front gives {given.shape[0]} {noun}, the head takes {taken.shape[0]}."
        found.append(("channels", says))
    if any(unequal[1:]):
        says = (
            f"The maps are of other sizes: {shapes}. Cut where they agree, or give both networks "
            "inputs of one size."
        )
        found.append(("size", says))
    return found


def _spaces(given: str | None, taken: str | None) -> str:
    if given is not None and taken is not None:
        return (
            f"The front gives the space {given!r}, the head takes {taken!r}: the features were "
            "never made to agree, and without a repair the accuracy is near chance."
        )
    who = "the front gives" if given is None else "the head takes"
    who = "either of them means" if given is None and taken is None else who
    return (
        f"Nobody has said which space {who}. Take the halves from dt.cut, which names it, or "
        "train them to agree (dt.train.compatible)."
    )


def _norms(front: Part, head: Part) -> list[Reason]:
    """Statistics in a head are those of the front it was trained behind."""
    siblings = set(front.origin.parents) & set(head.origin.parents)
    if siblings or not has_batch_norm(head.module):
        return []
    says = (
        "The head's batch norms store the statistics of the front that it was trained behind. Use "
        "those of each batch (norms='batch'), or estimate them anew (norms='recalibrated')."
    )
    return [Reason("norms", says, "mind")]


def _preparation(front: Part, head: Part, reference: Part | None) -> list[Reason]:
    mine, found = front.contract.preprocess, []
    if reference is not None and reference.contract.preprocess != mine:
        says = (
            "The reference prepares its inputs in another way than the front. A stitch lets each "
            "of them do so; a join uses the front's."
        )
        found.append(Reason("preprocessing", says, "mind"))
    theirs = head.contract.preprocess
    if theirs is not None and theirs != mine:
        says = "The head has a preprocessing of its own, which a join leaves out."
        found.append(Reason("preprocessing", says, "mind"))
    return found


def _inputs(front: Part, task: Task) -> list[Reason]:
    try:
        refuse_other_inputs(task, front.contract)
        prepare(task.inputs[:1], front.contract)
    except ContractError as error:
        says = f"The front does not take the inputs of {task.name!r}: {error}."
        return [Reason("inputs", says, "stops")]
    return []


def _classes(head: Part, task: Task) -> list[Reason]:
    if task.kind != head.contract.kind:
        says = f"The head is for {head.contract.kind}, {task.name!r} is a task of {task.kind}."
        return [Reason("kind", says, "stops")]
    known = head.contract.classes
    if task.kind != "classes":
        return []
    if known is None:
        says = (
            "The head does not name its outputs; they are taken for the classes of "
            f"{task.name!r}, in their order."
        )
        return [Reason("classes", says, "mind")]
    shared = common_classes(head, task)
    both = f"{task.name!r} has {_listed(task.classes)}; the head knows {_listed(known)}."
    if len(shared) < 2:
        which = f"Only the class {shared[0]!r} is common" if shared else "No class is common"
        says = f"{which}: {both} Classes are matched by name, and a choice takes two."
        return [Reason("classes", says, "stops")]
    if len(shared) < len(task.classes):
        says = f"Only {_listed(shared)} are common: {both} Measured and trained on those alone."
        return [Reason("classes", says, "mind")]
    return []


def _after(port: Port) -> str:
    return "no activation" if port.activation == "identity" else port.activation


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
