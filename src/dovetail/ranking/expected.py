r"""How good a part will be: the accuracy of a head on it, and how sure that is.

A ridge head is fitted to all the labels at hand and each label is predicted by the head of all the
others, in closed form.  The mean is the expected accuracy; the interval says where the accuracy of
that one head on unlimited new examples lies.  Verdicts of rows left out are not independent: rows
help each other, which makes :math:`n` of them worth only

.. math::
    n_\text{eff} = \frac{n}{1 + \kappa}, \qquad
    \kappa = \frac{n\, \mathbb{E}_{i \ne j} (\ell_i - \ell_i^{(j)})(\ell_j - \ell_j^{(i)})}
                  {\operatorname{var} \ell} .

The interval is Wilson's for :math:`n_\text{eff}` trials, which is honest near 0 and 1.

Here :math:`\ell_i` says how well row :math:`i` is predicted by the head of all others, and
:math:`\ell_i^{(j)}` by the head of all others but :math:`j`.  Expanding the square, and renaming
rows that are drawn alike, the leave-one-out mean :math:`\bar\ell` misses the value :math:`A` of the
head of all :math:`n` rows by

.. math::
    \mathbb{E}\,(\bar\ell - A)^2 \approx \frac{\operatorname{var} \ell}{n} + \mathbb{E}_{i \ne j}
    \bigl(\ell_i - \ell_i^{(j)}\bigr)\bigl(\ell_j - \ell_j^{(i)}\bigr) .

The first term is what independent trials would have; the second is how much a row changes the
other's verdict, times the reverse.  For a ridge head both need no refit: with
:math:`R = I - H` and residuals :math:`r_i` of rows left out, adding row :math:`j` changes the
prediction of row :math:`i` by

.. math::
    \frac{-R_{ij} (R_{jj} r_j - R_{ij} r_i)}{R_{ii} R_{jj} - R_{ij}^2} .

A verdict of right or wrong is softened to :math:`\Phi(m / h)` of its margin :math:`m`, because few
pairs flip and their count alone would be a poor estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import generator
from dovetail.linalg.ridge import Decomposed, leave_one_out, solve
from dovetail.linalg.ridge_sums import LeaveOneOut
from dovetail.measure.inputs import as_rows, refuse_other_count
from dovetail.measure.intervals import normal_quantile
from dovetail.ranking.heads import HeadKind, coded, right_shares

_MOST_ROWS = 300
"""Pairs are looked at among so many rows; their mean needs no more."""

_MOST_KAPPA = 3.0

_FEW = 5
"""Examples a class below which one correction for class shares is not enough."""

_MOST_COLUMNS = 500
"""Columns of shuffled targets that are predicted at once."""


@dataclass(frozen=True, eq=False)
class Expected:
    """What a ridge head on these features can be expected to reach on new examples.

    ``value`` is its accuracy (label accuracy, or R² for numbers), ``low`` and ``high`` bound it;
    ``per_example [n]`` has the value as its mean; ``predictions [n, k]`` are those of the heads
    that did not see the example.  ``effective_n`` is what the n examples are worth.
    """

    value: float
    low: float
    high: float
    per_example: Tensor
    penalty: float
    n: int
    kind: HeadKind
    predictions: Tensor
    effective_n: float
    confidence: float = 0.9
    stratified: bool = True

    def __float__(self) -> float:
        return self.value


def expected_accuracy(
    features: Any,
    targets: Any,
    *,
    confidence: float = 0.9,
    kind: HeadKind | None = None,
    stratified: bool = True,
) -> Expected:
    """The accuracy a ridge head trained on all these labels will have on new examples.

    Args:
        features: Rows ``[n, d]``.
        targets: Classes ``[n]``, a matrix of zeros and ones for several labels, or numbers.
        confidence: How often the interval should hold the accuracy of the head on an unlimited
            test set.
        kind: Overrides what the targets seem to be.
        stratified: Whether the classes have the shares in the sample that they have in the task,
            as in every sample that dovetail draws, and in k examples a class.  Leaving one out
            would then make its class rarer than it is, which :func:`with_shares` undoes.
            Say ``False`` for a small sample drawn without regard to the classes.

    >>> from dovetail.tasks.load import load_task
    >>> inputs, labels = load_task("digits").subset("train")
    >>> found = expected_accuracy(inputs[::3].flatten(1), labels[::3])
    >>> 0.88 < found.low < found.value < found.high < 0.97
    True
    """
    z = normal_quantile(confidence)
    rows = as_rows(features)
    kind, columns, codes = coded(targets, kind)
    refuse_other_count(rows, columns)
    counts = None if codes is None else codes.bincount()
    if counts is not None and int(counts.max()) < 2:
        raise TaskError(
            "every class has one example: what a head learns from the others cannot be told from "
            "what it has seen; give at least two examples of some class"
        )
    if len(rows) < 4:
        raise TaskError(f"{len(rows)} examples say nothing of new ones; give at least 4")
    solved = solve(rows, columns)
    held_out = solved.leave_one_out("auto")
    shares = counts if stratified else None
    views = _seen(held_out.predictions, columns, codes, shares, kind)
    each = torch.stack(views).mean(0)
    value = float(each.mean())
    shared = _mutual(solved, held_out, columns, codes, shares, kind)
    if kind == "regression":
        low, high, effective = _number_bounds(each, columns, shared, z)
    else:
        bounds = [_share_bounds(view, shared, z) for view in views]
        lows, highs, effectives = zip(*bounds, strict=True)
        low, high, effective = min(lows), max(highs), min(effectives)
    penalty, predictions = held_out.penalty, held_out.predictions
    facts = (penalty, len(rows), kind, predictions, effective, confidence, stratified)
    return Expected(value, low, high, each, *facts)


def chance_values(features: Any, targets: Any, shuffles: Tensor, expected: Expected) -> list[float]:
    """The value for shuffled targets, one for each order of the examples in ``shuffles [P, n]``.

    Heads are fitted to the shuffled targets, all of them from one decomposition, with the penalty
    of ``expected``: what features that know nothing of the labels would be expected to reach.

    >>> rows, labels = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1])
    >>> chance_values(rows, labels, torch.tensor([[0, 1, 2, 3]]), expected_accuracy(rows, labels))
    [1.0]
    """
    rows = as_rows(features)
    _, columns, codes = coded(targets, expected.kind)
    width = columns.shape[1]
    at_once = max(1, _MOST_COLUMNS // width)
    shares = codes.bincount() if codes is not None and expected.stratified else None
    values = []
    for orders in torch.split(shuffles, at_once) if len(shuffles) else ():
        several = torch.cat([columns[order] for order in orders], dim=1)
        predicted = leave_one_out(rows, several, expected.penalty).predictions
        for order, mine in zip(orders, torch.split(predicted, width, dim=1), strict=True):
            own = None if codes is None else codes[order]
            views = _seen(mine, columns[order], own, shares, expected.kind)
            values.append(float(torch.stack(views).mean()))
    return values


def _seen(
    predictions: Tensor,
    columns: Tensor,
    codes: Tensor | None,
    shares: Tensor | None,
    kind: HeadKind,
) -> list[Tensor]:
    """How right each row is ``[n]``, in one view or, with few examples a class, in two.

    What leaving one out does to its class's column can be undone in two ways.  Scaling the column
    is right for features that tell the classes apart, scaling its noise as little as possible for
    features that do not; with five examples a class and more they agree, and one is enough.
    """
    if codes is None or shares is None:
        return [_verdicts(predictions, columns, codes, kind)]
    views = [_verdicts(with_shares(predictions, codes, shares), columns, codes, kind)]
    if len(codes) < _FEW * len(shares):
        shifted = with_shares_shifted(predictions, codes, shares)
        views.append(_verdicts(shifted, columns, codes, kind))
    return views


def wilson(share: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's interval of a share of ``n`` trials, which need not be a whole number.

    >>> [round(bound, 3) for bound in wilson(1.0, 20, 1.645)]
    [0.881, 1.0]
    """
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (0.0 if share <= 0 else low), (1.0 if share >= 1 else high)


