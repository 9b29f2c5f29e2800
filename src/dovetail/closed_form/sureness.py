r"""How sure a network of least squares is: the temperature of its scores, found while it is fitted.

Scores of least squares are near 0 and 1 where they are right, so their softmax is near even: the
scale is missing.  It is the temperature :math:`T` of the least log loss of
:math:`\operatorname{softmax}(s / T)` over scores of rows that were left out.

- The scores a head would give a row if it were fitted without it need no second fit
  (:meth:`~dovetail.closed_form.platonic.Platonic.left_out`), and of some thousand rows are enough.
- Behind several hidden layers that is not the whole truth, because the labels of all rows shaped
  the layers.  Of many rows none matters much; of few (:data:`FEW`) a fifth is held out instead, and
  a second network is fitted to the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dovetail.closed_form.batches import reblocked
from dovetail.closed_form.platonic import Platonic
from dovetail.closed_form.rows import BLOCK, Block, Chained, HeldRows, Rows, one_in
from dovetail.dist.group import merge_across
from dovetail.measure.estimators import temperature_of

ENOUGH = 5000
"""So many rows say how sure a network is."""
FEW = BLOCK
"""Rows that are in memory at once anyway."""
HELD_OUT = 5
"""One row in so many is not fitted."""


def temperature_while_fitting(
    network: Platonic, rows: Rows, again: Callable[[Rows], Platonic]
) -> float:
    """The temperature of a classifier's scores.

    Args:
        network: Fitted to the rows.
        rows: Inputs, and columns of classes: of 0 and 1, or one of -1 and 1.
        again: What fits the same network to other rows.
    """
    k, count = network.moments.k, network.moments.rows
    widest = max((layer.weights.shape[1] for layer in network.layers), default=0)
    few = not rows.shared and count <= FEW and widest <= count - count // HELD_OUT
    if len(network.layers) > 1 and few and count >= HELD_OUT:
        (all_rows,) = reblocked(rows.blocks(), FEW)
        held_out = one_in(HELD_OUT, 0, count).to(all_rows.z.device)
        judged = all_rows.take(held_out)
        scored = [_beside(again(HeldRows(*all_rows.take(~held_out)))(judged.z), judged)]
    else:
        step, seen = max(1, count // ENOUGH), 0
        scored = [network.head.bias.new_empty(0, 2 * k + 1)]
        for block in rows.blocks():
            some = block.take(one_in(step, seen, len(block.z)).to(block.z.device))
            seen += len(block.z)
            scored.append(_beside(network.left_out(some), some))
    table = torch.cat(scored)
    if rows.shared:
        table = merge_across(Chained(table)).tensor
    scores, wanted, weights = table[:, :k], table[:, k : 2 * k], table[:, 2 * k]
    if k == 1:
        scores, wanted = (torch.cat([-each / 2, each / 2], dim=1) for each in (scores, wanted))
    return temperature_of(scores, wanted.argmax(1), weights)


def _beside(scores: Tensor, rows: Block) -> Tensor:
    """Scores, targets and weights side by side, ``[m, 2 k + 1]``."""
    weights = scores.new_ones(len(scores)) if rows.weights is None else rows.weights
    return torch.cat([scores, rows.y, weights[:, None]], dim=1)
