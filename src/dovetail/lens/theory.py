r"""What theory expects of a transfer: the Gram matrices of a wide two-layer ReLU network.

The network is :math:`f(x) = m^{-1/2}\, a^\top \sigma(W^\top x)` with unit inputs, fixed signs
:math:`a`, squared error, and :math:`m \to \infty` hidden units.  Gradient descent then is a linear
regression in the features of the start, with the kernel

.. math:: H^\infty_{ij} = \frac{x_i^\top x_j\,(\pi - \arccos x_i^\top x_j)}{2\pi} .

Trained on a source :math:`P` it gives for the inputs of a target :math:`Q` the labels

.. math:: y_{P\to Q} = {H^\infty_{PQ}}^\top (H^\infty_P)^{-1} y_P ,

and what fine-tuning has left to do is :math:`r = y_Q - y_{P\to Q}` instead of :math:`y_Q`:

* the squared gradient with respect to the activations begins at :math:`\lVert r\rVert^2`, not
  :math:`\lVert y_Q\rVert^2`: the loss is less steep if their difference is negative;
* the weights move by :math:`\lVert W_Q - W_P\rVert_F^2 = r^\top (H^\infty_Q)^{-1} r`, from scratch
  by :math:`y_Q^\top (H^\infty_Q)^{-1} y_Q`.  These are squares (the theorem is printed without).

Both hold where the output begins at zero: pairs of hidden units with equal weights and opposite
signs see to that.  Several outputs are as many regressions, for their kernels share nothing in the
limit; what is said is their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError, first_line, shown
from dovetail.core.seeds import generator
from dovetail.core.settings import need_least
from dovetail.core.words import listed
from dovetail.lens.theory_record import GramTheory
from dovetail.tasks.arrays import as_float
from dovetail.tasks.task import Task

Data = Task | tuple[Any, Any]

MOST = 10_000
"""Inputs of either side: the matrix of more takes over 800 MB, its factor minutes."""

LIMIT = 2000
"""Of a task's training split, so many are drawn unless said."""

_SAME = 1e-12
"""Unit inputs whose product is this near to 1 are one and the same."""

_SINGULAR = 1e-13
"""A smallest eigenvalue below this share of the largest is rounding."""

_DENSE = 200


def relu_gram(a: Tensor, b: Tensor | None = None) -> Tensor:
    r""":math:`H^\infty` of unit inputs ``[n, d]`` and ``[m, d]``: ``[n, m]``, float64.

    >>> relu_gram(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))[0].tolist()
    [0.5, 0.0, -0.0]
    """
    cosines = (a.double() @ (a if b is None else b).double().T).clamp(-1, 1)
    gram = cosines.arccos().neg_().add_(math.pi).mul_(cosines).div_(2 * math.pi)
    if b is None:
        gram.fill_diagonal_(0.5)  # arccos near 1 keeps half of the digits only
    return gram


def gram_theory(
    source: Data,
    target: Data,
    *,
    match: Literal["names", "order"] = "names",
    jitter: float = 0.0,
    limit: int | None = LIMIT,
    seed: int = 0,
) -> GramTheory:
    """Does theory expect what was learnt on the source to help on the target, and by how much?

    It looks at data alone: no network is run.  Inputs are flattened and scaled to unit length, as
    the theory is about directions; the record says how long they were.  Examples of one direction
    and one label count once, which changes nothing; all arithmetic is float64.

    Args:
        source: ``(x, y)`` or a task, of which the training split counts.
        target: Likewise, with inputs of the same size.
        match: How classes of the two correspond: ``"names"`` (of arrays, by value), where classes
            of the target that the source lacks begin at zero and those of the source alone are
            left out, or ``"order"``, first with first.
        jitter: Added to the diagonal of both matrices, as a ridge.  Needed only where inputs repeat
            with different labels or nearly so: the networks then do not fit their data.
        limit: How many examples are drawn of a task; ``None`` for all.
        seed: Of that draw.

    Integer, boolean and string labels are classes: two are -1 and 1, more are one-hot.  Floats are
    taken as they are, ``[n]`` or ``[n, o]``.

    >>> draw = torch.Generator().manual_seed(0)
    >>> x = torch.randn(40, 5, generator=draw)
    >>> same = gram_theory((x[:20], x[:20, 0]), (x[20:], x[20:, 0]))
    >>> other = gram_theory((x[:20], x[:20, 0]), (x[20:], x[20:, 1]))
    >>> same.deviation < same.deviation_scratch, same.deviation < other.deviation
    (True, True)
    """
    if match not in ("names", "order"):
        raise SettingsError(f'match is "names" or "order", got {shown(match)}')
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter < 1e6:
        raise SettingsError(f"jitter must be a number of at least 0, got {shown(jitter)}")
    if limit is not None:
        need_least("limit", limit, 1)
    p, q = (
        _read(each, role, limit, seed) for each, role in ((source, "source"), (target, "target"))
    )
    if p.units.shape[1] != q.units.shape[1]:
        raise TaskError(
            f"inputs of the source have {p.units.shape[1]} numbers, of the target "
            f"{q.units.shape[1]}; bring both to one size (tasks: dovetail.tasks.derive.resized)"
        )
    y_p, y_q, outputs = _labels(p, q, match)
    first, second = _distinct(p, y_p, jitter), _distinct(q, y_q, jitter)
    learnt = _Solved(p.units[first], jitter, "source")
    fitted = _Solved(q.units[second], jitter, "target")
    transferred = relu_gram(p.units[first], q.units).T @ learnt.solve(y_p[first])
    left = y_q - transferred
    return GramTheory(
        source=p.name,
        target=q.name,
        n_source=len(p.units),
        n_target=len(q.units),
        outputs=outputs,
        labels=_rows(y_q),
        transferred=_rows(transferred),
        lipschitz_change=float(left.square().sum() - y_q.square().sum()),
        gradient_scratch=float(y_q.square().sum()),
        deviation=fitted.form(left[second]),
        deviation_scratch=fitted.form(y_q[second]),
        least_source=learnt.least,
        least_target=fitted.least,
        settings={
            "match": match,
            "jitter": jitter,
            "seed": seed,
            "distinct": [len(first), len(second)],
            "lengths": {"source": p.lengths, "target": q.lengths},
        },
    )


