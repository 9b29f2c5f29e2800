r"""Unsupervised domain adaptation through a frozen head.

A source network has a front :math:`f`, a head :math:`h` for its classes and a head :math:`r` for a
pretext.  On unlabelled images :math:`x` of a target domain, with views :math:`g(x, s)`, a copy of
the front is trained by the pretext alone,

.. math:: \min_{f'}\; \frac{1}{n |S|} \sum_i \sum_{s \in S} \ell\bigl(r(f'(g(x_i, s))), s\bigr) ,

while :math:`r` does not move.  So :math:`f'` must go on speaking the language of :math:`r`, which
:math:`f` shares and :math:`h` understands: :math:`h(f'(x))` tells the classes of target images.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Unpack

from torch import Tensor

from dovetail.core.device import choose_device
from dovetail.core.errors import ContractError, TaskError
from dovetail.measure.joined import joined, random_batches
from dovetail.measure.preprocess import prepare
from dovetail.objectives.pretexts import Pretext, pretext_named
from dovetail.parts.contract import Preprocess
from dovetail.parts.joining import join
from dovetail.parts.norms import Norms, check_norms, has_batch_norm, recalibrate
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.reuse.domain_record import DomainAdaptation
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
from dovetail.train.supervision import augmentation, labelled_batches, starting_facts

__all__ = ["adapt_domain"]

_STEPS = 1000
_DEFAULTS: LoopOptions = {"lr": 1e-3, "schedule": "constant", "weight_decay": 0.0}
"""Small steps of one length: the frozen head knows nothing of the classes, and what the pretext
does not need is kept only by not moving far."""


def adapt_domain(
    front: Part,
    rp_head: Part,
    target: Task | Tensor,
    *,
    head: Part | None = None,
    pretext: str | Pretext = "rotation",
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    norms: Norms = "batch",
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
        target: A task, whose targets are never read, or images ``[n, c, h, w]``: a tenth of them
            validates.
        head: The source head for the classes, to be joined with the adapted front.
        pretext: What ``rp_head`` was trained for.
        augment: Changes of the images before the pretext makes its views.
        preprocess: Default: the front's own, that of the source.
            ``running.preprocess.preprocess_for(task)`` standardises by the target's statistics.
        norms: Statistics of batch norms in the joined network: ``"batch"``, ``"recalibrated"`` on
            target training images, or ``"stored"``, where the head keeps those of the source.
        seed: Order of batches, views, augmentation, dropout.
        options: See :class:`Options`.  Unless said, ``lr=0.001`` without schedule or weight decay,
            and as many epochs as make a thousand steps.

    Returns:
        ``fit.parts[0]``, the adapted front, in the space of the source's, its stored statistics
        those of the target; ``fit.part``, the front with the source head if one was given; and the
        record, a :class:`DomainAdaptation`.  The fingerprint in their origins is that of the
        images: other labels make the same part.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
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
    asked_for, changes = pretext_named(pretext), augmentation(augment)
    settled: LoopOptions = {**_DEFAULTS, **options}
    images, chosen = without_labels(target), Options(**settled)
    if images.size("train") < 2:
        raise TaskError(f"{images.name!r} has no two training images to adapt to")
    if "epochs" not in options:
        in_one = math.ceil(images.size("train") / chosen.batch_size)
        chosen = replace(chosen, epochs=math.ceil(_STEPS / in_one))
    check_norms(norms)
    refuse_other_answers(asked_for, rp_head)
    space = _common_space(front, rp_head, head)
    device = choose_device(chosen.device)
    mine = front.changed(
        module=copy.deepcopy(front.module).to(device),
        contract=replace(front.contract, preprocess=preprocess or front.contract.preprocess),
    )
    frozen = rp_head.changed(module=copy.deepcopy(rp_head.module).to(device).requires_grad_(False))
    # Both parts normalise by the batch: what they have stored are statistics of the source.
    asked = join(mine, frozen, norms="batch", force=True)
    refuse_unanswerable(asked_for, asked, images, chosen.batch_size)

    def step(given: tuple[Tensor, Tensor]) -> Tensor:
        views, wanted = asked_for.views(given[0].to(device))
        return asked_for.loss(asked(views), wanted)

    settings = {
        "how": "domain-adaptation",
        "pretext": asked_for.described(),
        "norms": norms,
        "augment": None if changes is None else str(changes),
        "seed": seed,
        "task_fingerprint": images.fingerprint,
        "start_digest": front.digest,
        "rp_head_digest": rp_head.digest,
        "device": str(device),
        **chosen.described(),
    }
    validate = pretext_validation(asked_for, asked, images, chosen.batch_size, seed)
    before = {} if validate is None else validate()
    rows = run_loop(
        asked.module,
        labelled_batches(mine.contract, images, changes, chosen.batch_size, seed),
        step,
        chosen,
        validate=validate,
        seed=seed,
        identity={
            "preprocess": mine.contract.preprocess,
            "through": starting_facts(rp_head),
            **starting_facts(front),
            **settings,
        },
        label=images.name,
    )
    asked.module.zero_grad(set_to_none=True)
    record = DomainAdaptation(
        part=front.described,
        task=images.name,
        rows=rows,
        pretext=asked_for.name,
        chance=chance_of(asked_for, images, chosen.batch_size),
        before=before,
        space=space,
        settings=settings,
    )
    adapted = _adapted(mine, front, rp_head, images, record, seed)
    if head is None:
        return Fit((adapted,), record)
    kept = head.changed(module=copy.deepcopy(head.module).to(device))
    whole = joined(adapted, kept, images, norms, seed=seed)
    return Fit((adapted, kept), record, whole.changed(origin=_of_whole(whole, adapted)))


def _common_space(front: Part, rp_head: Part, head: Part | None) -> str | None:
    """The space that all are of; an error, before anything is trained, when they are not."""
    spaces = {port.space for port in front.contract.gives}
    space = spaces.pop() if len(spaces) == 1 else None
    for other in (rp_head, *(() if head is None else (head,))):
        unsaid = space is None and all(port.space is None for port in other.contract.takes)
        theirs = front.contract.obstacles if unsaid else front.contract.mismatches
        if reasons := theirs(other.contract):
            listed = "".join(f"\n  - {reason}" for reason in reasons)
            raise ContractError(
                f"{other.described!r} cannot hold {front.described!r} in its space:{listed}\n"
                "Only heads that were trained with this front can. Take front, head and the "
                "auxiliary 'rp' of one train.compatible(..., by=('rp', ...))"
            )
    return space


def _adapted(
    mine: Part, front: Part, rp_head: Part, images: Task, record: DomainAdaptation, seed: int
) -> Part:
    module = mine.module.eval()
    if has_batch_norm(module):
        batches = random_batches(images.indices("train"), seed)
        ready = (prepare(images.inputs[rows], mine.contract).to(mine.device) for rows in batches)
        module = recalibrate(module, ready)
    origin = Origin(
        how="train",
        parents=(front.digest, rp_head.digest),
        task=images.name,
        task_fingerprint=images.fingerprint,
        settings=record.settings,
        measured={k: v for k, v in record.final.items() if k.startswith("validation ")},
    )
    return mine.changed(module=module, origin=origin)


def _of_whole(whole: Part, adapted: Part) -> Origin:
    return replace(
        whole.origin, task=adapted.origin.task, task_fingerprint=adapted.origin.task_fingerprint
    )
