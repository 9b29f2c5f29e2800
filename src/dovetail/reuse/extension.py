r"""New classes for a head that many extractors share, learnt behind one of them.

The head's output layer gets a row for each new class.  Then the head is trained behind one
*reference* extractor on images of all classes:

- the reference stays frozen: the space stays, and the other extractors still give it;
- or it moves, held in its space by a frozen head :math:`r` for a pretext (rotation):

.. math:: \frac1n \sum_i \Big[ \ell\big(h(f(x_i)), y_i\big)
    + \frac{1}{|S|} \sum_{s \in S} \ell\big(r(f(g(x_i, s))), s\big) \Big]

Frozen serves the other extractors best, moving the reference itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

import dovetail.train.supervision as supervision
from dovetail.core.device import choose_device
from dovetail.core.errors import ContractError, SettingsError, TaskError, nearest
from dovetail.measure.joined import joined, random_batches
from dovetail.measure.preprocess import prepare
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Contract
from dovetail.parts.heads import extend_head
from dovetail.parts.modes import evaluating
from dovetail.parts.norms import (
    Norms,
    check_norms,
    has_batch_norm,
    recalibrate,
    with_batch_statistics,
)
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.reuse.extension_record import ClassExtension, ExtensionFit, shares
from dovetail.tasks.augment import Augment
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Split, Task
from dovetail.train.fitting.group import Auxiliary, Group, Member
from dovetail.train.fitting.record import Stage
from dovetail.train.options import LoopOptions, Options

__all__ = ["extend_classes"]


def extend_classes(
    front: Part,
    head: Part,
    task: Task,
    classes: Sequence[str] | None = None,
    *,
    moving: bool = False,
    rp_head: Part | None = None,
    pretext: str | Pretext = "rotation",
    norms: Norms = "batch",
    augment: str | Augment | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> ExtensionFit:
    """Teach a copy of ``head`` further classes; it keeps its space and follows the same fronts.

    Args:
        front: The reference, an extractor of the space that the head takes.
        head: It names the classes that it knows.
        task: With images of the old *and* the new classes: a head that sees only new ones forgets.
        classes: The new ones; by default all that the task has and the head has not.
        moving: Let a copy of the reference be trained too, held by ``rp_head``.
        rp_head: A pretext's head of the same space, such as ``fit.auxiliaries["rp"]``; it is not
            changed.
        pretext: What ``rp_head`` was trained for.
        norms: Statistics of a frozen reference's batch norms, and of the accuracies in the record.
            ``"batch"`` is right for parts that will be recombined with batch statistics; the
            stored ones are of images of old classes only.
        augment: Such as ``"flip,shift:2"``.  Without it a frozen reference runs once over the
            images, and what it gives is kept.
        seed: Weights of the new classes, order of batches, augmentation, views.
        options: See :class:`Options`.

    Returns:
        ``fit.head``, the new head; ``fit.front``, the reference, moved if it was allowed to;
        ``fit.part``, the two together; and the record.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> small = only_classes(digits, digits.classes[:6])
    >>> net = end_to_end(build("mlp", hidden=(64, 64), classes=6), small, epochs=5).part
    >>> front, head = cut(net, at="hidden1")
    >>> fit = extend_classes(front, head, digits, epochs=8)
    >>> fit.head.contract.classes[6:], fit.record.accuracy.all > 0.85
    (('6', '7', '8', '9'), True)
    >>> front.contract.mismatches(fit.head.contract)
    []
    """
    chosen, changes, asked = Options(**options), supervision.augmentation(augment), None
    check_norms(norms)
    new = _new_classes(head, front, task, classes)
    if moving:
        asked = pretext_named(pretext)
        _refuse_pretext_head(front, rp_head, asked)
    elif rp_head is not None:
        raise SettingsError("rp_head= holds an extractor that moves: say moving=True, or leave it")
    device = choose_device(chosen.device)
    wider = extend_head(head, new, seed=seed)
    wider.module.requires_grad_(True).to(device)
    taught = only_classes(task, wider.contract.classes or ())
    _refuse_lone_example(taught, norms, front, head)
    trained = _copied(front, device)
    settings: dict[str, Any] = {
        "how": "extend-classes",
        "classes": list(new),
        "moving": moving,
        "norms": norms,
        "pretext": None if asked is None else asked.described(),
        "augment": None if changes is None else str(changes),
        "seed": seed,
        "task_fingerprint": taught.fingerprint,
        "head_digest": head.digest,
        "front_digest": front.digest,
        "rp_digest": None if rp_head is None else rp_head.digest,
        "device": str(device),
        **chosen.described(),
    }
    held = []
    if asked is not None and rp_head is not None:
        trained.module.requires_grad_(True)
        held = [Auxiliary("rp", _copied(rp_head, device), asked, frozen=True)]
        member = Member("reference", trained, wider, taught)
    else:
        member = _behind(_frozen(trained, taught, norms, seed), wider, taught, changes, seed)
    rows = Group([member], held).train_on(
        chosen,
        seed=seed,
        augment=changes,
        identity={
            "preprocess": front.contract.preprocess,
            "parts": [
                supervision.starting_facts(part)
                for part in (head, front, rp_head)
                if part is not None
            ],
            **settings,
        },
        label=f"{len(new)} new classes",
    )
    after = trained if moving else front
    return _finished(after, front, wider, head, rp_head, taught, rows, settings, chosen)


def _new_classes(
    head: Part, front: Part, task: Task, classes: Sequence[str] | None
) -> tuple[str, ...]:
    """What is to be learnt; an error for parts or data with which it cannot be."""
    if not isinstance(task, Task) or task.kind != "classes":
        raise TaskError("new classes are learnt from a Task of kind 'classes'")
    known = head.contract.classes
    if known is None:
        raise ContractError(
            f"{head.described!r} does not say which classes it knows; name them: "
            "dt.adopt(module, classes=(...))"
        )
    if reasons := front.contract.mismatches(head.contract):
        raise ContractError(
            f"{head.described!r} cannot follow the reference {front.described!r}: "
            f"{'; '.join(reasons)}. The reference must be of the head's space"
        )
    if lost := [name for name in known if name not in task.classes]:
        raise TaskError(
            f"{task.name!r} has no images of {', '.join(lost[:8])}, which the head knows: trained "
            "without them it would forget them. Give a task with the old and the new classes"
        )
    if isinstance(classes, str):
        raise SettingsError(f"classes= lists names, as in classes=[{classes!r}]")
    new = [name for name in task.classes if name not in known] if classes is None else classes
    for name in new:
        if name not in task.classes:
            raise TaskError(f"{task.name!r} has no class {name!r}{nearest(name, task.classes)}")
    if not new:
        raise TaskError(f"{head.described!r} knows all classes of {task.name!r} already")
    return tuple(new)


def _refuse_lone_example(task: Task, norms: Norms, *parts: Part) -> None:
    """Refuse a validation split without statistics of a batch before anything is trained."""
    batch = norms == "batch" and any(has_batch_norm(part.module) for part in parts)
    if batch and task.size("validation") == 1:
        raise TaskError(
            f"{task.name!r} has one example in its validation split, which has no statistics of a "
            "batch; give it more or none, or say norms='stored'"
        )


def _refuse_pretext_head(front: Part, rp_head: Part | None, pretext: Pretext) -> None:
    if rp_head is None:
        raise SettingsError(
            "moving=True needs rp_head=, the pretext's head that the extractors were trained with: "
            "fit.auxiliaries['rp'] of shared_head(by=('dcc', 'rp'))"
        )
    if reasons := front.contract.mismatches(rp_head.contract):
        raise ContractError(
            f"rp_head does not hold the reference {front.described!r}: {'; '.join(reasons)}"
        )
    width = (rp_head.contract.gives[0].shape or (None,))[0]
    if width != pretext.outputs:
        raise ContractError(
            f"rp_head gives {width} numbers, {pretext.name} needs {pretext.outputs}"
        )
    pretext.check(tuple(side or 1 for side in front.contract.takes[0].shape or ()))


def _copied(part: Part, device: torch.device) -> Part:
    return part.changed(module=copy.deepcopy(part.module).to(device))


def _frozen(front: Part, task: Task, norms: Norms, seed: int) -> Part:
    """The copy as it will be used: nothing in it is trained, its norms are as asked for."""
    module = front.module.requires_grad_(False).eval()
    if norms == "batch":
        module = with_batch_statistics(module)
    elif norms == "recalibrated":
        rows = random_batches(task.indices("train"), seed)
        module = recalibrate(
            module, (prepare(task.inputs[some], front.contract).to(front.device) for some in rows)
        )
    return front.changed(module=module)


def _behind(front: Part, head: Part, task: Task, augment: Augment | None, seed: int) -> Member:
    """The head behind a frozen front; what the front gives is computed once where it can be."""
    size = 4 * (task.size("train") + task.size("validation"))
    for side in front.contract.gives[0].shape or ():
        size *= side or 1
    if augment is not None or size > supervision.KEPT_BYTES:
        return Member("reference", front, head, task)
    inputs: list[Tensor] = []
    indices: dict[Split, Tensor] = {"test": torch.arange(0)}
    targets, start = [], 0
    splits: tuple[Split, ...] = ("train", "validation")
    for split in splits:
        rows = task.indices(split)
        indices[split] = torch.arange(start, start + len(rows))
        start += len(rows)
        if len(rows):
            inputs.append(_features(front, task, rows, seed))
            targets.append(task.targets[rows])
    kept = task.derived(
        task.name, inputs=torch.cat(inputs), targets=torch.cat(targets), indices=indices
    )
    port = front.contract.gives
    return Member("reference", Part(nn.Identity(), Contract(port, port)), head, kept)


def _features(front: Part, task: Task, rows: Tensor, seed: int) -> Tensor:
    """What the front gives for these rows, each batch of them drawn at random."""
    places = random_batches(torch.arange(len(rows)), seed)
    with evaluating(front.module):
        made = [
            front(prepare(task.inputs[rows[some]], front.contract).to(front.device)).cpu()
            for some in places
        ]
    return torch.cat(made)[torch.argsort(torch.cat(places))]


def _finished(
    front: Part,
    reference: Part,
    wider: Part,
    head: Part,
    rp_head: Part | None,
    task: Task,
    rows: tuple[dict[str, float], ...],
    settings: dict[str, Any],
    options: Options,
) -> ExtensionFit:
    moving, old = rp_head is not None, head.contract.classes or ()
    found = None
    if task.size("validation"):
        norms = settings["norms"]
        found = shares(front, wider, task, old, norms=norms, split="validation", seed=0)
    record = ClassExtension(
        task=task.name,
        old=old,
        new=tuple(settings["classes"]),
        moving=moving,
        stage=Stage.of(("reference",), rows, options.patience),
        accuracy=found,
        settings=settings,
    )
    holding = () if rp_head is None else (rp_head.digest,)
    origin = Origin(
        how="train",
        parents=(head.digest, reference.digest, *holding),
        task=task.name,
        task_fingerprint=task.fingerprint,
        settings=settings,
        measured={} if found is None else {"validation accuracy": found.all},
    )
    wider = wider.changed(origin=origin)
    if moving:
        front = front.changed(origin=replace(origin, parents=(reference.digest, *holding)))
    whole = joined(front, wider, task, settings["norms"]).changed(origin=origin)
    return ExtensionFit((wider, front) if moving else (wider,), record, whole, wider, front)
