r"""Unsupervised domain adaptation through a frozen head.

A source network has a front :math:`f`, a head :math:`h` for its classes and a head :math:`r` for a
pretext.  On unlabelled images :math:`x` of a target domain, with views :math:`g(x, s)`, a copy of
the front is trained by the pretext alone,

.. math:: \min_{f'}\; \frac{1}{n |S|} \sum_i \sum_{s \in S} \ell\bigl(r(f'(g(x_i, s))), s\bigr) ,

while :math:`r` does not move.  So :math:`f'` must go on speaking the language of :math:`r`, which
:math:`f` shares and :math:`h` understands: :math:`h(f'(x))` tells the classes of target images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Unpack

from torch import Tensor

from dovetail.core.declared import Column, figure, table, text, when
from dovetail.core.errors import ContractError, TaskError, argument
from dovetail.core.records import Record
from dovetail.measure.intervals import PairedDifference, paired_difference
from dovetail.measure.joined import answers, calibrating_batches, joined
from dovetail.measure.pairs import choose_norms
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Preprocess
from dovetail.parts.joining import join
from dovetail.parts.norms import Norms, Statistics, has_batch_norm, recalibrate, settle_norms
from dovetail.parts.part import Part
from dovetail.reuse.judging import chance_for, facts_of, of_task, refuse_unknown_classes, verdict
from dovetail.settings.reuse import Domain
from dovetail.tasks.augment import Augment
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit
from dovetail.train.frame import Course
from dovetail.train.options import LoopOptions, Options
from dovetail.train.self_supervised import (
    SOLVED,
    PretextTraining,
    Questions,
    refuse_other_answers,
    without_labels,
)

_STEPS = 1000
_DEFAULTS: LoopOptions = {
    "lr": Domain.lr,
    "schedule": Domain.schedule,
    "weight_decay": Domain.weight_decay,
}
"""Small steps of one length: the frozen head knows nothing of the classes, and what the pretext
does not need is kept only by not moving far."""


@dataclass(frozen=True, kw_only=True)
class DomainAdaptation(
    PretextTraining,
    kind="domain-adaptation",
    title="Adapting {part} to {task}",
    brief="{part} to {task} by {pretext}: {rows!n} epochs{_solved}, chance {chance:.4g}",
):
    """How a front was adapted by a pretext, with what it answered ``before``.

    >>> row = {"epoch": 1, "loss": 0.5, SOLVED: 0.875}
    >>> facts = {"part": "lenet5", "task": "photos", "pretext": "rotation", "chance": 0.25}
    >>> DomainAdaptation(rows=(row,), before={SOLVED: 0.5}, **facts)
    DomainAdaptation(lenet5 to photos by rotation: 1 epochs, solved 0.5 -> 0.875, chance 0.25)
    """

    before: dict[str, float] = field(default_factory=dict)
    space: str | None = None

    @property
    def asked_twice(self) -> bool:
        """Whether the pretext was validated before and after."""
        return SOLVED in self.before and SOLVED in self.final

    @property
    def _solved(self) -> str:
        both = (measures.get(SOLVED) for measures in (self.before, self.final))
        return ", solved {:.4g} -> {:.4g}".format(*both) if self.asked_twice else ""

    @property
    def change(self) -> str:
        """What the questions say of it, before and after."""
        before, after = self.before[SOLVED], self.final[SOLVED]
        says = (
            f"Through the frozen head {before:.1%} of the questions about the new domain were "
            f"answered rightly before, and {after:.1%} after. "
        )
        if before <= self.chance:
            return says + (
                "Before, that was no better than guessing: the domain is so far from the source "
                "that the front may learn to answer in another language than the heads'."
            )
        if after <= before:
            return says + "The pretext gained nothing, so do not expect the classes to."
        return says + "Whether the classes gained, only labels can tell: reuse.judge_adaptation."

    shows = (
        when("asked_twice", text("{change}")),
        *PretextTraining.shows,
        when(
            lambda adaptation: adaptation.space is None,
            text(
                "Front and heads say no space, so that they belong together was taken on trust.",
                "warning",
            ),
        ),
    )


@dataclass(frozen=True)
class Reading:
    """The accuracy of one front with the head, over all examples and as a mean of the classes'."""

    name: str
    norms: str
    accuracy: float
    class_mean: float


