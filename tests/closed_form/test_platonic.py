"""The recurrence: the thesis's printed code, held against streamed, depth, and what goes wrong."""

from __future__ import annotations

import math
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from references.platonic import ACTIVATIONS, distance, importance, network, ridge, with_ones
from torch.nn import functional as F

from dovetail.closed_form.layers import activation_of
from dovetail.closed_form.platonic import SOLVERS, factorised, platonic
from dovetail.closed_form.projections import PROJECTIONS, components
from dovetail.closed_form.rows import Block, HeldRows, StreamedRows, moments_of
from dovetail.closed_form.solvers import Cholesky, Direct, Spectral
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator

module = sys.modules[factorised.__module__]  # by its name the package gives the function


def data(n=120, d=3, k=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    return x, (2 * x[:, :k]).sin() + x[:, k : k + 1]


def spirals(n=600, seed=0):
    draw = torch.Generator().manual_seed(seed)
    turn = 3 * math.pi * torch.rand(n, generator=draw, dtype=torch.float64).sqrt()
    arm = torch.arange(n) % 2
    angle = turn + math.pi * arm
    return torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 10, (2.0 * arm - 1)[:, None]


def assert_close(found, wanted, tolerance=1e-8):
    wanted = torch.as_tensor(wanted)
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= tolerance * max(1.0, float(wanted.abs().max()))


def drawn(sizes, widths, k, seed=0, attempt=0):
    """The projections as the recurrence draws them."""
    return [
        torch.randn(
            1 + d + k, w, generator=generator(seed, "try", i, attempt), dtype=torch.float64
        ).numpy()
        for i, (d, w) in enumerate(zip(sizes, widths, strict=True))
    ]


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid", "celu"])
@pytest.mark.parametrize("solver", ["auto", "pinv", "lstsq", "eigen", "cholesky"])
def test_it_is_the_printed_code(activation, solver):
    x, y = data()
    widths = (5, 4)
    wanted, outputs = network(
        x.numpy(), y.numpy(), drawn((3, 5), widths, 2), activation, alpha=0.7, beta=2.0
    )
    net = platonic(
        HeldRows(x, y),
        widths,
        activation=activation_of(activation),
        tries=1,
        target_scale=0.7,
        label_weight=2.0,
        ridge=0.0,
        solver=solver,
    )
    for layer, weights in zip((*net.layers, net.head), wanted, strict=True):
        assert_close(layer.weights, weights[1:])
        assert_close(layer.bias, weights[0])
    assert_close(net(x), outputs)
    assert [fit.width for fit in net.fits] == [5, 4]
    hidden = ACTIVATIONS[activation](with_ones(x.numpy()) @ wanted[0])
    assert net.start.distance == pytest.approx(distance(x.numpy(), y.numpy()))
    assert net.fits[0].distance == pytest.approx(distance(hidden, y.numpy()))
    assert net.fits[1].distance == pytest.approx(distance(net.hidden(x).numpy(), y.numpy()))


def test_the_try_with_the_least_distance_wins_in_each_layer():
    x, y = data()
    net = platonic(HeldRows(x, y), (3, 3), activation=torch.tanh, tries=4, label_weight=1.0)
    one, _ = data()
    for i, layer in enumerate(net.layers):
        before = one if i == 0 else net.layers[0](x)
        solved = factorised(HeldRows(before, y), moments_of(HeldRows(before, y)), "auto", "auto")
        ends = []
        for attempt in range(4):
            p = torch.randn(6, 3, generator=generator(0, "try", i, attempt), dtype=torch.float64)
            weights = solved.carry(p[1:4]) + solved.labels @ p[4:]
            bias = p[0] + before.mean(0) @ p[1:4] + y.mean(0) @ p[4:] - before.mean(0) @ weights
            ends.append(distance(np.tanh((before @ weights + bias).numpy()), y.numpy()))
        assert net.fits[i].tries == 4
        z = layer(before)
        assert distance(z.numpy(), y.numpy()) == pytest.approx(min(ends), rel=1e-9)


@pytest.mark.parametrize("penalty", [0.5, 30.0])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_given_ridge_is_used_by_every_solver(penalty, solver):
    x, y = data()
    net = platonic(
        HeldRows(x, y), (6,), activation=torch.tanh, tries=1, solver=solver, ridge=penalty
    )
    z = net.hidden(x).numpy()
    wanted = ridge(z, y.numpy(), penalty)
    assert_close(net.head.weights, wanted[1:])
    assert_close(net.head.bias, wanted[0])
    (p,) = drawn((3,), (6,), 2)
    beta = net.fits[0].label_weight
    target = np.hstack([with_ones(x.numpy()), beta * y.numpy()]) @ p
    assert_close(net.layers[0].weights, ridge(x.numpy(), target, penalty)[1:])
    assert net.fits[0].penalty == net.start.penalty == penalty


def test_importance_follows_the_layers_and_weighs_the_labels():
    x, y = data(d=4)
    net = platonic(
        HeldRows(x, y),
        (6, 5, 4),
        activation=torch.tanh,
        projections=("sorted-pca", "pca"),
        ema=0.2,
        label_weight=3.0,
        ridge=0.0,
    )
    z, predictions = x, []
    for i, layer in enumerate(net.layers):
        if i > 0:
            wide = with_ones(z.numpy())
            predictions.append(wide @ np.linalg.pinv(wide) @ y.numpy())
            told = torch.as_tensor(importance(y.numpy(), predictions, 0.2))[:, None] * y
            balance = float((z.var(0).sum() / told.var(0).sum()).sqrt())
            moments = moments_of(HeldRows(z, told))
            chosen = components(moments, 0.1 * balance, layer.weights.shape[1])
            a, b = (z - z.mean(0)).numpy(), (told - told.mean(0)).numpy()
            wanted = np.linalg.pinv(a) @ np.hstack([a, 3.0 * b]) @ chosen.numpy()
            assert_close(layer.weights, wanted, 1e-6)
        z = layer(z)
    plain = platonic(
        HeldRows(x, y),
        (6, 5),
        activation=torch.tanh,
        projections=("sorted-pca", "pca"),
        label_weight=3.0,
        ridge=0.0,
    )
    assert float((plain.layers[1].weights - net.layers[1].weights).abs().max()) > 1e-3


CASES = [
    *[((by,), None) for by in PROJECTIONS],
    (("sorted-pca", "pca"), 0.2),
    (("sorted-pca", "random", "pca"), 0.02),
]


@pytest.mark.parametrize(("projections", "ema"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("step", [11, 120])
def test_streamed_rows_give_the_network_of_held_rows(projections, ema, weighted, step):
    x, y = data(d=4)
    w = torch.rand(120, dtype=torch.float64) + 0.5 if weighted else None
    parts = [slice(start, start + step) for start in range(0, 120, step)]
    stream = StreamedRows(lambda: (Block(x[p], y[p], None if w is None else w[p]) for p in parts))
    fitted = [
        platonic(
            rows,
            (5, 4, 4),
            activation=torch.tanh,
            projections=projections,
            tries=3,
            ema=ema,
            solver="cholesky",
            ridge=0.1,
        )
        for rows in (HeldRows(x, y, w), stream)
    ]
    for mine, other in zip(
        (*fitted[0].layers, fitted[0].head), (*fitted[1].layers, fitted[1].head), strict=True
    ):
        assert_close(other.weights, mine.weights, 1e-10)
        assert_close(other.bias, mine.bias, 1e-10)
    for mine, other in zip(fitted[0].fits, fitted[1].fits, strict=True):
        assert other.distance == pytest.approx(mine.distance, rel=1e-8)
        assert (other.projection, other.tries) == (mine.projection, mine.tries)


def test_by_default_streamed_rows_choose_the_penalty_of_held_rows():
    x, y = data()
    y = y + torch.randn(120, 2, dtype=torch.float64)
    stream = StreamedRows(lambda: (Block(x[p], y[p]) for p in (slice(0, 50), slice(50, 120))))
    fitted = [platonic(rows, (8,), activation=torch.tanh) for rows in (HeldRows(x, y), stream)]
    assert fitted[0].fits[0].penalty > 0
    assert fitted[1].fits[0].penalty == pytest.approx(fitted[0].fits[0].penalty)
    assert_close(fitted[1](x), fitted[0](x), 1e-8)


@pytest.mark.parametrize("by", PROJECTIONS)
def test_whole_weights_are_copies(by):
    x, y = data(40)
    counts = torch.randint(0, 4, (40,))
    copies = HeldRows(x.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
    fitted = [
        platonic(rows, (5, 4), activation=torch.tanh, projections=(by,), ridge=0.1, ema=0.5)
        for rows in (HeldRows(x, y, counts), copies)
    ]
    assert_close(fitted[0](x), fitted[1](x), 1e-8)


def test_the_spirals_come_apart_by_default():
    x, y = spirals()
    net = platonic(HeldRows(x, y), (32,) * 4, activation=torch.tanh)
    assert float((net(x).sign() == y).double().mean()) > 0.99
    again = platonic(HeldRows(x, y), (32,) * 4, activation=torch.tanh)
    other = platonic(HeldRows(x, y), (32,) * 4, activation=torch.tanh, seed=1)
    assert torch.equal(again(x), net(x))
    assert not torch.equal(other(x), net(x))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("depth", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_depth_costs_time_alone(depth):
    x = torch.linspace(-1, 1, 500, dtype=torch.float64)[:, None]
    rows = HeldRows(x, (2 * math.pi * x).sin())
    resident = []

    def weigh(i, _):
        if (i + 1) % (depth // 4) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident.append(pages * resource.getpagesize())

    net = platonic(
        rows,
        (4,) * depth,
        activation=torch.nn.functional.celu,
        tries=1,
        ridge=1e-9,
        solver="cholesky",
        on_layer=weigh,
    )
    assert len(net.layers) == len(net.fits) == depth
    assert bool(net(x).isfinite().all())
    # Only the layers themselves grow, to which a representation each (16 kB) would be many.
    assert resident[-1] - resident[0] < 0.75 * depth * 8_000


def test_patience_stops_and_keeps_the_layers_up_to_the_lowest():
    x, y = spirals(200)
    seen = []
    net = platonic(
        HeldRows(x, y),
        (4,) * 60,
        activation=torch.tanh,
        tries=1,
        patience=5,
        on_layer=lambda i, fit: seen.append((i, fit)),
    )
    distances = [fit.distance for fit in net.fits]
    assert len(net.fits) < 60
    assert [i for i, _ in seen] == list(range(len(net.fits)))
    assert tuple(fit for _, fit in seen) == net.fits
    assert len(net.layers) == distances.index(min(distances)) + 1
    assert len(net.fits) == len(net.layers) + 5
    assert float((net(x) - y).square().mean()) == pytest.approx(min(distances), rel=1e-6)


def test_no_hidden_layer_is_least_squares():
    x, y = data()
    net = platonic(HeldRows(x, y), (), ridge=0.0)
    assert_close(net.head.weights, ridge(x.numpy(), y.numpy(), 0.0)[1:])
    assert net.fits == ()
    assert net.layers == ()


def test_a_small_distance_is_measured_not_subtracted():
    x = torch.linspace(-1, 1, 300, dtype=torch.float64)[:, None]
    net = platonic(HeldRows(x, x.sin()), (20, 20), activation=torch.tanh, ridge=0.0)
    measured = float((net(x) - x.sin()).square().mean())
    assert 0 < measured < 1e-8
    assert net.fits[-1].distance == pytest.approx(measured, rel=1e-6)


def test_auto_takes_the_rows_where_they_are_few_or_their_moments_blind(monkeypatch):
    x, y = data()
    rows, moments = HeldRows(x, y), moments_of(HeldRows(x, y))
    assert isinstance(factorised(rows, moments, "lstsq", 0.1), Direct)
    monkeypatch.setattr(Spectral, "of_moments", classmethod(lambda *_: pytest.fail("few rows")))
    assert isinstance(factorised(rows, moments, "auto", "auto"), Spectral)
    monkeypatch.undo()
    monkeypatch.setattr(module, "FEW", 0)
    assert isinstance(factorised(rows, moments, "auto", 0.1), Cholesky)
    twins = HeldRows(torch.cat([x, x[:, :1] + 1e-9 * x[:, 1:2]], 1), y)
    seen = moments_of(twins)
    assert isinstance(factorised(twins, seen, "auto", 0.0), Spectral)
    assert isinstance(factorised(twins, seen, "auto", 1.0), Cholesky)
    monkeypatch.setattr(module, "MUCH", 0)
    assert isinstance(factorised(twins, seen, "auto", 0.0), Cholesky)
    stream = StreamedRows(lambda: iter([Block(x, y)]))
    assert isinstance(factorised(stream, moments, "auto", 0.1), Cholesky)
    assert isinstance(factorised(stream, moments, "auto", "auto"), Spectral)
    for solver in ("pinv", "lstsq"):
        with pytest.raises(SettingsError, match="'cholesky' or 'eigen'"):
            factorised(stream, moments, solver, "auto")
        with pytest.raises(SettingsError, match="one process"):
            factorised(HeldRows(x, y, shared=True), moments, solver, "auto")


@pytest.mark.parametrize("activation", ["relu", "tanh", "identity"])
@pytest.mark.parametrize("by", PROJECTIONS)
def test_what_overflows_is_refused_and_never_nan(activation, by):
    x, y = data()
    stream = StreamedRows(lambda: iter([Block(x, y)]))
    settings = {"activation": activation_of(activation), "projections": (by,)}
    for rows in (HeldRows(x, y), stream):
        for scale in (1e160, 1e307):
            with pytest.raises(SettingsError, match="lower target_scale"):
                platonic(rows, (4, 4), target_scale=scale, **settings)
        net = platonic(rows, (4, 4), target_scale=1e60, **settings)
        assert bool(net(x).isfinite().all())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"projections": ("pca", "ica")}, "'ica'"),
        ({"solver": "qr"}, "'qr'"),
        ({"widths": (4, 0)}, "one unit"),
        ({"tries": 0}, "tries=0"),
        ({"target_scale": 0.0}, "target_scale"),
        ({"target_scale": math.nan}, "target_scale"),
        ({"label_weight": "automatic"}, "label_weight"),
        ({"label_weight": -1.0}, "label_weight"),
        ({"label_weight": math.inf}, "label_weight"),
        ({"ridge": -1.0}, "ridge"),
        ({"ridge": math.nan}, "ridge"),
        ({"ridge": "gcv"}, "ridge"),
        ({"ema": 1.5}, "ema"),
        ({"patience": 0}, "patience"),
    ],
)
def test_settings_are_judged_before_the_rows(settings, said):
    def unread():
        pytest.fail("the rows were read")

    settings = {"widths": (4,), **settings}
    with pytest.raises(SettingsError, match=said):
        platonic(StreamedRows(unread), **settings)


def test_batches_that_change_are_refused():
    x, y = data()
    sizes = iter([120, 100])
    rows = StreamedRows(lambda: iter([Block(x[: (n := next(sizes))], y[:n])]))
    with pytest.raises(TaskError, match="120 rows in one pass and 100"):
        platonic(rows, (4,), solver="cholesky")


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("by", ["random", "labels", "elm", "pca"])
def test_one_row_and_one_class_are_fitted(n, by):
    x, y = torch.rand(n, 3), torch.ones(n, 1)
    net = platonic(HeldRows(x, y), (2,), activation=torch.tanh, projections=(by,))
    assert_close(net(x.double()), torch.ones(n, 1).double())
    assert net.fits[0].distance == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("solver", ["pinv", "eigen", "cholesky"])
def test_importance_weighs_the_labels_in_random_targets(solver):
    x, y = torch.rand(60, 3, dtype=torch.float64), torch.rand(60, 2, dtype=torch.float64)
    net = platonic(
        HeldRows(x, y), (5, 4), tries=1, ridge=0.5, solver=solver, label_weight=2.0, ema=0.3, seed=7
    )
    z = net.layers[0](x)
    centred, told = z - z.mean(0), y - y.mean(0)
    inverse = torch.linalg.inv(centred.T @ centred + 0.5 * torch.eye(5))
    head = inverse @ centred.T @ told
    errors = (told - centred @ head).square().sum(1)
    importance = 0.3 + 0.7 * errors
    drawn = torch.randn(1 + 5 + 2, 4, generator=generator(7, "try", 1, 0), dtype=torch.float64)
    target = drawn[0] + z @ drawn[1:6] + 2.0 * (importance[:, None] * y) @ drawn[6:]
    weights = inverse @ centred.T @ (target - target.mean(0))
    torch.testing.assert_close(net.layers[1].weights, weights, rtol=1e-8, atol=1e-9)
    bias = target.mean(0) - z.mean(0) @ weights
    torch.testing.assert_close(net.layers[1].bias, bias, rtol=1e-8, atol=1e-9)


def wave():
    x = torch.linspace(-3, 3, 100).double()[:, None]
    return HeldRows(x, x.sin())


@pytest.mark.parametrize("activation", [torch.relu, F.celu])
def test_unbounded_layers_do_not_grow_without_end(activation):
    net = platonic(wave(), (32,) * 250, activation=activation, tries=1)
    assert float(net.hidden(wave().z).abs().max()) < 2.0**80  # float32 could hold it, too


@pytest.mark.parametrize("activation", [torch.relu, F.celu, F.selu])
def test_bringing_layers_nearer_means_nothing(activation, monkeypatch):
    asked = {"activation": activation, "tries": 2}
    near = platonic(wave(), (16,) * 55, **asked)
    monkeypatch.setattr(module, "FAR", 1e100)
    far = platonic(wave(), (16,) * 55, **asked)
    assert float(far.hidden(wave().z).abs().max()) > 1e25 > float(near.hidden(wave().z).abs().max())
    for one, other in zip(near.fits, far.fits, strict=True):
        assert one.distance == pytest.approx(other.distance, rel=1e-2)


def test_what_is_not_linear_far_out_is_not_scaled():
    with pytest.raises(SettingsError, match="overflows"):
        platonic(wave(), (8,) * 30, activation=lambda z: z**3, tries=1)
