"""The quantiser against one that takes a number at a time, and at the edges of arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import packing as reference
from references.packing_quality import rounded_by_loops

import dovetail as dt
from dovetail.measure.forward import outputs_of
from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress
from dovetail.pack.packed import describe
from dovetail.pack.quality import smallest_within
from dovetail.pack.quantise import MOST_LEVELS, Grid, divisible, finest, low_and_high
from dovetail.pack.rounding import PRICE, carries, rounded
from dovetail.pack.rules import entropy

KINDS = {torch.float64: 1e-9, torch.float32: 4e-3, torch.float16: 4e-3, torch.bfloat16: 4e-3}


def grid_of(tensor, levels):
    low, high = low_and_high(tensor[None])
    return Grid(levels, low, high)


def as_rows(tensor):
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()[None]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pruned(*shape, share=0.9, seed=0):
    weights = normal(*shape, seed=seed)
    gone = torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1)) < share
    return weights.masked_fill(gone, 0.0)


def packed(tensor, **settings):
    return decompress(compress({"w": tensor}, smallest=0, **settings))["w"]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize("levels", [2, 3, 8, 23, 256, 300, 1000])
def test_symbols_and_values_are_the_reference(dtype, levels, offset):
    weights = (normal(200, seed=levels) + offset).to(dtype)
    grid = grid_of(weights, levels)
    low, high = weights.double().min().item(), weights.double().max().item()
    wanted, margins = reference.quantised(weights.double().tolist(), low, high, levels)
    found = grid.symbols(as_rows(weights))[0]
    clear = np.array(margins) > KINDS[dtype]  # at the very middle of two, rounding may decide
    coarse = offset and dtype in (torch.float16, torch.bfloat16)  # few numbers, many in the middle
    assert clear.mean() > (0.2 if coarse else 0.9)
    assert (found[clear] == np.array(wanted)[clear]).all()
    assert (abs(found.astype(int) - wanted) <= 1).all()
    values = np.array(reference.levels_of(low, high, levels))[found]
    step = (high - low) / (levels - 1)
    np.testing.assert_allclose(grid.values(found[None])[0], values, atol=1e-2 * step)


# Zero is a level ----------------------------------------------------------------------------------


@given(
    weights=st.lists(
        st.one_of(st.just(0.0), st.just(-0.0), st.floats(-3e4, 3e4, width=16)),
        min_size=1,
        max_size=40,
    ),
    scale=st.integers(-100, 100),
    levels=st.integers(2, 70_000).map(lambda levels: min(levels, MOST_LEVELS)),
    dtype=st.sampled_from([*KINDS]),
    rows=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_zeros_stay_zeros_bit_by_bit(weights, scale, levels, dtype, rows):
    narrow = dtype == torch.float16
    tensor = torch.tensor(weights, dtype=torch.float64) * 2.0 ** (0 if narrow else scale)
    tensor = tensor.to(dtype).reshape(1, -1)
    tensor = torch.cat([tensor, tensor * 0.25]).repeat(1, 16) if rows else tensor
    back = packed(tensor, levels={"w": levels}, channels=rows)
    zeros = back[tensor == 0]
    assert (zeros == 0).all()
    assert not zeros.signbit().any()  # also where it was -0.0
    assert back.isfinite().all()


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("levels", [2, 3, 8, 23, 512])
def test_a_pruned_tensor_stays_pruned_however_it_is_rounded(levels, channels, carry):
    weights = pruned(40, 50)
    back = packed(
        rounded(weights, levels, channels=channels, carry=carry), levels=levels, channels=channels
    )
    assert (back[weights == 0] == 0).all()
    plain = packed(weights, levels=levels, channels=channels)
    assert (plain[weights == 0] == 0).all()


def test_a_pruned_network_in_three_bits_still_sees():
    """Digits, 90 % of the weights cut away and the rest trained on: no zero may become a weight."""
    task = dt.load_task("digits")
    part = dt.build("mlp", shape=(1, 8, 8), hidden=(64,), classes=10, seed=0)
    part = dt.train.end_to_end(part, task, epochs=6, lr=0.05, seed=0).part
    state = part.module.state_dict()
    for name, tensor in state.items():
        if tensor.ndim > 1:
            cut = tensor.abs().flatten().kthvalue(int(0.8 * tensor.numel())).values
            state[name] = tensor.masked_fill(tensor.abs() <= cut, 0.0)
    inputs, _ = task.subset("test")

    def said(weights):
        part.module.load_state_dict(weights)
        return outputs_of(part, inputs).argmax(1)

    before, back = said(state), decompress(compress(state, bits=3))
    for name, tensor in state.items():
        assert (back[name][tensor == 0] == 0).all()
    assert float((said(back) == before).double().mean()) > 0.9


def test_dense_weights_lose_no_more_than_in_the_middles_of_bins():
    """At the same entropy: a grid that passes through zero costs a dense tensor nothing."""
    weights = normal(400, 500).numpy().reshape(1, -1)
    low, high = weights.min(1), weights.max(1)
    for levels in (16, 64, 512):
        grid = Grid(levels, low, high)
        symbols = grid.symbols(weights)
        error = np.square(grid.values(symbols).astype(float) - weights).mean()
        bins = levels - 1  # the same step
        old = np.minimum(((weights - low) / (high - low) * bins).astype(int), bins - 1)
        middles = low + (old + 0.5) * (high - low) / bins
        assert error <= 1.01 * np.square(middles - weights).mean()
        assert entropy(np.bincount(symbols[0])) <= 1.002 * entropy(np.bincount(old[0]))


@given(st.integers(0, 10**6), st.integers(2, 3000), st.floats(-30, 30), st.sampled_from([0, 3, 90]))
@settings(max_examples=60, deadline=None)
def test_packing_again_changes_nothing(seed, levels, exponent, offset):
    weights = (normal(300, seed=seed).double() + offset) * 10**exponent
    for dtype in (torch.float32, torch.float64):
        tensor = weights.to(dtype)
        few = min(levels, max(2, finest(dtype, *low_and_high(tensor[None])) // 4))
        grid = grid_of(tensor, few)
        symbols = grid.symbols(as_rows(tensor))
        values = grid.values(symbols).astype(tensor.numpy().dtype)
        assert (grid.symbols(values) == symbols).all()
        assert symbols.min() == 0
        assert symbols.max() == few - 1
        step = float(grid.high[0] - grid.low[0]) / (few - 1)
        assert abs(values - as_rows(tensor)).max() <= 0.51 * step
        again = grid_of(torch.from_numpy(values[0]), few)
        assert (again.symbols(values) == symbols).all()
        np.testing.assert_allclose(again.values(symbols), values, atol=0.02 * step)


def test_what_is_all_above_zero_counts_from_the_smallest():
    for weights in (normal(30, 40).abs() + 5, -normal(30, 40).abs() - 5):
        back = packed(weights, levels=9)
        assert back.min() == weights.min()
        assert float(back.max()) == pytest.approx(float(weights.max()), rel=1e-6)
        assert back.unique().numel() == 9
        assert (back.sign() == weights.sign()).all()


@pytest.mark.parametrize("value", [0.0, -0.0, 3.0, -1e-30, 1e30])
def test_what_is_constant_comes_back(value):
    back = packed(torch.full((20, 20), value), levels=5)
    assert torch.equal(back, torch.full((20, 20), value))


@pytest.mark.parametrize("elements", [1, 2, 3])
def test_a_few_numbers(elements):
    weights = torch.tensor([-1.0, 0.0, 2.0])[:elements]
    assert torch.equal(packed(weights, levels={"w": 4}), weights)


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        ([-3e38, 0.0, 1e38, 3e38], torch.float32),  # wider than float32 can say
        ([0.0, 1e-45, 3e-45, 7e-45], torch.float32),  # a few subnormal numbers
        ([1e-39, 2e-39, 5e-39, 9e-39], torch.float32),
        ([-3e38, 0.0, 3e38], torch.bfloat16),
        ([-1e300, 0.0, 1e300], torch.float64),
    ],
)
def test_ranges_at_the_edge_of_a_dtype(weights, dtype):
    tensor = torch.tensor(weights, dtype=torch.float64).to(dtype)
    low, high = low_and_high(tensor[None])
    assert divisible(low, high)
    grid = Grid(min(256, finest(dtype, low, high)), low, high)
    symbols = grid.symbols(as_rows(tensor))
    values = grid.values(symbols).astype(np.float64)[0]
    step = (float(high[0]) - float(low[0])) / (grid.levels - 1)
    assert np.isfinite(values).all()
    assert abs(values - tensor.double().numpy()).max() <= 0.51 * step


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_what_has_levels_beyond_its_dtype_is_kept_exactly(dtype):
    most = torch.finfo(dtype).max
    weights = torch.tensor([-most, most / 3, 0.0, most], dtype=torch.float64).to(dtype)
    assert torch.equal(packed(weights, levels={"w": 4}), weights)
    assert packed(weights, levels={"w": 3}).isfinite().all()


def test_ranges_beyond_float64_are_not_divided():
    assert not divisible(np.float64([-1.7e308]), np.float64([1.7e308]))
    assert not divisible(np.float64([0.0]), np.float64([5e-324]))
    assert divisible(np.float64([5e-324]), np.float64([5e-324]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_no_more_levels_than_a_dtype_has_numbers(dtype):
    apart = torch.finfo(dtype).eps
    some = torch.tensor([1 + i * apart for i in range(6)], dtype=torch.float64).to(dtype)
    low, high = low_and_high(some[None])
    levels = finest(dtype, low, high)
    assert levels == 6
    grid = Grid(levels, low, high)
    assert (torch.from_numpy(grid.values(grid.symbols(as_rows(some)))).to(dtype)[0] == some).all()


def test_every_row_has_its_own_range_and_may_be_constant():
    rows = torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0], [-100.0, 0.0, 100.0]])
    grid = Grid(3, *low_and_high(rows))
    symbols = grid.symbols(rows.numpy())
    assert symbols.tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 2]]
    assert np.array_equal(grid.values(symbols), rows.numpy())
    assert (grid.symbols(rows.numpy()[1:], slice(1, 3)) == symbols[1:]).all()


# Rounding by price, and carrying ------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 6),
    columns=st.integers(2, 40),
    levels=st.integers(2, 70),
    carry=st.booleans(),
    price=st.sampled_from([0.0, PRICE]),
    seed=st.integers(0, 1000),
)
def test_the_container_has_the_levels_of_a_slow_loop(rows, columns, levels, carry, price, seed):
    weights = pruned(rows, columns, share=0.2, seed=seed).double() + 1e-3
    weights[weights == 1e-3] = 0.0
    weights[0, :2] = torch.tensor([-1.5, 1.2])
    found = rounded(weights, levels, carry=carry, price=price)
    back = packed(found, levels={"w": levels})
    wanted = rounded_by_loops(weights.tolist(), levels, carry=carry, price=price)
    expected = torch.tensor(wanted, dtype=torch.float64)
    for end in (weights.argmin(), weights.argmax()):  # they stay, so that the range does
        expected.view(-1)[end] = packed(weights, levels={"w": levels}).view(-1)[end]
    torch.testing.assert_close(back, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("levels", [3, 5, 9, 17])
def test_a_price_saves_bits_for_the_same_distance(levels):
    """Against nearest levels at several steps, on the line between those around its entropy."""
    weights = normal(300, 400)

    def point(tensor, many):
        data = compress({"w": tensor}, levels=many)
        far = float((decompress(data)["w"] - weights).square().mean())
        return describe(data).tensors[0].entropy, np.log(far)

    bits, far = point(rounded(weights, levels), levels)
    others = sorted(point(weights, many) for many in range(2, 40))
    line = np.interp(bits, [b for b, _ in others], [d for _, d in others])
    assert far < line
    assert bits < point(weights, levels)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(8, 50), (8, 5, 3, 3)])
def test_sums_along_a_row_are_off_by_half_a_step_at_most(dtype, shape):
    weights = (0.2 * torch.rand(shape)).to(dtype)
    weights.view(8, -1)[0, :2] = torch.tensor([-1.0, 1.0], dtype=dtype)
    back = packed(rounded(weights, 16, carry=True, price=0.0), levels=16)
    sums = (back - weights).double().reshape(8, -1).cumsum(1)[1:]
    tiny = 60 * torch.finfo(dtype).eps
    assert sums.abs().max() <= (2 / 15) / 2 + tiny
    nearest = (packed(weights, levels=16) - weights).double().reshape(8, -1).cumsum(1)[1:]
    assert nearest.abs().max() > (2 / 15)


def test_inputs_that_change_slowly_see_little_of_the_rounding():
    weights = normal(40, 400)
    smooth = normal(400, 200, seed=1).cumsum(0)
    unrelated = normal(400, 200, seed=2)

    def error(back, inputs):
        return float(((back - weights) @ inputs).square().mean().sqrt())

    on = packed(rounded(weights, 16, carry=True, price=0.0), levels=16)
    nearest = packed(weights, levels=16)
    assert error(on, smooth) < 0.2 * error(nearest, smooth)
    worse = error(on, unrelated) / error(nearest, unrelated)
    assert worse == pytest.approx(np.sqrt(2), rel=0.05)


@pytest.mark.parametrize("carry", [False, True])
def test_what_is_given_stays_as_it_is_and_the_range_is_kept(carry):
    weights = normal(20, 30)
    before = weights.clone()
    new = rounded(weights, 8, carry=carry)
    assert torch.equal(weights, before)
    assert (new.min(), new.max()) == (weights.min(), weights.max())
    assert new.unique().numel() <= 8 + 2


def test_weights_at_the_ends_do_not_run_up_a_debt():
    weights = torch.cat([torch.ones(1, 50), -torch.ones(1, 50)])
    assert torch.equal(packed(rounded(weights, 3, carry=True), levels=3), weights)


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
    assert rows.record.tensors[0].carried
