r"""A stitch by gradient descent: the map between a frozen front and a frozen head.

With the front :math:`f` of one network and the head :math:`h` of another, both as they are,

.. math::
    \min_{W, b} \sum_i \ell\bigl(h(f(x_i) W + b),\, y_i\bigr)

over the training split, :math:`f(x) W + b` taken position by position.  Where least squares
(:func:`dovetail.closed_form.stitch`) asks the map to look like the features that the head knows,
this asks only that the head be right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.seeds import seeded
from dovetail.measure.forward import refuse_other_inputs
from dovetail.measure.joined import in_random_order
from dovetail.measure.pairs import choose_norms
from dovetail.parts.facts import Origin
from dovetail.parts.joining import Seam, join, seam, stitch_part
from dovetail.parts.norms import Chosen, with_batch_statistics
from dovetail.parts.part import Part, as_part
from dovetail.parts.recipe import Adapter, rebuild
from dovetail.settings.join import Joined
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit, Training
from dovetail.train.frame import Course, try_once
from dovetail.train.options import LoopOptions
from dovetail.train.supervision import LOSSES, batches_behind, validation_behind

HeadNorms = Literal["auto", "batch", "stored"]
"""What a head's batch norms use: the batch's own statistics, or the head's; or what is due."""


CLIP = 1.0
"""A longer gradient is scaled down to this length.

A map in front of many frozen layers has a steep loss: between two released networks one step at the
usual rate can undo a good start.
"""