@dataclass(frozen=True)
class _Read:
    """Unit inputs ``[n, d]``, targets, and what is known of them."""

    name: str
    units: Tensor
    targets: Any
    classes: tuple[str, ...] | None
    lengths: list[float]


def _read(data: Data, role: str, limit: int | None, seed: int) -> _Read:
    if isinstance(data, Task):
        if data.kind == "pairs":
            raise TaskError(f"{data.name!r} has pair labels only; the theory needs targets")
        index = data.indices("train")
        if len(index) == 0:
            raise TaskError(f"{data.name!r} has no training examples")
        if limit is not None and limit < len(index):
            order = torch.randperm(len(index), generator=generator(seed, "theory", role))
            index = index[order[:limit].sort().values]
        x, y, name = as_float(data.inputs[index]), data.targets[index], data.name
        classes = data.classes if data.kind == "classes" else None
        y = y.double().reshape(len(y), -1) if classes is None else y
    else:
        x, y, classes = _arrays(data, role)
        name = role
    if len(x) > MOST:
        raise TaskError(
            f"the {role} has {len(x):,} examples; the theory solves with a matrix of their square "
            f"and takes {MOST:,} at most: give a part of them (of a task, by limit=)"
        )
    flat = x.double().reshape(len(x), -1)
    lengths = flat.norm(dim=1)
    if not flat.isfinite().all():
        raise TaskError(f"the {role}'s inputs hold NaN or infinite values")
    if (lengths == 0).any():
        where = int((lengths == 0).nonzero()[0, 0])
        raise TaskError(
            f"input {where} of the {role} is zero, which has no direction; leave it out"
        )
    bounds = [float(lengths.min()), float(lengths.max())]
    return _Read(name, flat / lengths[:, None], y, classes, bounds)


def _arrays(data: Any, role: str) -> tuple[Tensor, Any, tuple[str, ...] | None]:
    try:
        x, y = data
        x, y = torch.as_tensor(np.asarray(x, dtype=np.float64)), np.asarray(y)
    except (TypeError, ValueError) as error:
        raise TaskError(f"the {role} is a task or a pair (x, y): {first_line(error)}") from None
    if x.ndim < 2 or y.ndim not in (1, 2) or len(x) != len(y):
        raise TaskError(
            f"the {role} is a pair of x [n, ...] and y [n] or [n, o]; got {list(x.shape)} and "
            f"{list(y.shape)}"
        )
    if len(y) == 0:
        raise TaskError(f"the {role} has no examples")
    if y.dtype.kind == "f":
        numbers = torch.from_numpy(y.astype(np.float64)).reshape(len(y), -1)
        if not numbers.isfinite().all():
            raise TaskError(f"the {role}'s labels hold NaN or infinite values")
        return x, numbers, None
    if y.ndim == 2:
        raise TaskError(f"the {role}'s classes are [n], got {list(y.shape)}; or give floats [n, o]")
    values, codes = np.unique(y, return_inverse=True)
    return x, torch.from_numpy(codes.astype(np.int64)), tuple(str(value) for value in values)


