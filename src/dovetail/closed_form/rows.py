r"""The rows a network is fitted to, as the layers so far leave them: held, or streaming by.

Both give the same sums.  Held rows keep the current representation :math:`Z_i` and forget the
earlier ones, so that depth costs time alone.  Streamed rows are read anew for each pass and sent
through the layers so far; what is held is one block and the moments.

With ``ema`` each row has an importance :math:`d_j`, a moving average of its squared errors,

.. math:: d_j \leftarrow \lambda d_j + (1 - \lambda) \lVert y_j - \hat y_j\rVert^2 ,

which weighs its label in the target of the next layer, and in the principal components that give
the projection of platonic PCA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from dovetail.closed_form.layers import Layer
from dovetail.core.errors import TaskError
from dovetail.dist.group import merge_across, told_by_each
from dovetail.linalg.moments import Moments

BLOCK = 4096
"""Rows of a block, for whoever makes blocks."""
_GOLDEN = 2654435769
"""The golden ratio's fraction of 2**32."""
NUMBERS, FEWEST = 1 << 20, 256
"""How much of held rows is worked on at once: 8 MB, but no fewer rows than these."""


Judge = Callable[[Sequence[Moments]], list[float]]
"""What each of several moments leaves to be explained."""


class Block(NamedTuple):
    """Some rows: features ``[b, d]``, targets ``[b, k]``, weights and importance ``[b]``."""

    z: Tensor
    y: Tensor
    weights: Tensor | None = None
    importance: Tensor | None = None

    def take(self, which: slice | Tensor) -> Block:
        """Some of the rows, by a slice or a mask ``[b]``.

        >>> Block(torch.ones(3, 2), torch.ones(3, 1)).take(slice(1, 3)).z.shape
        torch.Size([2, 2])
        """
        weights = None if self.weights is None else self.weights[which]
        importance = None if self.importance is None else self.importance[which]
        return Block(self.z[which], self.y[which], weights, importance)


class Rows(Protocol):
    """Rows as the layers so far leave them."""

    @property
    def shared(self) -> bool:
        """Whether other processes have other rows of the same data."""
        ...

    def blocks(self) -> Iterator[Block]:
        """All rows, block by block, in one order."""
        ...

    def best_of(
        self, layers: Sequence[Layer], judge: Judge, step: int = 1
    ) -> tuple[int, Moments, Self]:
        """Which layer leaves the least, its moments, and the rows behind it.

        One row in ``step`` decides between several layers.
        """
        ...

    def judged(self, head: Layer, decay: float) -> Self:
        """The rows with their importance brought up to date by the errors of a head."""
        ...


