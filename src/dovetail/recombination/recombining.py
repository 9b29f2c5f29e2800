r"""Recombining: every front with every head, measured at once and without training.

With a front :math:`f_a`, the head :math:`h_b` of another network and the test images of the front's
own task whose class the head knows, :math:`D_{ab}`, the accuracy of the pair is

.. math::
    A_{ab} = \frac{1}{|D_{ab}|} \sum_{(x, y) \in D_{ab}}
        \Bigl[ \arg\max_{c \in C_{ab}} h_b(f_a(x))_c = y \Bigr]

over the common classes :math:`C_{ab}`.  The mean of :math:`A_{ab}` over :math:`a \neq b` is the
*recombination accuracy*; that of :math:`h_a(f_a(x))` on the same images and classes bounds it from
above, as far as the front allows.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.parts.norms import Norms
from dovetail.recombination.alike import correlated
from dovetail.recombination.asked import (
    Parts,
    Tasks,
    by_name,
    norms_asked,
    own_heads,
    tasks_by_front,
)
from dovetail.recombination.record import Pair, Recombination
from dovetail.recombination.row import How, Row, measured
from dovetail.tasks.task import Split

__all__ = ["recombine"]


def recombine(
    fronts: Parts,
    heads: Parts,
    task: Tasks,
    *,
    norms: Norms | Sequence[Norms] = "batch",
    split: Split = "test",
    batch_size: int = 512,
    calibration: int = 2048,
    correlation: bool = True,
    seed: int = 0,
) -> Recombination:
    """Measure every front with every head, whether their contracts fit or not.

    A pair is measured on the images of the front's task whose class the head knows **by name**,
    choosing among those common classes (``accuracy``) and among all the head's (``unmasked``).
    Every batch goes through the front once and from there to all heads.  Batches are a fixed random
    order of the images: with ``norms="batch"`` the statistics of class-sorted ones would be wrong.

    A pair whose tensors do not flow, that shares fewer than two classes (a choice of one is always
    right), or that gives NaN is not measured: its record says why.

    Args:
        fronts: Parts by name, several in a row, or one.
        heads: Likewise.  A front's own head is the one of its name, or in its place when both are
            sequences of one length.
        task: One for all fronts, or one for each (by name, or in a row).
        norms: Statistics of the batch norms, as in :func:`dovetail.join`; the first of several
            gives the record's tables.  Recombined parts need ``"batch"`` or ``"recalibrated"``:
            what a head has stored are the statistics of another front.
        split: Which images.
        batch_size: Images a batch; a small rest joins the batch before it.
        calibration: Training images, drawn at random and without their labels, on which
            ``"recalibrated"`` norms are estimated for each pair.
        correlation: Also correlate the channels of the fronts, on the images of the first.
        seed: For the order of images and for those of the calibration.

    Raises:
        TaskError: no pair has two classes in common.
        ContractError: no pair can be measured, or a front cannot take its task's inputs.

    >>> import torch
    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.task import Task
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20)
    >>> halves = [cut(build("lenet5", size=8, classes=3, seed=i), at="conv2") for i in (0, 1)]
    >>> recombine([front for front, _ in halves], [head for _, head in halves], task)
    Recombination(2 fronts × 2 heads: ...% off the diagonal)
    """
    named_fronts, named_heads = by_name(fronts, "fronts"), by_name(heads, "heads")
    tasks = tasks_by_front(task, list(named_fronts))
    own = own_heads(fronts, heads, list(named_fronts), list(named_heads))
    policies = norms_asked(norms, batch_size)
    if calibration < 2:
        raise SettingsError(f"calibration must be at least 2 images, got {calibration}")
    how = How(policies, split, batch_size, calibration, seed)
    for name, head in named_heads.items():
        if head.contract.kind != "classes":
            raise ContractError(f"the head {name!r} is for {head.contract.kind}, not for classes")
    rows = [
        Row(name, front, tasks[name], named_heads, own.get(name), how)
        for name, front in named_fronts.items()
    ]
    pairs = [pair for row in rows for pair in measured(row)]
    _refuse_nothing(pairs)
    return Recombination(
        norms=policies,
        pairs=tuple(pairs),
        own_heads=own,
        alike=correlated(rows) if correlation else (),
        settings={
            "split": split,
            "norms": list(policies),
            "batch_size": batch_size,
            "order": "random",
            "calibration": calibration if "recalibrated" in policies else None,
            "seed": seed,
            "tasks": {name: each.name for name, each in tasks.items()},
            "task_fingerprints": {name: each.fingerprint for name, each in tasks.items()},
            "front_digests": {name: part.digest for name, part in named_fronts.items()},
            "head_digests": {name: part.digest for name, part in named_heads.items()},
        },
    )


def _refuse_nothing(pairs: list[Pair]) -> None:
    """A record without any number would only hide that nothing could be measured."""
    if any(pair.accuracy for pair in pairs):
        return
    listed = "".join(f"\n  - {pair.front} + {pair.head}: {pair.obstacle}" for pair in pairs[:10])
    more = f"\n  and {len(pairs) - 10} more" if len(pairs) > 10 else ""
    if any(pair.head_classes and (len(pair.classes) < 2 or pair.n == 0) for pair in pairs):
        raise TaskError(
            f"no front's task has images of two classes that a head knows:{listed}{more}\n"
            "Classes are matched by name; give the parts and the task the same names."
        )
    raise ContractError(
        f"no front can be followed by any of the heads:{listed}{more}\n"
        "Cut them elsewhere, or put an adapter between different channel counts (dt.adapter)."
    )
