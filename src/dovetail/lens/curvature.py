r"""How sharp a minimum is: the spectrum of the Hessian of the mean loss.

.. math:: H = \frac{1}{n} \sum_i \nabla_\theta^2\, \ell(f_\theta(x_i), y_i)

of all weights :math:`\theta`, or of those of one named module: then it is that block of the whole.
No matrix is formed.  A product :math:`H v` costs two backward passes
(:class:`dovetail.linalg.curvature.LossHessian`); the largest eigenvalues come from scipy's
``eigsh``, trace and density from random vectors (:mod:`dovetail.linalg.spectrum`).

The **trace** is split: what the eigenvectors found hold is summed exactly, only the rest is
estimated, :math:`\sum_i \lambda_i + \operatorname{tr}\,(I - VV^\top) H (I - VV^\top)`, so that its
standard error does not contain the large eigenvalues.  Of several batches, the **standard error**
of an eigenvalue is that of :math:`v_i^\top H_b\, v_i` over the batches :math:`b`: how far another
draw of as many examples would move it, to first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn

from dovetail.core.errors import SettingsError, TaskError, shown
from dovetail.core.records import Record
from dovetail.core.seeds import generator
from dovetail.core.settings import need_least
from dovetail.core.views import Figure, Series, Table, Text, View
from dovetail.lens.subject import BATCH_BYTES, Data, Loss, Subject, inside, subject_of
from dovetail.linalg.conjugate_gradients import ConvergenceError
from dovetail.linalg.curvature import LossHessian
from dovetail.linalg.spectrum import spectral_density, trace_of
from dovetail.parts.part import Part
from dovetail.tasks.splits import Split

MEMORY = 2**30
"""Bytes of graphs that are kept from one product to the next; beyond, they are made anew."""

_KEPT = 3
"""So many times what one backward pass needs is kept for a second one."""

_SMALL = 3
"""A space of fewer dimensions a wanted eigenvalue than this is written out."""


def hessian_spectrum(
    part: Part | nn.Module,
    data: Data,
    k: int = 20,
    module: str | None = None,
    *,
    batches: int | None = None,
    draws: int = 32,
    density: int = 0,
    tolerance: float = 1e-4,
    split: Split = "train",
    limit: int | None = 1000,
    loss: Loss | None = None,
    seed: int = 0,
) -> HessianSpectrum:
    """The largest eigenvalues, the trace and the density of the Hessian; see the module's text.

    The network is taken in evaluation mode (batch norms with their running statistics, no dropout).

    Args:
        part: A part, or any module.
        data: A task, or inputs and targets.
        k: How many eigenvalues, the largest first; fewer where there are fewer weights.
        module: The name of a module whose weights alone count; all by default.
        batches: In how many the examples are cut, two or more of which give standard errors.  By
            default as few as memory takes.
        draws: Random vectors for the trace; 0 for none.
        density: Random vectors for the density, of 40 products each; 0 for none.
        tolerance: Residuals of the eigenvalues, relative to the largest.
        split: Of a task.
        limit: The most examples; ``None`` for all.
        loss: Another loss of outputs and targets.
        seed: Of all that is drawn.

    >>> x = torch.tensor([[1.0], [2.0]])
    >>> found = hessian_spectrum(nn.Linear(1, 1, bias=False), (x, x[:, 0]), k=1)
    >>> round(found.eigenvalues[0], 5)  # of the mean of (w x - y)^2
    5.0
    """
    for name, value, least in (("k", k, 1), ("draws", draws, 0), ("density", density, 0)):
        need_least(name, value, least)
    if not (isinstance(tolerance, float) and 0 < tolerance < 1):
        raise SettingsError(f"tolerance lies between 0 and 1, got {shown(tolerance)}")
    subject = subject_of(part, data, split=split, limit=limit, loss=loss, seed=seed)
    hessian = MeanHessian(subject, module, batches)
    size = hessian.size
    values, vectors = _largest(hessian.product, size, min(k, size), tolerance, seed)
    images = torch.stack([hessian.product(v) for v in vectors.T], dim=1)
    residuals = (images - vectors * values).norm(dim=0)
    trace, trace_error = _trace(hessian, values, vectors, draws, seed)
    return HessianSpectrum(
        eigenvalues=tuple(values.tolist()),
        residuals=tuple(residuals.tolist()),
        errors=hessian.errors(vectors),
        trace=trace,
        trace_error=trace_error,
        density=_density(hessian, density, seed),
        weights=size,
        module=module,
        loss=hessian.value,
        slope=float(hessian.gradient.norm()),
        products=hessian.products,
        settings={
            **subject.where,
            "batches": len(hessian),
            "draws": draws,
            "density": density,
            "tolerance": tolerance,
            "seed": seed,
            "batch norms": "as in evaluation, with running statistics",
        },
    )


class MeanHessian:
    """The Hessian of the mean loss over all examples, batch by batch.

    The gradients' graphs are kept where they fit in ``MEMORY``, and made anew where they do not.

    >>> subject = subject_of(nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4)))
    >>> MeanHessian(subject, batches=2).product(torch.ones(1, dtype=torch.float64))
    tensor([2.], dtype=torch.float64)
    """

    def __init__(
        self, subject: Subject, module: str | None = None, batches: int | None = None
    ) -> None:
        self._subject, self._names = subject, inside(subject.module, module)
        n = len(subject.x)
        if batches is None:
            batches = math.ceil(subject.x.numel() * subject.x.element_size() / BATCH_BYTES)
            batches = min(batches, n)
        need_least("batches", batches, 1)
        if batches > n:
            raise SettingsError(f"{n} examples cannot be cut into {batches} batches")
        self._rows = list(torch.arange(n).tensor_split(batches))
        self.products = 0
        self._graphs: list[LossHessian] = []
        self.value, slopes = 0.0, []
        counted = _Held()
        for rows in self._rows:
            with torch.autograd.graph.saved_tensors_hooks(counted.pack, counted.unpack):
                graph = self._made(rows)
            self.value += graph.value * len(rows) / n
            slopes.append(graph.gradient.double().cpu() * (len(rows) / n))
            if _KEPT * counted.bytes <= MEMORY:
                self._graphs.append(graph)
        self.gradient = torch.stack(slopes).sum(0)
        self.size = len(self.gradient)
        if len(self._graphs) < len(self._rows):
            self._graphs = []

    def __len__(self) -> int:
        return len(self._rows)

    def product(self, vector: Tensor) -> Tensor:
        """The product with a vector ``[p]``, in float64."""
        self.products += 1
        n = len(self._subject.x)
        image = torch.zeros(self.size, dtype=torch.float64)
        for rows, graph in self._each():
            image += graph.product(vector).double().cpu() * (len(rows) / n)
        if not bool(image.isfinite().all()):
            raise TaskError("the Hessian holds NaN or infinity; look for it in the weights")
        return image

    def errors(self, vectors: Tensor) -> tuple[float, ...]:
        """The standard error of each vector's curvature over the batches; none for one batch."""
        if len(self._rows) < 2:
            return ()
        curvatures = torch.stack(
            [
                torch.stack([v @ graph.product(v).double().cpu() for v in vectors.T])
                for _, graph in self._each()
            ]
        )
        return tuple((curvatures.std(0) / math.sqrt(len(self._rows))).tolist())

    def _each(self) -> Iterator[tuple[Tensor, LossHessian]]:
        for i, rows in enumerate(self._rows):
            yield rows, self._graphs[i] if self._graphs else self._made(rows)

    def _made(self, rows: Tensor) -> LossHessian:
        subject = self._subject
        y = subject.y[rows]
        return LossHessian(
            subject.module,
            subject.x[rows],
            lambda outputs: subject.loss_of(outputs, y),
            self._names,
        )


