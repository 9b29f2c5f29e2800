r"""How far training moved the weights, and how far apart the weights of many networks lie.

The **deviation** of a layer after training on :math:`n` examples of the target task is

.. math:: \frac{1}{\sqrt n} \lVert W - W_0 \rVert_F ,

summed over layers for the whole network: in the bound of generalisation that the measure comes
from, a network that moved less from where it started can do less harm.  Layers are weight matrices
and filters; biases and norms are left out.

A **map** shows networks as points whose distances on paper are like those of their weights.  Hidden
channels have no order: :func:`~dovetail.lens.matched_weights` brings those of one network into the
order of another's first, layer by layer, so that exchanging two of them is no distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.declared import Column, figure, heatmap, table, text
from dovetail.core.errors import ContractError, SettingsError, TaskError, shown
from dovetail.core.records import Record
from dovetail.core.settings import need_least
from dovetail.core.views import Figure, Series
from dovetail.lens.matching import matched_weights
from dovetail.lens.subject import module_of, named
from dovetail.measure.weights import weight_deviation
from dovetail.parts.part import Part


def deviation(part: Part | nn.Module, start: Part | nn.Module, examples: int = 1) -> Deviation:
    r"""How far a network is from where its training began, :math:`\lVert W - W_0\rVert_F/\sqrt n`.

    Layers that only one of the two has, or in another shape (such as a new head), are left out and
    named in the record.

    Args:
        part: The network after training.
        start: The one before.
        examples: :math:`n`, the number of examples that it was trained on.

    >>> net = nn.Linear(2, 2, bias=False)
    >>> moved = nn.Linear(2, 2, bias=False)
    >>> moved.weight.data = net.weight.data + 1
    >>> round(deviation(moved, net, examples=4).total, 6)
    1.0
    """
    need_least("examples", examples, 1)
    (name, module), (_, before) = module_of(part), module_of(start)
    after, first = _matrices(module), _matrices(before)
    common = [key for key in after if key in first and after[key].shape == first[key].shape]
    if not common:
        raise ContractError(
            f"{name!r} and its start share no layer: give two states of one network"
        )
    left_out = sorted((set(after) | set(first)) - set(common))
    return Deviation(
        layers={key: weight_deviation(after[key], first[key], examples) for key in common},
        left_out=tuple(left_out),
        examples=examples,
        settings={"network": name},
    )


@dataclass(frozen=True, kw_only=True)
class Deviation(
    Record,
    kind="deviation",
    title="Deviation from the start",
    brief="{total:.4g} over {layers!n} layers, n={examples}",
):
    """The deviation of each layer after training on ``examples``, and their sum ``total``.

    >>> Deviation(layers={"conv": 0.5, "head": 0.25}, examples=100).total
    0.75
    """

    layers: dict[str, float]
    left_out: tuple[str, ...] = ()
    examples: int

    @property
    def total(self) -> float:
        """Summed over layers."""
        return math.fsum(self.layers.values())

    @property
    def most(self) -> str:
        """The layer that moved the most."""
        return max(self.layers, key=lambda name: self.layers[name], default="none")

    @property
    def answer(self) -> str:
        """How far, in words."""
        if not self.total:
            return "The weights are where they started."
        far = f"The weights lie {self.total:.4g} from where they started (n = {self.examples:,})"
        return f"{far}; most of it in {self.most}."

    @property
    def said_of_others(self) -> str:
        """Which layers could not be compared, in words."""
        return f"Not compared: {', '.join(self.left_out)}." if self.left_out else ""

    shows = (
        text("{answer}"),
        text("{said_of_others}", "note"),
        figure("bar", "Deviation by layer", "layers", 0, {"deviation": 1}, "layer", "deviation"),
        table("layers", Column("layer", 0), Column("deviation", 1, ".4g")),
    )


Parts = Sequence[Part | nn.Module] | Mapping[str, Part | nn.Module]


def weight_map(
    parts: Parts,
    by: Literal["pca", "tsne"] = "pca",
    match: bool = False,
    *,
    example: Tensor | None = None,
    names: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    seed: int = 0,
) -> WeightMap:
    """Networks as points of a plane, near each other where their weights are.

    Args:
        parts: Three or more of one architecture, or several by name.
        by: ``"pca"`` keeps the distances as well as a plane can; ``"tsne"`` keeps neighbours.
        match: Bring hidden channels into the order of the first network's before comparing.
        example: Inputs on which matched networks must give what they gave, where the parts do not
            know their inputs.
        names: What to call parts that come without names.
        groups: A word for each part, such as how it was trained; parts of one share a colour.
        seed: Of t-SNE.

    >>> nets = {str(i): nn.Linear(4, 3) for i in range(4)}
    >>> found = weight_map(nets)
    >>> len(found.x), found.distances[0][0]
    (4, 0.0)
    """
    known = named(parts, names)
    if by not in ("pca", "tsne"):
        raise SettingsError(f'by is "pca" or "tsne", got {shown(by)}')
    if len(known) < 3:
        raise SettingsError(f"a map is of three parts or more, got {len(known)}")
    if groups is not None and len(groups) != len(known):
        raise SettingsError(f"groups must be {len(known)} words, got {len(groups)}")
    states = {name: _state(module_of(part)[1]) for name, part in known.items()}
    first, *_ = states
    for name, state in states.items():
        _refuse_other(first, states[first], name, state)
    if match:
        states = {
            name: state if name == first else _moved(part, known[first], example, state)
            for (name, part), state in zip(known.items(), states.values(), strict=True)
        }
    flat = torch.stack([torch.cat([t.flatten() for t in s.values()]) for s in states.values()])
    if not bool(flat.isfinite().all()):
        raise TaskError("some weights are NaN or infinite: they are near nothing")
    distances = _distances(flat)
    places, kept = _places(distances, by, seed)
    return WeightMap(
        names=tuple(known),
        x=tuple(places[:, 0].tolist()),
        y=tuple(places[:, 1].tolist()),
        distances=tuple(map(tuple, distances.tolist())),
        groups=tuple(groups or ()),
        by=by,
        kept=kept,
        matched=match,
        settings={"weights": flat.shape[1], "seed": seed},
    )


def _moved(
    part: Part | nn.Module,
    like: Part | nn.Module,
    example: Tensor | None,
    state: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    moved = matched_weights(part, like, example)
    return {name: moved[name].cpu().double() for name in state}


def _matrices(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().cpu() for n, p in module.named_parameters() if p.ndim >= 2 and p.numel()}


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().cpu().double() for n, p in module.named_parameters() if p.numel()}


def _refuse_other(
    first: str, model: Mapping[str, Tensor], name: str, other: Mapping[str, Tensor]
) -> None:
    wrong = [f"only one has {key!r}" for key in sorted(set(model) ^ set(other))]
    wrong += [
        f"{key!r} is {list(model[key].shape)} and {list(other[key].shape)}"
        for key in model
        if key in other and model[key].shape != other[key].shape
    ]
    if wrong or not model:
        said = "; ".join(wrong[:3]) or "they have no weights"
        raise ContractError(f"{first!r} and {name!r} are not of one architecture: {said}")


def _distances(flat: Tensor) -> Tensor:
    """Euclidean, each pair by its difference: near networks would cancel in a product's form."""
    rows = [(flat - row).norm(dim=1) for row in flat]
    return torch.stack(rows)


