r"""The source's networks for images, word for word, and ways to read its platonic PCA.

"Efficient deep learning", sections 7.8 and 7.9: a column of ones that is penalised like any other,
W = (Z'Z + l I)^-1 Z' T with T = alpha [Z | beta Y] P, and P the principal components of "A = alpha
[Z | beta Y]".  Where beta enters is the question.  A :class:`Reading` says which beta the matrix
has whose components are taken, and which the target:

- beta in both, as it is written.  Then a large beta gives every class a component, and leaves no
  label in the others: they are orthogonal to the classes, and stay so in T.
- beta in the target only: P is taken from [Z | Y], and every component tells of the labels.
- beta in both, and once more in the target: T = [Z | beta (beta Y)] P.

The importance d of the rows (7.9.3) is said to be used "only" in the matrix; the printed A = alpha
[Z | beta d Y] would carry it into T = A P, too.

All of it is float64 and from sums over the rows, unless a reading asks for the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dovetail.core.seeds import generator
from platonic.images import Images

BLOCK = 4096


@dataclass(frozen=True)
class Reading:
    """What "the principal components of A" and "T = A P" may mean."""

    name: str
    in_matrix: int = 1
    """The power of beta in the matrix whose components are taken."""
    in_target: int = 1
    centred: bool = True
    bits: int = 64
    smallest: bool = False
    both_signs: bool = False
    weighed_target: bool = False
    """Whether the importance of rows weighs the labels of the target, too."""
    units: str = "standardised"
    ridge: float | None = None
    """In place of the printed one."""


WRITTEN = Reading("as it is written")
TARGET_ONLY = Reading("beta in the target only", in_matrix=0)
TWICE = Reading("beta twice in the target", in_target=2)
ROUNDED = Reading("components in float32", bits=32)
READINGS = (
    WRITTEN,
    Reading("not centred", centred=False),
    ROUNDED,
    Reading("components in float32, not centred", bits=32, centred=False),
    Reading("components of both signs", both_signs=True),
    Reading("the smallest components", smallest=True),
    Reading("hardly a penalty", ridge=1.0),
    Reading("centred pixels", units="centred pixels"),
    Reading("pixels from 0 to 1, centred", units="0 to 1, centred"),
    Reading("pixels from 0 to 1", units="0 to 1", centred=False),
    Reading("beta in the matrix only", in_target=0),
    TWICE,
    TARGET_ONLY,
    Reading("beta in the target only, not centred", in_matrix=0, centred=False),
)
"""Of a layer by itself, Table 7.2."""


def weighed(reading: Reading) -> Reading:
    """The same, but the importance of rows weighs the labels of the target, too."""
    name = f"{reading.name}, importance in the target"
    return replace(reading, name=name, weighed_target=True)


DEEP_READINGS = (
    *(WRITTEN, ROUNDED, TWICE, TARGET_ONLY),
    *(weighed(reading) for reading in (WRITTEN, TWICE, TARGET_ONLY)),
)
"""Of the layers after the first, Table 7.3."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Of rows with a one before them: ``[1 | Z]'[1 | Z]``, ``[1 | Z]'Y``, ``Y'Y``."""

    features: Tensor
    cross: Tensor
    targets: Tensor


def sums_of(z: Tensor, y: Tensor) -> Sums:
    """Block by block; ``z [n, d]`` has no column of ones yet."""
    d, k = z.shape[1], y.shape[1]
    features = torch.zeros(1 + d, 1 + d, dtype=torch.float64)
    cross = torch.zeros(1 + d, k, dtype=torch.float64)
    for start in range(0, len(z), BLOCK):
        part = with_ones(z[start : start + BLOCK])
        features += part.T @ part
        cross += part.T @ y[start : start + BLOCK]
    return Sums(features, cross, y.T @ y)


def with_ones(z: Tensor) -> Tensor:
    return torch.cat([z.new_ones(len(z), 1), z], 1)


def solved(sums: Sums, right: Tensor, ridge: float) -> Tensor:
    """(S + ridge I)^-1 right."""
    matrix = sums.features.clone()
    matrix.diagonal().add_(ridge)
    found: Tensor = torch.linalg.solve(matrix, right)
    return found


def projected(sums: Sums, projection: Tensor, beta: float, ridge: float) -> Tensor:
    """The weights ``[1 + d, w]`` for the target ``[1 | Z | beta Y] P``, P ``[1 + d + k, w]``."""
    d = len(sums.features)
    right = sums.features @ projection[:d] + beta * (sums.cross @ projection[d:])
    return solved(sums, right, ridge)


