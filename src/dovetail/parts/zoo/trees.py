r"""Boosted decision trees as a module: what gradient boosting fitted, as tensors that can travel.

A tree is a table of nodes.  At node :math:`j` an input :math:`x` goes to ``left[j]`` if
:math:`x_{f_j} \le \tau_j`, else to ``right[j]``; a leaf leads to itself and holds a value.  With
:math:`v_t(x)` the value that tree :math:`t` ends in, output :math:`k` of :math:`K` is

.. math:: z_k(x) = b_k + \sum_{t \equiv k \pmod K} v_t(x) .

Everything is a buffer: nothing here is trained, and no code is read from a file.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dovetail.core.errors import RecipeError
from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import positive


class Trees(nn.Module):
    """Vectors ``[n, d]`` to ``[n, k]``: sums over trees, the t-th of which is for output t mod k.

    ``pair`` is for two classes, which boosting tells by one number :math:`z`: it gives ``[0, z]``.
    Thresholds and sums are of float64, as they were fitted; what comes out is float32.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    base: Tensor

    def __init__(self, *, trees: int, nodes: int, depth: int, outputs: int, pair: bool) -> None:
        super().__init__()
        self.depth, self.outputs, self.pair = depth, outputs, pair
        for name in ("feature", "left", "right"):
            self.register_buffer(name, torch.zeros(trees, nodes, dtype=torch.int64))
        for name in ("threshold", "value"):
            self.register_buffer(name, torch.zeros(trees, nodes, dtype=torch.float64))
        self.register_buffer("base", torch.zeros(outputs, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Where each input ends in each tree, a level at a time."""
        columns = x.double().T  # [d, n]
        at = torch.zeros(len(self.feature), len(x), dtype=torch.int64, device=x.device)  # [t, n]
        for _ in range(self.depth):
            feature_values = columns.gather(0, self.feature.gather(1, at))
            goes_left = feature_values <= self.threshold.gather(1, at)
            at = torch.where(goes_left, self.left.gather(1, at), self.right.gather(1, at))
        values = self.value.gather(1, at).reshape(-1, self.outputs, len(x))
        sums = (values.sum(0) + self.base[:, None]).T
        if self.pair:
            sums = torch.cat([torch.zeros_like(sums), sums], 1)
        return sums.float()

    def extra_repr(self) -> str:
        """How many, and of which size: trees of other numbers are another network."""
        trees, nodes = self.feature.shape
        return f"{trees} trees of {nodes} nodes, depth {self.depth}, pair={self.pair}"


@builder("boosted-trees", takes=lambda inputs: (inputs,))
def boosted_trees(
    *,
    inputs: int = 4,
    outputs: int = 1,
    trees: int = 1,
    nodes: int = 3,
    depth: int = 1,
    pair: bool = False,
) -> nn.Module:
    """``trees`` of at most ``nodes`` nodes and ``depth`` levels on vectors of ``inputs`` numbers.

    >>> boosted_trees(inputs=4, trees=2)(torch.rand(3, 4)).shape
    torch.Size([3, 1])
    """
    positive("boosted-trees", inputs=inputs, outputs=outputs, trees=trees, nodes=nodes)
    if trees % outputs or not 0 <= depth < nodes or (pair and outputs != 1):
        raise RecipeError(
            f"builder 'boosted-trees': no {trees} trees of {nodes} nodes and {depth} levels give "
            f"{outputs} outputs"
        )
    return nn.Sequential(Trees(trees=trees, nodes=nodes, depth=depth, outputs=outputs, pair=pair))
