"""Which features a part knows: fitted on the training split, calibrated on validation.

:class:`~dovetail.parts.familiar.Familiar` has the formula.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.measure.forward import outputs_of, refuse_other_inputs
from dovetail.parts.facts import MOST_OF_FAMILIAR
from dovetail.parts.familiar import Familiar, seen_by
from dovetail.parts.heads import output_layer
from dovetail.parts.linearized import LinearizedNetwork
from dovetail.parts.part import Part, as_part
from dovetail.parts.tracing import trailing_activation
from dovetail.tasks.task import Task

_RANK, _ROWS, _KEPT = 32, 4096, 2000
"""Directions, training rows and scores of validation rows that are used at most."""

FEWEST = 19
"""Rows held out that can promise a share of 5 %."""


def familiar_with(
    part: Part | nn.Module, task: Task, *, share: float = 0.05, batch_size: int = 512
) -> Familiar:
    """What a part's features look like on a task, to tell inputs that are unlike it.

    The features are what its last layer takes, or where it has no such layer what it gives.

    Args:
        part: The part; give it what comes back, ``part.changed(familiar=...)``.
        task: The data it was made on (of its training split, at most 4096 rows).
        share: Of inputs like those of the task, how many may be called unlike.
        batch_size: Inputs a batch.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(400, 4, generator=torch.Generator().manual_seed(0)), [0, 1] * 200)
    >>> part = build("mlp", shape=(4,), hidden=(8,), classes=2)
    >>> familiar_with(part, task)
    Familiar(task: what 'head' takes, 8 numbers, 5%)
    """
    part = as_part(part)
    if not 0 < share < 1:
        raise SettingsError(f"share must be above 0 and below 1, got {share}")
    refuse_other_inputs(task, part.contract)
    train, targets = task.subset("train")
    if len(train) > _ROWS:  # evenly: a split may be sorted by class
        chosen = torch.linspace(0, len(train) - 1, _ROWS).long()
        train, targets = train[chosen], targets[chosen]
    held_out, _ = task.subset("validation")
    if len(train) < 2 or not len(held_out):
        raise TaskError(
            f"{task.name!r} has {len(train)} rows to train on and {len(held_out)} for validation; "
            "to know its features takes two and one"
        )
    at, rows = _features(part, train, batch_size)
    with seen_by(part.module, at) as seen:
        outputs_of(part, held_out, batch_size=batch_size)
    labels = targets if task.kind == "classes" else None
    return fit_familiar(rows, labels, torch.cat(seen), at=at, share=share, task=task.name)


def knowing(part: Part, task: Task) -> Part:
    """The part with what it knows of a task; as it is where that cannot be said.

    Too few rows are held out, or it has no features that could be kept.
    """
    if task.size("validation") < FEWEST:
        return part
    try:
        return part.changed(familiar=familiar_with(part, task))
    except (ContractError, TaskError):
        return part


def fit_familiar(
    rows: Tensor,
    labels: Tensor | None,
    held_out: Tensor,
    *,
    at: str | None = None,
    share: float = 0.05,
    task: str = "task",
    rank: int = _RANK,
) -> Familiar:
    r"""The same of features ``[n, d]`` and ``[m, d]`` themselves, and labels ``[n]`` if there are.

    The threshold of :math:`m` scores is the :math:`\lceil (m + 1)(1 - \alpha) \rceil`-th smallest:
    of further inputs like them, at most the share :math:`\alpha` lies above.  Too few rows cannot
    promise that; then it is their largest, and the share is :math:`1 / (m + 1)`.
    """
    z = rows.double()
    norm = z.norm(dim=1, keepdim=True).clamp(min=1e-12)
    u = z / norm
    mean = u.mean(0)
    u = u - mean
    groups = [labels == label for label in torch.unique(labels)] if labels is not None else []
    means = torch.stack([u[group].mean(0) for group in groups] or [mean.new_zeros(len(mean))])
    within = u.clone()
    for group, centre in zip(groups, means, strict=False):
        within[group] -= centre
    n, d = within.shape
    room = MOST_OF_FAMILIAR // 2 // 4 - _KEPT - d
    rank = max(0, min(rank, n // 4, d, room // (d + len(means))))
    if room < 0:
        raise ContractError(f"features of {d} numbers are too many to keep what they look like")
    basis, spread, rest = _principal(within, rank, max(1, n - len(means)))
    made = Familiar(
        mean=mean.float(),
        basis=basis.float().contiguous(),
        spread=spread.float(),
        centres=(means @ basis).float(),
        rest=rest.float(),
        length=norm.log().mean().float(),
        scale=torch.ones(2),
        calibration=torch.zeros(1),
        at=at,
        share=share,
        task=task,
    )
    return _calibrated(made, held_out, share)


def _principal(rows: Tensor, rank: int, freedom: int) -> tuple[Tensor, Tensor, Tensor]:
    """An orthonormal basis ``[d, r]``, the deviation along each, and along any other direction."""
    n, d = rows.shape
    if d <= n:
        values, vectors = torch.linalg.eigh(rows.T @ rows / freedom)
        basis = vectors[:, d - rank :].flip(1)
    else:  # the same of the smaller matrix
        values, vectors = torch.linalg.eigh(rows @ rows.T / freedom)
        top = rows.T @ vectors[:, n - rank :].flip(1)
        basis = top / top.norm(dim=0).clamp(min=1e-300)
    values = values.clamp(min=0)
    total, largest = values.sum(), values.flip(0)[:rank]
    floor = (1e-6 * total / d).clamp(min=1e-12)  # what never varied may vary a little
    rest = ((total - largest.sum()) / max(1, d - rank)).clamp(min=floor)
    return basis, largest.clamp(min=floor).sqrt(), rest.sqrt()


def _calibrated(made: Familiar, held_out: Tensor, share: float) -> Familiar:
    """Scaled so that the threshold is one.

    Of which of the two distances there is more is told by their usual size, a mean of all rows
    held out, and not by their own largest: two thresholds would be passed twice as often.
    """
    distances = made.distances(held_out).clamp(min=1e-12)
    m = len(distances)
    logs = distances[:, 0].log()
    spread = logs.std(correction=0).clamp(min=1e-3)
    usual = distances[:, 1].square().mean().sqrt().clamp(min=1e-6)
    larger = torch.maximum((logs - logs.mean()) / spread, distances[:, 1] / usual)
    beyond = _quantile(larger, share).clamp(min=1e-3)
    scale = torch.stack([(logs.mean() + beyond * spread).exp(), beyond * usual])
    scores = (distances / scale).amax(1).sort().values
    if m > _KEPT:
        scores = scores[torch.linspace(0, m - 1, _KEPT).long()]
    return replace(made, scale=scale, calibration=scores, share=max(share, 1 / (m + 1)))


def _quantile(values: Tensor, above: float) -> Tensor:
    m = len(values)
    return values.sort().values[min(m, math.ceil((m + 1) * (1 - above))) - 1]


def _features(part: Part, inputs: Tensor, batch_size: int) -> tuple[str | None, Tensor]:
    """The layer whose input the part's features are, and its input; or None, and the outputs."""
    for at in _places(part):
        with seen_by(part.module, at) as seen:
            try:
                outputs_of(part, inputs, batch_size=batch_size)
            except ContractError:
                if at is None:
                    raise
                continue
        if sum(map(len, seen)) == len(inputs):  # a layer may run twice, or in another way
            return at, torch.cat(seen)
    raise ContractError(f"{part.described!r} gives no features to know")


def _places(part: Part) -> list[str | None]:
    if any(isinstance(each, LinearizedNetwork) for each in part.module.modules()):
        return [None]  # it is run with dual numbers, which nobody outside may keep
    speaks = part.contract.classes is not None or part.contract.kind != "classes"
    if not speaks and (part.origin.how == "cut" or trailing_activation(part.module) != "identity"):
        return [None]  # features are what it gives
    try:
        return [output_layer(part), None]
    except ContractError:
        return [None]