def drawn(sums: Sums, width: int, seed: int) -> Tensor:
    rows = len(sums.features) + len(sums.targets)
    return torch.randn(rows, width, generator=generator(seed, "P"), dtype=torch.float64)


def components(sums: Sums, reading: Reading, beta: float, width: int) -> Tensor:
    """The projection ``[1 + d + k, width]`` that a reading takes."""
    d = len(sums.features)
    top, bottom = (
        torch.cat(row, 1) for row in ((sums.features, sums.cross), (sums.cross.T, sums.targets))
    )
    matrix = torch.cat([top, bottom])
    if reading.centred:
        matrix = matrix - torch.outer(matrix[0], matrix[0]) / matrix[0, 0]
    matrix[d:] *= beta**reading.in_matrix
    matrix[:, d:] *= beta**reading.in_matrix
    if reading.bits == 32:
        matrix = matrix.float()
    vectors = torch.linalg.eigh(matrix)[1].double()
    vectors = vectors if reading.smallest else vectors.flip(1)
    if reading.both_signs:
        vectors = torch.stack([vectors, -vectors], 2).flatten(1)
    return vectors[:, :width]


def sorted_rows(z: Tensor, sums: Sums, width: int) -> Tensor:
    """Rows evenly spaced along the first principal component as weights ``[1 + d, width]``."""
    mean = sums.features[0, 1:] / sums.features[0, 0]
    scatter = sums.features[1:, 1:] - sums.features[0, 0] * torch.outer(mean, mean)
    first = torch.linalg.eigh(scatter)[1][:, -1]
    first = first * first[first.abs().argmax()].sign()
    order = torch.argsort(z @ first, stable=True)
    spaced = (torch.arange(width, dtype=torch.float64) * (len(z) / width)).round().long()
    return with_ones(z[order[spaced.clamp(max=len(z) - 1)]]).T


def hidden(z: Tensor, weights: Tensor) -> Tensor:
    found = torch.empty(len(z), weights.shape[1], dtype=torch.float64)
    for start in range(0, len(z), BLOCK):
        part = slice(start, start + BLOCK)
        torch.addmm(weights[0], z[part], weights[1:], out=found[part])
    return found.relu_()


def one_layer(
    data: Images, weights: Tensor, widths: Sequence[int], ridge: float
) -> dict[int, dict[str, float]]:
    """The accuracies of the first so many units of a hidden layer, for each width."""
    z = hidden(data.x, weights)
    n = data.fitted
    sums = sums_of(z[:n], data.y[:n])
    found = {}
    for width in widths:
        part = Sums(sums.features[: 1 + width, : 1 + width], sums.cross[: 1 + width], sums.targets)
        head = solved(part, part.cross, ridge)
        found[width] = data.scores(torch.addmm(head[0], z[:, :width], head[1:]))
    return found


def deterministic(
    data: Images,
    widths: Sequence[int],
    reading: Reading,
    *,
    beta: float,
    ridge: float,
    ema: float | None,
) -> dict[str, float]:
    """Sorted PCA, then platonic PCA with weighted rows: Table 7.3; accuracies and squared errors.

    With an ``ema`` the labels of the matrix are weighed by d <- ema d + (1 - ema) e, e the squared
    errors of a head on the layer before; those of the target where the reading says so.
    """
    n = data.fitted
    z, y = data.x, data.y[:n]
    ridge = ridge if reading.ridge is None else reading.ridge
    sums = sums_of(z[:n], y)
    importance = torch.ones(n, dtype=torch.float64)
    for depth, width in enumerate(widths):
        if depth == 0:
            weights = sorted_rows(z[:n], sums, width)
        else:
            labels = y if ema is None else y * importance[:, None]
            matrix = Sums(sums.features, _cross(z[:n], labels), labels.T @ labels)
            projection = components(matrix, reading, beta, width)
            told = matrix if reading.weighed_target else sums
            weights = projected(told, projection, beta**reading.in_target, ridge)
        z = hidden(z, weights)
        sums = sums_of(z[:n], y)
        head = solved(sums, sums.cross, ridge)
        said = torch.addmm(head[0], z, head[1:])
        if ema is not None:
            importance = ema * importance + (1 - ema) * (y - said[:n]).square().sum(1)
    return data.scores(said)


def _cross(z: Tensor, y: Tensor) -> Tensor:
    found = torch.zeros(1 + z.shape[1], y.shape[1], dtype=torch.float64)
    found[0] = y.sum(0)
    for start in range(0, len(z), BLOCK):
        part = slice(start, start + BLOCK)
        found[1:] += z[part].T @ y[part]
    return found
