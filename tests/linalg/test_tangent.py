"""Tangent features against the dense Jacobian in float64."""

from __future__ import annotations

import pytest
import torch
from references.gram import jacobian
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, SettingsError
from dovetail.linalg.parameters import by_layer
from dovetail.linalg.tangent import TangentFeatures


class Words(nn.Module):
    """A table read at three places, one layer used twice."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 5)
        self.inner = nn.Linear(5, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, tokens):
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(self.table(tokens))))).sum(1))


def made(kind):
    torch.manual_seed(3)
    if kind == "words":
        return Words().double(), torch.randint(7, (6, 3))
    if kind == "mlp":
        net = nn.Sequential(nn.Linear(4, 9), nn.ELU(), nn.Linear(9, 3))
        return net.double(), torch.randn(6, 4).double()
    if kind == "grouped":
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 2)
        )
        return net.double(), torch.randn(6, 2, 7, 7).double()
    net = dt.build("lenet5", size=12, classes=3) if kind == "lenet" else dt.build("resnet8")
    size = (1, 12, 12) if kind == "lenet" else (3, 8, 8)
    return net.module.double(), torch.rand(6, *size).double()


@pytest.mark.parametrize("kind", ["mlp", "lenet", "grouped", "resnet", "words"])
@pytest.mark.parametrize("block", [None, 4])
def test_everything_follows_from_the_jacobian(kind, block):
    model, x = made(kind)
    j = jacobian(model, x)
    n, o, p = j.shape
    features = TangentFeatures(model, x, block=block)
    assert (len(features), features.width, features.size) == (n, o, p)
    w, u = torch.randn(p).double(), torch.randn(n, o).double()
    torch.testing.assert_close(features.push(w), j @ w, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        features.pull(u), torch.einsum("no,nop->p", u, j), rtol=1e-10, atol=1e-10
    )
    torch.testing.assert_close(features.own(), j @ j.transpose(1, 2), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.cat(list(features.rows())), j, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("outputs", ["full", "diagonal"])
def test_groups_and_scales_weigh_the_parameters(outputs):
    model, x = made("lenet")
    features, others = TangentFeatures(model, x), TangentFeatures(model, x[:4])
    groups = by_layer(features.names)
    grams = features.grams(groups, others, outputs=outputs)
    assert list(grams) == ["conv1", "conv2", "fc1", "fc2", "head"] or len(grams) == 5
    sizes = [0.5, 2.0, 3.0, 1.0, 0.25]
    names = features.names
    scales = {
        name: s for s, members in zip(sizes, groups.values(), strict=True) for name in members
    }
    by_hand = sum(s * gram for s, gram in zip(sizes, grams.values(), strict=True))
    found = features.gram(others, outputs=outputs, scales=scales)
    torch.testing.assert_close(found, by_hand, rtol=1e-12, atol=1e-12)
    j = jacobian(model, x)
    counts = [features.shapes[name].numel() for name in names]
    weights = torch.cat(
        [torch.full((c,), scales[n]).double() for c, n in zip(counts, names, strict=True)]
    )
    exact = torch.einsum("icp,p,jdp->icjd", j, weights, j[:4])
    if outputs == "diagonal":
        exact = torch.einsum("icjc->ijc", exact)
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    own = torch.einsum("icp,p,idp->icd", j, weights, j)
    torch.testing.assert_close(features.own(scales), own, rtol=1e-10, atol=1e-10)


def test_a_bias_may_be_scaled_apart_from_its_matrix():
    model, x = made("mlp")
    features = TangentFeatures(model, x)
    names = {"0.bias", "2.bias"}
    whole = features.gram(scales=dict.fromkeys(names, 0.0))
    j = jacobian(model, x, names={"0.weight", "2.weight"})
    torch.testing.assert_close(whole, torch.einsum("icp,jdp->icjd", j, j), rtol=1e-10, atol=1e-10)


def test_products_in_float32_are_good_for_six_digits():
    model, x = made("lenet")
    features = TangentFeatures(model, x)
    w, u = torch.randn(features.size).double(), torch.randn(6, 3).double()
    for fast, exact in (
        (features.push(w, torch.float32), features.push(w)),
        (features.pull(u, torch.float32), features.pull(u)),
    ):
        assert fast.dtype == torch.float64
        assert (fast - exact).norm() <= 1e-5 * exact.norm()


def test_kept_or_computed_again_it_is_the_same():
    model, x = made("lenet")
    once, often = TangentFeatures(model, x), TangentFeatures(model, x, block=2, memory=0)
    torch.testing.assert_close(once.gram(), often.gram(), rtol=1e-12, atol=1e-12)


def test_what_does_not_fit_is_refused():
    model, x = made("mlp")
    features = TangentFeatures(model, x)
    with pytest.raises(SettingsError, match=r"shape \[\d+\]"):
        features.push(torch.ones(3))
    with pytest.raises(SettingsError, match="one number for each output"):
        features.pull(torch.ones(5, 3))
    other = TangentFeatures(nn.Linear(4, 2).double(), x)
    with pytest.raises(ContractError, match="3 and 2 outputs"):
        features.gram(other)
    with pytest.raises(SettingsError, match="full"):
        features.gram(outputs="half")
