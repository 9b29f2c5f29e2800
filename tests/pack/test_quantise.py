"""The quantiser against one that takes a number at a time, and at the edges of arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import packing as reference

from dovetail.pack.quantise import Grid, divisible, finest, low_and_high

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
