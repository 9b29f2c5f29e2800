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
from dovetail.core.records import Record
from dovetail.measure.forward import outputs_of
from dovetail.measure.intervals import PairedDifference, paired_difference
from dovetail.measure.joined import accuracy, answers, joined
from dovetail.objectives.pretexts import Pretext, pretext_named
from dovetail.parts.contract import Port, Preprocess, shown_shape
from dovetail.parts.cutting import CutPoint, cut, output_point
from dovetail.parts.joining import adapter, join
from dovetail.parts.norms import Norms, Statistics, has_batch_norm, settle_norms
from dovetail.parts.part import Part, as_part, ports_of
from dovetail.reuse.judging import chance_for, facts_of, of_task, refuse_unknown_classes, verdict
from dovetail.settings.reuse import Replace
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Split, Task
from dovetail.train.fit import Fit, Training
from dovetail.train.frame import Course
from dovetail.train.group import Auxiliary, Group, Member
from dovetail.train.group_parts import AUXILIARIES, why_stuck
from dovetail.train.options import LoopOptions
from dovetail.train.self_supervised import refuse_other_answers, refuse_other_images

__all__ = ["JudgedReplacement", "Replacement", "Switch", "judge_replacement", "replace_front"]

_NEW, _HEAD = "new", "head"
_SHOWN = 10
"""So many classes are listed, those that lose most first."""


@dataclass(frozen=True)
class Switch:
    """From the old front to the new one behind the same head, with one policy of norms.

    ``classes`` compares the examples of each class.

    >>> change = PairedDifference(n=200, both=180, gained=4, lost=9, low=-0.064, high=0.012)
    >>> Switch("stored", change, {})
    Switch(stored norms, 94.5% -> 92.0%: -2.5 points [-6.4, +1.2], n 200)
    """

    norms: str
    change: PairedDifference
    classes: dict[str, PairedDifference]

    @property
    def worst_first(self) -> dict[str, PairedDifference]:
        """The classes in an order that no file keeps: that with the largest drop first."""
        return dict(sorted(self.classes.items(), key=lambda item: (item[1].difference, item[0])))

    @property
    def verdict(self) -> str:
        """The finding in words, from the numbers."""
        change = self.change
        judgement = verdict(
            change,
            f"The interval holds zero; a drop of {max(-change.low, 0):.1%} cannot be ruled out.",
            "The new front is better.",
            "The new front is worse.",
        )
        return (
            f"With {self.norms} norms the switch changes the accuracy by {change.shown} "
            f"({change.gained} examples won, {change.lost} lost of {change.n}). {judgement}"
        )

    def __repr__(self) -> str:
        change = repr(self.change).removeprefix("PairedDifference(")
        return f"Switch({self.norms} norms, {change}"


_OF_SWITCHES = (
    text("{switches[0].verdict}"),
    table(
        "switches",
        Column("norms"),
        Column("old front", "change.before", ".1%"),
        Column("new front", "change.after", ".1%"),
        Column("change", "change.shown"),
        caption="Accuracy behind the same head, {switches[0].change.n} examples of the {split} "
        "split",
    ),
    table(
        lambda record: tuple(record.switches[0].worst_first.items())[:_SHOWN],
        Column("class", 0),
        Column("examples", lambda row: row[1].n),
        Column("old front", lambda row: row[1].before, ".1%"),
        Column("new front", lambda row: row[1].after, ".1%"),
        Column("change", lambda row: row[1].shown),
        caption="The largest drops, with {switches[0].norms} norms",
    ),
)
"""What changes, by policy of norms, and the classes that lose most with the first policy."""


@dataclass(frozen=True, kw_only=True)
class JudgedReplacement(Record, kind="judged-replacement", title="Another front for {task}"):
    """The accuracies of old and new front behind one head, and the change, example by example.

    The first of ``switches`` is with the norms that were asked for.

    >>> change = PairedDifference(n=200, both=180, gained=4, lost=9, low=-0.064, high=0.012)
    >>> found = JudgedReplacement(
    ...     task="digits", split="test", switches=(Switch("stored", change, {}),), chance=0.1
    ... )
    >>> found, found.change.difference
    (JudgedReplacement(digits test: stored norms, 94.5% -> 92.0%: ..., n 200), -0.025)
    """

    task: str
    split: str
    switches: tuple[Switch, ...]
    chance: float

    @property
    def change(self) -> PairedDifference:
        """With the norms that were asked for."""
        return self.switches[0].change

    @property
    def classes(self) -> dict[str, PairedDifference]:
        """The change of each class, the largest drop first."""
        return self.switches[0].worst_first

    shows = _OF_SWITCHES

    def __repr__(self) -> str:
        first = repr(self.switches[0]).removeprefix("Switch(")
        return f"JudgedReplacement({self.task} {self.split}: {first}"


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
        when("switches", *_OF_SWITCHES),
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
    question, given = pretext_named(pretext), dict(auxiliaries or {})
    _refuse_strangers(head, given, task, weights)
    course = Course("replacement", task, options, augment=augment, seed=seed)
    start = as_part(model)
    chosen = settle_norms(norms, (start, head), trains_for="stored")
    front = _front_of(course.twin(start, task, preprocess), start, task, at, head)
    front, frozen = _fitted(front, course.copied(head), seed)
    others = [
        _auxiliary(course, name, given[name], question, weights, front) for name in sorted(given)
    ]
    course.settings |= {
        "at": None if at is None else str(at),
        **chosen.settings,
        "pretext": question.described() if "rp" in given else None,
        "auxiliaries": {name: part.digest for name, part in sorted(given.items())},
        "weights": {other.name: other.weight for other in others},
        "start_digest": start.digest,
        "head_digest": head.digest,
    }
    # What is frozen in a group uses batch statistics.  With stored norms the head only has weights
    # that are not trained: then the loop leaves it in evaluation mode, as it is in production.
    through = Auxiliary(_HEAD, course.copied(frozen, frozen=True), frozen=chosen.norms != "stored")
    group = Group([Member(_NEW, front, None, task)], [through, *others])
    rows = group.train_on(course, seed=seed, label=task.name)
    policies = _policies_for(chosen.norms, front, frozen) if task.size("validation") > 1 else ()
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
            _switch_between(old, front, frozen, task, "validation", how, seed=seed)
            for how in policies
        ),
        unseen=tuple(name for name in head.contract.classes or () if name not in task.classes),
        settings=course.settings,
    )
    measured = {"validation accuracy": record.accuracy[chosen.norms]} if policies else {}
    front = front.changed(origin=course.origin((start, head, *given.values()), measured))
    whole = joined(front, frozen, task, chosen.norms, seed=seed)
    return Fit((front, frozen), record, of_task(whole, task))


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
    given = replace(ports_of(seen)[0], activation=front.contract.gives[0].activation)
    return front.changed(contract=replace(front.contract, gives=(given,), kind="classes"))