def trial_variance(share: float, n: int, z: float) -> float:
    """The variance of a trial with about this share of successes, never nothing.

    >>> trial_variance(0.5, 10, 1.645)
    0.25
    """
    near = (n * share + z * z / 2) / (n + z * z)
    return near * (1 - near)


def _verdicts(predictions: Tensor, columns: Tensor, codes: Tensor | None, kind: HeadKind) -> Tensor:
    """How right each row is ``[n]``; the mean is the value."""
    if codes is not None:
        return right_shares(predictions, codes)
    if kind == "multilabel":
        return ((predictions > 0.5) == (columns > 0.5)).double().mean(1)
    return 1 - (predictions - columns).square().sum(1) / _spread(columns)


def _spread(columns: Tensor) -> float:
    """The variance of the targets, summed over columns."""
    spread = float(columns.var(0).sum())
    if spread <= 0:
        raise TaskError("all targets are the same number; there is nothing to predict")
    return spread


def _mutual(
    solved: Decomposed,
    held_out: LeaveOneOut,
    columns: Tensor,
    codes: Tensor | None,
    counts: Tensor | None,
    kind: HeadKind,
) -> float:
    """The mean product of what rows do to each other's verdicts."""
    n = len(columns)
    some = torch.arange(n)
    if n > _MOST_ROWS:
        some = torch.randperm(n, generator=generator(0, "pairs"))[:_MOST_ROWS]
    remainder, predictions = solved.remainder(held_out.penalty, some), held_out.predictions[some]
    if codes is not None:
        return agreeing_classes(remainder, predictions, codes[some], counts)
    if kind == "multilabel":
        return agreeing_labels(remainder, predictions, columns[some])
    return agreeing_numbers(remainder, columns[some] - predictions) / _spread(columns) ** 2


