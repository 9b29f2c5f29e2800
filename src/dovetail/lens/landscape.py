r"""The loss around a network's weights, along random directions, or on the way to another network.

A direction is drawn from the normal distribution and scaled **filter by filter**: each row (or
filter) :math:`\delta_f` of a weight gets the length of the weight's own,

.. math:: \delta_f \leftarrow \frac{\lVert W_f\rVert}{\lVert\delta_f\rVert}\,\delta_f ,

so that networks whose layers have other scales, with the same function, have the same landscape.
Directions drawn alone need not be orthogonal; in many dimensions they nearly are.  Biases and the
scales and shifts of norms are not moved; batch norms keep their running statistics.  Between two
networks everything moves, running statistics included.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, shown
from dovetail.core.files import write_whole
from dovetail.core.plain import dumps, from_plain, read_json
from dovetail.core.progress import progress
from dovetail.core.records import Record
from dovetail.core.seeds import generator
from dovetail.core.settings import need_least
from dovetail.core.views import Block, Figure, Plane, Series, Text, View
from dovetail.lens.perturbed import Direction, Perturbed
from dovetail.lens.subject import Data, Loss, Subject, inside, module_of, subject_of
from dovetail.parts.modules import digest_of, raw_bytes
from dovetail.parts.part import Part
from dovetail.tasks.splits import Split

Scaling = Literal["filter", "layer", "none"]
_MOST_BYTES = 1 << 26
_MOST_POINTS = 1001


def landscape(
    part: Part | nn.Module,
    data: Data,
    *,
    to: Part | nn.Module | None = None,
    dimensions: int = 2,
    points: int | None = None,
    reach: float = 1.0,
    by: Scaling = "filter",
    module: str | None = None,
    file: str | Path | None = None,
    split: Split = "train",
    limit: int | None = 256,
    loss: Loss | None = None,
    seed: int = 0,
) -> Landscape:
    """The mean loss on a line or a grid through the weights; see the module's text.

    Args:
        part: A part, or any module; it is not changed.
        data: A task, or inputs and targets.
        to: Another network of the same architecture: the line from the one (0) to the other (1).
        dimensions: 1 or 2.
        points: Along each axis: 51, or 101 on a line.
        reach: How far on both sides, in lengths of the (scaled) direction.
        by: Directions scaled ``"filter"`` by filter, ``"layer"`` by layer, or as drawn.
        module: The name of a module whose weights alone move.
        file: Where rows are kept as they are done; called again after an interruption, it goes on
            from there, to the same bytes.
        split: Of a task.
        limit: The most examples; ``None`` for all.
        loss: Another loss of outputs and targets.
        seed: Of directions and examples.

    >>> net, x = nn.Linear(2, 1, bias=False), torch.eye(2)
    >>> found = landscape(net, (x, net(x).detach()), points=5, dimensions=1)
    >>> found.centre, found.values[0][0] > 0
    (0.0, True)
    """
    if dimensions not in (1, 2):
        raise SettingsError(f"a landscape has 1 dimension or 2, got {shown(dimensions)}")
    if by not in ("filter", "layer", "none"):
        raise SettingsError(f'by is "filter", "layer" or "none", got {shown(by)}')
    lone = dimensions == 1 or to is not None
    count = points if points is not None else 101 if lone else 51
    need_least("points", count, 2)
    if count > _MOST_POINTS:
        raise SettingsError(f"points is at most {_MOST_POINTS} along an axis, got {count}")
    if not (isinstance(reach, float | int) and math.isfinite(reach) and reach > 0):
        raise SettingsError(f"reach must be a number above 0, got {shown(reach)}")
    subject = subject_of(part, data, split=split, limit=limit, loss=loss, seed=seed)
    names = inside(subject.module, module)
    if to is not None:
        other, ends = module_of(to)[1], (0.0, 1.0)
        directions: list[Direction] = [_towards(subject, other, names, module)]
    else:
        ends = (-float(reach), float(reach))
        directions = [
            random_direction(subject.module, names, by, seed, axis) for axis in range(dimensions)
        ]
    at = [ends[0] + (ends[1] - ends[0]) * i / (count - 1) for i in range(count)]
    rows = [0.0] if lone else at
    said: dict[str, object] = {
        **subject.where,
        **{"points": count, "reach": reach, "by": "the way to another" if to is not None else by},
        **{"module": module, "seed": seed, "moved": len(directions[0]), "norms": _norms(to)},
    }
    perturbed = Perturbed(subject, directions)
    with torch.no_grad():
        values = _grid(perturbed, at, rows, lone, file, _mark(subject, directions, at, rows))
        centre = perturbed.losses([(0.0,) * len(directions)])[0]
    if not math.isfinite(centre):
        raise TaskError(f"the loss at the weights themselves is {centre}; look for it there")
    return Landscape(
        x=(at[0], at[-1]),
        y=None if lone else (rows[0], rows[-1]),
        values=tuple(map(tuple, values)),
        centre=centre,
        between=to is not None,
        module=module,
        settings=said,
    )


def random_direction(
    module: nn.Module, names: tuple[str, ...], by: Scaling = "filter", seed: int = 0, axis: int = 0
) -> dict[str, Tensor]:
    """A step for every weight of two dimensions or more, of the length of the weight, or filter's.

    >>> net = nn.Linear(3, 2)
    >>> step = random_direction(net, ("weight", "bias"))
    >>> list(step), torch.allclose(step["weight"].norm(dim=1), net.weight.norm(dim=1))
    (['weight'], True)
    """
    draw = generator(seed, "landscape", axis)
    steps: dict[str, Tensor] = {}
    for name, weight in module.named_parameters():
        if name not in names or weight.ndim < 2:
            continue
        like = weight.detach().cpu().double()
        step = torch.randn(like.shape, generator=draw, dtype=torch.float64)
        if by == "layer":
            step *= like.norm() / step.norm()
        elif by == "filter":
            own, new = like.flatten(1).norm(dim=1), step.flatten(1).norm(dim=1)
            step *= (own / new).reshape(-1, *(1,) * (like.ndim - 1))
        steps[name] = step.to(weight)
    if not steps:
        raise SettingsError("there are only biases and norms here, which a landscape does not move")
    if by != "none" and not any(bool(step.any()) for step in steps.values()):
        raise TaskError("all these weights are zero, so that no direction has their scale")
    return steps


def _towards(
    subject: Subject, other: nn.Module, names: tuple[str, ...], module: str | None
) -> dict[str, Tensor]:
    """From one network's weights and statistics to the other's."""
    own, theirs = (_tensors(m) for m in (subject.module, other))
    wrong = [f"only one has {name!r}" for name in sorted(set(own) ^ set(theirs))]
    wrong += [
        f"{name!r} is {list(own[name].shape)} and {list(theirs[name].shape)}"
        for name in own
        if name in theirs and own[name].shape != theirs[name].shape
    ]
    if wrong:
        raise ContractError(
            f"there is no way between networks of different architectures: {'; '.join(wrong[:3])}"
        )
    within = f"{module}." if module else ""
    buffers = {name for name, _ in subject.module.named_buffers()}
    return {
        name: (theirs[name].to(tensor.device) - tensor).detach()
        for name, tensor in own.items()
        if name in names or (name in buffers and name.startswith(within))
    }


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    every = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor for name, tensor in every.items() if tensor.is_floating_point()}


def _norms(to: object) -> str:
    if to is not None:
        return "biases, norms and their running statistics move too"
    return "biases and norms stay; running statistics are used as they are"


def _grid(
    perturbed: Perturbed,
    at: list[float],
    rows: list[float],
    lone: bool,
    file: str | Path | None,
    mark: str,
) -> list[list[float]]:
    """Row by row; rows that a file holds already are taken from there."""
    path = None if file is None else Path(file)
    values = _kept(path, mark, len(at), len(rows))
    with progress("landscape", len(rows), start=len(values), after=2.0) as tick:
        for row in rows[len(values) :]:
            values.append(perturbed.losses([(a,) if lone else (a, row) for a in at]))
            if path is not None:
                write_whole(path, dumps({"landscape": mark, "rows": values}))
            tick("")
    return values


def _kept(path: Path | None, mark: str, wide: int, tall: int) -> list[list[float]]:
    if path is None or not path.exists():
        return []
    stored = from_plain(dict[str, Any], read_json(path, most_bytes=_MOST_BYTES), str(path))
    if stored.get("landscape") != mark:
        raise SettingsError(
            f"{path} holds another landscape (other weights, examples or settings): name another "
            "file, or remove it"
        )
    rows = from_plain(list[list[float]], stored.get("rows"), f"{path}: rows")
    if len(rows) > tall or any(len(row) != wide for row in rows):
        raise SettingsError(f"{path} holds a grid of another size: remove it")
    return rows


def _mark(subject: Subject, directions: list[Direction], at: list[float], rows: list[float]) -> str:
    """What a stored grid must have been made of."""
    sha = hashlib.sha256(digest_of(subject.module, repr((at, rows))).encode())
    for tensor in (subject.x, subject.y, *(t for d in directions for t in d.values())):
        sha.update(raw_bytes(tensor))
    sha.update(str(subject.where["loss"]).encode())
    return sha.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Landscape(
    Record, kind="landscape", title="Loss {place}", brief="{place}, {centre:.4g} at the centre"
):
    """The loss at the nodes of a line or a grid; ``values[i][j]`` at the i-th y and the j-th x.

    ``centre`` is the loss of the network itself; ``y`` is nothing on a line.

    >>> found = Landscape(x=(-1.0, 1.0), values=((2.0, 1.0, 4.0),), centre=1.0)
    >>> found.rise
    2.0
    """

    x: tuple[float, float]
    y: tuple[float, float] | None = None
    values: tuple[tuple[float, ...], ...]
    centre: float
    between: bool = False
    module: str | None = None

    @property
    def place(self) -> str:
        """Around or between what, in words."""
        if self.between:
            return "between two networks"
        return f"around the weights of {self.module or 'the network'}"

    @property
    def rise(self) -> float:
        """How much higher the loss is at the edge, in the mean, than at the centre."""
        first, last = self.values[0], self.values[-1]
        ends = [v for row in self.values for v in (row[0], row[-1])]
        edge = ends if self.y is None else [*ends, *first[1:-1], *last[1:-1]]
        finite = [v for v in edge if math.isfinite(v)]
        return math.fsum(finite) / len(finite) - self.centre if finite else math.inf

    @property
    def barrier(self) -> float:
        """Between two networks: the most that the loss is above the line from one to the other."""
        row, wide = self.values[0], len(self.values[0])
        at = [self.x[0] + (self.x[1] - self.x[0]) * j / (wide - 1) for j in range(wide)]
        start = min(range(wide), key=lambda j: abs(at[j]))
        end = min(range(wide), key=lambda j: abs(at[j] - 1))
        above = [
            v - (row[start] * (1 - t) + row[end] * t)
            for t, v in zip(at, row, strict=True)
            if 0 <= t <= 1
        ]
        return max(above, default=0.0)

    @property
    def roughness(self) -> float:
        """What no bowl can follow: the rms distance of the best quadratic, over the values' range.

        0 for a bowl; values that are not finite are left out.
        """
        tall, wide = len(self.values), len(self.values[0])
        z = torch.tensor(self.values, dtype=torch.float64)
        v = (
            torch.linspace(-1, 1, tall, dtype=torch.float64)
            if tall > 1
            else torch.zeros(1).double()
        )
        y, x = torch.meshgrid(v, torch.linspace(-1, 1, wide, dtype=torch.float64), indexing="ij")
        terms = [torch.ones_like(x), x, x * x] + ([y, y * y, x * y] if tall > 1 else [])
        finite = z.isfinite()
        a, b = torch.stack([t[finite] for t in terms], dim=1), z[finite]
        span = float(b.max() - b.min()) if len(b) else 0.0
        if span == 0 or len(b) <= len(terms):
            return 0.0
        rest = b - a @ torch.linalg.lstsq(a, b).solution
        return float(rest.square().mean().sqrt()) / span

    def view(self) -> View:
        """The answer in words; the line, or contours and surface."""
        if self.between:
            said = f"The loss rises by up to {self.barrier:.4g} above the way between the two."
        else:
            said = (
                f"From {self.centre:.4g} at the weights the loss rises by {self.rise:.4g} towards "
                f"the edge; roughness {self.roughness:.3g} (0 is a bowl)."
            )
        note = Text(str(self.settings.get("norms", "")), style="note")
        return (Text(said), note, self._drawn())

    def _drawn(self) -> Block:
        if self.y is None:
            wide = len(self.values[0])
            at = tuple(self.x[0] + (self.x[1] - self.x[0]) * j / (wide - 1) for j in range(wide))
            words = "from one (0) to the other (1)" if self.between else "along the direction"
            return Figure("line", "Loss", (Series("loss", at, self.values[0]),), words, "loss")
        axes = ("first direction", "second direction", "loss")
        steep = self.rise > 30 * max(self.centre, 1e-3)
        marks = ((0.0, 0.0, 0),)
        return Plane(
            "Loss", self.x, self.y, self.values, *axes, log=steep, surface=True, points=marks
        )