def _fitted(front: Part, head: Part, seed: int) -> tuple[Part, Part]:
    """The front with an adapter where channels differ, and the head so that it can take it."""
    given, taken = front.contract.gives[0], head.contract.takes[0]
    shape = given.shape or ()
    if taken.shape is not None:
        if len(taken.shape) != len(shape):
            raise ContractError(
                f"the front gives {shown_shape(shape)}, the head takes {shown_shape(taken.shape)}: "
                f"one is a vector, the other a map; say {argument('at', ...)} to cut the network "
                "elsewhere"
            )
        wanted = (taken.shape[0] or shape[0], *shape[1:])
        if wanted != shape:
            between = head.changed(contract=replace(head.contract, takes=(Port(wanted),)))
            front = join(front, adapter(front, between, seed=seed))
            front.module.to(head.device)
        if any(
            side not in (None, mine) for side, mine in zip(taken.shape[1:], shape[1:], strict=True)
        ):
            if reason := why_stuck(head, wanted):
                raise ContractError(
                    f"the front gives maps of {shown_shape(wanted[1:])}, which the head cannot "
                    f"take ({reason}); cut where the maps have the head's size, "
                    f"{shown_shape(taken.shape[1:])}"
                )
            taken = replace(taken, shape=(taken.shape[0], *(None for _ in shape[1:])))
            head = head.changed(contract=replace(head.contract, takes=(taken,)))
        shape = wanted
    gives = replace(taken, shape=shape)
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
    asked = question if name == "rp" else None
    if asked is not None:
        refuse_other_answers(asked, part)
        refuse_other_images(asked, front)
    weight = float((weights or {}).get(name, 1.0))
    return Auxiliary(name, course.copied(part), asked, weight, frozen=True)


def _renamed(row: dict[str, float]) -> dict[str, float]:
    """A row of the group's in the words of a training of one network."""
    words = {f"{_NEW} {_HEAD} validation accuracy": "validation accuracy"}
    return {words.get(name, name.removeprefix(f"{_NEW} ")): value for name, value in row.items()}


def judge_replacement(
    old: Part,
    new: Part,
    head: Part,
    task: Task,
    *,
    split: Split = "test",
    norms: Norms = Replace.norms,
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
        norms: Statistics of batch norms, for both fronts; ``"auto"``: what the new one was trained
            for.
        seed: For the order of the examples, and for the images of a recalibration.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> front, head = cut(end_to_end(build("mlp", hidden=(32,)), digits, epochs=3).part, "hidden1")
    >>> other, _ = cut(build("mlp", hidden=(32,), seed=1), at="hidden1")
    >>> judge_replacement(front, other, head, digits).change.difference < -0.5
    True
    """
    refuse_unknown_classes(head, task)
    chosen = settle_norms(norms, (new, head))
    policies = _policies_for(chosen.norms, old, new, head)
    return JudgedReplacement(
        task=task.name,
        split=split,
        switches=tuple(_switch_between(old, new, head, task, split, how, seed) for how in policies),
        chance=chance_for(head, task),
        settings=facts_of(task, split, chosen, seed, old=old, new=new, head=head),
    )


def _policies_for(norms: Statistics, *parts: Part) -> tuple[Statistics, ...]:
    """The policy asked for, then stored and batch statistics where they make a difference."""
    if not any(has_batch_norm(part.module) for part in parts):
        return (norms,)
    both: tuple[Statistics, ...] = ("stored", "batch")
    return (norms, *(other for other in both if other != norms))


def _switch_between(
    old: Part,
    new: Part,
    head: Part,
    task: Task,
    split: Split,
    norms: Statistics,
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
