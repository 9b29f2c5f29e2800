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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn

import dovetail.train.supervision as supervision
from dovetail.core.declared import Column, curves, table, text
from dovetail.core.errors import ContractError, SettingsError, TaskError, argument, nearest
from dovetail.core.records import Record
from dovetail.core.views import Cell
from dovetail.measure.forward import prepare
from dovetail.measure.joined import (
    accuracy,
    answers,
    calibrating_batches,
    joined,
    random_batches,
)
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Contract
from dovetail.parts.heads import extend_head
from dovetail.parts.modules import evaluating
from dovetail.parts.norms import Norms, Statistics, has_batch_norm, settle_norms, with_norms
from dovetail.parts.part import Part, parts_by_name
from dovetail.reuse.judging import StageTraining
from dovetail.settings.reuse import Extend
from dovetail.tasks.augment import Augment
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Split, Task
from dovetail.train.compatible_record import OWN, Stage
from dovetail.train.fit import Fit
from dovetail.train.frame import Course
from dovetail.train.group import Auxiliary, Group, Member
from dovetail.train.options import LoopOptions
from dovetail.train.self_supervised import refuse_other_answers, refuse_other_images

__all__ = [
    "ClassExtension",
    "ExtensionFit",
    "ExtensionJudgement",
    "Shares",
    "extend_classes",
    "judge_extension",
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
    chosen = settle_norms(norms, (front, head))
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
    held = []
    if question is not None and rp_head is not None:
        reference.module.requires_grad_(True)
        held = [Auxiliary("rp", course.copied(rp_head), question, frozen=True)]
        member = Member("reference", reference, wider, taught)
    else:
        anew = chosen.norms == "recalibrated"
        batches = calibrating_batches(reference, taught, seed=seed) if anew else ()
        module = with_norms(reference.module.eval(), chosen.norms, batches)
        member = _behind(reference.changed(module=module), wider, course)
    rows = Group([member], held).train_on(course, seed=seed, label=f"{len(new)} new classes")

    after, old = reference if moving else front, head.contract.classes or ()
    reached = None
    if taught.size("validation"):
        reached = _shares(after, wider, taught, old, norms=chosen.norms, split="validation", seed=0)
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
    whole = joined(after, wider, taught, chosen.norms).changed(origin=origin)
    return ExtensionFit((wider, after) if moving else (wider,), record, whole, wider, after)


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
    old, new = old_head.contract.classes, new_head.contract.classes
    if old is None or new is None:
        raise ContractError("both heads must name their classes")
    if unknown := [name for name in task.classes if name not in new]:
        raise TaskError(f"the new head does not know {', '.join(unknown[:8])} of {task.name!r}")
    chosen = settle_norms(norms, *((front, new_head) for front in named.values()))
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
            name: _shares(front, new_head, task, old, norms=chosen.norms, split=split, seed=seed)
            for name, front in named.items()
        },
        before=before,
        floor=floor,
        n=count,
        settings={
            "split": split,
            **chosen.settings,
            "seed": seed,
            "task_fingerprint": task.fingerprint,
            "front_digests": {name: front.digest for name, front in named.items()},
            "old_head": old_head.digest,
            "new_head": new_head.digest,
        },
    )


def _shares(
    front: Part,
    head: Part,
    task: Task,
    old: Sequence[str],
    *,
    norms: Statistics,
    split: Split,
    seed: int,
) -> Shares:
    """The share of right answers among images of all, old and new classes."""
    right, targets = answers(front, head, task, norms, split=split, seed=seed)
    older = torch.tensor([name in old for name in task.classes])[targets]

    def share(kept: Tensor) -> float | None:
        return float(right[kept].double().mean()) if kept.any() else None

    return Shares(float(right.double().mean()), share(older), share(~older))