@dataclass(frozen=True, kw_only=True)
class JudgedAdaptation(
    Record,
    kind="judged-adaptation",
    title="Adapted to {task}",
    brief="{task} {split}: {gain.before:.1%} -> {gain.after:.1%}: {gain.shown}, n {gain.n}",
):
    """What adapting brought: readings of source and adapted front, and the gain.

    The gain is over the source network *with the same norms*: new statistics alone often bring
    most of it, and need no training.

    >>> gain = PairedDifference(n=200, both=150, gained=20, lost=5, low=0.027, high=0.125)
    >>> readings = tuple(Reading(name, "batch", 0.8, 0.8) for name in ("source", "adapted"))
    >>> JudgedAdaptation(task="photos", split="test", readings=readings, gain=gain, chance=0.1)
    JudgedAdaptation(photos test: 77.5% -> 85.0%: +7.5 points [+2.7, +12.5], n 200)
    """

    task: str
    split: str
    readings: tuple[Reading, ...]
    gain: PairedDifference
    chance: float

    @property
    def accuracy(self) -> dict[str, float]:
        """The readings by name and norms, such as ``"source, batch norms"``."""
        return {f"{r.name}, {r.norms} norms": r.accuracy for r in self.readings}

    @property
    def summary(self) -> str:
        """The finding in a sentence, from the numbers."""
        sure = verdict(
            self.gain, "the interval holds zero, so it may be chance", "a gain", "a loss"
        )
        return (
            f"Training by the pretext changed the accuracy by {self.gain.shown} beyond what new "
            f"statistics alone give ({self.gain.n} examples, the same ones for both): {sure}."
        )

    @property
    def with_guessing(self) -> tuple[Reading, ...]:
        """The readings, and beside them what no network is needed for."""
        return (*self.readings, Reading("guessing", "", self.chance, self.chance))

    shows = (
        text("{summary}"),
        table(
            "with_guessing",
            Column("front", "name"),
            Column("norms"),
            Column("accuracy", spec=".1%"),
            Column("mean of the classes", "class_mean", ".1%"),
            caption="{gain.n} examples of the {split} split of {task}",
        ),
        figure(
            "bar", "Accuracy on the target domain", "accuracy", 0, {"accuracy": 1}, y_format=".0%"
        ),
    )


