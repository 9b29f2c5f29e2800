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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn

import dovetail.train.supervision as supervision
from dovetail.core.declared import Column, curves, table, text
from dovetail.core.errors import ContractError, SettingsError, TaskError, argument, nearest
from dovetail.measure.forward import outputs_of
from dovetail.measure.joined import (
    calibrating_batches,
    joined,
    random_batches,
)
from dovetail.measure.pairs import choose_norms
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Contract
from dovetail.parts.heads import extend_head
from dovetail.parts.norms import Norms, Statistics, has_batch_norm, with_norms
from dovetail.parts.part import Part
from dovetail.reuse.judged_extension import Shares, shares_of
from dovetail.reuse.judging import StageTraining
from dovetail.settings.reuse import Extend
from dovetail.tasks.augment import Augment
from dovetail.tasks.derive import only_classes
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task
from dovetail.train.compatible_record import OWN, Stage
from dovetail.train.fit import Fit
from dovetail.train.frame import Course
from dovetail.train.group import Auxiliary, Group, Member
from dovetail.train.options import LoopOptions
from dovetail.train.self_supervised import refuse_other_answers, refuse_other_images


@dataclass(frozen=True, kw_only=True)
class ClassExtension(StageTraining, kind="class-extension", title="{new!n} new classes of {task}"):
    """How a head was taught further classes behind one extractor.

    >>> stage = Stage(("reference",), ({"epoch": 1, "loss": 0.5},))
    >>> ClassExtension(task="digits", old=("0", "1"), new=("2",), moving=False, stage=stage)
    ClassExtension(2 + 1 classes of digits, extractor frozen)
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    moving: bool
    accuracy: Shares | None = None

    @property
    def _fate(self) -> str:
        return "moved, held by the frozen pretext head" if self.moving else "stayed as it was"

    def _reached(self) -> dict[str, float | None]:
        reached = self.accuracy
        if reached is None:
            return {}
        return {"all classes": reached.all, "old": reached.old, "new": reached.new}

    shows = (
        text(
            "The head knew {old!l} and learnt {new!l} in {rows!n} epochs and {stage.seconds:.1f} "
            "s; the extractor {_fate}."
        ),
        table(
            _reached,
            Column("images of", 0),
            Column("accuracy", 1, ".1%"),
            caption="On the validation split",
        ),
        curves("Accuracy on validation", {"reference": f"reference {OWN}"}),
    )

    def __repr__(self) -> str:
        how = "moving" if self.moving else "frozen"
        reached = "" if self.accuracy is None else f": validation accuracy {self.accuracy.all:.3f}"
        counts = f"{len(self.old)} + {len(self.new)}"
        return f"ClassExtension({counts} classes of {self.task}, extractor {how}{reached})"


@dataclass(frozen=True)
class ExtensionFit(Fit):
    """A head with more classes, and the extractor it was trained behind.

    ``front`` is the reference itself, or what became of it if it was allowed to move; ``whole`` is
    the two together.
    """

    head: Part | None = None
    front: Part | None = None


def extend_classes(
    front: Part,
    head: Part,
    task: Task,
    classes: Sequence[str] | None = None,
    *,
    moving: bool = Extend.moving,
    rp_head: Part | None = None,
    pretext: str | Pretext = Extend.pretext,
    norms: Norms = Extend.norms,
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
        norms: Statistics of a frozen reference's batch norms, and of the accuracies in the record;
            by default those that front and head were trained for.  Stored ones are of images of old
            classes only.
        augment: Such as ``"flip,shift:2"``.  Without it a frozen reference runs once over the
            images, and what it gives is kept.
        seed: Weights of the new classes, order of batches, augmentation, views.
        options: See :class:`Options`.

    Returns:
        ``fit.head``, the new head; ``fit.front``, the reference, moved if it was allowed to;
        ``fit.part``, the two together; and the record.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
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
    new = _new_classes(head, front, task, classes)
    question = pretext_named(pretext) if moving else None
    if question is not None:
        _refuse_pretext_head(front, rp_head, question)
    elif rp_head is not None:
        raise SettingsError(
            f"{argument('rp_head', ...)} holds an extractor that moves: say "
            f"{argument('moving', True)}, or leave it"
        )
    chosen = choose_norms(norms, task, (front, head), seed=seed)
    wider = extend_head(head, new, seed=seed)
    wider.module.requires_grad_(True)
    taught = only_classes(task, wider.contract.classes or ())
    _refuse_lone_example(taught, chosen.norms, front, head)
    course = Course("extend-classes", taught, options, augment=augment, seed=seed)
    wider = course.copied(wider)
    reference = course.copied(front, frozen=not moving)
    course.settings |= {
        "classes": list(new),
        "moving": moving,
        **chosen.settings,
        "pretext": None if question is None else question.described(),
        "head_digest": head.digest,
        "front_digest": front.digest,
        "rp_digest": None if rp_head is None else rp_head.digest,
    }
    auxiliaries = []
    if question is not None and rp_head is not None:
        reference.module.requires_grad_(True)
        auxiliaries = [Auxiliary("rp", course.copied(rp_head), question, frozen=True)]
        member = Member("reference", reference, wider, taught)
    else:
        anew = chosen.norms == "recalibrated"
        batches = calibrating_batches(reference, taught, seed=seed) if anew else ()
        module = with_norms(reference.module.eval(), chosen.norms, batches)
        member = _behind(reference.changed(module=module), wider, course)
    rows = Group([member], auxiliaries).train_on(course, seed=seed, label=f"{len(new)} new classes")

    after, old = reference if moving else front, head.contract.classes or ()
    reached = None
    if taught.size("validation"):
        reached = shares_of(after, wider, taught, old, chosen.norms, split="validation")
    record = ClassExtension(
        task=taught.name,
        old=old,
        new=new,
        moving=moving,
        stage=Stage.of(("reference",), rows, course.options.patience),
        accuracy=reached,
        settings=course.settings,
    )
    measured = {} if reached is None else {"validation accuracy": reached.all}
    holding = () if rp_head is None else (rp_head,)
    origin = course.origin((head, front, *holding), measured)
    wider = wider.changed(origin=origin)
    if moving:
        after = after.changed(origin=course.origin((front, *holding), measured))
    network = joined(after, wider, taught, chosen.norms).changed(origin=origin)
    return ExtensionFit((wider, after) if moving else (wider,), record, network, wider, after)


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
        raise SettingsError(
            f"{argument('classes', ...)} lists names, as in {argument('classes', [classes])}"
        )
    new = [name for name in task.classes if name not in known] if classes is None else classes
    for name in new:
        if name not in task.classes:
            raise TaskError(f"{task.name!r} has no class {name!r}{nearest(name, task.classes)}")
    if not new:
        raise TaskError(f"{head.described!r} knows all classes of {task.name!r} already")
    return tuple(new)


def _refuse_lone_example(task: Task, norms: Statistics, *parts: Part) -> None:
    """Refuse a validation split without statistics of a batch before anything is trained."""
    batch = norms == "batch" and any(has_batch_norm(part.module) for part in parts)
    if batch and task.size("validation") == 1:
        raise TaskError(
            f"{task.name!r} has one example in its validation split, which has no statistics of a "
            f"batch; give it more or none, or say {argument('norms', 'stored')}"
        )


def _refuse_pretext_head(front: Part, rp_head: Part | None, pretext: Pretext) -> None:
    if rp_head is None:
        raise SettingsError(
            f"{argument('moving', True)} needs {argument('rp_head', ...)}, the pretext's head that "
            "the extractors were trained with: the auxiliary 'rp' of a head shared with "
            f"{argument('by', ('dcc', 'rp'))}"
        )
    if reasons := front.contract.mismatches(rp_head.contract):
        raise ContractError(
            f"{argument('rp_head')} does not hold the reference {front.described!r}: "
            f"{'; '.join(reasons)}"
        )
    refuse_other_answers(pretext, rp_head)
    refuse_other_images(pretext, front)


def _behind(front: Part, head: Part, course: Course) -> Member:
    """The head behind a frozen front; what the front gives is computed once where it can be."""
    (task,) = course.tasks
    numbers = math.prod(side or 1 for side in front.contract.gives[0].shape or ())
    size = 4 * (task.size("train") + task.size("validation")) * numbers
    if course.augment is not None or size > supervision.KEPT_BYTES:
        return Member("reference", front, head, task)
    inputs, targets, start = [], [], 0
    indices: dict[Split, Tensor] = {"test": torch.arange(0)}
    splits: tuple[Split, ...] = ("train", "validation")
    for split in splits:
        rows = task.indices(split)
        indices[split] = torch.arange(start, start + len(rows))
        start += len(rows)
        if len(rows):
            inputs.append(_features(front, task, rows, course.seed))
            targets.append(task.targets[rows])
    same = task.derived(
        task.name, inputs=torch.cat(inputs), targets=torch.cat(targets), indices=indices
    )
    port = front.contract.gives
    return Member("reference", Part(nn.Identity(), Contract(port, port)), head, same)


def _features(front: Part, task: Task, rows: Tensor, seed: int) -> Tensor:
    """What the front gives for these rows, each batch of them drawn at random."""
    places = random_batches(torch.arange(len(rows)), seed)
    made = [outputs_of(front, task.inputs[rows[some]], batch_size=len(some)) for some in places]
    return torch.cat(made)[torch.argsort(torch.cat(places))]