class _Held:
    """Counts the bytes that a graph keeps, each storage once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        return tensor


Product = Callable[[Tensor], Tensor]


def _largest(
    product: Product, size: int, k: int, tolerance: float, seed: int
) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues ``[k]``, falling, and their vectors ``[p, k]``."""
    if size <= _SMALL * k:  # eigsh wants room, and a small matrix is cheap
        eye = torch.eye(size, dtype=torch.float64)
        dense = torch.stack([product(row) for row in eye])
        values, vectors = torch.linalg.eigh((dense + dense.T) / 2)
        return values.flip(0)[:k], vectors.flip(1)[:, :k]
    start = torch.randn(size, generator=generator(seed, "hessian"), dtype=torch.float64)
    if not bool(product(start).any()):  # a flat loss, of which ARPACK would have no start
        return torch.zeros(k, dtype=torch.float64), torch.eye(size, k, dtype=torch.float64)
    operator = LinearOperator(
        (size, size),
        dtype=np.float64,
        matvec=lambda v: product(torch.from_numpy(v.ravel())).numpy(),
    )
    wide = min(size, max(2 * k + 1, 20))
    try:
        found = eigsh(operator, k, which="LA", ncv=wide, tol=tolerance, v0=start.numpy())
    except ArpackNoConvergence as error:
        raise ConvergenceError(
            f"{len(error.eigenvalues)} of {k} eigenvalues were found; ask for fewer of "
            "them, or for a coarser tolerance"
        ) from None
    order = np.argsort(-found[0])
    values, vectors = (
        torch.from_numpy(np.ascontiguousarray(v)) for v in (found[0][order], found[1][:, order])
    )
    return values, vectors


