r"""What gradients do in a network: how the loss changes along them, and how they pass its layers.

``loss_variation``
    The loss at :math:`\theta - s\,\delta` for :math:`s` from 0 to 1.  With the step of the
    gradient's **size** :math:`\delta = \eta g`; with a **fixed** one :math:`\delta = \eta\,g /
    \lVert g\rVert`.  Where the loss is stable, a step along the gradient changes it little and in
    the way that the gradient promises.
``gradient_flow``
    A layer's gradient :math:`\partial L/\partial W_k`, its length and the distribution of its
    entries; and how large what comes back through the layers is, the mean over examples of
    :math:`\lVert \partial \ell_i / \partial h_k \rVert` at the output :math:`h_k` of layer
    :math:`k`, also relative to the last: the **scale** of back-propagation.
``weight_projection``
    With the singular vectors of the gradient, :math:`G = \sum_i \sigma_i u_i v_i^\top`, how much
    of the weight lies along each, :math:`\lvert u_i^\top W v_i \rvert`; convolutions are matrices
    of out × in·k·k.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dovetail.core.declared import Column, figure, table, text
from dovetail.core.errors import SettingsError, TaskError, shown
from dovetail.core.records import Record
from dovetail.core.settings import need_least
from dovetail.core.views import Figure, Series, Table, Text, View
from dovetail.lens.perturbed import Perturbed
from dovetail.lens.subject import BATCH_BYTES, Data, Loss, Subject, inside, subject_of
from dovetail.linalg.parameters import by_layer
from dovetail.measure.weights import root_mean_square
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part
from dovetail.tasks.splits import Split

_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


def loss_variation(
    part: Part | nn.Module,
    data: Data,
    *,
    protocol: Literal["gradient", "fixed"] = "gradient",
    step: float = 1.0,
    points: int = 20,
    module: str | None = None,
    split: Split = "train",
    limit: int | None = 256,
    loss: Loss | None = None,
    seed: int = 0,
) -> LossVariation:
    r"""How far the loss goes when the weights go along the gradient; see the module's text.

    Args:
        part: A part, or any module; it is not changed.
        data: A task, or inputs and targets.
        protocol: A step of the ``"gradient"``'s size, or a ``"fixed"`` one.
        step: :math:`\eta`, a factor of the gradient or the length of the fixed step.
        points: Where the loss is looked at on the way, evenly spaced, the last at its end.
        module: The name of a module whose weights alone move.
        split: Of a task.
        limit: The most examples; ``None`` for all.
        loss: Another loss of outputs and targets.
        seed: Of the examples.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> net.weight.data.fill_(1.0)
    tensor([[1.]])
    >>> one = torch.ones(2, 1), torch.zeros(2)  # the loss is the square of the weight
    >>> found = loss_variation(net, one, protocol="fixed", step=0.5, points=2)
    >>> found.losses, found.variation
    ((1.0, 0.5625, 0.25), 0.75)
    """
    if protocol not in ("gradient", "fixed"):
        raise SettingsError(f'protocol is "gradient" or "fixed", got {shown(protocol)}')
    if not (isinstance(step, float | int) and math.isfinite(step) and step > 0):
        raise SettingsError(f"step must be a number above 0, got {shown(step)}")
    need_least("points", points, 1)
    subject = subject_of(part, data, split=split, limit=limit, loss=loss, seed=seed)
    slopes = _slopes(subject, inside(subject.module, module))
    length = math.sqrt(math.fsum(float(g.double().square().sum()) for g in slopes.values()))
    factor = step if protocol == "gradient" else step / length if length else 0.0
    direction = {name: slope * -factor for name, slope in slopes.items()}
    at = [i / points for i in range(points + 1)]
    losses = Perturbed(subject, [direction]).losses([(share,) for share in at])
    return LossVariation(
        protocol=protocol,
        step=float(step),
        slope=length,
        distances=tuple(share * factor * length for share in at),
        losses=tuple(losses),
        module=module,
        settings={**subject.where, "seed": seed},
    )


@dataclass(frozen=True, kw_only=True)
class LossVariation(
    Record,
    kind="loss-variation",
    title="Loss along the gradient",
    brief="{variation:.4g} within a step of {far:.3g} ({protocol})",
):
    """The ``losses`` at some ``distances`` along the gradient, the first at the weights themselves.

    ``slope`` is the gradient's length.
    """

    protocol: str
    step: float
    slope: float
    distances: tuple[float, ...]
    losses: tuple[float, ...]
    module: str | None = None

    @property
    def variation(self) -> float:
        """The most that the loss changed on the way, in either direction."""
        changes = [abs(loss - self.losses[0]) for loss in self.losses]
        return max((c for c in changes if not math.isnan(c)), default=math.nan)

    @property
    def far(self) -> float:
        """The length of the step."""
        return self.distances[-1]

    @property
    def promised(self) -> tuple[float, ...]:
        """What the gradient says, that the loss falls by its length for each unit of the way."""
        return tuple(self.losses[0] - self.slope * far for far in self.distances)

    def view(self) -> View:
        """The answer in words, and the loss along the way beside what the gradient promises."""
        said = (
            f"Within a step of {self.far:.3g} along the gradient (of length {self.slope:.3g}) the "
            f"loss changes by up to {self.variation:.4g}."
        )
        series = (
            Series("loss", self.distances, self.losses),
            Series("as the gradient promises", self.distances, self.promised),
        )
        return Text(said), Figure("line", "Loss along the gradient", series, "distance", "loss")


def gradient_flow(
    part: Part | nn.Module,
    data: Data,
    *,
    split: Split = "train",
    limit: int | None = 256,
    loss: Loss | None = None,
    seed: int = 0,
) -> GradientFlow:
    """How large gradients are in every layer, and how they grow on the way back.

    Args:
        part: A part, or any module; taken in evaluation mode, not changed.
        data: A task, or inputs and targets.
        split: Of a task.
        limit: The most examples; ``None`` for all.
        loss: Another loss of outputs and targets: their mean.
        seed: Of the examples.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = gradient_flow(net, (torch.rand(6, 4), torch.arange(6) % 3))
    >>> [row["layer"] for row in found.rows], found.rows[-1]["scale"]
    (['0', '2'], 1.0)
    """
    subject = subject_of(part, data, split=split, limit=limit, loss=loss, seed=seed)
    names = inside(subject.module, None)
    layers = {
        layer: [n for n in inner if dict(subject.module.named_parameters())[n].ndim >= 2]
        for layer, inner in by_layer(names).items()
    }
    layers = {layer: inner for layer, inner in layers.items() if inner}
    if not layers:
        raise SettingsError("the network has no weight matrices or filters")
    own = copy.deepcopy(subject.module).eval().requires_grad_(True)
    sums: dict[str, float] = {}

    def lengths(outputs: dict[str, list[Tensor]], n: int) -> None:
        for layer, tensors in outputs.items():
            left = [t.grad for t in tensors if t.grad is not None and len(t) == n]
            for grad in left:
                norms = grad.double().flatten(1).norm(dim=1)
                sums[layer] = sums.get(layer, 0.0) + float(norms.sum())
        outputs.clear()

    with _outputs_kept(own, list(layers)) as outputs:
        whole = Subject(**{**vars(subject), "module": own})
        slopes = _slopes(whole, names, own=True, after=lambda n: lengths(outputs, n))
    # The loss is a mean over n examples, so that each example's own gradient is n times its share,
    # and their mean is the sum.
    back = {layer: sums.get(layer) for layer in layers}
    last = next((back[layer] for layer in reversed(layers) if back[layer]), None)
    rows = []
    for layer, inner in layers.items():
        entries = torch.cat([slopes[name].double().flatten().abs() for name in inner]).cpu()
        spread = _quantiles(entries)
        here = back[layer]
        rows.append(
            {
                "layer": layer or "(the network itself)",
                "length": float(entries.norm()),
                "rms": root_mean_square(entries),
                "back": here,
                "scale": here / last if here is not None and last else None,
                **{f"{share:.0%}": value for share, value in zip(_SHARES, spread, strict=True)},
            }
        )
    return GradientFlow(rows=tuple(rows), settings={**subject.where, "seed": seed})


@dataclass(frozen=True, kw_only=True)
class GradientFlow(
    Record,
    kind="gradient-flow",
    title="Gradients of {rows!n} layers",
    brief="{rows!n} layers, scale {first_scale}",
):
    """A row a layer, from the input up.

    The ``length`` and ``rms`` of the weight's gradient, quantiles of the size of its entries,
    ``back``, the mean length of an example's gradient at the layer's output, and its ``scale``
    relative to the last layer's.
    """

    rows: tuple[dict[str, Any], ...]

    @property
    def first_scale(self) -> str:
        """How large the gradient is at the first layer's output, relative to the last's."""
        scale = self.rows[0].get("scale") if self.rows else None
        return "unknown" if scale is None else f"{scale:.3g}"

    shows = (
        text(
            "On its way from the last layer's output to the first one's the gradient changes its "
            "size by a factor of {first_scale}."
        ),
        figure(
            "line",
            "Scale of back-propagation",
            "rows",
            "layer",
            {"scale": "scale"},
            "layer",
            "relative to the last layer",
            log_y=True,
        ),
        figure(
            "line",
            "Size of a gradient's entries",
            "rows",
            "layer",
            {f"{share:.0%} quantile": f"{share:.0%}" for share in _SHARES},
            "layer",
            "absolute value",
            log_y=True,
        ),
        table(
            "rows",
            Column("layer"),
            Column("length", "length", ".4g"),
            Column("rms", "rms", ".4g"),
            Column("at the output", "back", ".4g"),
            Column("scale", "scale", ".3g"),
        ),
    )


def weight_projection(
    part: Part | nn.Module,
    data: Data,
    *,
    module: str | None = None,
    split: Split = "train",
    limit: int | None = 256,
    loss: Loss | None = None,
    seed: int = 0,
) -> WeightProjection:
    r"""How much of each weight lies along its gradient's singular vectors.

    Layers whose gradient is zero (dead, or constant) have none, and are named in the record.

    Args:
        part: A part, or any module; not changed.
        data: A task, or inputs and targets.
        module: The name of a module whose layers are looked at; all by default.
        split: Of a task.
        limit: The most examples; ``None`` for all.
        loss: Another loss of outputs and targets.
        seed: Of the examples.

    >>> net = nn.Linear(4, 3)
    >>> found = weight_projection(net, (torch.rand(6, 4), torch.arange(6) % 3))
    >>> list(found.projections), len(found.projections["weight"])
    (['weight'], 3)
    """
    subject = subject_of(part, data, split=split, limit=limit, loss=loss, seed=seed)
    weights = {
        name: weight.detach()
        for name, weight in subject.module.named_parameters()
        if name in inside(subject.module, module) and weight.ndim >= 2
    }
    if not weights:
        raise SettingsError("there are no weight matrices or filters here")
    slopes = _slopes(subject, tuple(weights))
    values: dict[str, tuple[float, ...]] = {}
    projections: dict[str, tuple[float, ...]] = {}
    without = []
    for name, weight in weights.items():
        slope = slopes[name].double().flatten(1).cpu()
        if not bool(slope.any()):
            without.append(name)
            continue
        u, s, vh = torch.linalg.svd(slope, full_matrices=False)
        along = ((u.T @ weight.double().flatten(1).cpu()) * vh).sum(1).abs()
        values[name], projections[name] = tuple(s.tolist()), tuple(along.tolist())
    if not projections:
        raise TaskError("every gradient is zero here, so that it has no directions")
    return WeightProjection(
        values=values,
        projections=projections,
        without=tuple(without),
        settings={**subject.where, "seed": seed},
    )


@dataclass(frozen=True, kw_only=True)
class WeightProjection(
    Record,
    kind="weight-projection",
    title="Weights along their gradients' singular vectors",
    brief="{projections!n} layers",
):
    """For each layer the singular ``values`` of its gradient, falling, and ``projections``."""

    values: dict[str, tuple[float, ...]]
    projections: dict[str, tuple[float, ...]]
    without: tuple[str, ...] = ()

    def ratio(self, layer: str) -> float | None:
        """The first tenth of the projections over the mean of all; below 1 they are suppressed."""
        along = self.projections[layer]
        first = along[: max(1, len(along) // 10)]
        mean = math.fsum(along) / len(along)
        return math.fsum(first) / len(first) / mean if mean else None

    def view(self) -> View:
        """A line a layer over the index of the singular value."""
        series = tuple(
            Series(name, tuple(range(1, len(along) + 1)), along)
            for name, along in self.projections.items()
        )
        rows = tuple((name, len(p), self.ratio(name)) for name, p in self.projections.items())
        columns = ("layer", "directions", "first tenth over the mean")
        note = f"No gradient in {', '.join(self.without)}." if self.without else ""
        return (
            Text("Below 1, a weight has little along the directions of its largest gradients."),
            *((Text(note, style="note"),) if note else ()),
            Table(columns, rows, ("", "", ".3g")),
            Figure(
                "line",
                "Weight along the gradient's singular vectors",
                series,
                "index of the singular value",
                "projection",
                log_y=True,
            ),
        )


def _slopes(
    subject: Subject,
    names: tuple[str, ...],
    *,
    own: bool = False,
    after: Callable[[int], None] = lambda n: None,
) -> dict[str, Tensor]:
    """The mean loss's gradient by name, a batch of so few examples at a time that maps are small.

    ``own`` modules may keep what their hooks ask for; ``after`` is told how many a batch had.
    """
    module = subject.module if own else copy.deepcopy(subject.module).eval().requires_grad_(True)
    weights = dict(module.named_parameters())
    n = len(subject.x)
    batches = math.ceil(subject.x.numel() * subject.x.element_size() / BATCH_BYTES)
    if uses_batch_statistics(module):
        batches = 1
    total = 0.0
    with torch.inference_mode(False), torch.enable_grad():
        for rows in torch.arange(n).tensor_split(max(1, min(batches, n))):
            value = subject.loss_of(module(subject.x[rows]), subject.y[rows]) * (len(rows) / n)
            total += float(value.detach())
            torch.autograd.backward([value])
            after(len(rows))
    if not math.isfinite(total):
        raise TaskError(f"the loss is {total}; look at the weights and inputs")
    return {
        name: torch.zeros_like(weights[name]) if slope is None else slope.detach()
        for name, slope in ((name, weights[name].grad) for name in names)
    }


@contextmanager
def _outputs_kept(module: nn.Module, layers: list[str]) -> Iterator[dict[str, list[Tensor]]]:
    """What the named modules give, with the gradients that come back to it."""
    outputs: dict[str, list[Tensor]] = {}
    handles = []
    for layer in layers:

        def keep(_: nn.Module, __: Any, output: Any, layer: str = layer) -> Any:
            if not isinstance(output, Tensor) or not output.requires_grad:
                return output
            output.retain_grad()
            outputs.setdefault(layer, []).append(output)
            return output.clone()  # a ReLU that writes in place must not write here

        handles.append(module.get_submodule(layer).register_forward_hook(keep))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _quantiles(entries: Tensor) -> list[float]:
    """Of any number of entries, which torch's own refuses where there are many."""
    order = entries.sort().values
    return [float(order[round(share * (len(order) - 1))]) for share in _SHARES]
