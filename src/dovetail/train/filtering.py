r"""Filters: which rows of a training split are learnt from, before training or in each epoch.

Redundant rows lie far from where classes meet, and say little about the boundary.  Row :math:`i`
of a pool has

.. math::
    c_i = \#\{j \ne i : y_j = y_i,\ d_{ij} < \min_{y_l \ne y_i} d_{il}\}

neighbours of its own class nearer than any other class, and :math:`k`-filtering drops it if
:math:`c_i \ge k`.  Where a cap lets fewer go, those with the largest :math:`c_i` go first: a capped
filter is one with a larger :math:`k`.  *Loss filtering* drops the rows that are learnt already,
those with the lowest loss; it needs no distances, and no classes.

Neither lets a class vanish: of each class in a pool at least one row is kept, the last that would
have been dropped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from dovetail.core.errors import FormatError, SettingsError, TaskError, TrainingError, nearest
from dovetail.measure.neighbours import k_filter, own_nearer

POOL = 6148
"""Rows that are compared with each other, as in the source."""

CAP = 0.6
"""Of a pool at most this share is dropped while training, as in the source."""

_BY = ("inputs", "features", "loss")
_POOLING = ("mean", "flatten")


@dataclass(frozen=True)
class Filter:
    """What is dropped, when, and how much at most.  In settings and files it is its own short text.

    Attributes:
        by: ``"inputs"``, k-filtering once before training; ``"features"``, k-filtering in each
            epoch on what enters the output layer (layer by layer, the stage); ``"loss"``.
        amount: How many neighbours must be of a row's class (k); of ``"loss"``, the share dropped.
        cap: Of a pool at most this share is dropped.
        after: Epochs without a filter; by default a tenth of them, at least one (:meth:`within`).
        pool: Rows that are compared with each other.
        pooling: Of feature maps: ``"mean"`` over positions, as everywhere, or ``"flatten"``.

    >>> chosen = Filter.parse("features:10,after:30")
    >>> chosen.k, chosen.cap, chosen.active(29), chosen.active(30)
    (10, 0.6, False, True)
    >>> Filter.parse("inputs:1").keep(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 0, 1])
    tensor([False, False,  True,  True])
    """

    by: str
    amount: float
    cap: float = 1.0
    after: int | None = None
    pool: int = POOL
    pooling: str = "mean"

    def __post_init__(self) -> None:
        if self.by not in _BY:
            raise SettingsError(f"unknown filter {self.by!r}{nearest(self.by, _BY)}")
        if self.by == "loss":
            if not 0 < self.amount < 1:
                raise SettingsError(
                    f"a loss filter drops a share between 0 and 1, as loss:0.25, not "
                    f"{self.amount:g}"
                )
        elif not (self.amount >= 1 and self.amount % 1 == 0):
            raise SettingsError(
                f"filter {self.by!r} needs a number of neighbours, as {self.by}:10, not "
                f"{self.amount:g}"
            )
        if not 0 < self.cap <= 1:
            raise SettingsError(f"cap is a share above 0 and up to 1, got {self.cap:g}")
        if self.by == "inputs" and self.after is not None:
            raise SettingsError(
                "filter 'inputs' acts before training, so after: does not go with it"
            )
        if self.after is not None and self.after < 0:
            raise SettingsError(f"after counts epochs from 0, got {self.after}")
        if self.pool < 2:
            raise SettingsError(f"pool must be at least 2 rows, got {self.pool}")
        if self.pooling not in _POOLING:
            raise SettingsError(
                f"unknown pooling {self.pooling!r}{nearest(self.pooling, _POOLING)}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the short text: what and how much, then any of cap, after, pool and pooling.

        >>> Filter.parse("loss:0.25,after:3")
        Filter(by='loss', amount=0.25, cap=1.0, after=3, pool=6148, pooling='mean')
        """
        first, *more = (word.strip() for word in text.split(","))
        by, _, amount = first.partition(":")
        if by not in _BY or not amount:
            raise SettingsError(
                f"a filter is written as inputs:10, features:10 or loss:0.25, not {text!r}"
                f"{nearest(by, _BY)}"
            )
        given: dict[str, Any] = {"cap": CAP} if by == "features" else {}
        for word in more:
            name, _, value = word.partition(":")
            if name not in _READ:
                raise SettingsError(
                    f"filter {text!r}: unknown word {name!r}{nearest(name, tuple(_READ))}"
                )
            given[name] = _read(text, value, _READ[name])
        return cls(by, _read(text, amount, float), **given)

    @classmethod
    def of(cls, choice: str | Filter | None) -> Filter | None:
        """A filter, or its text."""
        return cls.parse(choice) if isinstance(choice, str) else choice

    @property
    def k(self) -> int:
        """How many neighbours must be of a row's class."""
        return int(self.amount)

    @property
    def compares(self) -> bool:
        """Whether it compares rows, and so needs features and classes; else losses."""
        return self.by != "loss"

    def within(self, epochs: int) -> Self:
        """The same for a training of so many epochs: with a warm-up, unless one was said.

        >>> Filter.parse("loss:0.25").within(300).after
        30
        """
        if self.after is not None or self.by == "inputs":
            return self
        return replace(self, after=max(1, round(epochs / 10)))

    def active(self, epoch: int) -> bool:
        """Whether rows are dropped in an epoch, counted from 0."""
        if self.by == "inputs":
            return False
        if self.after is None:
            raise SettingsError(
                "a filter without a warm-up: say after:, or ask filter.within(epochs)"
            )
        return epoch >= self.after

    def keep(
        self, features: Any, labels: Any, losses: Any | None = None, *, least: int = 1
    ) -> Tensor:
        """Which rows of a pool are kept, bool ``[n]``: the same for the same numbers.

        Args:
            features: ``[n, ...]``; a filter by loss does not look at them.
            labels: ``[n]``, a class each.  A filter by loss also takes numbers to predict.
            losses: ``[n]``; a filter that compares rows does not look at them.
            least: So many rows are kept, if there are so many.

        >>> Filter.parse("loss:0.5").keep(None, [0, 0, 0, 1], [0.1, 0.3, 0.2, 0.4])
        tensor([False,  True, False,  True])
        """
        targets = torch.as_tensor(labels).cpu()
        n = len(targets)
        most = max(0, min(int(self.cap * n), n - least))
        if self.compares:
            if n <= self.k:  # nobody has so many neighbours
                return torch.ones(n, dtype=torch.bool)
            rows = self._rows(features)
            keep = k_filter(rows, targets, self.k)
            if int((~keep).sum()) <= most and not _gone(keep, targets):
                return keep
            who = (~keep).nonzero()[:, 0]
            count, distance = own_nearer(rows, targets, who)
            order = who[_most_first(count, distance)]
        else:
            order = _finite(torch.as_tensor(losses).detach().cpu().double(), "losses")
            order = order.argsort(stable=True)[: int(self.amount * n)]
        keep = torch.ones(n, dtype=torch.bool)
        keep[order[:most]] = False
        if self.compares or (targets.ndim == 1 and not targets.is_floating_point()):
            for code in _gone(keep, targets):
                keep[order[:most][targets[order[:most]] == code][-1]] = True
        return keep

    def _rows(self, features: Any) -> Tensor:
        """Features ``[n, ...]`` as rows."""
        maps = _finite(torch.as_tensor(features).detach().cpu(), "features")
        if maps.ndim > 2 and self.pooling == "mean" and self.by == "features":
            return maps.double().flatten(2).mean(2)
        return maps.reshape(len(maps), -1)

    def __str__(self) -> str:
        words = [f"{self.by}:{self.amount:g}"]
        usual = Filter(self.by, self.amount, CAP if self.by == "features" else 1.0)
        for name in _READ:
            value = getattr(self, name)
            if value != getattr(usual, name):
                words.append(f"{name}:{value:g}" if name == "cap" else f"{name}:{value}")
        return ",".join(words)

    def to_plain(self) -> str:
        """Itself as JSON: the short text."""
        return str(self)

    @classmethod
    def from_plain(cls, value: Any, where: str) -> Self:
        """Read the short text from a file."""
        if not isinstance(value, str):
            raise FormatError(f"{where}: expected the text of a filter, found {value!r}")
        try:
            return cls.parse(value)
        except SettingsError as error:
            raise FormatError(f"{where}: {error}") from None


