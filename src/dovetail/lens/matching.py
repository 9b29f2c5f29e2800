r"""Hidden channels of one network in the order in which they are most like another's.

From the input up, the outputs of a layer are matched by the permutation with the largest sum of
inner products of their filters, and the inputs of the next layer follow it.  That is for chains:
each weight matrix takes what the one before gives, and what else has as many entries in between
(biases, norms) belongs to it.  The last layer's outputs are classes and stay.

Names and shapes do not say whether a network is a chain: widths may agree across a residual sum,
and modules may be used in another order than they were made.  So the moved network must give what
it gave, for some inputs; otherwise it is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, first_line
from dovetail.core.seeds import generator
from dovetail.lens.subject import module_of
from dovetail.measure.correlation import assigned
from dovetail.parts.modules import evaluating
from dovetail.parts.part import Part

_ROWS = 4
"""Inputs that are tried."""

_ROUNDING = 1e-8
"""Outputs in float64 that differ by no more of their size are the same."""


def matched_weights(
    part: Part | nn.Module, like: Part | nn.Module, example: Tensor | None = None
) -> dict[str, Tensor]:
    """The weights and statistics of ``part`` with hidden channels in the order of ``like``'s.

    Args:
        part: A chain of layers; it is not changed.
        like: A network of the same architecture.
        example: Inputs ``[n, ...]`` for which the moved network must give what it gave.  A part
            knows what it takes, and a network that begins with a linear layer says it.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> other = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> order = torch.tensor([2, 0, 3, 1])
    >>> other[0].weight.data, other[0].bias.data = net[0].weight[order], net[0].bias[order]
    >>> other[2].weight.data, other[2].bias.data = net[2].weight[:, order], net[2].bias
    >>> found = matched_weights(other, net)
    >>> all(torch.equal(found[name], net.state_dict()[name]) for name in found)
    True
    """
    (name, module), (_, model) = module_of(part), module_of(like)
    inputs = _inputs(part, module, example)
    state = {key: tensor.detach() for key, tensor in module.state_dict().items()}
    wanted = model.state_dict()
    others = [key for key in state if key not in wanted or state[key].shape != wanted[key].shape]
    if others or len(state) != len(wanted):
        which = f": they differ in {others[0]!r}" if others else ""
        raise ContractError(f"{name!r} and the other are not of one architecture{which}")
    matrices = [key for key, weight in module.named_parameters() if weight.ndim >= 2]
    moved = _in_order(state, wanted, matrices)
    before = _outputs(name, module, state, inputs)
    after = _outputs(name, module, moved, inputs)
    apart = float((after - before).abs().max()) if before.numel() else 0.0
    if not apart <= _ROUNDING * float(before.abs().max()):
        raise ContractError(
            f"in another order of channels {name!r} gives other outputs (by {apart:.2g}): it is no "
            "chain of layers in the order in which they were made; leave match=False"
        )
    return moved


def _in_order(
    state: Mapping[str, Tensor], like: Mapping[str, Tensor], layers: list[str]
) -> dict[str, Tensor]:
    """All tensors, with channels in the other's order, as far as shapes can tell."""
    moved = {name: tensor.clone() for name, tensor in state.items()}
    order: Tensor | None = None
    names = list(moved)
    for place, name in enumerate(layers):
        if order is not None:
            moved[name] = _inputs_in(moved[name], order, name)
        if place == len(layers) - 1:
            break
        one, other = (t.detach().flatten(1).double() for t in (moved[name], like[name]))
        order = assigned(other.cpu() @ one.cpu().T).to(moved[name].device)
        for along in names[names.index(name) : names.index(layers[place + 1])]:
            if moved[along].ndim >= 1 and len(moved[along]) == len(order):
                moved[along] = moved[along][order]
    return moved


def _inputs_in(weight: Tensor, order: Tensor, name: str) -> Tensor:
    """The inputs of a layer in an order of channels; of flattened maps, each with its positions."""
    if weight.shape[1] == 1 and weight.ndim > 2:
        raise ContractError(
            f"{name!r} has one filter a channel: channels are matched in chains of full layers"
        )
    positions, rest = divmod(weight.shape[1], len(order))
    if rest or not positions:
        raise ContractError(
            f"{name!r} takes {weight.shape[1]} inputs, the layer before gives {len(order)}: "
            "channels are matched in chains only; leave match=False"
        )
    by_channel = weight.reshape(len(weight), len(order), positions, *weight.shape[2:])
    return by_channel[:, order].reshape(weight.shape)


def _inputs(part: Part | nn.Module, module: nn.Module, example: Tensor | None) -> Tensor:
    """Some inputs: the example, or noise of the shape that the part takes, in float64."""
    if example is not None:
        return example.detach().double() if example.is_floating_point() else example
    shape: tuple[int | None, ...] | None = None
    if isinstance(part, Part) and len(part.contract.takes) == 1:
        shape = part.contract.takes[0].shape
    first = next((m for m in module.modules() if m._parameters), None)
    if shape is None and isinstance(first, nn.Linear):
        shape = (first.in_features,)
    if shape is None or None in shape:
        raise ContractError(
            "matching must be seen to keep what the network gives; name inputs for it: example="
        )
    sides = [side or 1 for side in shape]
    return torch.randn(_ROWS, *sides, generator=generator(0, "matching"), dtype=torch.float64)


def _outputs(name: str, module: nn.Module, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
    own = copy.deepcopy(module)
    own.load_state_dict(dict(state))
    own = own.double()
    device = next((tensor.device for tensor in state.values()), x.device)
    try:
        with evaluating(own):
            found = own(x.to(device))
    except Exception as error:  # foreign code; the example is the likeliest cause
        raise ContractError(
            f"inputs of shape {list(x.shape)} do not go through {name!r}: {first_line(error)}; "
            "name others: example="
        ) from None
    if not isinstance(found, Tensor):
        raise ContractError(f"{name!r} gives no single tensor; leave match=False")
    return found
