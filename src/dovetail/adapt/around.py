r"""Around which weights a classifier is linearised, so that a probe is its floor.

A network that was made for other classes has no head for these.  Let its head have the prior
:math:`W \sim \mathcal N(0, s_h)` and what lies below :math:`\theta \sim \mathcal N(\theta_0, s)`.

**At the prior's mean** the tangents of everything below the head vanish, since the head is zero:
what is left is a linear model of the features, :math:`J_W = \phi(x)`.  That is a probe, and it is
the floor: no scale can drown it.

**Linearised again** at weights :math:`(\theta_*, W_*)` that the labels ask for, the layers below
the head count as well.  Only the last of them may move, those that cost little beside a pass
through the network; in a network of few weights all of them.  The others' tangents were measured to
be noise when labels are few.  Where the way there stops, and how much of it is gone, is said by
labels held out (:mod:`dovetail.adapt.guarded`).

At such a point the network and its linearisation say the same, so the mean is the network's own
output.  How sure that is comes from Laplace's approximation there, :func:`posterior_at`.

**What it costs** is told before it is done.  One pass of :math:`n` inputs through the network gives
the features, and a head is fitted to those.  Layers that move, of a share :math:`\sigma` of the
products of a pass, are trained in :math:`f` folds by :math:`k` steps of :math:`b` labels, forwards
and backwards, and looked at with all inputs:

.. math:: 1 + \sigma \Big( \frac{3 f k b}{n} + f + 2 \Big) \text{ passes,}

and where folds are not averaged, as much again as one of them for all labels.  Seconds are that
times a pass measured here; what does not grow with inputs, some tenths, is not in them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dovetail.adapt.guarded import ENOUGH, Guarded, tuned_if_better
from dovetail.adapt.laplace import site_roots
from dovetail.adapt.networks import Front, with_head
from dovetail.adapt.plan import Group
from dovetail.adapt.posterior import FunctionPosterior, centred, factor, whitened
from dovetail.adapt.tuning import Moves
from dovetail.core.errors import CutError
from dovetail.linalg.ridge_sums import Linear
from dovetail.linalg.tangent import TangentFeatures
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Port
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part
from dovetail.parts.splitting import split

HEAD = "1.head."
"""How the parameters of a head begin in a network that :func:`place` makes."""

SMALL = 1_000_000
"""Networks with fewer weights move as a whole."""

SHARE = 0.15
"""What the layers that move may cost, of one pass through the network."""

PASSES, FEWEST, RATE = 3, 5, 2e-3
"""Over the labels, steps at least, and the rate at its peak."""

SMALL_PASSES, SMALL_STEPS, SMALL_RATE = 8, 200, 1e-3
"""The same of a small network; its steps take a second or two."""

BATCH, FOLDS = 32, 3
"""Labels a step; and folds of them, held out one after the other."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A network with a head for the classes, and where it came from.

    Attributes:
        part: Its logits are calibrated; the head is the last layer, parameters :data:`HEAD`.
        moved: How far from the prior's mean each parameter is that moves, by name in the part.
        guarded: What was chosen, and why.
    """

    part: Part
    moved: dict[str, Tensor]
    guarded: Guarded


class Schedule(NamedTuple):
    """How layers move: in which steps, how often it may stop, whether folds are averaged; and
    whether the whole network does."""

    moves: Moves
    stops: int
    averaged: bool
    whole: bool


def schedule(size: int, labels: int) -> Schedule:
    """Of a network of so many weights.

    >>> schedule(5_000_000, 200).moves.steps, schedule(60_000, 200).moves.steps
    (19, 200)
    """
    whole = size < SMALL
    small = (SMALL_PASSES, SMALL_STEPS, SMALL_RATE)
    passes, least, rate = small if whole else (PASSES, FEWEST, RATE)
    steps = max(least, math.ceil(passes * labels / BATCH))
    return Schedule(Moves(steps, BATCH, rate, decay=1e-2), 4 if whole else 1, not whole, whole)


def late_point(part: Part, raw: Tensor) -> str | None:
    """Where to cut so that what follows is cheap to train: None where all of it is, or nothing.

    >>> from dovetail.parts.part import build
    >>> late_point(build("resnet20"), torch.zeros(1, 3, 32, 32))
    'layer3.1'
    """
    done, total = products(part, raw)
    cheap = [name for name, cost in done.items() if name and 0 < total - cost <= SHARE * total]
    for name in cheap:
        try:
            halves = split(part.module, name)
        except CutError:
            continue
        if halves.crossing == 1:
            return name
    return None


def products(part: Part, raw: Tensor) -> tuple[dict[str, int], int]:
    """Of dense and convolution layers for one input: up to each module, and in all."""
    done: dict[str, int] = {}
    total = 0

    def count(name: str) -> Any:
        def after(module: nn.Module, _: Any, outputs: Any) -> None:
            nonlocal total
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                total += outputs.numel() * module.weight[0].numel()
            if name.count(".") < 2:
                done[name] = total

        return after

    hooks = [m.register_forward_hook(count(name)) for name, m in part.module.named_modules()]
    try:
        with torch.no_grad():
            part.module(Front(part).prepared(raw[:1]))
    finally:
        for hook in hooks:
            hook.remove()
    return done, total


def place(
    front: Front,
    raw: Tensor,
    codes: Tensor,
    names: tuple[str, ...],
    *,
    own: Linear | None = None,
    movable: set[str],
    seed: int = 0,
) -> Placed:
    """A head for the classes, and the layers below it moved as far as labels held out say.

    Args:
        front: Gives the features, of one's own: its layers move.
        raw: Inputs ``[n, ...]``.
        codes: Of the labels ``[n]``.
        names: Of the classes.
        own: The network's own head for them, if it has one.
        movable: Which parameters of the front may move.
        seed: Of the folds and the order of labels.
    """
    part = front.part
    assert part is not None, "without a network there is nothing to linearise"
    several = bool((torch.bincount(codes) > 1).all())
    movable = movable & {name for name, _ in part.module.named_parameters()}
    size = sum(tensor.numel() for tensor in part.module.parameters())
    late, inputs = front, raw
    moving, how = several and bool(movable), schedule(size, len(raw))
    if moving and not how.whole:
        at = late_point(part, raw)
        moving = at is not None
        if at is not None:
            halves = split(part.module, at)
            inputs = outputs_of(part.changed(module=halves.front), raw).float()
            facts = replace(part.contract, takes=(Port(),), preprocess=None, inputs=None)
            late = Front(part.changed(module=halves.back, contract=facts), front.pooling)

    def free(one: Front) -> bool:
        assert one.part is not None
        for name, tensor in one.part.module.named_parameters():
            tensor.requires_grad_(moving and name in movable)
        return any(tensor.requires_grad for tensor in one.part.module.parameters())

    tuned = tuned_if_better(
        late,
        inputs,
        codes,
        len(names),
        how.moves,
        own=own,
        free=free,
        stops=how.stops,
        folds=FOLDS,
        averaged=how.averaged,
        label="moving layers",
        seed=seed,
    )
    return _placed(front, late, tuned, inputs, names)


def _placed(front: Front, late: Front, tuned: Guarded, inputs: Tensor, names: Any) -> Placed:
    """The front with the layers that moved, a head with its temperature, and how far each came."""
    assert front.part is not None
    assert late.part is not None
    assert tuned.front.part is not None
    start = dict(late.part.module.named_parameters())
    changed = {
        name: tensor.detach()
        for name, tensor in tuned.front.part.module.named_parameters()
        if not tensor.equal(start[name])
    }
    moved = {f"0.{name}": (each - start[name]).detach().double() for name, each in changed.items()}
    weights, intercept = (
        each / tuned.temperature for each in (tuned.head.weights, tuned.head.intercept)
    )
    facts = {"chosen": tuned.chosen, **tuned.diagnostics}
    origin = Origin("linearized", parents=(front.part.digest,), settings=facts)
    # Halves of a network call their weights as the whole does.
    front.part.module.load_state_dict(changed, strict=False)
    whole = with_head(front, late.shape(inputs), weights, intercept, origin, names)
    kind = next((each.dtype for each in front.part.module.parameters()), torch.float32)
    whole = whole.changed(module=whole.module.to(kind).eval().requires_grad_(True))
    parameters = whole.module.named_parameters()
    head = {name: each.detach().double() for name, each in parameters if name.startswith(HEAD)}
    return Placed(whole, moved | head, tuned)


def scale_at(kernel: Tensor, root: Tensor, distance: float, count: int) -> float:
    r"""The prior variance of a group of weights that is known to have come some way, by evidence.

    MacKay's fixed point: with :math:`\lambda` the eigenvalues of :math:`R^\top K R` and
    :math:`\gamma = \sum_i s \lambda_i / (1 + s \lambda_i)` weights that the labels determine,

    .. math:: s = \lVert \theta_* - \theta_0 \rVert^2 / \gamma .

    Args:
        kernel: Of the group, ``[n c, n c]``, of scale one.
        root: Of the sites, ``[n, c, c]``.
        distance: The squared length of what the weights moved by.
        count: How many weights there are, which is the most that can be determined.
    """
    between = whitened(root, whitened(root, kernel).T)
    values = torch.linalg.eigvalsh((between + between.T) / 2).clamp(min=0.0)
    scale = distance / max(1, min(count, len(values)))
    for _ in range(100):
        determined = float((scale * values / (1 + scale * values)).sum())
        further = distance / max(determined, 1e-3)
        if abs(further - scale) <= 1e-6 * scale:
            break
        scale = math.sqrt(scale * further)  # the plain step may swing around the fixed point
    return scale


def posterior_at(
    features: TangentFeatures,
    logits: Tensor,
    labels: Tensor,
    moved: Mapping[str, Tensor],
    groups: Sequence[Sequence[str]],
) -> FunctionPosterior:
    r"""Laplace's posterior at a network whose weights are taken for the most probable ones.

    The log evidence is :math:`\log p(y \mid \hat g) - \frac12 \sum_l \lVert \delta_l \rVert^2 / s_l
    - \frac12 \log |I + R^\top K R|`, with what each group of weights moved by.

    Args:
        features: Of the labelled inputs at the network.
        logits: What it says of them ``[n, c]``, float64.
        labels: Codes ``[n]``.
        moved: How far each parameter is from the prior's mean.
        groups: Parameters that share a prior variance.
    """
    chances = logits.softmax(1)
    root, rows = site_roots(chances), logits.numel()
    kernels = features.grams({str(i): names for i, names in enumerate(groups)})
    scales: dict[str, float] = {}
    penalty = 0.0
    kernel = torch.zeros(rows, rows, dtype=torch.float64)
    for i, names in enumerate(groups):
        raw = kernels[str(i)].reshape(rows, rows)
        distance = sum(float(moved[name].square().sum()) for name in names)
        count = sum(moved[name].numel() for name in names)
        plain = centred(torch.zeros_like(raw), logits.shape[1])
        scale = scale_at(centred(raw, logits.shape[1]) - plain, root, distance, count)
        scales |= dict.fromkeys(names, scale)
        penalty += distance / scale if scale > 0 else 0.0
        kernel += scale * raw
    lower = factor(centred(kernel, logits.shape[1]), root)
    likelihood = float(logits.log_softmax(1).gather(1, labels[:, None]).sum())
    return FunctionPosterior(
        (features,),
        scales,
        root,
        lower,
        torch.zeros_like(chances),  # the network is the mean already: labels add nothing to it
        likelihood - 0.5 * penalty - float(lower.diagonal().log().sum()),
        kernel=kernel,
        centred=True,
        diagnostics={"method": "laplace", "rows": rows, "bytes": 2 * lower.nbytes},
    )


# What it costs ------------------------------------------------------------------------------------


TRIAL = 16
COPIES = 6
"""Of the weights that move, in a fold: themselves, slopes, and what AdamW keeps."""


def group_costs(
    front: Front, raw: Tensor, n: int, classes: int, movable: Collection[str]
) -> tuple[Group, ...]:
    """Of the head alone; and with the layers that would move, if there are any.

    Args:
        front: Gives the features.
        raw: An input or more ``[1, ...]``.
        n: How many labels there will be.
        classes: How many of them.
        movable: Which parameters of the front may move.

    >>> import torch
    >>> from dovetail.adapt.networks import front_of
    >>> from dovetail.parts.part import build
    >>> front = front_of(build("lenet5", size=8))
    >>> every = {name for name, _ in front.part.module.named_parameters()}
    >>> [each.layers for each in group_costs(front, torch.zeros(2, 1, 8, 8), 50, 10, every)]
    ['head', 'head and all below it']
    """
    assert front.part is not None, "without a network there is nothing to linearise"
    some = raw[:1].expand(min(n, TRIAL), *raw.shape[1:])
    for _ in range(2):  # the first call has costs of its own
        began = time.perf_counter()
        width = front.rows(some).shape[1]
        each = (time.perf_counter() - began) / len(some)
    head = Group("head", (width + 1) * classes, 1.0, n * each, 24 * n * width)
    module = front.part.module
    size = sum(tensor.numel() for tensor in module.parameters())
    plan = schedule(size, n)
    share, layers, crossing = 1.0, "all below it", 4 * raw[0].numel()
    if not plan.whole:
        at = late_point(front.part, raw)
        if at is None:
            return (head,)
        done, total = products(front.part, raw)
        share, halves = (total - done[at]) / total, split(module, at)
        module = halves.back
        names = dict.fromkeys(name.split(".")[0] for name, _ in module.named_parameters())
        layers = ", ".join(names)
        crossing = 4 * halves.front(front.prepared(raw[:1])).numel()
    weights = sum(t.numel() for name, t in module.named_parameters() if name in movable)
    if not weights:
        return (head,)
    folded, folds = n * (FOLDS - 1) / FOLDS, min(FOLDS, math.ceil(ENOUGH * FOLDS / n))
    trained = folds * plan.moves.steps * folded / math.ceil(folded / BATCH)
    if not plan.averaged or folds < FOLDS:
        trained += plan.moves.steps * n / math.ceil(n / BATCH)
    passes = 1 + share * (3 * trained / n + folds * plan.stops + 2)
    memory = head.memory + n * crossing + 4 * folds * COPIES * weights
    both = Group(f"head and {layers}", head.weights + weights, passes, passes * n * each, memory)
    return head, both
