r"""Training without labels: a front learns by answering questions about images.

With the front :math:`f`, an auxiliary head :math:`r` and a pretext that makes views :math:`v` of
the images with answers :math:`t`,

.. math:: \min_{f, r}\; \frac{1}{|S|} \sum_{(v, t) \in S} \ell\bigl(r(f(v)), t\bigr) .

Labels are put aside before anything else happens.  What follows the front in the model is not
touched: the whole then is a start for training with labels, or for compatible training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from dovetail.core.declared import figure, text, when
from dovetail.core.errors import ContractError, SettingsError, TaskError, argument, first_line
from dovetail.core.seeds import generator
from dovetail.core.words import listed
from dovetail.measure.forward import prepare
from dovetail.measure.joined import random_batches
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import Views, pretext_named
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import CutPoint, cut, output_point
from dovetail.parts.heads import fresh_head
from dovetail.parts.joining import join
from dovetail.parts.modules import evaluating
from dovetail.parts.part import Part, as_part
from dovetail.settings.train import SelfSupervised
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.filtering import Filter
from dovetail.train.fit import WATCHED, Fit, Row, Training
from dovetail.train.frame import Course
from dovetail.train.options import LoopOptions
from dovetail.train.supervision import labelled_batches

SOLVED = "validation solved"
"""The share of right answers to the pretext on the validation split."""


def self_supervised(
    model: Part | nn.Module,
    task: Task | Tensor,
    *,
    by: str | Pretext = SelfSupervised.by,
    at: str | CutPoint | None = None,
    head: Part | None = None,
    augment: str | Augment | None = None,
    filter: str | Filter | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> Fit:
    """Train a copy of the front of ``model`` on images without their labels.

    Batch norms of the front see views only, as the pretext makes them: their stored statistics are
    those of turned or rearranged images until the front is trained on, or recalibrated.

    Args:
        model: Its weights are the starting point; it is left as it is.
        task: The images of its training split are learnt from, whatever its kind; its targets are
            never read.  Or the images themselves ``[n, c, h, w]``: a tenth of them validates.
        by: ``"rotation"``, ``"jigsaw"``, ``"views"``, or a
            :class:`~dovetail.objectives.pretexts.Pretext`.
        at: Where the front ends; by default before the last layer that has weights.
        head: A head for the pretext to go on with, such as ``parts[1]`` of an earlier fit; by
            default what follows ``at`` in the model's architecture, untrained, with other outputs.
        augment: Changes of the images before the pretext makes its views.
        filter: Refused: rows are filtered by their classes, or by the loss of each.
        preprocess: Default: the part's own, else standardisation by the training split.
        seed: The new head's weights, order of batches, views, augmentation, dropout.
        options: See :class:`Options`.

    Returns:
        ``fit.parts``, the front and the pretext's head, which fit each other; ``fit.part``, the
        model with the trained front and what followed it before; and the record.  The fingerprint
        in their origins is that of the images: other labels make the same part.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> net = build("mlp", shape=(1, 8, 8), hidden=(64, 32))
    >>> fit = self_supervised(net, load_task("digits"), at="hidden1", epochs=3)
    >>> fit.record.final["validation solved"] > 2 * fit.record.chance
    True
    >>> fit.parts[1].contract.classes
    ('0', '90', '180', '270')
    """
    pretext, images = pretext_named(by), without_labels(task)
    if filter is not None:
        raise SettingsError(
            f"{argument('filter', ...)} chooses rows by their classes or by the loss of each, and "
            "training without labels has neither; leave it out"
        )
    course = Course("self-supervised", images, options, augment=augment, seed=seed)
    start = as_part(model)
    whole = course.twin(start, images, preprocess)
    whole = whole.changed(
        contract=replace(whole.contract, classes=start.contract.classes, kind=start.contract.kind)
    )
    place = output_point(whole.module) if at is None else str(at)
    front, _ = cut(whole, place)
    if head is None:
        answering = fresh_head(whole, place, pretext.answers or pretext.outputs, seed=seed)
    else:
        if obstacles := front.contract.obstacles(head.contract):
            raise ContractError(
                f"the head {head.described!r} does not go with the front at {place!r}: "
                f"{'; '.join(obstacles)}; cut elsewhere with at=, or leave head= out"
            )
        refuse_other_answers(pretext, head)
        answering = course.copied(head)
    questions = Questions(course, pretext, join(front, answering, norms="stored", force=True))
    course.settings |= {
        "pretext": pretext.described(),
        "at": place,
        "start_digest": start.digest,
        "head_digest": answering.digest,
    }
    record = PretextTraining(part=whole.described, **questions.learn())
    trained = course.finished(whole, [start], record.final)
    front, _ = cut(trained, place)
    answering = course.finished(answering, [] if head is None else [head], record.final)
    contract = replace(answering.contract, takes=front.contract.gives)
    parts = front, answering.changed(contract=contract)
    return Fit(parts, record, trained, names=("front", "pretext"))


# Images without their labels, and answers to questions about them ---------------------------------


def without_labels(task: Task | Tensor) -> Task:
    """The same images in the same splits, with a target of zero each; the targets are not read.

    Of a tensor a tenth validates.

    >>> without_labels(torch.rand(20, 1, 8, 8))
    Task('images', regression to 1, 20 images 1×8×8, train 18 / validation 2 / test 0)
    """
    if isinstance(task, Task):
        blank = torch.zeros(len(task.inputs))
        return task.derived(task.name, kind="regression", targets=blank, classes=())
    if not isinstance(task, Tensor) or task.ndim == 0:
        raise SettingsError(f"expected a Task or a tensor of images, got {type(task).__name__}")
    blank = torch.zeros(len(task))
    return Task(task, blank, kind="regression", name="images", split=(0.9, 0.1, 0.0))


def refuse_other_answers(pretext: Pretext, head: Part) -> None:
    """Refuse a head that says, by its outputs or its origin, that it answers another pretext."""
    told, width = head.contract.classes, (head.contract.gives[0].shape or (None,))[0]
    before = head.origin.settings.get("pretext")
    another = isinstance(before, dict) and before.get("name") != pretext.name
    if another or (told is not None and told != pretext.answers):
        both = (
            "with an embedding" if answers is None else listed(answers, 6)
            for answers in (told, pretext.answers)
        )
        differs = f"answers {f', {pretext.name} asks for '.join(both)}"
    elif width not in (None, pretext.outputs):
        differs = f"gives {width} numbers, {pretext.name} needs {pretext.outputs}"
    else:
        return
    raise ContractError(
        f"the head {head.described!r} {differs}; give the pretext that it was trained for"
    )


def refuse_other_images(pretext: Pretext, part: Part) -> None:
    """Refuse images, as the part takes them, of which the pretext can make no views."""
    pretext.check(tuple(side or 1 for side in part.contract.takes[0].shape or ()))


def answered(
    pretext: Pretext, asked: Part, inputs: Tensor, batches: Sequence[Tensor], seed: int
) -> tuple[float, float]:
    """Mean loss and share of right answers over batches of rows, each time on the same views.

    All views of an image are in one batch, as in training: batch statistics are those of the mix.
    """
    draw, loss, solved, count = generator(seed, "validation views"), 0.0, 0.0, 0
    with evaluating(asked.module):
        for rows in batches:
            images = prepare(inputs[rows], asked.contract).to(asked.device)
            views, targets = pretext.views(images, draw)
            outputs = asked(views)
            loss += float(pretext.loss(outputs, targets)) * len(views)
            solved += pretext.solved(outputs, targets) * len(views)
            count += len(views)
    return loss / count, solved / count


class Questions:
    """What a network is asked about the images of a course's task, and how it learns to answer.

    Network, pretext and images that do not go together are refused here, before the first epoch.

    Args:
        course: Of the training, on images without labels.
        pretext: What is asked.
        asked: The network with a head for the pretext, on the course's device.
    """

    def __init__(self, course: Course, pretext: Pretext, asked: Part) -> None:
        self._course, self._pretext, self._asked = course, pretext, asked
        (self._images,) = course.tasks
        self._size = course.options.batch_size
        self._refuse_unanswerable()
        self._batches: tuple[Tensor, ...] = ()
        rows = self._images.indices("validation")
        if len(rows):  # mixed, in batches of like size: none is left to itself
            mixed = torch.cat(random_batches(rows, 0))
            self._batches = mixed.tensor_split(math.ceil(len(rows) / self._size))

    def validate(self) -> Row:
        """Loss and share of right answers on the validation split; empty when there is none."""
        if not self._batches:
            return {}
        loss, solved = answered(
            self._pretext, self._asked, self._images.inputs, self._batches, self._course.seed
        )
        return {WATCHED: loss, SOLVED: solved}

    def learn(self) -> dict[str, Any]:
        """Train the network; what a :class:`PretextTraining` says of that, but for the part."""
        course, images = self._course, self._images
        rows = course.run(
            self._asked.module,
            labelled_batches(self._asked.contract, images, course.augment, self._size, course.seed),
            self._loss,
            validate=self.validate if self._batches else None,
        )
        return {
            "task": images.name,
            "rows": rows,
            "pretext": self._pretext.name,
            "chance": self._chance(),
            "settings": course.settings,
        }

    def _loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        views, answers = self._pretext.views(batch[0].to(self._asked.device))
        return self._pretext.loss(self._asked(views), answers)

    def _chance(self) -> float:
        """What guessing reaches on the validation split; of views it depends on their rivals."""
        sizes = [len(rows) for rows in self._batches]
        if not isinstance(self._pretext, Views) or not sizes:
            return self._pretext.chance
        return sum(self._pretext.chance_among(size) * size for size in sizes) / sum(sizes)

    def _refuse_unanswerable(self) -> None:
        pretext, asked, rows = self._pretext, self._asked, self._images.indices("train")
        few = prepare(self._images.inputs[rows[:2]], asked.contract).to(asked.device)
        pretext.check(tuple(few.shape[1:]))
        if isinstance(pretext, Views) and min(self._size, len(rows)) < 2:
            raise TaskError(
                "views of one image alone have nothing to be told from; give at least two images, "
                "and batch_size=2 or more"
            )
        views, targets = pretext.views(few, generator(0, "try once"))
        try:
            with evaluating(asked.module):
                outputs = asked(views)
        except (RuntimeError, ValueError) as error:
            raise ContractError(
                f"views of shape {list(views.shape[1:])} do not go through the network: "
                f"{first_line(error)}"
            ) from None
        if outputs.shape != (len(targets), pretext.outputs):
            raise ContractError(
                f"the head gives {list(outputs.shape[1:])} numbers a view, {pretext.name} needs "
                f"{pretext.outputs}; give the pretext that the head was trained for"
            )


# How it went --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PretextTraining(
    Training,
    kind="pretext-training",
    title="Training {part} on {task} by {pretext}",
    brief="{part} on {task} by {pretext}: {rows!n} epochs{_solved}, chance {chance:.4g}",
):
    """How a training by a pretext went, with what guessing would have reached beside it.

    >>> row = {"epoch": 1, "loss": 0.5, SOLVED: 0.875}
    >>> PretextTraining(part="lenet5", task="digits", rows=(row,), pretext="rotation", chance=0.25)
    PretextTraining(lenet5 on digits by rotation: 1 epochs, solved 0.875, chance 0.25)
    """

    pretext: str
    chance: float

    @property
    def _validated(self) -> bool:
        return SOLVED in self.final

    @property
    def _solved(self) -> str:
        return f", solved {self.final[SOLVED]:.4g}" if self._validated else ""

    def _beside_chance(self) -> list[Row]:
        return [{**row, "chance": self.chance} for row in self.rows]

    shows = (
        Training.shows[0],
        when(
            "_validated",
            text(
                f"Of the questions about validation images {{final[{SOLVED}]:.1%}} were answered "
                "rightly; guessing gives {chance:.1%}."
            ),
        ),
        *Training.shows[1:],
        when(
            "_validated",
            figure(
                "line",
                "Right answers on the validation split",
                _beside_chance,
                "epoch",
                {"solved": SOLVED, "chance": "chance"},
                "epoch",
                "share",
            ),
        ),
    )
