"""Layers of low rank: the best there are, and a module with as many weights as they need."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.closed_form.layers import Layer
from dovetail.closed_form.low_rank import cut_to_rank, factored
from dovetail.closed_form.platonic import platonic
from dovetail.closed_form.rows import HeldRows, moments_of
from dovetail.core.errors import SettingsError
from dovetail.core.seeds import generator


def drawn(seed, *shape):
    return torch.randn(*shape, generator=generator(seed, *shape), dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 7), st.integers(1, 8), st.booleans())
def test_what_enters_the_activation_is_the_best_of_its_rank(seed, d, width, rank, weighed):
    z = drawn(seed, 30, d) * torch.arange(1, d + 1) + 3.0
    heavy = torch.arange(30).double() % 4 if weighed else None
    rows = HeldRows(z, z[:, :1], heavy)
    layer = Layer(drawn(seed, d, width), drawn(seed, width), torch.relu)
    found = cut_to_rank(layer, moments_of(rows), rank)

    share = np.ones(30) if heavy is None else heavy.numpy()
    centred = z.numpy() - np.average(z.numpy(), axis=0, weights=share)
    wanted = np.sqrt(share)[:, None] * centred @ layer.weights.numpy()
    u, s, vh = np.linalg.svd(wanted, full_matrices=False)
    best = (u[:, :rank] * s[:rank]) @ vh[:rank]
    got = np.sqrt(share)[:, None] * centred @ found.weights.numpy()
    np.testing.assert_allclose(got, best, atol=1e-9 * (1 + s[0]))
    means = [
        np.average((z @ each.weights + each.bias).numpy(), axis=0, weights=share)
        for each in (layer, found)
    ]
    np.testing.assert_allclose(*means, atol=1e-9 * (1 + s[0]))


def test_a_network_of_low_rank_as_a_module():
    x = drawn(0, 300, 20)
    y = (x[:, :1] * x[:, 1:2]).sign()
    whole = platonic(HeldRows(x, y), (40, 30))
    net = platonic(HeldRows(x, y), (40, 30), rank=5)
    assert [int(torch.linalg.matrix_rank(each.weights)) for each in net.layers] == [5, 5]
    module = factored([*net.layers, net.head])
    torch.testing.assert_close(module(x), net(x), atol=1e-9, rtol=0)
    torch.testing.assert_close(factored([*whole.layers, whole.head])(x), whole(x))
    numbers = sum(p.numel() for p in module.parameters())
    assert numbers == 5 * (20 + 40) + 40 + 5 * (40 + 30) + 30 + 31
    assert not any(p.requires_grad for p in module.parameters())


def test_a_rank_that_cuts_nothing_changes_nothing():
    x = drawn(1, 50, 4)
    rows = HeldRows(x, x[:, :1].sin())
    one, other = (platonic(rows, (6, 5), rank=rank) for rank in (None, 6))
    assert torch.equal(one(x), other(x))


def test_one_that_never_answers_is_one_number_wide():
    silent = Layer(torch.zeros(4, 3).double(), torch.ones(3).double(), torch.relu)
    module = factored([silent])
    assert torch.equal(module(drawn(2, 5, 4)), torch.ones(5, 3).double())


def test_what_cannot_be_is_refused():
    rows = HeldRows(drawn(3, 9, 2), drawn(3, 9, 1))
    with pytest.raises(SettingsError, match="rank is one or more"):
        platonic(rows, (4,), rank=0)