def _trace(
    hessian: MeanHessian, values: Tensor, vectors: Tensor, draws: int, seed: int
) -> tuple[float | None, float | None]:
    if hessian.size == len(values):
        return float(values.sum()), 0.0
    if not draws:
        return None, None

    def rest(vector: Tensor) -> Tensor:
        outside = vector - vectors @ (vectors.T @ vector)
        image = hessian.product(outside)
        return image - vectors @ (vectors.T @ image)

    estimate = trace_of(lambda v: v, rest, hessian.size, steps=1, draws=draws, seed=seed)
    return float(values.sum()) + estimate.value, estimate.error


def _density(hessian: MeanHessian, draws: int, seed: int) -> Density | None:
    if not draws:
        return None
    seen = spectral_density(hessian.product, hessian.size, steps=40, draws=draws, seed=seed)
    return Density(nodes=tuple(seen.nodes.tolist()), weights=tuple(seen.weights.tolist()))


@dataclass(frozen=True)
class Density:
    """A spectrum as weighted points, which sum to one.

    >>> Density((0.0, 2.0), (0.75, 0.25)).curve(3)[0]
    (-0.1, 1.0, 2.1)
    """

    nodes: tuple[float, ...]
    weights: tuple[float, ...]

    def curve(self, points: int = 200) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The density along the spectrum, each point a normal curve of a fiftieth of its length."""
        low, high = min(self.nodes), max(self.nodes)
        span = high - low or abs(high) or 1.0
        low, high, width = low - span / 20, high + span / 20, span / 50
        at = [low + (high - low) * i / (points - 1) for i in range(points)]
        scale = width * math.sqrt(2 * math.pi)
        heights = (
            sum(
                weight * math.exp(-(((x - node) / width) ** 2) / 2) / scale
                for node, weight in zip(self.nodes, self.weights, strict=True)
            )
            for x in at
        )
        return tuple(at), tuple(heights)


@dataclass(frozen=True, kw_only=True)
class HessianSpectrum(
    Record,
    kind="hessian-spectrum",
    title="Curvature of {of}",
    brief="largest {first:.4g}, trace {trace}, of {weights} weights",
):
    """The largest ``eigenvalues`` of a mean loss's Hessian, falling, and what else was asked for.

    ``residuals`` bound how far each is from some true one; ``errors`` are standard errors over
    batches, ``trace_error`` that of the random vectors.  ``slope`` is the gradient's length: where
    it is not near zero this is no minimum.

    >>> found = HessianSpectrum(eigenvalues=(3.0, 1.0), residuals=(0.0, 0.0), weights=5, loss=0.1)
    >>> found.first, found.of
    (3.0, 'the whole network')
    """

    eigenvalues: tuple[float, ...]
    residuals: tuple[float, ...]
    errors: tuple[float, ...] = ()
    trace: float | None = None
    trace_error: float | None = None
    density: Density | None = None
    weights: int
    module: str | None = None
    loss: float
    slope: float = 0.0
    products: int = 0

    @property
    def first(self) -> float:
        """The largest."""
        return self.eigenvalues[0]

    @property
    def of(self) -> str:
        """What was looked at, in words."""
        return "the whole network" if self.module is None else self.module

    def view(self) -> View:
        """The answer in words, the eigenvalues, the density."""
        said = f"The largest curvature is {self.first:.4g}"
        if self.trace is not None and self.trace_error is not None:
            mean, around = self.trace / self.weights, f"± {self.trace_error:.2g}"
            said += f", the mean over {self.weights:,} directions {mean:.3g}"
            said += f" (trace {self.trace:.4g} {around})"
        places = tuple(range(1, len(self.eigenvalues) + 1))
        ends = [
            tuple(v + side * e for v, e in zip(self.eigenvalues, self.errors, strict=False))
            for side in (-1, 1)
        ]
        series = Series("eigenvalue", places, self.eigenvalues, ends[0], ends[1])
        rows = tuple(
            (i, value, self.residuals[i - 1], *self.errors[i - 1 : i])
            for i, value in zip(places, self.eigenvalues, strict=True)
        )
        blocks: list[Text | Figure | Table] = [
            Text(f"{said}. Loss {self.loss:.4g}, gradient {self.slope:.3g}."),
            Figure("scatter", "Largest eigenvalues", (series,), "place", "eigenvalue"),
        ]
        if self.density is not None:
            x, y = self.density.curve()
            low = max(y) * 1e-6
            shown_ = Series("density", x, tuple(max(v, low) for v in y))
            name = "Density of the spectrum (random vectors)"
            blocks.append(Figure("line", name, (shown_,), "eigenvalue", "density", log_y=True))
        columns: tuple[str, ...] = ("place", "eigenvalue", "residual")
        formats: tuple[str, ...] = ("", ".6g", ".1e")
        if self.errors:
            columns, formats = (*columns, "standard error"), (*formats, ".2g")
        blocks.append(Table(columns, rows, formats))
        return tuple(blocks)