def _share_bounds(each: Tensor, shared: float, z: float) -> tuple[float, float, float]:
    """Wilson's interval for verdicts in [0, 1], and what the rows are worth."""
    n, value = len(each), float(each.mean())
    binary = trial_variance(value, n, z)
    # Several labels a row vary less than one trial; few rows hardly say how much.
    varied = (n * float((each - value).square().mean()) + 4 * binary) / (n + 4)
    varied = binary if bool(((each == 0) | (each == 1)).all()) else min(varied, binary)
    effective = n * binary / varied / (1 + _kappa(shared, n, varied))
    return *wilson(value, effective, z), effective


def _number_bounds(
    each: Tensor, columns: Tensor, shared: float, z: float
) -> tuple[float, float, float]:
    r"""An interval for R², even in :math:`\log(1 - R^2)`, so that it never exceeds one."""
    n, missed = len(each), 1 - float(each.mean())
    if missed <= 0:
        return 1.0, 1.0, float(n)
    deviation = (columns - columns.mean(0)).square().sum(1) / _spread(columns)
    varied = float(((1 - each) - missed * deviation).var())
    kappa = _kappa(shared, n, varied)
    relative = z * math.sqrt(varied * (1 + kappa) / n) / missed
    return 1 - missed * math.exp(relative), 1 - missed * math.exp(-relative), n / (1 + kappa)


def _kappa(shared: float, n: int, varied: float) -> float:
    return min(max(n * shared / varied, 0.0), _MOST_KAPPA) if varied > 0 else 0.0


# How much two examples help each other ------------------------------------------------------------


def agreeing_classes(
    remainder: Tensor, predictions: Tensor, codes: Tensor, counts: Tensor | None
) -> float:
    """The mean product for verdicts on classes.

    Args:
        remainder: :math:`R` of some rows ``[r, r]``.
        predictions: Of these rows when left out ``[r, k]``, one column a class.
        codes: Their classes ``[r]``.
        counts: How many rows each class has ``[k]``, when the classes keep their shares whoever is
            left out; else ``None``.

    >>> apart, codes = torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 1])
    >>> agreeing_classes(apart, torch.rand(3, 2).double(), codes, None)
    0.0
    """
    rows = torch.arange(len(codes))
    residuals = torch.nn.functional.one_hot(codes, predictions.shape[1]).double() - predictions
    scores = predictions if counts is None else with_shares(predictions, codes, counts)
    others = scores.clone()
    others[rows, codes] = -torch.inf
    rival = others.argmax(1)
    margin = scores[rows, codes] - scores[rows, rival]
    own = predictions[rows, codes][:, None] - _changes(remainder, residuals[:, codes].T)
    theirs = predictions[rows, rival][:, None] - _changes(remainder, residuals[:, rival].T)
    if counts is not None:
        mine, its = counts[codes][:, None], counts[rival][:, None]
        peers = mine - 1 - (codes[:, None] == codes).long()
        own = own * mine / peers.clamp(min=1)
        theirs = theirs * its / (its - (rival[:, None] == codes).long()).clamp(min=1)
    return _product(_softened(margin, own - theirs))


