"""The quantiser against one that takes a number at a time, and at the edges of arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import packing as reference
from references.packing_quality import carried_by_loops

from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress
from dovetail.pack.quality import smallest_within
from dovetail.pack.quantise import Grid, carried, carries, divisible, finest, low_and_high

KINDS = {torch.float64: 1e-9, torch.float32: 4e-3, torch.float16: 4e-3, torch.bfloat16: 4e-3}


def grid_of(tensor, bits):
    low, high = low_and_high(tensor[None])
    return Grid(bits, low, high)


def as_rows(tensor):
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()[None]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("bits", [1, 3, 8, 9, 16])
def test_symbols_and_centres_are_the_reference(dtype, bits):
    weights = torch.randn(500, generator=torch.Generator().manual_seed(bits)).to(dtype)
    grid = grid_of(weights, bits)
    low, high = weights.double().min().item(), weights.double().max().item()
    wanted, margins = reference.quantised(weights.double().tolist(), low, high, bits)
    found = grid.symbols(as_rows(weights))[0]
    clear = np.array(margins) > KINDS[dtype]  # at the very edge of a bin rounding may decide
    assert clear.mean() > 0.9
    assert (found[clear] == np.array(wanted)[clear]).all()
    assert (abs(found.astype(int) - wanted) <= 1).all()
    step = (high - low) / 2**bits
    centres = np.array(reference.centres(found.tolist(), low, high, bits))
    np.testing.assert_allclose(grid.centres(found[None])[0], centres, atol=1e-2 * step)


@given(st.integers(0, 10**6), st.integers(1, 16), st.floats(-30, 30), st.sampled_from([0, 3, 300]))
@settings(max_examples=60, deadline=None)
def test_centres_fall_into_their_own_bins(seed, bits, exponent, offset):
    draw = torch.Generator().manual_seed(seed)
    weights = (torch.randn(300, generator=draw, dtype=torch.float64) + offset) * 10**exponent
    for dtype in (torch.float32, torch.float64):
        tensor = weights.to(dtype)
        grid = grid_of(tensor, min(bits, finest(dtype, *low_and_high(tensor[None])) - 2))
        symbols = grid.symbols(as_rows(tensor))
        centres = grid.centres(symbols)
        assert (grid.symbols(centres.astype(tensor.numpy().dtype)) == symbols).all()
        step = float(grid.high[0] - grid.low[0]) / 2**grid.bits
        assert abs(centres - as_rows(tensor)).max() <= 0.51 * step


def test_the_ends_are_in_the_first_and_the_last_bin():
    for seed in range(200):
        weights = torch.rand(7, generator=torch.Generator().manual_seed(seed)) * 3 - 1
        for bits in (1, 8, 11, 16):
            symbols = grid_of(weights, bits).symbols(as_rows(weights))[0]
            assert symbols[weights.argmin()] == 0
            assert symbols[weights.argmax()] == 2**bits - 1


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        ([-3e38, 0.0, 1e38, 3e38], torch.float32),  # wider than float32 can say
        ([0.0, 1e-45, 3e-45, 7e-45], torch.float32),  # a few subnormal numbers
        ([1e-39, 2e-39, 5e-39, 9e-39], torch.float32),
        ([-65504.0, 0.0, 65504.0], torch.float16),
        ([-3e38, 0.0, 3e38], torch.bfloat16),
        ([-1e300, 0.0, 1e300], torch.float64),
    ],
)
def test_ranges_at_the_edge_of_a_dtype(weights, dtype):
    tensor = torch.tensor(weights, dtype=torch.float64).to(dtype)
    low, high = low_and_high(tensor[None])
    assert divisible(low, high)
    grid = Grid(min(8, finest(dtype, low, high)), low, high)
    symbols = grid.symbols(as_rows(tensor))
    centres = grid.centres(symbols).astype(np.float64)[0]
    step = (float(high[0]) - float(low[0])) / 2**grid.bits
    assert np.isfinite(centres).all()
    assert abs(centres - tensor.double().numpy()).max() <= 0.51 * step


def test_ranges_beyond_float64_are_not_divided():
    assert not divisible(np.float64([-1.7e308]), np.float64([1.7e308]))
    assert not divisible(np.float64([0.0]), np.float64([5e-324]))
    assert divisible(np.float64([5e-324]), np.float64([5e-324]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_no_more_bits_than_a_dtype_has_numbers(dtype):
    apart = torch.finfo(dtype).eps
    some = torch.tensor([1 + i * apart for i in range(6)], dtype=torch.float64).to(dtype)
    low, high = low_and_high(some[None])
    bits = finest(dtype, low, high)
    assert bits == 3
    back = torch.from_numpy(
        Grid(bits, low, high).centres(Grid(bits, low, high).symbols(as_rows(some)))
    )
    assert (back.to(dtype)[0] == some).all()


def test_every_row_has_its_own_range_and_may_be_constant():
    rows = torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0], [-100.0, 0.0, 100.0]])
    grid = Grid(2, *low_and_high(rows))
    symbols = grid.symbols(rows.numpy())
    assert symbols.tolist() == [[0, 2, 3], [0, 0, 0], [0, 2, 3]]
    assert grid.centres(symbols)[1].tolist() == [5.0, 5.0, 5.0]
    assert (grid.symbols(rows.numpy()[1:], slice(1, 3)) == symbols[1:]).all()


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