@dataclass(frozen=True)
class HeldRows:
    """All rows in memory: ``z [n, d]``, ``y [n, k]``, weights and importance ``[n]``.

    They become float64, as everything here is.

    >>> rows = HeldRows(torch.rand(6, 2), torch.rand(6, 1))
    >>> moments_of(rows).rows
    6
    """

    z: Tensor
    y: Tensor
    weights: Tensor | None = None
    importance: Tensor | None = None
    shared: bool = False
    """Whether other processes hold other rows of the same data."""

    def __post_init__(self) -> None:
        """Check that the rows fit together."""
        block = _with_shapes(Block(self.z, self.y, self.weights, self.importance))
        for name, tensor in block._asdict().items():
            object.__setattr__(self, name, tensor)

    def blocks(self) -> Iterator[Block]:
        """All rows, block by block."""
        every_row = Block(self.z, self.y, self.weights, self.importance)
        yield from map(every_row.take, self._parts(self.z.shape[1]))

    def best_of(
        self, layers: Sequence[Layer], judge: Judge, step: int = 1
    ) -> tuple[int, Moments, HeldRows]:
        """Each layer in turn; the representation of the best so far is kept, no other."""
        if step > 1 and len(layers) > 1:
            places = one_in(step, 0, len(self.z)).to(self.z.device)
            some = HeldRows(*Block(self.z, self.y, self.weights).take(places), shared=self.shared)
            scores = judge([some._behind(layer)[1] for layer in layers])
            which = first_least(scores)
            _, moments, rows = self.best_of([layers[which]], judge)
            return which, moments, rows
        best: tuple[float, int, Moments, Tensor] | None = None
        for i, layer in enumerate(layers):
            z, moments = self._behind(layer)
            score = judge([moments])[0] if len(layers) > 1 else 0.0
            if best is None or score < best[0] * CLEARLY:
                best = score, i, moments, z
        assert best is not None
        return best[1], best[2], replace(self, z=best[3])

    def judged(self, head: Layer, decay: float) -> HeldRows:
        """The rows with their importance brought up to date."""
        importances = [_importance(block, head, decay) for block in self.blocks()]
        return replace(self, importance=torch.cat(importances))

    def _behind(self, layer: Layer) -> tuple[Tensor, Moments]:
        width = layer.weights.shape[1]
        moments = Moments(width, self.y.shape[1], self.z.device)
        parts = self._parts(max(self.z.shape[1], width))
        joined = self.z.new_empty(len(self.z) if len(parts) > 1 else 0, width)
        for part in parts:
            z = layer(self.z[part])
            moments.update(z, self.y[part], None if self.weights is None else self.weights[part])
            if len(parts) > 1:
                joined[part] = z
        return (joined if len(parts) > 1 else z), merge_across(moments) if self.shared else moments

    def _parts(self, width: int) -> list[slice]:
        """At least one, so that a process without rows still says how wide they are."""
        step = max(FEWEST, NUMBERS // max(1, width))
        return [slice(start, start + step) for start in range(0, max(1, len(self.z)), step)]


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
            block = _with_shapes(block)
            z, importance = block.z, block.importance
            for depth in range(len(self.layers) + 1):
                for place, head, decay in self.heads:
                    if place == depth:
                        here = Block(z, block.y, block.weights, importance)
                        importance = _importance(here, head, decay)
                if depth < len(self.layers):
                    z = self.layers[depth](z)
            yield Block(z, block.y, block.weights, importance)

    def best_of(
        self, layers: Sequence[Layer], judge: Judge, step: int = 1
    ) -> tuple[int, Moments, StreamedRows]:
        """All layers in one pass, a matrix of moments for each; one more with a ``step``."""
        if len(layers) == 1:
            which, moments = 0, self._behind(layers)[0]
        else:
            several = self._behind(layers, step)
            scores = judge(several)
            which = first_least(scores)
            moments = several[which] if step == 1 else self._behind([layers[which]])[0]
        return which, moments, replace(self, layers=(*self.layers, layers[which]))

    def _behind(self, layers: Sequence[Layer], step: int = 1) -> list[Moments]:
        """The moments behind each layer, of one row in ``step``."""
        several: list[Moments] = []
        seen = 0
        for z, y, weights, _ in self.blocks():
            some = slice(None) if step == 1 else one_in(step, seen, len(z)).to(z.device)
            seen += len(z)
            if not several:
                several = [Moments(each.weights.shape[1], y.shape[1], z.device) for each in layers]
            for layer, moments in zip(layers, several, strict=True):
                moments.update(layer(z[some]), y[some], None if weights is None else weights[some])
        if not several:
            raise TaskError(NO_ROWS)
        return [merge_across(each) for each in several] if self.shared else several

    def judged(self, head: Layer, decay: float) -> StreamedRows:
        """The rows with their importance brought up to date, at the next pass."""
        return replace(self, heads=(*self.heads, (len(self.layers), head, decay)))


CLEARLY = 1 - 1e-9
"""Layers that differ in scale alone leave the same; rounding must not decide between them."""


def first_least(scores: Sequence[float]) -> int:
    """The place of the least, the first of those that are alike.

    >>> first_least([2.0, 1.0, 1.0 - 1e-15])
    1
    """
    best = 0
    for i, score in enumerate(scores):
        if score < scores[best] * CLEARLY:
            best = i
    return best


NO_ROWS = (
    "no rows to fit; give batches that can be gone through repeatedly: a function that starts anew "
    "at each call, not an iterator that is used up"
)


def check_alike(before: int, after: int) -> None:
    """Refuse batches whose number of rows is not what it was.

    >>> check_alike(3, 3)
    """
    if after != before:
        raise TaskError(
            f"the batches gave {before} rows in one pass and {after} in the next; they must give "
            "the same rows, in the same order, whenever they are asked"
        )


def one_in(step: int, start: int, count: int) -> Tensor:
    r"""Which of ``count`` rows from number ``start`` on are one in ``step``, ``[count]``.

    Row :math:`i` is if the fraction of :math:`i\varphi`, :math:`\varphi` the golden ratio, is below
    one by ``step``: evenly spread, and out of step with whatever rhythm the rows have.  Every tenth
    of rows whose classes take turns would be all of one class.

    >>> one_in(3, 0, 12).nonzero().flatten()
    tensor([ 0,  2,  5,  7, 10])
    """
    places = torch.arange(start, start + count) * _GOLDEN % (1 << 32)
    return places < (1 << 32) // step


def moments_of(rows: Rows) -> Moments:
    """The moments of all rows, of those in other processes too if they are shared."""
    moments: Moments | None = None
    for z, y, weights, _ in rows.blocks():
        if moments is None:
            moments = Moments(z.shape[1], y.shape[1], z.device)
        moments.update(z, y, weights)
    if rows.shared and not all(told_by_each(moments is not None)):
        # Said by all of them: one that stopped alone would leave the others waiting.
        raise TaskError("a process has no batches; give it at least one, if need be of no rows")
    if moments is not None and rows.shared:
        moments = merge_across(moments)
    if moments is None or moments.weight == 0:
        raise TaskError(NO_ROWS)
    if not moments.is_finite:
        raise TaskError(
            "the inputs or targets hold values that are not finite, or too large to be squared in "
            "float64; drop or fill those rows, or scale them"
        )
    return moments


def reweighed(rows: Rows, moments: Moments) -> Moments:
    r"""The moments of :math:`[Z \mid d \odot Y]`: labels weighed by importance, features not.

    The features' own scatter is known; only what meets the labels is summed anew.
    """
    cross = torch.zeros_like(moments.cross)
    labels = Moments(0, moments.k, moments.mean.device)
    for z, y, weights, importance in rows.blocks():
        weighed = y if importance is None else y * importance[:, None]
        labels.update(z[:, :0], weighed, weights)
        cross += (z - moments.feature_mean).T @ (
            weighed if weights is None else weighed * weights[:, None]
        )
    if rows.shared:
        cross, labels = merge_across(Added(cross)).tensor, merge_across(labels)
    mean = torch.cat([moments.feature_mean, labels.mean])
    return Moments.of(moments.rows, moments.weight, mean, moments.features, cross, labels.targets)


class Added:
    """A tensor that adds up over processes.

    >>> merge_across(Added(torch.ones(2))).tensor
    tensor([1., 1.])
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def state(self) -> dict[str, Tensor]:
        """The tensor by name."""
        return {"tensor": self.tensor}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """What :meth:`state` gave."""
        return cls(state["tensor"])

    def merge(self, other: Self) -> Self:
        """Add another."""
        return type(self)(self.tensor + other.tensor)


class Chained(Added):
    """One process's rows after another's.

    >>> Chained(torch.ones(2, 1)).merge(Chained(torch.zeros(1, 1))).tensor.T
    tensor([[1., 1., 0.]])
    """

    def merge(self, other: Self) -> Self:
        """Put the rows of another behind."""
        return type(self)(torch.cat([self.tensor, other.tensor]))


def _with_shapes(block: Block) -> Block:
    z, y = block.z, block.y
    if z.ndim != 2 or y.ndim != 2 or len(z) != len(y):
        raise TaskError(
            f"features are [rows, d] and targets [rows, k]; got {list(z.shape)} and {list(y.shape)}"
        )
    for name, each in (("weights", block.weights), ("importance", block.importance)):
        if each is not None and each.shape != (len(z),):
            raise TaskError(f"{len(z)} rows have as many {name}; got {list(each.shape)}")
    weights, importance = (
        None if each is None else each.double() for each in (block.weights, block.importance)
    )
    return Block(z.double(), y.double(), weights, importance)


def _importance(block: Block, head: Layer, decay: float) -> Tensor:
    errors = (block.y - head(block.z)).square().sum(1)
    before = torch.ones_like(errors) if block.importance is None else block.importance
    return decay * before + (1 - decay) * errors