def _labels(p: _Read, q: _Read, match: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Both sides' labels as numbers of common outputs, ``[n, o]`` each, and the outputs' names."""
    if (p.classes is None) != (q.classes is None):
        raise TaskError(
            "one side has classes and the other numbers; the theory compares like with like"
        )
    if p.classes is None or q.classes is None:
        if p.targets.shape[1] != q.targets.shape[1]:
            raise TaskError(
                f"the source has {p.targets.shape[1]} numbers to predict, the target "
                f"{q.targets.shape[1]}"
            )
        count = q.targets.shape[1]
        return p.targets, q.targets, tuple(f"output {i + 1}" for i in range(count))
    for side, role in ((p, "source"), (q, "target")):
        if len(side.classes or ()) < 2:
            raise TaskError(f"the {role} has one class only: there is nothing to tell apart")
    of_source = p.classes if match == "names" else q.classes[: len(p.classes)]
    if not set(of_source) & set(q.classes):
        raise TaskError(
            f"source ({listed(p.classes, 4)}) and target ({listed(q.classes, 4)}) share no class; "
            'match="order" takes the first for the first, and so on'
        )
    if match == "order" and len(p.classes) != len(q.classes):
        raise TaskError(
            f'match="order" takes as many classes on both sides, got {len(p.classes)} and '
            f"{len(q.classes)}"
        )
    if len(q.classes) == 2 and set(of_source) == set(q.classes):
        low, high = q.classes
        return (
            _signs(p.targets, of_source, high),
            _signs(q.targets, q.classes, high),
            (f"{low} (-1) or {high} (1)",),
        )
    return (
        _one_hot(p.targets, of_source, q.classes),
        _one_hot(q.targets, q.classes, q.classes),
        q.classes,
    )


def _signs(codes: Tensor, classes: Sequence[str], high: str) -> Tensor:
    return torch.where(codes == classes.index(high), 1.0, -1.0).double()[:, None]


def _one_hot(codes: Tensor, classes: Sequence[str], outputs: Sequence[str]) -> Tensor:
    """A one where the class is that output's; zeros where no output is the class's."""
    columns = [
        codes == classes.index(name)
        if name in classes
        else torch.zeros_like(codes, dtype=torch.bool)
        for name in outputs
    ]
    return torch.stack(columns, 1).double()


def _distinct(side: _Read, labels: Tensor, jitter: float) -> Tensor:
    """The first example of each direction; different labels for one are refused without jitter.

    An equation that is said twice changes no solution, but makes the matrix singular.
    """
    if jitter > 0:
        return torch.arange(len(labels))
    twins = (side.units @ side.units.T).tril_(-1) >= 1 - _SAME
    later, earlier = twins.nonzero(as_tuple=True)
    odd = (labels[later] != labels[earlier]).any(1)
    if odd.any():
        i, j = int(earlier[odd][0]), int(later[odd][0])
        raise TaskError(
            f"examples {i} and {j} of {side.name!r} are one input (up to its length) with two "
            "labels, which no network can fit; leave one out, or give a ridge, such as jitter=0.01"
        )
    return (~twins.any(1)).nonzero()[:, 0]


class _Solved:
    """Solutions with one side's matrix, and its least eigenvalue."""

    def __init__(self, units: Tensor, jitter: float, role: str) -> None:
        gram = relu_gram(units)
        gram.diagonal().add_(jitter)
        self._factor, info = torch.linalg.cholesky_ex(gram)
        largest = float(gram.norm())  # no less than the largest eigenvalue
        self.least = self._least(gram) if int(info) == 0 else 0.0
        if not self.least > _SINGULAR * largest:
            raise TaskError(
                f"the {role}'s matrix is singular to float64: what some inputs say follows from "
                "others; give fewer of them, or a ridge, such as jitter=1e-6"
            )

    def solve(self, right: Tensor) -> Tensor:
        """The solution for ``[n, o]``."""
        return torch.cholesky_solve(right, self._factor)

    def form(self, left: Tensor) -> float:
        r""":math:`\sum_k r_k^\top H^{-1} r_k` of ``[n, o]``: a norm, so never below zero."""
        half = torch.linalg.solve_triangular(self._factor, left, upper=False)
        return float(half.square().sum())

    def _least(self, gram: Tensor) -> float:
        """The least eigenvalue: of many rows, by Lanczos with the factor."""
        if len(gram) <= _DENSE:
            return float(torch.linalg.eigvalsh(gram)[0])
        inverse: Callable[[Any], Any] = lambda v: self.solve(  # noqa: E731
            torch.from_numpy(v.reshape(-1, 1))
        )[:, 0].numpy()
        operator = LinearOperator(tuple(gram.shape), matvec=inverse, dtype=np.float64)
        start = np.ones(len(gram))
        return 1 / float(eigsh(operator, 1, v0=start, return_eigenvectors=False, tol=1e-6)[0])


def _rows(values: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, values.tolist()))
