r"""A layer as a kernel machine: a linear model in the feature space of an explicit kernel.

Let :math:`F_1` be what comes before a layer, *without* its closing nonlinearity, and let
:math:`\Phi` be that nonlinearity (with pooling and flattening, where there are any).  The layer
then computes

.. math::
    f(z) = \langle w, \phi(z)\rangle + b, \qquad
    k(z, z') = \langle \phi(z), \phi(z')\rangle, \qquad z = F_1(x),

where :math:`\phi = \Phi` for a dense layer.  A convolution is one such machine a position, all
with the same weights: there :math:`\phi_p` is the receptive field of position :math:`p`, its
channels one after the other.  As :math:`\phi` is explicit, evaluating the machine is linear in the
number of samples; nothing needs the kernel matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.errors import SettingsError, TaskError
from dovetail.objectives.unit import unit_length


def kernel_machine(
    layer: nn.Module, activation: Callable[[Tensor], Tensor] | None = None, *, unit: bool = False
) -> KernelMachine:
    """A dense layer or a 2-d convolution as a kernel machine, sharing the layer's weights.

    Args:
        layer: An ``nn.Linear`` or ``nn.Conv2d`` of any stride, padding, dilation and groups.
        activation: What precedes the layer: a nonlinearity, perhaps pooling and flattening; None if
            the inputs already went through it.
        unit: Scale each feature vector to unit length, as the theory asks.  The machine then is no
            longer the layer as it stands.

    >>> import torch
    >>> layer = nn.Linear(3, 2)
    >>> machine = kernel_machine(layer, nn.Tanh())
    >>> z = torch.randn(5, 3)
    >>> torch.allclose(machine(z), layer(z.tanh()))
    True
    >>> machine.kernel(z, z[:2]).shape
    torch.Size([5, 2])
    """
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        raise SettingsError(
            f"a {type(layer).__name__} is no kernel machine here: give an nn.Linear or nn.Conv2d, "
            "and what comes before it as the activation"
        )
    return KernelMachine(layer, activation, unit)


@dataclass(frozen=True, eq=False)
class KernelMachine:
    r"""Features :math:`\phi`, weights and biases of a layer; see :func:`kernel_machine`.

    A grouped convolution is several machines side by side, each on its own channels: its features,
    weights and kernels have an axis of groups.

    >>> import torch
    >>> machine = kernel_machine(nn.Conv2d(2, 4, 3, padding=1))
    >>> maps = torch.randn(5, 2, 6, 6)
    >>> machine.features(maps).shape, machine.kernel(maps, maps).shape
    (torch.Size([5, 36, 18]), torch.Size([36, 5, 5]))
    """

    layer: nn.Linear | nn.Conv2d
    activation: Callable[[Tensor], Tensor] | None
    unit: bool

    @property
    def weights(self) -> Tensor:
        """``[out, d]``; of a grouped convolution ``[groups, out / groups, d]``.

        >>> kernel_machine(nn.Conv2d(4, 6, 3, groups=2)).weights.shape
        torch.Size([2, 3, 18])
        """
        weights = self.layer.weight.flatten(1)
        groups = self.layer.groups if isinstance(self.layer, nn.Conv2d) else 1
        return weights.reshape(groups, -1, weights.shape[1]) if groups > 1 else weights

    @property
    def bias(self) -> Tensor | None:
        """``[out]``, or None.

        >>> kernel_machine(nn.Linear(3, 2, bias=False)).bias is None
        True
        """
        return self.layer.bias

    def positions(self, inputs: Tensor) -> tuple[int, ...]:
        """The machines that share the weights, as axes: none for rows, height and width for maps.

        >>> import torch
        >>> kernel_machine(nn.Conv2d(2, 4, 3, stride=2)).positions(torch.randn(1, 2, 9, 7))
        (4, 3)
        """
        return self._positions(self._seen(inputs))

    def features(self, inputs: Tensor) -> Tensor:
        r"""The explicit map :math:`\phi` of a batch.

        Returns:
            ``[n, d]`` for rows, ``[n, t, d]`` for a dense layer on sequences, and for maps
            ``[n, positions, c * height * width]`` with the size of the layer's kernel.  With
            groups, ``[n, groups, positions, c / groups * height * width]``.
        """
        return self._features(self._seen(inputs))

    def kernel(self, first: Tensor, second: Tensor) -> Tensor:
        r"""The kernel :math:`\langle\phi(u), \phi(v)\rangle` of two batches of ``n`` and ``m``.

        Returns:
            ``[n, m]`` for rows, ``[positions, n, m]`` for maps: one kernel a position.
        """
        one, two = (self.features(batch).movedim(0, -2) for batch in (first, second))
        if one.shape[:-2] != two.shape[:-2]:
            raise TaskError(
                f"inputs of shapes {list(first.shape)} and {list(second.shape)} have other "
                "positions; a kernel compares what two inputs have at the same position"
            )
        return one @ two.transpose(-1, -2)

    def __call__(self, inputs: Tensor) -> Tensor:
        r"""The linear model :math:`\langle w, \phi\rangle + b`, in the layer's own shape."""
        seen = self._seen(inputs)
        outputs = self._features(seen) @ self.weights.transpose(-1, -2)
        bias = self.layer.bias
        if isinstance(self.layer, nn.Linear):
            return outputs if bias is None else outputs + bias
        outputs = outputs.transpose(-1, -2).reshape(len(seen), -1, *self._positions(seen))
        return outputs if bias is None else outputs + bias[:, None, None]

    def _seen(self, inputs: Tensor) -> Tensor:
        """What the layer sees: after the activation, and with its padding."""
        seen = inputs if self.activation is None else self.activation(inputs)
        if isinstance(self.layer, nn.Linear):
            if seen.ndim < 2 or seen.shape[-1] != self.layer.in_features:
                raise _no_input(f"[n, {self.layer.in_features}]", seen)
            return seen
        if seen.ndim != 4 or seen.shape[1] != self.layer.in_channels:
            raise _no_input(f"[n, {self.layer.in_channels}, height, width]", seen)
        mode = self.layer.padding_mode
        return F.pad(seen, _padding(self.layer), mode="constant" if mode == "zeros" else mode)

    def _positions(self, seen: Tensor) -> tuple[int, ...]:
        if isinstance(self.layer, nn.Linear):
            return tuple(seen.shape[1:-1])
        axes = zip(seen.shape[2:], _spans(self.layer), self.layer.stride, strict=True)
        return tuple((size - span) // step + 1 for size, span, step in axes)

    def _features(self, seen: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Conv2d):
            conv = self.layer
            fields = F.unfold(seen, conv.kernel_size, conv.dilation, stride=conv.stride)
            if conv.groups > 1:  # channel after channel, so a group is a stretch of rows
                fields = fields.reshape(len(seen), conv.groups, -1, fields.shape[-1])
            seen = fields.transpose(-1, -2)
        return unit_length(seen) if self.unit else seen


def _spans(conv: nn.Conv2d) -> list[int]:
    """How far a receptive field reaches along height and width."""
    return [d * (size - 1) + 1 for d, size in zip(conv.dilation, conv.kernel_size, strict=True)]


def _padding(conv: nn.Conv2d) -> list[int]:
    """Padding in the order of ``F.pad``: left, right, top, bottom."""
    padding = []
    for axis, span in reversed(list(enumerate(_spans(conv)))):
        if conv.padding == "same":  # an even kernel gets the odd row at the end
            before = (span - 1) // 2
            padding += [before, span - 1 - before]
        else:
            padding += [0 if conv.padding == "valid" else int(conv.padding[axis])] * 2
    return padding


def _no_input(wanted: str, seen: Tensor) -> TaskError:
    return TaskError(
        f"this layer takes {wanted}, but gets {list(seen.shape)}; the activation must be all that "
        "stands between the inputs and the layer, pooling and flattening included"
    )