def stitch(
    front: Part | nn.Module,
    head: Part | nn.Module,
    task: Task,
    *,
    start: Part | None = None,
    norms: HeadNorms = Joined.norms,  # type: ignore[assignment]
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> Fit:
    """Train the linear map from what ``front`` gives to what ``head`` takes; both stay frozen.

    Args:
        front: Runs with the statistics it has; no bit of it changes.
        head: No bit of it changes either.  Its classes include the task's, matched by name; others
            that it knows are left out of the loss.
        task: Of kind classes, multilabel or regression.
        start: A stitch to begin with, such as the one of least squares.  Without it: the identity
            where the channels are as many (the join by force), random weights elsewhere.
        norms: What the head's batch norms use: the statistics of each ``"batch"``, or those
            ``"stored"`` in it; ``"auto"``: those with which the start is better on validation
            images (:func:`~dovetail.measure.pairs.choose_norms`), and stored ones without any.  The
            joined network keeps to it.
        seed: Order of batches, and random weights.
        options: See :class:`Options`.  ``clip`` is :data:`CLIP` unless said.

    Returns:
        ``fit.parts``, the stitch alone; ``fit.part``, the front, the stitch and the head as one;
        and the record.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> nets = [end_to_end(build("mlp", hidden=(32,), seed=s), digits, epochs=3) for s in (0, 1)]
    >>> (front, _), (_, head) = (cut(net.part, at="hidden1") for net in nets)
    >>> fit = stitch(front, head, digits, epochs=3)
    >>> fit.record.final["validation accuracy"] > 0.8
    True
    """
    front, head = as_part(front), as_part(head)
    if norms not in get_args(HeadNorms):
        raise SettingsError(f"norms must be 'auto', 'batch' or 'stored', got {norms!r}")
    options.setdefault("clip", CLIP)
    course = Course("stitch", task, options, seed=seed)
    columns = _columns(head, task)
    refuse_other_inputs(task, front.contract)
    between = seam(front.contract.gives, head.contract.takes)
    begun = _beginning(between, seed) if start is None else start
    if start is not None:
        _refuse_other(start, between)
    row = front, begun.changed(contract=between.contract), head
    chosen = choose_norms(norms, task, row, among=("stored", "batch"), seed=seed)

    before, after = course.copied(front, frozen=True), course.copied(head, frozen=True).module
    before.module.eval()
    module = course.copied(begun).module.requires_grad_()
    after = with_batch_statistics(after.eval()) if chosen.norms == "batch" else after.eval()
    loss, place = LOSSES[task.kind], None if columns is None else columns.to(course.device)
    tail = nn.Sequential(module, after, _Picked(place))
    whole = before.changed(module=nn.Sequential(before.module, tail))
    try_once(whole, task)

    course.settings |= {
        "by": "trained",
        **chosen.settings,
        "front_digest": front.digest,
        "head_digest": head.digest,
        "start_digest": begun.digest,
        "start_by": begun.origin.settings.get("by", begun.origin.how),
    }
    mixed = in_random_order(task, "validation", seed)
    rows = course.run(
        module,
        batches_behind(before, task, None, course.options.batch_size, seed),
        course.descent(tail, loss),
        validate=validation_behind(before, Part(tail), whole, mixed, loss),
    )
    record = Training(part=begun.described, task=task.name, rows=rows, settings=course.settings)
    parents = (front, head, *(() if start is None else (start,)))
    origin = replace(course.origin(parents, record.final), how="stitch")
    state = module.cpu().state_dict()
    made = stitch_part(between, state["weight"], state["bias"], origin)
    made.module.to(front.device)
    return Fit((made,), record, _whole(front, made, head, chosen))


def _whole(front: Part, made: Part, head: Part, chosen: Chosen) -> Part:
    """All three as one; the batch's statistics are for the head alone."""
    whole = join(front, join(made, head, norms=chosen.norms), norms="stored")
    origin = Origin(
        how="join",
        parents=(front.digest, made.digest, head.digest),
        task=made.origin.task,
        task_fingerprint=made.origin.task_fingerprint,
        settings={**chosen.settings, "force": False},
        measured=made.origin.measured,
    )
    return whole.changed(origin=origin)


class _Picked(nn.Module):
    """The columns of a head's outputs that a task asks for, in the task's order; or all."""

    def __init__(self, columns: Tensor | None) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs if self.columns is None else outputs.index_select(1, self.columns)


def _columns(head: Part, task: Task) -> Tensor | None:
    """For each class of the task the head's output of that name; nothing where none is named."""
    if task.kind == "pairs":
        raise TaskError(f"{task.name!r} has pair labels only; to train a stitch takes targets")
    known = head.contract.classes
    if known is not None and head.contract.kind != task.kind:
        raise TaskError(
            f"{head.described!r} is a head for {head.contract.kind}, {task.name!r} is a task of "
            f"kind {task.kind}; take a head that was trained on such a task"
        )
    if known is None or not task.classes:
        return None
    missing = [name for name in task.classes if name not in known]
    if missing:
        raise TaskError(
            f"{head.described!r} does not know the class {missing[0]!r} of {task.name!r}; it knows "
            f"{', '.join(known[:10])}. Restrict the task to the classes that it knows."
        )
    return torch.tensor([known.index(name) for name in task.classes])


def _beginning(between: Seam, seed: int) -> Part:
    """The identity where the channels are as many, else a layer's usual random weights."""
    recipe = between.recipe
    if recipe.takes == recipe.gives:
        weight, bias = torch.eye(recipe.takes), torch.zeros(recipe.takes)
        return stitch_part(between, weight, bias, Origin("stitch", settings={"by": "identity"}))
    with seeded(seed, "stitch"):
        state = rebuild(recipe).state_dict()
    return stitch_part(
        between, state["weight"], state["bias"], Origin("stitch", settings={"by": "drawn"})
    )


def _refuse_other(start: Part, between: Seam) -> None:
    """A start must be a stitch of this very seam's channels; what it means may still differ."""
    if not isinstance(start, Part) or not isinstance(start.recipe, Adapter):
        raise ContractError("start must be a stitch, from dt.closed_form.stitch or dt.train.stitch")
    if start.recipe != between.recipe:
        raise ContractError(
            f"start is an {start.described}, but the front gives {between.recipe.takes} channels "
            f"and the head takes {between.recipe.gives}"
            + ("" if start.recipe.maps == between.recipe.maps else ", and only one is for maps")
        )
