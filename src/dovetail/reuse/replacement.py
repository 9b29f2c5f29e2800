r"""A new extractor behind a head that is in production already.

The head :math:`h` stays as it is, byte for byte; a new front :math:`f'` of any architecture is
trained through it,

.. math::
    \min_{f'}\; \frac1n \sum_i \Big[ \ell\big(h(f'(x_i)), y_i\big) + \dots \Big] ,

where the dots are the losses of other frozen heads of the same space, if there are any (see
:mod:`dovetail.train.fitting.group`).  The new front then gives the head's space, and fits whatever
else takes it, as far as the heads it was trained through pin that space down.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

import torch
from torch import nn

from dovetail.core.device import choose_device
from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line, nearest
from dovetail.measure.forward import outputs_of
from dovetail.measure.joined import accuracy, joined
from dovetail.objectives.pretexts import Pretext, pretext_named
from dovetail.parts.contract import Port, Preprocess, shown_shape
from dovetail.parts.cutting import CutPoint, cut, output_point
from dovetail.parts.joining import adapter, join
from dovetail.parts.modes import evaluating
from dovetail.parts.norms import Norms, check_norms
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part, as_part, ports_of
from dovetail.reuse.refusing import refuse_unknown_classes
from dovetail.reuse.replacement_record import Replacement, policies_for, switch_between
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit
from dovetail.train.fitting.auxiliaries import AUXILIARIES
from dovetail.train.fitting.group import Auxiliary, Group, Member
from dovetail.train.options import LoopOptions, Options
from dovetail.train.pretext_answers import refuse_other_answers
from dovetail.train.supervision import augmentation, starting_facts, twin

__all__ = ["replace_front"]

_NEW, _HEAD = "new", "head"


def replace_front(
    model: Part | nn.Module,
    head: Part,
    task: Task,
    *,
    old: Part | None = None,
    auxiliaries: Mapping[str, Part] | None = None,
    at: str | CutPoint | None = None,
    pretext: str | Pretext = "rotation",
    weights: Mapping[str, float] | None = None,
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    norms: Norms = "stored",
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> Fit:
    """Train a copy of a new front against a frozen head, on ``task`` and nothing else.

    Args:
        model: A network, whose front is taken up to ``at``, or a front: a part that gives a space,
            or gives just what the head takes.  Its weights are the starting point.
        head: In production.  Where it takes other channels than the front gives, a 1×1 adapter
            becomes part of the front.
        task: Labelled data, now; what the head was trained on is not needed.  The head must know
            all its classes, by name.
        old: The front in production, to compare with before the switch.
        auxiliaries: Other frozen heads of the head's space, by name: ``"dcc"``, ``"rp"``.  They
            hold the new front in the space also where the head does not care.
        at: Where to cut; by default before the output layer.
        pretext: What the head ``"rp"`` was trained for.
        weights: Of the auxiliaries' losses; 1 unless said.
        augment: Such as ``"flip,shift:2"``.
        preprocess: Default: the part's own, else standardisation by the training split.
        norms: Statistics of the head's batch norms, in training and after: ``"stored"`` ones, as in
            production, where requests come one at a time; or those of each ``"batch"``; or
            ``"recalibrated"`` on the training images, trained with each batch's.
        seed: Adapter, order of batches, views, augmentation, dropout.
        options: See :class:`Options`.

    Returns:
        ``fit.parts``, the new front and the head, which join without force; ``fit.part``, the two
        joined; and the record, a :class:`Replacement`.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> front, head = cut(end_to_end(build("mlp", hidden=(32,)), digits, epochs=5).part, "hidden1")
    >>> new = build("mlp", hidden=(48, 24), seed=1)
    >>> fit = replace_front(new, head, digits, old=front, at="hidden2", epochs=5)
    >>> fit.parts[0].contract.mismatches(head.contract)
    []
    >>> fit.record.accuracy["stored"] > 0.9
    True
    """
    start, chosen, changes = as_part(model), Options(**options), augmentation(augment)
    asked, given = pretext_named(pretext), dict(auxiliaries or {})
    check_norms(norms)
    _refuse_strangers(head, given, task, weights)
    device = choose_device(chosen.device)
    front, frozen = _fitted(_front_of(start, task, at, preprocess, device, head), head, seed)
    others = [_auxiliary(name, given[name], asked, weights, front) for name in sorted(given)]
    if any(each.pretext is not None for each in others):
        asked.check(tuple(side or 1 for side in front.contract.takes[0].shape or ()))
    settings = {
        "how": "replacement",
        "at": None if at is None else str(at),
        "norms": norms,
        "pretext": asked.described() if "rp" in given else None,
        "auxiliaries": {name: part.digest for name, part in sorted(given.items())},
        "weights": {each.name: each.weight for each in others},
        "augment": None if changes is None else str(changes),
        "seed": seed,
        "task_fingerprint": task.fingerprint,
        "start_digest": start.digest,
        "head_digest": head.digest,
        "device": str(device),
        **chosen.described(),
    }
    held = _held(frozen, norms)
    group = Group([Member(_NEW, front, None, task)], [held, *others])
    rows = group.train_on(
        chosen,
        seed=seed,
        augment=changes,
        identity={
            "preprocess": front.contract.preprocess,
            "through": [starting_facts(each) for each in (head, *given.values())],
            **starting_facts(start),
            **settings,
        },
        label=task.name,
    )
    front.module.eval()
    policies = policies_for(norms, front, frozen) if task.size("validation") > 1 else ()
    record = Replacement(
        part=front.described,
        task=task.name,
        head=head.described,
        rows=tuple(_renamed(row) for row in rows),
        accuracy={
            how: accuracy(front, frozen, task, how, split="validation", seed=seed)
            for how in policies
        },
        switches=()
        if old is None
        else tuple(
            switch_between(old, front, frozen, task, "validation", how, seed=seed)
            for how in policies
        ),
        unseen=tuple(name for name in head.contract.classes or () if name not in task.classes),
        settings=settings,
    )
    origin = Origin(
        how="train",
        parents=(start.digest, head.digest, *(part.digest for part in given.values())),
        task=task.name,
        task_fingerprint=task.fingerprint,
        settings=settings,
        measured={"validation accuracy": record.accuracy[norms]} if policies else {},
    )
    front = front.changed(origin=origin)
    whole = joined(front, frozen, task, norms, seed=seed)
    traced = replace(whole.origin, task=task.name, task_fingerprint=task.fingerprint)
    return Fit((front, frozen), record, whole.changed(origin=traced))


def _refuse_strangers(
    head: Part, given: Mapping[str, Part], task: Task, weights: Mapping[str, float] | None
) -> None:
    """Refuse, before anything is trained, heads that do not know the task or one another."""
    refuse_unknown_classes(head, task)
    if len(task.classes) < 2:
        raise TaskError(f"{task.name!r} has one class; a front learns from two or more")
    if len(head.contract.takes) != 1:
        raise ContractError(
            f"{head.described!r} takes {len(head.contract.takes)} tensors; a front is replaced "
            "where one crosses, at a point that dt.cut_points lists"
        )
    space = head.contract.takes[0].space
    for name, part in given.items():
        if name not in AUXILIARIES:
            raise SettingsError(f"unknown auxiliary head {name!r}{nearest(name, AUXILIARIES)}")
        theirs = {port.space for port in part.contract.takes}
        if theirs != {space}:
            raise ContractError(
                f"the {name!r} head takes {' and '.join(map(str, theirs))}, the head in "
                f"production {space}; give auxiliaries of the training that made the head"
            )
    for name, value in (weights or {}).items():
        if name not in given:
            raise SettingsError(f"weights= has {name!r}, which auxiliaries= does not have")
        if not 0 <= value < float("inf"):
            raise SettingsError(f"the weight of {name!r} must be a number of at least 0")


def _front_of(
    start: Part,
    task: Task,
    at: str | CutPoint | None,
    preprocess: Preprocess | None,
    device: torch.device,
    head: Part,
) -> Part:
    """A copy of the front that was meant, with the tensor that it gives as seen on the task."""
    copied = twin(start, task, preprocess, device)
    sample = task.inputs[task.indices("train")[:2]]
    seen = outputs_of(copied, sample)
    is_front = len(start.contract.gives) == 1 and start.contract.gives[0].space is not None
    if at is None and (is_front or tuple(seen.shape[1:]) == head.contract.takes[0].shape):
        front = copied.changed(contract=replace(copied.contract, classes=None))
    else:
        front, _ = cut(copied, output_point(copied.module) if at is None else at)
        seen = outputs_of(front, sample)
    given = replace(ports_of(seen)[0], activation=front.contract.gives[0].activation)
    return front.changed(contract=replace(front.contract, gives=(given,), kind="classes"))


def _fitted(front: Part, head: Part, seed: int) -> tuple[Part, Part]:
    """The front with an adapter where channels differ, and a copy of the head that can take it."""
    given, taken = front.contract.gives[0], head.contract.takes[0]
    frozen = head.changed(module=copy.deepcopy(head.module).to(front.device))
    shape = given.shape or ()
    if taken.shape is not None:
        if len(taken.shape) != len(shape):
            raise ContractError(
                f"the front gives {shown_shape(shape)}, the head takes {shown_shape(taken.shape)}: "
                "one is a vector, the other a map; say at= to cut the network elsewhere"
            )
        wanted = (taken.shape[0] or shape[0], *shape[1:])
        if wanted != shape:
            between = head.changed(contract=replace(head.contract, takes=(Port(wanted),)))
            front = join(front, adapter(front, between, seed=seed))
            front.module.to(frozen.device)
        if any(
            side not in (None, mine) for side, mine in zip(taken.shape[1:], shape[1:], strict=True)
        ):
            _refuse_stuck(frozen, wanted)
            taken = replace(taken, shape=(taken.shape[0], *(None for _ in shape[1:])))
            frozen = frozen.changed(contract=replace(frozen.contract, takes=(taken,)))
        shape = wanted
    gives = replace(taken, shape=shape)
    return front.changed(contract=replace(front.contract, gives=(gives,))), frozen


def _refuse_stuck(head: Part, shape: tuple[int | None, ...]) -> None:
    """Refuse a head that cannot take maps of another size."""
    try:
        with evaluating(head.module):
            head(torch.zeros(2, *(side or 1 for side in shape), device=head.device))
    except (RuntimeError, ValueError) as error:
        raise ContractError(
            f"the front gives maps of {shown_shape(shape[1:])}, which the head cannot take "
            f"({first_line(error)}); cut where the maps have the head's size, "
            f"{shown_shape((head.contract.takes[0].shape or ())[1:])}"
        ) from None


def _held(head: Part, norms: Norms) -> Auxiliary:
    """The head as what the front is trained through; its weights and statistics stay.

    What is frozen in a group uses batch statistics.  With stored norms the head only has weights
    that are not trained: then the loop leaves it in evaluation mode, as it is in production.
    """
    module = copy.deepcopy(head.module).requires_grad_(False)
    return Auxiliary(_HEAD, head.changed(module=module), frozen=norms != "stored")


def _auxiliary(
    name: str, part: Part, asked: Pretext, weights: Mapping[str, float] | None, front: Part
) -> Auxiliary:
    if reasons := front.contract.obstacles(part.contract):
        raise ContractError(f"the {name!r} head cannot follow the new front: {'; '.join(reasons)}")
    if name == "rp":
        refuse_other_answers(asked, part)
    frozen = part.changed(module=copy.deepcopy(part.module).to(front.device))
    weight = float((weights or {}).get(name, 1.0))
    return Auxiliary(name, frozen, asked if name == "rp" else None, weight, frozen=True)


def _renamed(row: dict[str, float]) -> dict[str, float]:
    """A row of the group's in the words of a training of one network."""
    words = {f"{_NEW} {_HEAD} validation accuracy": "validation accuracy"}
    return {words.get(name, name.removeprefix(f"{_NEW} ")): value for name, value in row.items()}