def adapt_domain(
    front: Part,
    rp_head: Part,
    task: Task | Tensor,
    *,
    head: Part | None = None,
    pretext: str | Pretext = Domain.pretext,
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    norms: Norms = Domain.norms,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> Fit:
    """Train a copy of ``front`` on unlabelled images of another domain, its heads untouched.

    Args:
        front: Trained on the source domain together with both heads, such as ``fit.fronts[0]`` of
            :func:`~dovetail.train.compatible.compatible`.
        rp_head: The pretext's head of that training, ``fit.auxiliaries["rp"]``.  It must take the
            space that the front gives.  Where neither says any space, that is taken on trust: what
            is trained then has none either, and is joined by force.
        task: One, whose targets are never read, or images ``[n, c, h, w]``: a tenth of them
            validates.
        head: The source head for the classes, to be joined with the adapted front.
        pretext: What ``rp_head`` was trained for.
        augment: Changes of the images before the pretext makes its views.
        preprocess: Default: the front's own, that of the source.
            ``measure.forward.preprocess_for(task)`` standardises by the target's statistics.
        norms: Statistics of batch norms in the joined network: ``"batch"``, ``"recalibrated"`` on
            target training images, or ``"stored"``, where the head keeps those of the source.
            ``"auto"``: those of each batch, as in the training, where a head has any.
        seed: Order of batches, views, augmentation, dropout.
        options: See :class:`Options`.  Unless said, ``lr=0.001`` without schedule or weight decay,
            and as many epochs as make a thousand steps.

    Returns:
        ``fit.parts[0]``, the adapted front, in the space of the source's, its stored statistics
        those of the target; ``fit.part``, the front with the source head if one was given; and the
        record, a :class:`DomainAdaptation`.  The fingerprint in their origins is that of the
        images: other labels make the same part.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.tasks.derive import noisy
    >>> from dovetail.train.compatible import compatible
    >>> digits = load_task("digits")
    >>> net = build("mlp", shape=(1, 8, 8), hidden=(32, 32), norm="batch")
    >>> fit = compatible([net], [digits], by=("rp",), at="hidden1", epochs=3)
    >>> source, head, rp = fit.fronts[0], fit.heads[0], fit.auxiliaries["rp"]
    >>> adapted = adapt_domain(source, rp, noisy(digits, 0.3).inputs, head=head, epochs=2)
    >>> adapted.parts[0].contract.gives == source.contract.gives
    True
    >>> adapted.part.contract.classes == digits.classes
    True
    """
    question, images = pretext_named(pretext), without_labels(task)
    if images.size("train") < 2:
        raise TaskError(f"{images.name!r} has no two training images to adapt to")
    chosen = settle_norms(norms, (front, head or rp_head), trains_for="batch")
    space = _common_space(front, rp_head, head)
    refuse_other_answers(question, rp_head)
    settled: LoopOptions = {**_DEFAULTS, **options}
    in_one = math.ceil(images.size("train") / Options(**settled).batch_size)
    settled.setdefault("epochs", math.ceil(_STEPS / in_one))
    course = Course("domain-adaptation", images, settled, augment=augment, seed=seed)
    contract = replace(front.contract, preprocess=preprocess or front.contract.preprocess)
    mine = course.copied(front.changed(contract=contract))
    # Both parts normalise by the batch: what they have stored are statistics of the source.
    pretext_network = join(mine, course.copied(rp_head, frozen=True), norms="batch", force=True)
    questions = Questions(course, question, pretext_network)
    course.settings |= {
        "pretext": question.described(),
        **chosen.settings,
        "start_digest": front.digest,
        "rp_head_digest": rp_head.digest,
    }
    before = questions.validate()
    record = DomainAdaptation(part=front.described, before=before, space=space, **questions.learn())
    module = mine.module.eval()
    if has_batch_norm(module):
        module = recalibrate(module, calibrating_batches(mine, images, seed=seed))
    origin = course.origin([front, rp_head], record.final)
    adapted = mine.changed(module=module, origin=origin)
    if head is None:
        return Fit((adapted,), record)
    head = course.copied(head)
    network = of_task(joined(adapted, head, images, chosen.norms, seed=seed), images)
    return Fit((adapted, head), record, network)


def _common_space(front: Part, rp_head: Part, head: Part | None) -> str | None:
    """The space that all are of; an error, before anything is trained, when they are not."""
    spaces = {port.space for port in front.contract.gives}
    space = spaces.pop() if len(spaces) == 1 else None
    for other in (rp_head, head):
        if other is None:
            continue
        unsaid = space is None and all(port.space is None for port in other.contract.takes)
        theirs = front.contract.obstacles if unsaid else front.contract.mismatches
        if reasons := theirs(other.contract):
            listed = "".join(f"\n  - {reason}" for reason in reasons)
            raise ContractError(
                f"{other.described!r} cannot hold {front.described!r} in its space:{listed}\n"
                "Only heads that were trained with this front can. Take front, head and the "
                f"auxiliary 'rp' of one training for compatibility with {argument('by', ('rp',))}"
            )
    return space


def judge_adaptation(
    front: Part,
    adapted: Part,
    head: Part,
    task: Task,
    *,
    split: Split = "test",
    norms: Norms = Domain.norms,
    seed: int = 0,
) -> JudgedAdaptation:
    """Compare the source front and the adapted one, each with the source head, on the target.

    Three readings: the source network as it was stored, the source network with ``norms``, and the
    adapted front with ``norms``.  The gain is the last over the second, on the same examples.

    Args:
        front: Of the source network.
        adapted: What :func:`adapt_domain` made of it.
        head: Of the source network, for the classes.
        task: Of the target domain; its classes are matched with the head's by name.
        split: Which examples judge.
        norms: ``"batch"``; ``"recalibrated"`` on the target's training images; ``"stored"``; or
            ``"auto"``, what the adapted front was trained for.
        seed: For the order of the examples, and for the images of the recalibration.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> net = end_to_end(build("mlp", hidden=(32,)), digits, epochs=2).part
    >>> front, head = cut(net, at="hidden1")
    >>> judge_adaptation(front, front, head, digits).gain.difference
    0.0
    """
    refuse_unknown_classes(head, task)
    chosen = choose_norms(norms, task, (adapted, head), seed=seed)
    compared: list[tuple[str, Part, Statistics]] = [
        ("source", front, "stored"),
        ("source", front, chosen.norms),
        ("adapted", adapted, chosen.norms),
    ]
    if chosen.norms == "stored":
        del compared[0]
    verdicts = [answers(part, head, task, how, split=split, seed=seed) for _, part, how in compared]
    return JudgedAdaptation(
        task=task.name,
        split=split,
        readings=tuple(
            Reading(name, how, float(right.double().mean()), _class_mean(right, labels))
            for (name, _, how), (right, labels) in zip(compared, verdicts, strict=True)
        ),
        gain=paired_difference(verdicts[-2][0], verdicts[-1][0]),
        chance=chance_for(head, task),
        settings=facts_of(task, split, chosen, seed, front=front, adapted=adapted, head=head),
    )


def _class_mean(right: Tensor, labels: Tensor) -> float:
    """The mean over the classes of each one's accuracy; ``right [n]`` and ``labels [n]``."""
    shares = [
        float(right[labels == label].double().mean()) for label in sorted(set(labels.tolist()))
    ]
    return sum(shares) / len(shares)
