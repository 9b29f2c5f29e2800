r"""Around which weights a classifier is linearised, so that a probe is its floor.

A network that was made for other classes has no head for these.  Let its head have the prior
:math:`W \sim \mathcal N(0, s_h)` and what lies below :math:`\theta \sim \mathcal N(\theta_0, s)`.

**At the prior's mean** the tangents of everything below the head vanish, since the head is zero:
what is left is a linear model of the features, :math:`J_W = \phi(x)`.  That is a probe, and it is
the floor: no scale can drown it.

**Linearised again** at weights :math:`(\theta_*, W_*)` that the labels ask for, the layers below
the head count as well.  Only the last of them may move, those that cost little beside a pass
through the network; in a network of few weights all of them.  The others' tangents were measured to
be noise when labels are few.  Where the way there stops, and whether it is gone at all, is said
by labels held out (:mod:`dovetail.adapt.guarded`).

At such a point the network and its linearisation say the same, so the mean is the network's own
output.  How sure that is comes from Laplace's approximation there, :func:`posterior_at`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.adapt.guarded import Guarded, tuned_if_better
from dovetail.adapt.laplace import site_roots
from dovetail.adapt.networks import Front, with_head
from dovetail.adapt.posterior import FunctionPosterior, centred, factor, whitened
from dovetail.adapt.tuning import Moves
from dovetail.core.errors import CutError
from dovetail.linalg.ridge_sums import Linear
from dovetail.linalg.tangent import TangentFeatures
from dovetail.measure.forward import outputs_of, prepare
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.joining import join
from dovetail.parts.part import Part

__all__ = ["HEAD", "Placed", "late_point", "place", "posterior_at", "scale_at"]

HEAD = "1.head."
"""How the parameters of a head begin in a network that :func:`place` makes."""

SMALL = 1_000_000
"""Networks with fewer weights move as a whole."""

SHARE = 0.15
"""What the layers that move may cost, of one pass through the network."""

PASSES, FEWEST = 8, 16
"""Over the labels, and steps at least."""

SMALL_STEPS = 200
"""Steps at least of a small network, which take a second or two."""

FOLDS = 3
"""Of the labels, held out one after the other."""


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


def late_point(part: Part, raw: Tensor) -> str | None:
    """Where to cut so that what follows is cheap to train: None where all of it is, or nothing.

    Costs are the products of dense and convolution layers for one input.

    >>> from dovetail.parts.part import build
    >>> late_point(build("resnet20"), torch.zeros(1, 3, 32, 32))
    'layer3.1'
    """
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
            part.module(prepare(raw[:1], part.contract).to(next(part.module.parameters())))
    finally:
        for hook in hooks:
            hook.remove()
    cheap = [name for name, cost in done.items() if name and 0 < total - cost <= SHARE * total]
    for name in cheap:
        try:
            before, _ = cut(part, name)
        except CutError:
            continue
        if len(before.contract.gives) == 1:
            return name
    return None


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
        front: Gives the features; left as it is.
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
    before: Part | None = None
    late, inputs = front, raw
    moving = several and bool(movable)
    if moving and size >= SMALL:
        at = late_point(part, raw)
        moving = at is not None
        if at is not None:
            before, after = cut(part, at)
            late, inputs = Front(after, front.pooling), outputs_of(before, raw).float()

    def free(one: Front) -> bool:
        assert one.part is not None
        for name, tensor in one.part.module.named_parameters():
            tensor.requires_grad_(moving and name in movable)
        return any(tensor.requires_grad for tensor in one.part.module.parameters())

    least = SMALL_STEPS if size < SMALL else FEWEST
    steps = max(least, -(-PASSES * len(raw) // 32))
    found = tuned_if_better(
        late,
        inputs,
        codes,
        len(names),
        Moves(steps, batch_size=32, rate=1e-3, decay=1e-2),
        own=own,
        free=free,
        folds=FOLDS,
        seed=seed,
    )
    return _placed(front, late, before, found, raw, names)


def _placed(
    front: Front, late: Front, before: Part | None, found: Guarded, raw: Tensor, names: Any
) -> Placed:
    """The layers put together again, temperature in the head, and how far each came."""
    assert front.part is not None
    assert late.part is not None
    assert found.front.part is not None
    start = dict(late.part.module.named_parameters())
    inside = "0." if before is None else "0.1."
    moved = {
        inside + name: (tensor - start[name]).detach().double()
        for name, tensor in found.front.part.module.named_parameters()
        if not tensor.equal(start[name])
    }
    tuned = found.front if before is None else Front(join(before, found.front.part), front.pooling)
    weights, intercept = (
        each / found.temperature for each in (found.head.weights, found.head.intercept)
    )
    origin = Origin("linearized", settings={"chosen": found.chosen, **found.diagnostics})
    whole = with_head(tuned, tuned.shape(raw), weights, intercept, origin, names)
    kind = next((each.dtype for each in front.part.module.parameters()), torch.float32)
    origin = replace(origin, parents=(front.part.digest,))
    module = whole.module.to(kind).eval().requires_grad_(True)
    whole = whole.changed(module=module, origin=origin)
    parameters = whole.module.named_parameters()
    head = {name: each.detach().double() for name, each in parameters if name.startswith(HEAD)}
    return Placed(whole, moved | head, found)


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
