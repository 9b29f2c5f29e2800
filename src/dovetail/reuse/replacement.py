r"""A new extractor behind a head that is in production already.

The head :math:`h` stays as it is, byte for byte; a new front :math:`f'` of any architecture is
trained through it,

.. math::
    \min_{f'}\; \frac1n \sum_i \Big[ \ell\big(h(f'(x_i)), y_i\big) + \dots \Big] ,

where the dots are the losses of other frozen heads of the same space, if there are any (see
:mod:`dovetail.train.group`).  The new front then gives the head's space, and fits whatever
else takes it, as far as the heads it was trained through pin that space down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Unpack

from torch import nn

from dovetail.core.declared import Column, table, text, when
from dovetail.core.errors import ContractError, SettingsError, TaskError, argument, nearest
from dovetail.measure.forward import outputs_of
from dovetail.measure.joined import accuracy, joined
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Port, Preprocess, shown_shape
from dovetail.parts.cutting import CutPoint, cut, output_point
from dovetail.parts.joining import adapter, join
from dovetail.parts.norms import Norms, settle_norms
from dovetail.parts.part import Part, as_part, ports_of
from dovetail.reuse.judged_replacement import OF_SWITCHES, Switch, policies_for, switch_between
from dovetail.reuse.judging import of_task, refuse_unknown_classes
from dovetail.settings.reuse import Replace
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit, Training
from dovetail.train.frame import Course
from dovetail.train.group import Auxiliary, Group, Member
from dovetail.train.group_parts import AUXILIARIES, why_stuck
from dovetail.train.options import LoopOptions
from dovetail.train.self_supervised import refuse_other_answers, refuse_other_images

_NEW, _HEAD = "new", "head"


@dataclass(frozen=True, kw_only=True)
class Replacement(Training, kind="replacement", title="{part} before {head}"):
    """How a new front was trained against a frozen head.

    ``accuracy`` is that of the new front with the head on the validation split, by policy of norms;
    ``switches`` compare it with the old front, if there was one to compare with; ``unseen`` are
    classes of the head that the task does not show.

    >>> row = {"epoch": 1, "loss": 0.5}
    >>> Replacement(
    ...     part="resnet8", task="digits", head="back of lenet5 at conv2", rows=(row,),
    ...     accuracy={"stored": 0.92},
    ... )
    Replacement(resnet8 before back of lenet5 at conv2, on digits: 1 epochs, accuracy 0.92)
    """

    head: str
    accuracy: dict[str, float] = field(default_factory=dict)
    switches: tuple[Switch, ...] = ()
    unseen: tuple[str, ...] = ()

    split: ClassVar[str] = "validation"

    @property
    def _few_unseen(self) -> tuple[str, ...]:
        return self.unseen[:10]

    shows = (
        when("switches", *OF_SWITCHES),
        when(
            lambda record: not record.switches,
            table(
                "accuracy",
                Column("norms", 0),
                Column("accuracy", 1, ".1%"),
                caption="The new front with the head, on the validation split of {task}",
            ),
        ),
        when(
            "unseen",
            text(
                "The head also tells {_few_unseen!l} apart, of which {task} shows nothing: how the "
                "new front does there is not known.",
                "warning",
            ),
        ),
        *Training.shows,
    )

    def __repr__(self) -> str:
        norms = self.settings.get("norms", next(iter(self.accuracy), None))
        reached = f", accuracy {self.accuracy[norms]:.4g}" if norms in self.accuracy else ""
        where = f"{self.part} before {self.head}, on {self.task}"
        return f"Replacement({where}: {len(self.rows)} epochs{reached})"


def replace_front(
    model: Part | nn.Module,
    head: Part,
    task: Task,
    *,
    old: Part | None = None,
    auxiliaries: Mapping[str, Part] | None = None,
    at: str | CutPoint | None = None,
    pretext: str | Pretext = Replace.pretext,
    weights: Mapping[str, float] | None = None,
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    norms: Norms = Replace.norms,
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
            production, where requests come one at a time, which is what ``"auto"`` comes to; or
            those of each ``"batch"``; or ``"recalibrated"`` on the training images, trained with
            each batch's.
        seed: Adapter, order of batches, views, augmentation, dropout.
        options: See :class:`Options`.

    Returns:
        ``fit.parts``, the new front and the head, which join without force; ``fit.part``, the two
        joined; and the record, a :class:`Replacement`.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
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
    question, heads = pretext_named(pretext), dict(auxiliaries or {})
    _refuse_strangers(head, heads, task, weights)
    course = Course("replacement", task, options, augment=augment, seed=seed)
    start = as_part(model)
    chosen = settle_norms(norms, (start, head), trains_for="stored")
    front = _front_of(course.twin(start, task, preprocess), start, task, at, head)
    front, frozen = _fitted(front, course.copied(head), seed)
    others = [
        _auxiliary(course, name, heads[name], question, weights, front) for name in sorted(heads)
    ]
    course.settings |= {
        "at": None if at is None else str(at),
        **chosen.settings,
        "pretext": question.described() if "rp" in heads else None,
        "auxiliaries": {name: part.digest for name, part in sorted(heads.items())},
        "weights": {other.name: other.weight for other in others},
        "start_digest": start.digest,
        "head_digest": head.digest,
    }
    # What is frozen in a group uses batch statistics.  With stored norms the head only has weights
    # that are not trained: then the loop leaves it in evaluation mode, as it is in production.
    through = Auxiliary(_HEAD, course.copied(frozen, frozen=True), frozen=chosen.norms != "stored")
    group = Group([Member(_NEW, front, None, task)], [through, *others])
    rows = group.train_on(course, seed=seed, label=task.name)
    policies = policies_for(chosen.norms, front, frozen) if task.size("validation") > 1 else ()
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
        settings=course.settings,
    )
    measured = {"validation accuracy": record.accuracy[chosen.norms]} if policies else {}
    front = front.changed(origin=course.origin((start, head, *heads.values()), measured))
    network = joined(front, frozen, task, chosen.norms, seed=seed)
    return Fit((front, frozen), record, of_task(network, task))


def _refuse_strangers(
    head: Part, heads: Mapping[str, Part], task: Task, weights: Mapping[str, float] | None
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
    for name, part in heads.items():
        if name not in AUXILIARIES:
            raise SettingsError(f"unknown auxiliary head {name!r}{nearest(name, AUXILIARIES)}")
        theirs = {port.space for port in part.contract.takes}
        if theirs != {space}:
            raise ContractError(
                f"the {name!r} head takes {' and '.join(map(str, theirs))}, the head in "
                f"production {space}; give auxiliaries of the training that made the head"
            )
    for name, value in (weights or {}).items():
        if name not in heads:
            raise SettingsError(
                f"{argument('weights', ...)} has {name!r}, which {argument('auxiliaries', ...)} "
                "does not have"
            )
        if not 0 <= value < float("inf"):
            raise SettingsError(f"the weight of {name!r} must be a number of at least 0")


def _front_of(copied: Part, start: Part, task: Task, at: str | CutPoint | None, head: Part) -> Part:
    """The front that was meant, with the tensor that it gives as seen on the task."""
    sample = task.inputs[task.indices("train")[:2]]
    seen = outputs_of(copied, sample)
    is_front = len(start.contract.gives) == 1 and start.contract.gives[0].space is not None
    if at is None and (is_front or tuple(seen.shape[1:]) == head.contract.takes[0].shape):
        front = copied.changed(contract=replace(copied.contract, classes=None))
    else:
        front, _ = cut(copied, output_point(copied.module) if at is None else at)
        seen = outputs_of(front, sample)
    port = replace(ports_of(seen)[0], activation=front.contract.gives[0].activation)
    return front.changed(contract=replace(front.contract, gives=(port,), kind="classes"))


def _fitted(front: Part, head: Part, seed: int) -> tuple[Part, Part]:
    """The front with an adapter where channels differ, and the head so that it can take it."""
    gives_now, takes = front.contract.gives[0], head.contract.takes[0]
    shape = gives_now.shape or ()
    if takes.shape is not None:
        if len(takes.shape) != len(shape):
            raise ContractError(
                f"the front gives {shown_shape(shape)}, the head takes {shown_shape(takes.shape)}: "
                f"one is a vector, the other a map; say {argument('at', ...)} to cut the network "
                "elsewhere"
            )
        wanted = (takes.shape[0] or shape[0], *shape[1:])
        if wanted != shape:
            between = head.changed(contract=replace(head.contract, takes=(Port(wanted),)))
            front = join(front, adapter(front, between, seed=seed))
            front.module.to(head.device)
        if any(
            side not in (None, mine) for side, mine in zip(takes.shape[1:], shape[1:], strict=True)
        ):
            if reason := why_stuck(head, wanted):
                raise ContractError(
                    f"the front gives maps of {shown_shape(wanted[1:])}, which the head cannot "
                    f"take ({reason}); cut where the maps have the head's size, "
                    f"{shown_shape(takes.shape[1:])}"
                )
            takes = replace(takes, shape=(takes.shape[0], *(None for _ in shape[1:])))
            head = head.changed(contract=replace(head.contract, takes=(takes,)))
        shape = wanted
    gives = replace(takes, shape=shape)
    return front.changed(contract=replace(front.contract, gives=(gives,))), head


def _auxiliary(
    course: Course,
    name: str,
    part: Part,
    question: Pretext,
    weights: Mapping[str, float] | None,
    front: Part,
) -> Auxiliary:
    """A head of the same space that the new front is trained through, too."""
    if reasons := front.contract.obstacles(part.contract):
        raise ContractError(f"the {name!r} head cannot follow the new front: {'; '.join(reasons)}")
    own = question if name == "rp" else None
    if own is not None:
        refuse_other_answers(own, part)
        refuse_other_images(own, front)
    weight = float((weights or {}).get(name, 1.0))
    return Auxiliary(name, course.copied(part), own, weight, frozen=True)


def _renamed(row: dict[str, float]) -> dict[str, float]:
    """A row of the group's in the words of a training of one network."""
    words = {f"{_NEW} {_HEAD} validation accuracy": "validation accuracy"}
    return {words.get(name, name.removeprefix(f"{_NEW} ")): value for name, value in row.items()}
