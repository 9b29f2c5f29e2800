"""What each choice of statistics means behind a front whose features have another scale."""

import pytest
import torch
from torch import nn

from dovetail.parts.contract import Contract, Port
from dovetail.parts.joining import join
from dovetail.parts.part import Part


def scaled_front(factor):
    """The input as features, on the scale that another network may have."""
    layer = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(factor * torch.eye(3))
    return Part(layer, Contract((Port((3,)),), (Port((3,), space="s"),)))


@pytest.mark.parametrize(
    ("norms", "right"), [("stored", False), ("batch", True), ("recalibrated", True)]
)
def test_only_stored_statistics_mind_the_scale(norms, right):
    """The norm stores the statistics of features of scale one, as if trained on them."""
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    head = Part(module, Contract((Port((3,), space="s"),), (Port((2,)),)))
    x = torch.randn(256, 3)
    data = x if norms == "recalibrated" else None
    small, large = (
        join(front, head, norms=norms, data=None if data is None else [data]).module.eval()
        for front in (scaled_front(1.0), scaled_front(20.0))
    )
    difference = (small(x) - large(x)).abs().max().item()
    assert difference < 1e-2 if right else difference > 5
