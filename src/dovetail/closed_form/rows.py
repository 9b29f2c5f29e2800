r"""The rows a network is fitted to, as the layers so far leave them: held, or streaming by.

Both give the same sums.  Held rows keep the current representation :math:`Z_i` and forget the
earlier ones, so that depth costs time alone.  Streamed rows are read anew for each pass and sent
through the layers so far; what is held is one block and the moments.

With ``ema`` each row has an importance :math:`d_j`, a moving average of its squared errors,

.. math:: d_j \leftarrow \lambda d_j + (1 - \lambda) \lVert y_j - \hat y_j\rVert^2 ,

which weighs its label in the principal components that give the next projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from dovetail.closed_form.layers import Layer
from dovetail.core.errors import TaskError
from dovetail.dist.group import merge_across
from dovetail.linalg.moments import Moments

__all__ = ["Block", "HeldRows", "Rows", "StreamedRows", "moments_of", "reweighed"]

BLOCK = 4096
"""Rows that are worked on at once."""


class Block(NamedTuple):
    """Some rows: features ``[b, d]``, targets ``[b, k]``, weights and importance ``[b]``."""

    z: Tensor
    y: Tensor
    weights: Tensor | None = None
    importance: Tensor | None = None


class Rows(Protocol):
    """Rows as the layers so far leave them."""

    shared: bool

    def blocks(self) -> Iterator[Block]:
        """All rows, block by block, in one order."""
        ...

    def best_of(
        self, layers: Sequence[Layer], judge: Callable[[Moments], float]
    ) -> tuple[int, Moments, Self]:
        """Which layer leaves the least, its moments, and the rows behind it."""
        ...

    def judged(self, head: Layer, decay: float) -> Self:
        """The rows with their importance brought up to date by the errors of a head."""
        ...


@dataclass(frozen=True)
class HeldRows:
    """All rows in memory: ``z [n, d]``, ``y [n, k]``, weights and importance ``[n]``.

    >>> rows = HeldRows(torch.rand(6, 2).double(), torch.rand(6, 1).double())
    >>> moments_of(rows).rows
    6
    """

    z: Tensor
    y: Tensor
    weights: Tensor | None = None
    importance: Tensor | None = None
    shared: bool = False
    """Whether other processes hold other rows of the same data."""

    def blocks(self) -> Iterator[Block]:
        """All rows, block by block."""
        for start in range(0, len(self.z), BLOCK):
            part = slice(start, start + BLOCK)
            yield Block(
                self.z[part],
                self.y[part],
                None if self.weights is None else self.weights[part],
                None if self.importance is None else self.importance[part],
            )

    def best_of(
        self, layers: Sequence[Layer], judge: Callable[[Moments], float]
    ) -> tuple[int, Moments, HeldRows]:
        """Each layer in turn; the representation of the best so far is kept, no other."""
        best: tuple[float, int, Moments, HeldRows] | None = None
        for i, layer in enumerate(layers):
            width = layer.weights.shape[1]
            z = torch.empty(len(self.z), width, dtype=self.z.dtype, device=self.z.device)
            moments = Moments(width, self.y.shape[1], self.z.device)
            for start in range(0, len(z), BLOCK):
                part = slice(start, start + BLOCK)
                z[part] = layer(self.z[part])
                weights = None if self.weights is None else self.weights[part]
                moments.update(z[part], self.y[part], weights)
            moments = merge_across(moments) if self.shared else moments
            score = judge(moments) if len(layers) > 1 else 0.0
            if best is None or score < best[0]:
                best = score, i, moments, replace(self, z=z)
        assert best is not None
        return best[1:]

    def judged(self, head: Layer, decay: float) -> HeldRows:
        """The rows with their importance brought up to date."""
        old = self.importance
        before = torch.ones(len(self.z), dtype=self.z.dtype) if old is None else old
        found = [
            _importance(block, head, decay) for block in replace(self, importance=before).blocks()
        ]
        return replace(self, importance=torch.cat(found))


@dataclass(frozen=True)
class StreamedRows:
    """Rows read anew for each pass: ``batches()`` gives the blocks of the inputs, always alike.

    >>> data = Block(torch.rand(6, 2).double(), torch.rand(6, 1).double())
    >>> rows = StreamedRows(lambda: iter([data]))
    >>> moments_of(rows).rows
    6
    """

    batches: Callable[[], Iterable[Block]]
    layers: tuple[Layer, ...] = ()
    heads: tuple[tuple[int, Layer, float], ...] = ()
    """Heads that judge the rows after so many layers, and the decay of what they say."""
    shared: bool = False

    def blocks(self) -> Iterator[Block]:
        """All rows, sent through the layers so far."""
        for block in self.batches():
            z = block.z
            importance = torch.ones(len(z), dtype=z.dtype) if self.heads else None
            for depth in range(len(self.layers) + 1):
                for place, head, decay in self.heads:
                    if place == depth:
                        here = Block(z, block.y, block.weights, importance)
                        importance = _importance(here, head, decay)
                if depth < len(self.layers):
                    z = self.layers[depth](z)
            yield Block(z, block.y, block.weights, importance)

    def best_of(
        self, layers: Sequence[Layer], judge: Callable[[Moments], float]
    ) -> tuple[int, Moments, StreamedRows]:
        """All layers in one pass, a matrix of moments for each."""
        several: list[Moments] = []
        for z, y, weights, _ in self.blocks():
            if not several:
                several = [Moments(each.weights.shape[1], y.shape[1]) for each in layers]
            for layer, moments in zip(layers, several, strict=True):
                moments.update(layer(z), y, weights)
        if self.shared:
            several = [merge_across(each) for each in several]
        scores = [judge(each) for each in several] if len(several) > 1 else [0.0]
        which = scores.index(min(scores))
        return which, several[which], replace(self, layers=(*self.layers, layers[which]))

    def judged(self, head: Layer, decay: float) -> StreamedRows:
        """The rows with their importance brought up to date, at the next pass."""
        return replace(self, heads=(*self.heads, (len(self.layers), head, decay)))


def moments_of(rows: Rows) -> Moments:
    """The moments of all rows, of those in other processes too if they are shared."""
    moments: Moments | None = None
    for z, y, weights, _ in rows.blocks():
        if moments is None:
            moments = Moments(z.shape[1], y.shape[1], z.device)
        moments.update(z, y, weights)
    if moments is None or moments.weight == 0:
        raise TaskError("no rows to fit; give batches that can be gone through repeatedly")
    return merge_across(moments) if rows.shared else moments


def reweighed(rows: Rows, moments: Moments) -> Moments:
    r"""The moments of :math:`[Z \mid d \odot Y]`: labels weighed by importance, features not.

    The features' own scatter is known; only what meets the labels is summed anew.
    """
    d, k = moments.d, moments.k
    sums = _Sums({"cross": torch.zeros(d, k).double(), "labels": torch.zeros(k + 1, k).double()})
    for z, y, weights, importance in rows.blocks():
        labels = y if importance is None else y * importance[:, None]
        weighed = labels if weights is None else labels * weights[:, None]
        total = torch.cat([weighed.sum(0)[None], weighed.T @ labels])
        sums.merge(_Sums({"cross": (z - moments.feature_mean).T @ weighed, "labels": total}))
    tensors = (merge_across(sums) if rows.shared else sums).tensors
    found = Moments(d, k, moments.mean.device)
    found.rows, found.weight = moments.rows, moments.weight
    mean = tensors["labels"][0] / moments.weight
    found.mean = torch.cat([moments.feature_mean, mean])
    found.scatter[:d, :d] = moments.features
    found.scatter[:d, d:] = tensors["cross"]
    found.scatter[d:, :d] = tensors["cross"].T
    found.scatter[d:, d:] = tensors["labels"][1:] - moments.weight * torch.outer(mean, mean)
    return found


class _Sums:
    """Tensors by name that add up."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def state(self) -> dict[str, Tensor]:
        return self.tensors

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> _Sums:
        return cls(state)

    def merge(self, other: _Sums) -> _Sums:
        for name, tensor in self.tensors.items():
            tensor += other.tensors[name]
        return self


def _importance(block: Block, head: Layer, decay: float) -> Tensor:
    errors = (block.y - head(block.z)).square().sum(1)
    before = torch.ones_like(errors) if block.importance is None else block.importance
    return decay * before + (1 - decay) * errors
