"""Errors carried along rows: the bins of a slow loop, and sums that stay right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.packing_quality import carried_by_loops

from dovetail.pack.carrying import carried, carries
from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress
from dovetail.pack.quality import smallest_within


def packed(tensor, bits):
    return decompress(compress({"w": tensor}, bits={"w": bits}))["w"]


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 6),
    columns=st.integers(2, 40),
    bits=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_the_container_has_the_centres_of_a_slow_loop(rows, columns, bits, seed):
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, columns, generator=draw, dtype=torch.float64)
    back = packed(carried(weights, bits), bits)
    expected = torch.tensor(carried_by_loops(weights.tolist(), bits), dtype=torch.float64)
    torch.testing.assert_close(back, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(8, 50), (8, 5, 3, 3)])
def test_sums_along_a_row_are_off_by_half_a_bin_at_most(dtype, shape):
    weights = (0.2 * torch.rand(shape)).to(dtype)
    weights.view(8, -1)[0, :2] = torch.tensor([-1.0, 1.0], dtype=dtype)
    back = packed(carried(weights, 4), 4)
    sums = (back - weights).double().reshape(8, -1).cumsum(1)[1:]
    tiny = 60 * torch.finfo(dtype).eps
    assert sums.abs().max() <= (2 / 16) / 2 + tiny
    nearest = (packed(weights, 4) - weights).double().reshape(8, -1).cumsum(1)[1:]
    assert nearest.abs().max() > (2 / 16)


def test_inputs_that_change_slowly_see_little_of_the_rounding():
    weights = torch.randn(40, 400)
    smooth = torch.randn(400, 200).cumsum(0)
    unrelated = torch.randn(400, 200)

    def error(back, inputs):
        return float(((back - weights) @ inputs).square().mean().sqrt())

    on, nearest = packed(carried(weights, 4), 4), packed(weights, 4)
    assert error(on, smooth) < 0.2 * error(nearest, smooth)
    worse = error(on, unrelated) / error(nearest, unrelated)
    assert worse == pytest.approx(np.sqrt(2), rel=0.05)


def test_what_is_given_stays_as_it_is_and_the_range_is_kept():
    weights = torch.randn(20, 30)
    before = weights.clone()
    new = carried(weights, 3)
    assert torch.equal(weights, before)
    assert (new.min(), new.max()) == (weights.min(), weights.max())
    assert new.unique().numel() <= 2**3 + 2


def test_weights_at_the_ends_do_not_run_up_a_debt():
    weights = torch.cat([torch.ones(1, 50), -torch.ones(1, 50)])
    back = packed(carried(weights, 2), 2)
    assert torch.equal(back, 0.75 * weights)


def test_which_tensors_have_rows():
    assert carries(torch.zeros(4, 2, 3))
    assert not carries(torch.zeros(10))
    assert not carries(torch.zeros(4, 1))
    assert not carries(torch.zeros(1, 70_000))


def test_the_search_carries_where_that_is_better_and_only_there():
    state = {"pixels": torch.randn(20, 100), "units": torch.randn(20, 100)}
    smooth, unrelated = torch.randn(100, 300).cumsum(0), 8 * torch.randn(100, 300)

    def losses(new):
        moved = {name: new[name] - state[name] for name in state}
        return ((moved["pixels"] @ smooth).square() + (moved["units"] @ unrelated).square()).mean(0)

    chosen = smallest_within(state, losses, 5.0)
    assert [(t.name, t.carried) for t in chosen.record.tensors] == [
        ("pixels", True),
        ("units", False),
    ]
    assert float(losses(decompress(chosen.data)).mean()) == pytest.approx(chosen.loss, rel=1e-6)
    nearest = smallest_within(state, losses, 5.0, carry=False)
    assert not any(t.carried for t in nearest.record.tensors)
    assert len(chosen.data) < 0.9 * len(nearest.data)
    rows = smallest_within(state, losses, 5.0, channels=True)
    assert not any(t.carried for t in rows.record.tensors)