def agreeing_labels(remainder: Tensor, predictions: Tensor, targets: Tensor) -> float:
    """The mean product for the share of right labels: targets ``[r, k]`` are zeros and ones.

    >>> apart = torch.eye(3, dtype=torch.float64)
    >>> agreeing_labels(apart, torch.rand(3, 2).double(), torch.ones(3, 2).double())
    0.0
    """
    total = torch.zeros_like(remainder)
    for target, prediction in zip(targets.T, predictions.T, strict=True):
        sign = 2 * target - 1
        margin = sign * (prediction - 0.5)
        changes = _changes(remainder, (target - prediction).expand_as(remainder))
        total += _softened(margin, margin[:, None] - sign[:, None] * changes)
    return _product(total / targets.shape[1])


def agreeing_numbers(remainder: Tensor, residuals: Tensor) -> float:
    """The mean product for the squared error of residuals ``[r, k]``, summed over columns.

    >>> agreeing_numbers(torch.eye(3, dtype=torch.float64), torch.ones(3, 1).double())
    0.0
    """
    total = torch.zeros_like(remainder)
    for column in residuals.T:
        without = column[:, None] + _changes(remainder, column.expand_as(remainder))
        total += column.square()[:, None] - without.square()
    return _product(total)


def with_shares(predictions: Tensor, codes: Tensor, counts: Tensor) -> Tensor:
    r"""Predictions of rows left out, had their class kept its share.

    Leaving out one of :math:`n_c` rows takes :math:`1/n_c` of the class's weight, which a row does
    not lose when it is new: the column of its class is scaled back by :math:`n_c / (n_c - 1)`.

    >>> half = torch.tensor([[0.5, 0.5]])
    >>> with_shares(half, torch.tensor([1]), torch.tensor([3, 3]))
    tensor([[0.5000, 0.7500]])
    """
    own = counts[codes].to(predictions.dtype)
    restored = predictions.clone()
    restored[torch.arange(len(codes)), codes] *= own / (own - 1).clamp(min=1)
    return restored


def with_shares_shifted(predictions: Tensor, codes: Tensor, counts: Tensor) -> Tensor:
    r"""Predictions of rows left out, with their class's column moved to its share.

    Its noise hardly grows: about its mean :math:`(n_c - 1)/(n - 1)` the column is scaled by
    :math:`\sqrt{n_c/(n_c - 1)}` only, and the mean becomes :math:`n_c/(n - 1)`: without a
    signal no class is then preferred.

    >>> third = torch.tensor([[0.5, 0.4]])
    >>> with_shares_shifted(third, torch.tensor([1]), torch.tensor([3, 3]))
    tensor([[0.5000, 0.6000]])
    """
    n, own = int(counts.sum()), counts[codes].to(predictions.dtype)
    restored, rows = predictions.clone(), torch.arange(len(codes))
    apart = restored[rows, codes] - (own - 1) / (n - 1)
    restored[rows, codes] = own / (n - 1) + apart * (own / (own - 1).clamp(min=1)).sqrt()
    return restored


def _changes(remainder: Tensor, theirs: Tensor) -> Tensor:
    """What adding row ``j`` does to the prediction of row ``i``, in ``i``'s column: ``[i, j]``.

    ``theirs [i, j]`` is the residual of ``j`` in that column.
    """
    diagonal = remainder.diagonal()
    both = torch.outer(diagonal, diagonal)
    determinant = (both - remainder.square()).clamp(min=1e-12 * both.clamp(min=1e-300))
    own = theirs.diagonal()[:, None]
    changes: Tensor = -remainder * (diagonal * theirs - remainder * own) / determinant
    return changes


def _softened(margin: Tensor, without: Tensor) -> Tensor:
    """The change of verdict ``[i, j]`` from the margins without ``j`` to those with it."""
    low, high = margin.quantile(torch.tensor([0.25, 0.75], dtype=margin.dtype))
    spread = min(float(margin.std()), float(high - low) / 1.349 or torch.inf)
    width = max(0.5 * spread * len(margin) ** -0.2, 1e-12)
    now, before = (torch.special.ndtr(each / width) for each in (margin[:, None], without))
    change: Tensor = now - before
    return change


def _product(changes: Tensor) -> float:
    count = len(changes)
    changes = changes - torch.diag(changes.diagonal())
    return float((changes * changes.T).sum()) / (count * (count - 1))