def _places(distances: Tensor, by: str, seed: int) -> tuple[Tensor, float | None]:
    """Points ``[n, 2]``, and for ``"pca"`` which share of the squared distances they keep."""
    n = len(distances)
    if by == "tsne":
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (n - 1) / 3)
        found = TSNE(
            metric="precomputed", init="random", perplexity=perplexity, random_state=seed
        ).fit_transform(distances.numpy())
        return torch.from_numpy(np.asarray(found, dtype=np.float64)), None
    # Classical scaling: the principal components of the weights, from distances alone.
    centre = torch.eye(n, dtype=torch.float64) - 1 / n
    values, vectors = torch.linalg.eigh(-centre @ distances.square() @ centre / 2)
    values = values.clamp(min=0)
    total = float(values.sum())
    places = vectors[:, [-1, -2]] * values[[-1, -2]].sqrt()
    # A vector's sign is nobody's choice: the first place that is not zero is positive.
    for column in range(2):
        largest = places[:, column].abs().argmax()
        places[:, column] *= 1.0 if places[largest, column] >= 0 else -1.0
    return places, float(values[[-1, -2]].sum()) / total if total > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class WeightMap(
    Record,
    kind="weight-map",
    title="A map of the weights of {names!n} networks",
    brief="{names!n} networks by {by}",
):
    """Networks as points ``x``, ``y``, and the ``distances`` of their weights.

    ``kept`` is the share of all squared distances that the plane shows, where that has a meaning.
    """

    names: tuple[str, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    distances: tuple[tuple[float, ...], ...]
    groups: tuple[str, ...] = ()
    by: str
    kept: float | None = None
    matched: bool = False

    def __post_init__(self) -> None:
        n = len(self.names)
        sizes = {len(self.x), len(self.y), len(self.distances), *map(len, self.distances)}
        if sizes != {n} or len(self.groups) not in (0, n):
            raise ValueError("a map has a place and a row of distances for each network")

    @property
    def said(self) -> str:
        """What the map shows, in words."""
        share = "" if self.kept is None else f", which keeps {self.kept:.0%} of squared distances"
        order = "after matching hidden channels" if self.matched else "as they are"
        return f"{len(self.names)} networks by the distance of their weights {order}{share}."

    def scatter(self) -> Figure:
        """The networks on the plane, those of one group in one colour."""
        groups: dict[str, list[tuple[float, float]]] = {}
        for group, x, y in zip(self.groups or self.names, self.x, self.y, strict=True):
            groups.setdefault(group, []).append((x, y))
        series = tuple(
            Series(name, tuple(x for x, _ in places), tuple(y for _, y in places))
            for name, places in groups.items()
        )
        return Figure("scatter", "Weights on a plane", series, "first axis", "second axis")

    shows = (
        text("{said}"),
        lambda record: record.scatter(),
        heatmap("Distances", "names", "names", "distances", "network", "network", ".3g"),
    )
