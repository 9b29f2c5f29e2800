"""Each projection against the formulas of the thesis in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.platonic import evenly_spaced, first_component, layer_for, platonic_components

from dovetail.closed_form.projections import Known, balanced, components, evenly, propose
from dovetail.closed_form.rows import Block, HeldRows, StreamedRows, moments_of
from dovetail.closed_form.solvers import Spectral
from dovetail.core.errors import SettingsError
from dovetail.linalg.moments import Moments


def data(n=80, d=6, classes=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(d, d, generator=draw, dtype=torch.float64)
    z = torch.randn(n, d, generator=draw, dtype=torch.float64).relu() @ mixed + 2
    y = torch.nn.functional.one_hot(z[:, :classes].argmax(1), classes).double()
    return z, y


def known(rows):
    moments = moments_of(rows)
    solved = Spectral.of_rows(rows.z, rows.y, rows.weights, 0.0)
    return Known(rows, moments, solved, moments)


def proposed(by, rows, width, alpha=1.0, beta=1.0, seed=5):
    draw = torch.Generator().manual_seed(seed)
    return propose(by, known(rows), width, torch.relu, alpha, beta, draw)


def assert_close(found, wanted, tolerance=1e-9):
    wanted = torch.as_tensor(wanted)
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= tolerance * max(1.0, float(wanted.abs().max()))


def turned_alike(found, wanted):
    """Components up to their signs."""
    return (wanted * np.sign((wanted * found).sum(0))) - found


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.1, 10.0), (3.0, 0.0)])
def test_random_targets_are_solved_for_without_being_formed(alpha, beta):
    z, y = data()
    drawn = torch.randn(1 + 6 + 3, 4, generator=torch.Generator().manual_seed(5)).double()
    drawn = torch.randn(
        1 + 6 + 3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    wanted = layer_for(z.numpy(), y.numpy(), drawn.numpy(), alpha, beta)
    layer = proposed("random", HeldRows(z, y), 4, alpha, beta)
    assert_close(layer.weights, wanted[1:])
    assert_close(layer.bias, wanted[0])
    drawn[:7] = 0
    wanted = layer_for(z.numpy(), y.numpy(), drawn.numpy(), alpha, beta)
    layer = proposed("labels", HeldRows(z, y), 4, alpha, beta)
    assert_close(layer.weights, wanted[1:])
    assert_close(layer.bias, wanted[0])


def test_elm_is_the_draw_itself():
    z, y = data()
    drawn = torch.randn(7, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    layer = proposed("elm", HeldRows(z, y), 4, 0.5)
    assert torch.equal(layer.weights, 0.5 * drawn[1:])
    assert torch.equal(layer.bias, 0.5 * drawn[0])


@pytest.mark.parametrize("beta", [1e-3, 1.0, 1e3])
def test_platonic_components_are_singular_vectors_whatever_the_label_weight(beta):
    z, y = data()
    found = components(moments_of(HeldRows(z, y)), beta, 8).numpy()  # the ninth never varies
    wanted = platonic_components(z.numpy(), y.numpy(), beta, 8)
    assert abs(turned_alike(found, wanted)).max() < 1e-6
    every = components(moments_of(HeldRows(z, y)), beta, 9)
    assert_close(every.T @ every, torch.eye(9).double(), 1e-9)
    largest = every.gather(0, every.abs().argmax(0, keepdim=True))
    assert bool((largest > 0).all())


def test_heavy_labels_and_deficient_features():
    z, y = data()
    z = torch.cat([z, z[:, :1], torch.full((80, 1), 4.0).double()], 1)
    for beta in (1.0, 1e3):
        found = components(moments_of(HeldRows(z, y)), beta, 8).numpy()
        wanted = platonic_components(z.numpy(), y.numpy(), beta, 8)
        assert abs(turned_alike(found, wanted)).max() < 1e-5
        every = components(moments_of(HeldRows(z, y)), beta, 11)
        assert_close(every.T @ every, torch.eye(11).double(), 1e-9)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.3, 1e5)])
def test_platonic_pca_solves_for_the_centred_target(alpha, beta):
    z, y = data()
    layer = proposed("pca", HeldRows(z, y), 5, alpha, beta)
    balance = np.sqrt(z.numpy().var(0).sum() / y.numpy().var(0).sum())
    chosen = platonic_components(z.numpy(), y.numpy(), 0.1 * balance, 5)
    chosen = chosen * np.sign(chosen[abs(chosen).argmax(0), range(5)])
    a, b = z.numpy() - z.numpy().mean(0), y.numpy() - y.numpy().mean(0)
    wanted = np.linalg.pinv(a) @ (alpha * np.hstack([a, beta * b]) @ chosen)
    assert_close(layer.weights, wanted, 1e-8)
    assert_close(layer.bias, -z.numpy().mean(0) @ wanted, 1e-8)
    with pytest.raises(SettingsError, match="at most 9 units"):
        proposed("pca", HeldRows(z, y), 10)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(2, 300), share=st.floats(0, 1), seed=st.integers(0, 9))
def test_evenly_spaced_rows_are_the_printed_ones(n, share, seed):
    places = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    width = 1 + int(share * (n - 2))
    found = evenly(places, None, width)
    assert found.tolist() == evenly_spaced(places.numpy(), width).tolist()
    assert len(set(found.tolist())) == width
    assert evenly(places, torch.ones(n).double(), width).tolist() == found.tolist()


def test_all_rows_are_all_rows_where_the_print_is_one_short():
    places = torch.rand(9, dtype=torch.float64)
    assert len(evenly_spaced(places.numpy(), 9)) == 8
    assert sorted(evenly(places, None, 9).tolist()) == list(range(9))


@settings(deadline=None, max_examples=25)
@given(
    counts=st.lists(st.integers(0, 4), min_size=2, max_size=30).filter(any), width=st.integers(1, 9)
)
def test_whole_weights_are_copies_and_scaled_weights_are_alike(counts, width):
    counts = torch.tensor(counts)
    places = torch.rand(len(counts), dtype=torch.float64)
    copies = torch.arange(len(counts)).repeat_interleave(counts)
    if width <= len(copies):
        wanted = copies[evenly(places[copies], None, width)]
        assert evenly(places, counts.double(), width).tolist() == wanted.tolist()
    shares = evenly(places, counts.double() * 0.3 / 7, width)
    assert shares.tolist() == evenly(places, counts.double() * 0.3 / 28, width).tolist()
    assert bool((counts[shares] > 0).all())
    assert bool((places[shares].diff() >= 0).all())


@pytest.mark.parametrize("width", [1, 7, 80])
def test_sorted_pca_takes_centred_rows(width):
    z, y = data()
    layer = proposed("sorted-pca", HeldRows(z, y), width, 2.0)
    a = z.numpy()
    first = first_component(a)
    first *= np.sign(first[abs(first).argmax()])
    chosen = evenly_spaced(a @ first, width) if width < 80 else np.argsort(a @ first)
    rows = (a - a.mean(0))[chosen].T
    direction = layer.weights.numpy()
    scale = np.linalg.norm(direction) / np.linalg.norm(rows)
    assert_close(layer.weights, scale * rows)
    entering = torch.addmm(layer.bias, z, layer.weights)
    assert float(entering.square().mean().sqrt()) == pytest.approx(2.0)
    assert_close(entering.mean(0), torch.zeros(width).double())
    with pytest.raises(SettingsError, match="81 units need as many rows"):
        proposed("sorted-pca", HeldRows(z, y), 81)


def test_without_centring_a_relu_is_always_on():
    z, y = data()
    pixels = z - z.min()
    layer = proposed("sorted-pca", HeldRows(pixels, y), 20)
    on = float((layer(pixels) > 0).double().mean())
    assert 0.3 < on < 0.7
    assert bool((pixels @ pixels.T >= 0).all())  # what the weights would be without


def test_rows_all_alike_give_a_layer_that_is_finite():
    rows = HeldRows(torch.full((5, 3), 0.3), torch.ones(5, 1))
    for by in ("random", "pca", "sorted-pca", "labels", "elm"):
        layer = proposed(by, rows, 2, beta=balanced(moments_of(rows)))
        assert bool(layer(rows.z).isfinite().all()), by


@pytest.mark.parametrize("by", ["random", "pca", "sorted-pca", "labels", "elm"])
def test_streamed_rows_propose_the_same(by):
    z, y = data()
    weights = torch.rand(80, dtype=torch.float64) + 0.5
    held = HeldRows(z, y, weights)
    parts = [slice(0, 3), slice(3, 50), slice(50, 80)]
    stream = StreamedRows(lambda: (Block(z[p], y[p], weights[p]) for p in parts))
    moments = moments_of(stream)
    from_stream = Known(stream, moments, known(held).solved, moments)
    draw = torch.Generator().manual_seed(5)
    found = propose(by, from_stream, 5, torch.relu, 1.0, 2.0, draw)
    wanted = proposed(by, held, 5, 1.0, 2.0)
    assert_close(found.weights, wanted.weights, 1e-11)
    assert_close(found.bias, wanted.bias, 1e-11)


def test_balance_does_not_feel_scales():
    z, y = data()
    plain = balanced(Moments(6, 3).update(z, y))
    assert balanced(Moments(6, 3).update(4 * z, y)) == pytest.approx(4 * plain)
    assert balanced(Moments(6, 3).update(z, 4 * y)) == pytest.approx(plain / 4)
    assert balanced(Moments(6, 3).update(z, 0 * y)) == 1.0
