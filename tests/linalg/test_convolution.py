"""Second derivatives of convolutions, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.linalg.convolution import TwiceDifferentiable


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 4, 3), (2, 3, 7, 6)),
        (
            nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), groups=2),
            (2, 4, 9, 8),
        ),
        (nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 5, 5)),
        (nn.Conv1d(2, 3, 3, padding=1), (2, 2, 8)),
        (nn.Conv3d(1, 2, 2), (1, 1, 4, 4, 4)),
        (nn.Conv2d(2, 3, 3, padding="same"), (2, 2, 5, 5)),
    ],
    ids=["plain", "everything", "depthwise", "line", "volume", "same"],
)
@pytest.mark.parametrize("inputs", [False, True], ids=["weights", "inputs too"])
def test_a_product_with_the_hessian_is_torchs(layer, shape, inputs):
    layer = layer.double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=inputs)
    leaves = [*layer.parameters(), *([x] if inputs else [])]
    directions = [torch.randn_like(leaf) for leaf in leaves]
    found = []
    for ours in (True, False):
        if ours:
            with TwiceDifferentiable():
                y = layer(x)
        else:
            y = layer(x)
        slopes = torch.autograd.grad(y.sigmoid().square().sum(), leaves, create_graph=True)
        moved = torch.autograd.grad(slopes, leaves, directions)
        found.append([y.detach(), *(s.detach() for s in slopes), *moved])
    torch.testing.assert_close(found[0], found[1])


def test_what_is_no_convolution_is_left_alone():
    with TwiceDifferentiable():
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
