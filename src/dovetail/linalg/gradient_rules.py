r"""Find where parameters enter a network, and read gradients of single samples off those places.

The graph that autograd keeps of one forward pass names every place a parameter is used, in a layer
or in a bare function, once or often, and holds what went in there.  With the gradient that comes
back to the place, the gradients of the single samples follow by a rule for each operation.  What
has no rule here gives None and is left to a slower way, so a new operation costs time, not truth.

A rule has to know which rows belong to which sample: ``"first"`` is the usual batch axis (or rows
``[n k, d]`` with all positions of a sample together), ``"second"`` is a sequence before its batch.
The caller tries them and checks the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import ContractError
from dovetail.linalg.gradient_factors import Dense, Outer, summed

TURNS = {"TBackward0", "TransposeBackward0", "PermuteBackward0"}
CACHE = 2**20  # bytes that are near at hand
# Through these a row may meet another sample's place, as the data will have it.
SHUFFLES = ("Index", "Gather", "Scatter", "Masked", "Sort", "Topk", "Take")


@dataclass(frozen=True)
class Use:
    """One use of a parameter: the operation, which argument, and whether it was turned before."""

    node: Any
    slot: int
    turned: bool = False


def uses_of(outputs: Tensor, leaves: Mapping[str, Tensor]) -> tuple[dict[str, list[Use]], bool]:
    """Every use of every leaf, and whether rows may be shuffled on the way.

    >>> w = torch.ones(2, 3, requires_grad=True)
    >>> uses, shuffles = uses_of(F.linear(torch.ones(4, 3), w), {"w": w})
    >>> uses["w"][0].node.name(), uses["w"][0].turned, shuffles
    ('MmBackward0', True, False)
    """
    users: dict[Any, list[tuple[Any, int]]] = {}
    pending: list[Any] = [outputs.grad_fn]
    seen: set[Any] = {outputs.grad_fn}
    while pending:
        node = pending.pop()
        for slot, (source, _) in enumerate(node.next_functions):
            if source is None:
                continue
            users.setdefault(source, []).append((node, slot))
            if source not in seen:
                seen.add(source)
                pending.append(source)
    names = {id(leaf): name for name, leaf in leaves.items()}
    uses: dict[str, list[Use]] = {name: [] for name in leaves}
    for source, users_of in users.items():
        name = names.get(id(getattr(source, "variable", None)))
        if name is None:
            continue
        for node, slot in users_of:
            if node.name() in TURNS and leaves[name].ndim == 2:
                uses[name] += [Use(user, at, True) for user, at in users.get(node, [])]
            else:
                uses[name].append(Use(node, slot))
    return uses, any(node.name().startswith(SHUFFLES) for node in seen)


def feature_of(
    uses: Sequence[Use],
    grads: Mapping[Any, Tensor],
    shape: torch.Size,
    n: int,
    layout: str,
) -> Dense | Outer | None:
    """The gradients of ``n`` samples with respect to one parameter, or None without a rule.

    ``grads`` holds ``[o, ...]`` for each node: what came back for each output of the network.
    """
    features: list[Dense | Outer] = []
    for use in uses:
        rule = RULES.get(use.node.name())
        one = rule and rule(use, grads[use.node], shape, n, layout)
        if one is None:
            return None
        features.append(one)
    return summed(features)


def with_biases(
    features: dict[str, Dense | Outer], uses: Mapping[str, Sequence[Use]]
) -> dict[str, Dense | Outer]:
    """Tell each matrix which bias was added wherever it is used, and nowhere else."""
    slots = {"AddmmBackward0": (2, 0), "ConvolutionBackward0": (1, 2)}

    def nodes(name: str, which: int) -> frozenset[Any] | None:
        at = uses[name]
        right = all(use.slot == slots.get(use.node.name(), (-1, -1))[which] for use in at)
        plain = all(
            getattr(use.node, "_saved_alpha", 1) == getattr(use.node, "_saved_beta", 1) == 1
            for use in at
        )
        together = frozenset(use.node for use in at)
        return together if right and plain and len(together) == len(at) else None

    biases = {nodes(name, 1): name for name, one in features.items() if isinstance(one, Dense)}
    return {
        name: replace(one, bias=biases.get(used))
        if isinstance(one, Outer) and (used := nodes(name, 0)) is not None
        else one
        for name, one in features.items()
    }


def _per_sample(t: Tensor, n: int, layout: str) -> Tensor | None:
    """``[n, q, ...]``: the rows of each sample together."""
    t = t.detach()  # kept without the graph it came from
    if layout == "second":
        if t.ndim >= 3:
            return t.movedim(1, 0) if t.shape[1] == n else None
        return t.reshape(-1, n, *t.shape[1:]).transpose(0, 1) if len(t) % n == 0 else None
    return t.reshape(n, -1, *t.shape[1:]) if len(t) % n == 0 else None


def _each(grads: Tensor, n: int, layout: str) -> Tensor | None:
    """``[o, ...]`` to ``[n, o, q, ...]``."""
    several = [_per_sample(one, n, layout) for one in grads]
    known = [one for one in several if one is not None]
    if len(known) < len(several):
        return None
    return known[0].unsqueeze(1) if len(known) == 1 else torch.stack(known, 1)


def _broadcast(values: Tensor, target: Sequence[int], n: int, layout: str) -> Dense | None:
    """Sum ``[o, batch, ...]`` over what a parameter was repeated over, the batch apart."""
    each = _each(values, n, layout)
    if each is None:
        return None
    rows = each.squeeze(2) if each.shape[2] == 1 else each.sum(2)  # [n, o, ...]
    rest, target = rows.shape[2:], list(target)
    if len(target) == values.ndim - 1 and target[0] == 1:
        target = target[1:]  # it had a batch axis of its own
    if len(target) > len(rest):
        return None
    target = [1] * (len(rest) - len(target)) + target
    over = [2 + axis for axis, size in enumerate(target) if size == 1]
    return Dense((rows.sum(over) if over else rows).reshape(n, values.shape[0], -1))


def _scaled(grads: Tensor, scale: float) -> Tensor:
    """Without a copy for the scale that nearly all have."""
    return grads if scale == 1 else grads * scale


def _added(use: Use, g: Tensor, shape: torch.Size, n: int, layout: str) -> Dense | None:
    scale = getattr(use.node, "_saved_alpha", 1) if use.slot == 1 else 1
    if use.node.name() == "SubBackward0" and use.slot == 1:
        scale = -scale
    return None if use.turned else _broadcast(_scaled(g, scale), shape, n, layout)


def _multiplied(use: Use, g: Tensor, shape: torch.Size, n: int, layout: str) -> Dense | None:
    other = use.node._saved_other if use.slot == 0 else use.node._saved_self
    return None if use.turned or other is None else _broadcast(g * other, shape, n, layout)


def _matrix(use: Use, g: Tensor, shape: torch.Size, n: int, layout: str) -> Dense | Outer | None:
    """``[rows, a] @ [a, b]``, with or without something added."""
    node, adds = use.node, use.node.name() == "AddmmBackward0"
    if adds and use.slot == 0 and not use.turned:
        return _broadcast(_scaled(g, node._saved_beta), shape, n, layout)
    if use.slot != (2 if adds else 1):
        return None
    inputs = _per_sample(node._saved_mat1 if adds else node._saved_self, n, layout)
    each = _each(_scaled(g, node._saved_alpha) if adds else g, n, layout)
    if inputs is None or each is None:
        return None
    return Outer(inputs[:, None], each[:, :, None], inputs.shape[-1], not use.turned)


def _convolution(
    use: Use, g: Tensor, shape: torch.Size, n: int, layout: str
) -> Dense | Outer | None:
    """Patches times the kernel as a matrix, for each group of channels."""
    node, spatial = use.node, g.ndim - 3
    if use.turned or layout != "first" or use.slot == 0:
        return None
    if use.slot == 2:
        return _broadcast(g, [*shape, *[1] * spatial], n, layout)
    if node._saved_transposed:
        return None
    x, kernel = node._saved_input, tuple(shape[2:])
    groups, size = node._saved_groups, shape[1:].numel()
    split = g.reshape(*g.shape[:2], groups, shape[0] // groups, -1)
    each = _each(split, n, layout)  # [n, o, q, g, b, k]
    inputs = _per_sample(x, n, layout)  # [n, q, c, ...]
    if each is None or inputs is None:
        return None

    def outer(samples: slice) -> Outer:
        """Of some samples."""
        few = inputs[samples].flatten(0, 1)
        patches = _patches(
            few, kernel, node._saved_dilation, node._saved_padding, node._saved_stride
        )
        patches = patches.reshape(-1, inputs.shape[1], groups, size, patches.shape[2])
        a = patches.permute(0, 2, 1, 4, 3).flatten(2, 3)
        return Outer(a, each[samples].permute(0, 1, 3, 2, 5, 4).flatten(3, 4), size)

    one = outer(slice(0, 1))
    if isinstance(one.compact(), Outer):
        return outer(slice(0, n))
    few = max(1, CACHE // one.inputs.nbytes)  # patches repeat the input many times over
    return Dense(torch.cat([outer(slice(i, i + few)).dense() for i in range(0, n, few)]))


def _patches(
    x: Tensor,
    kernel: tuple[int, ...],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """``[batch, channels * kernel, positions]``, as ``F.unfold`` but faster, and for lines too."""
    x = F.pad(x, [side for each in reversed(padding) for side in (each, each)]).contiguous()
    axes = list(zip(x.shape[2:], kernel, dilation, stride, x.stride()[2:], strict=True))
    counts = [(size - d * (k - 1) - 1) // s + 1 for size, k, d, s, _ in axes]
    steps = [d * step for _, _, d, _, step in axes] + [s * step for _, _, _, s, step in axes]
    view = x.as_strided((*x.shape[:2], *kernel, *counts), (*x.stride()[:2], *steps))
    return view.reshape(len(x), x.shape[1] * math.prod(kernel), math.prod(counts))


def _normalised(use: Use, g: Tensor, shape: torch.Size, n: int, layout: str) -> Dense | None:
    """Batch norm with stored statistics, group norm, layer norm: a gain and a shift."""
    node, name = use.node, use.node.name()
    if use.turned or use.slot == 0:
        return None
    x, target = node._saved_input, list(shape)
    if name == "NativeBatchNormBackward0":
        if node._saved_training:
            raise ContractError(BATCH_STATISTICS)
        axes = [-1, *[1] * (x.ndim - 2)]
        spread = (node._saved_running_var + node._saved_eps).rsqrt().view(axes)
        x, target = (x - node._saved_running_mean.view(axes)) * spread, [*shape, *axes[1:]]
    elif name == "NativeGroupNormBackward0":
        mean, spread = node._saved_result1, node._saved_result2
        grouped = x.reshape(len(x), node._saved_group, -1)
        x = ((grouped - mean.unsqueeze(-1)) * spread.unsqueeze(-1)).reshape(x.shape)
        target = [*shape, *[1] * (x.ndim - 2)]
    else:
        x = (x - node._saved_result1) * node._saved_result2
    return _broadcast(g * x if use.slot == 1 else g, target, n, layout)


def _looked_up(use: Use, g: Tensor, shape: torch.Size, n: int, layout: str) -> Outer | None:
    node = use.node
    if use.turned or node._saved_scale_grad_by_freq:
        return None
    ids = node._saved_indices.unsqueeze(-1)
    if 0 <= node._saved_padding_idx < shape[0]:
        g = g * (ids != node._saved_padding_idx)
    where, each = _per_sample(ids, n, layout), _each(g, n, layout)
    if where is None or each is None:
        return None
    where, each = where.reshape(n, 1, -1, 1), each.flatten(2, -2)[:, :, None]
    return Outer(where.long(), each, shape[0], True)


Rule = Callable[[Use, Tensor, torch.Size, int, str], "Dense | Outer | None"]
RULES: dict[str, Rule] = {
    "AddBackward0": _added,
    "SubBackward0": _added,
    "ExpandBackward0": _added,
    "MulBackward0": _multiplied,
    "MmBackward0": _matrix,
    "AddmmBackward0": _matrix,
    "ConvolutionBackward0": _convolution,
    "NativeBatchNormBackward0": _normalised,
    "NativeGroupNormBackward0": _normalised,
    "NativeLayerNormBackward0": _normalised,
    "EmbeddingBackward0": _looked_up,
}
BATCH_STATISTICS = (
    "a batch norm that uses the statistics of the batch makes samples depend on each other, so "
    "they have no Jacobian of their own; give it running statistics (track_running_stats=True)"
)
