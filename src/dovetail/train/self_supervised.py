r"""Training without labels: a front learns by answering questions about images.

With the front :math:`f`, an auxiliary head :math:`r` and a pretext that makes views :math:`v` of
the images with answers :math:`t`,

.. math:: \min_{f, r}\; \frac{1}{|S|} \sum_{(v, t) \in S} \ell\bigl(r(f(v)), t\bigr) .

Labels are put aside before anything else happens.  What follows the front in the model is not
touched: the whole then is a start for training with labels, or for compatible training.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Unpack

from torch import Tensor, nn

from dovetail.core.device import choose_device
from dovetail.core.errors import ContractError
from dovetail.objectives.pretexts import Pretext, pretext_named
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import CutPoint, cut, output_point
from dovetail.parts.heads import fresh_head
from dovetail.parts.joining import join
from dovetail.parts.part import Part, as_part
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit
from dovetail.train.loop import run_loop
from dovetail.train.options import LoopOptions, Options
from dovetail.train.pretext_answers import (
    chance_of,
    pretext_validation,
    refuse_other_answers,
    refuse_unanswerable,
    without_labels,
)
from dovetail.train.pretext_record import PretextTraining
from dovetail.train.supervision import (
    augmentation,
    finished,
    labelled_batches,
    starting_facts,
    twin,
)

__all__ = ["self_supervised"]


def self_supervised(
    model: Part | nn.Module,
    task: Task | Tensor,
    *,
    by: str | Pretext = "rotation",
    at: str | CutPoint | None = None,
    head: Part | None = None,
    augment: str | Augment | None = None,
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
        preprocess: Default: the part's own, else standardisation by the training split.
        seed: The new head's weights, order of batches, views, augmentation, dropout.
        options: See :class:`Options`.

    Returns:
        ``fit.parts``, the front and the pretext's head, which fit each other; ``fit.part``, the
        model with the trained front and what followed it before; and the record.  The fingerprint
        in their origins is that of the images: other labels make the same part.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> net = build("mlp", shape=(1, 8, 8), hidden=(64, 32))
    >>> fit = self_supervised(net, load_task("digits"), at="hidden1", epochs=3)
    >>> fit.record.final["validation solved"] > 2 * fit.record.chance
    True
    >>> fit.parts[1].contract.classes
    ('0', '90', '180', '270')
    """
    start, chosen, pretext = as_part(model), Options(**options), pretext_named(by)
    images, changes = without_labels(task), augmentation(augment)
    device = choose_device(chosen.device)
    whole = twin(start, images, preprocess, device)
    whole = whole.changed(
        contract=replace(whole.contract, classes=start.contract.classes, kind=start.contract.kind)
    )
    place = output_point(whole.module) if at is None else str(at)
    front, _ = cut(whole, place)
    first = _head_for(pretext, whole, front, place, head, seed)
    asked = join(front, first, force=True)
    refuse_unanswerable(pretext, asked, images, chosen.batch_size)

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        views, answers = pretext.views(batch[0].to(device))
        return pretext.loss(asked(views), answers)

    settings = {
        "how": "self-supervised",
        "pretext": pretext.described(),
        "at": place,
        "seed": seed,
        "augment": None if changes is None else str(changes),
        "task_fingerprint": images.fingerprint,
        "start_digest": start.digest,
        "head_digest": first.digest,
        "device": str(device),
        **chosen.described(),
    }
    rows = run_loop(
        asked.module,
        labelled_batches(whole.contract, images, changes, chosen.batch_size, seed),
        step,
        chosen,
        validate=pretext_validation(pretext, asked, images, chosen.batch_size, seed),
        seed=seed,
        identity={
            "preprocess": whole.contract.preprocess,
            **starting_facts(start),
            **settings,
        },
        label=images.name,
    )
    asked.module.zero_grad(set_to_none=True)
    record = PretextTraining(
        part=whole.described,
        task=images.name,
        rows=rows,
        pretext=pretext.name,
        chance=chance_of(pretext, images, chosen.batch_size),
        settings=settings,
    )
    trained = finished(whole, start, images, record.final, settings)
    front, _ = cut(trained, place)
    answering = _fitting(finished(first, first, images, record.final, settings), front, head)
    return Fit((front, answering), record, trained)


def _head_for(
    pretext: Pretext, whole: Part, front: Part, at: str, head: Part | None, seed: int
) -> Part:
    """A new head for the pretext, or a copy of the given one if it fits."""
    if head is None:
        return fresh_head(whole, at, pretext.answers or pretext.outputs, seed=seed)
    if obstacles := front.contract.obstacles(head.contract):
        raise ContractError(
            f"the head {head.described!r} does not go with the front at {at!r}: "
            f"{'; '.join(obstacles)}; cut elsewhere with at=, or leave head= out"
        )
    refuse_other_answers(pretext, head)
    return head.changed(module=copy.deepcopy(head.module).to(front.device))


def _fitting(trained: Part, front: Part, start: Part | None) -> Part:
    """The head, told that it takes what the front gives, and which head it was before."""
    before = () if start is None else (start.digest,)
    return trained.changed(
        contract=replace(trained.contract, takes=front.contract.gives),
        origin=replace(trained.origin, parents=before),
    )