_READ: dict[str, Callable[[str], Any]] = {"cap": float, "after": int, "pool": int, "pooling": str}


def _read(text: str, value: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise SettingsError(f"filter {text!r}: {value!r} is not a number that fits") from None


def _finite(values: Tensor, what: str) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise TrainingError(
            f"the {what} that rows are filtered by hold nan or inf; lower the learning rate, or "
            "look for extreme inputs"
        )
    return values


def _gone(keep: Tensor, codes: Tensor) -> list[int]:
    """The classes of which no row is kept."""
    kept = set(codes[keep].tolist())
    return [code for code in sorted(set(codes.tolist())) if code not in kept]


def _most_first(count: Tensor, distance: Tensor) -> Tensor:
    """The most redundant first: by count, then by distance, then as they come."""
    order = distance.argsort(descending=True, stable=True)
    return order[count[order].argsort(descending=True, stable=True)]


def losses_of(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example on its own, ``[n]``, of a loss that is of a batch.

    >>> from torch.nn.functional import cross_entropy
    >>> losses_of(cross_entropy, torch.zeros(2, 4), torch.tensor([0, 1]))
    tensor([1.3863, 1.3863])
    """

    def one(output: Tensor, target: Tensor) -> Tensor:
        return loss(output[None], target[None])

    with torch.no_grad():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # what torch cannot do at once, it says
                found = torch.vmap(one)(outputs, targets)
        except (RuntimeError, ValueError, TypeError, UserWarning):
            found = torch.stack([one(y, t) for y, t in zip(outputs, targets, strict=True)])
    if found.shape != (len(outputs),):
        raise TaskError(f"a loss is a number; of one example this gives {list(found.shape[1:])}")
    return found
