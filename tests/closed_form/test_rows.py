"""Rows that stream by and rows that are held are the same rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.platonic import importance, scatter

from dovetail.closed_form import rows as module
from dovetail.closed_form.layers import Layer, activation_of
from dovetail.closed_form.rows import Block, HeldRows, StreamedRows, moments_of, one_in, reweighed
from dovetail.core.errors import SettingsError, TaskError


def data(n=30, d=3, k=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=draw, dtype=torch.float64)
    return z, z[:, :k].sin(), torch.rand(n, generator=draw, dtype=torch.float64)


def layers(d=3, width=4, count=3):
    draw = torch.Generator().manual_seed(1)
    drawn = torch.randn(count, d + 1, width, generator=draw, dtype=torch.float64)
    return [Layer(each[1:], each[0], torch.tanh) for each in drawn]


def head(width=4, k=2):
    draw = torch.Generator().manual_seed(2)
    drawn = torch.randn(width + 1, k, generator=draw, dtype=torch.float64)
    return Layer(drawn[1:], drawn[0], activation_of("identity"))


def streamed(z, y, weights=None, edges=()):
    cuts = [0, *sorted(edges), len(z)]
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    return StreamedRows(
        lambda: (Block(z[p], y[p], None if weights is None else weights[p]) for p in parts)
    )


def close(found, wanted):
    return bool(((found - wanted).abs() <= 1e-12 * max(1.0, float(wanted.abs().max()))).all())


@settings(deadline=None, max_examples=15)
@given(
    edges=st.lists(st.integers(0, 30), max_size=4), weighted=st.booleans(), step=st.integers(1, 9)
)
def test_any_blocks_give_the_same_moments_and_choice(edges, weighted, step):
    z, y, w = data()
    weights = w if weighted else None
    whole, parts = HeldRows(z, y, weights), streamed(z, y, weights, edges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NUMBERS", 1)
        patch.setattr(module, "FEWEST", step)
        cut = whole.best_of(layers(), lambda several: [float(m.scatter.trace()) for m in several])
        assert max(len(block.z) for block in whole.blocks()) == step
    plain = whole.best_of(layers(), lambda several: [float(m.scatter.trace()) for m in several])
    other = parts.best_of(layers(), lambda several: [float(m.scatter.trace()) for m in several])
    assert close(moments_of(parts).scatter, moments_of(whole).scatter)
    for which, moments, behind in (cut, other):
        assert which == plain[0]
        assert close(moments.scatter, plain[1].scatter)
        assert close(torch.cat([block.z for block in behind.blocks()]), plain[2].z)
    chosen = plain[2].z.numpy()
    mean, products = scatter(
        torch.cat([plain[2].z, y], 1).numpy(), w.numpy() if weighted else [1.0] * 30
    )
    assert chosen.shape == (30, 4)
    assert close(plain[1].scatter, torch.as_tensor(products))
    assert close(plain[1].mean, torch.as_tensor(mean))


@pytest.mark.parametrize("step", [2, 4, 10])
def test_rows_that_decide_have_all_classes_however_these_take_turns(step):
    for classes in (2, 4, 5, 10):
        turns = torch.arange(4000) % classes
        chosen = turns[one_in(step, 0, 4000)]
        assert abs(len(chosen) - 4000 / step) <= 2
        counts = torch.bincount(chosen, minlength=classes)
        assert int(counts.min()) > 0.8 * len(chosen) / classes
        parts = [one_in(step, start, 800) for start in range(0, 4000, 800)]
        assert torch.equal(torch.cat(parts), one_in(step, 0, 4000))


def test_some_rows_decide_alike_whether_held_or_streamed():
    z, y, w = data(n=90)

    def judge(several):
        seen.append([m.scatter for m in several])
        return [float(m.scatter.trace()) for m in several]

    seen = []
    held = HeldRows(z, y, w).best_of(layers(), judge, step=3)
    other = streamed(z, y, w, (7, 20, 21, 60)).best_of(layers(), judge, step=3)
    for mine, theirs in zip(*seen, strict=True):
        assert close(mine, theirs)
    assert held[0] == other[0]
    assert held[1].rows == other[1].rows == 90


def test_the_layer_with_the_least_wins():
    z, y, _ = data()
    traces = []

    def judge(several):
        traces.extend(found := [-float(m.features.trace()) for m in several])
        return found

    which, moments, behind = HeldRows(z, y).best_of(layers(), judge)
    assert len(traces) == 3
    assert which == traces.index(min(traces))
    assert torch.equal(behind.z, layers()[which](z))
    assert -float(moments.features.trace()) == min(traces)
    with_nan = iter([torch.nan, 2.0, torch.inf])
    assert HeldRows(z, y).best_of(layers(), lambda _: [next(with_nan)])[0] in (0, 1)


@pytest.mark.parametrize("decay", [0.0, 0.2, 1.0])
def test_importance_is_the_moving_average_of_errors(decay):
    z, y, w = data()
    first, second = layers(count=1)[0], head()
    before = Layer(head(3).weights, head(3).bias, torch.relu)
    wanted = importance(y.numpy(), [before(z).numpy(), second(first(z)).numpy()], decay)
    for rows in (HeldRows(z, y, w), streamed(z, y, w, (7, 20))):
        behind = rows.judged(before, decay).best_of([first], lambda _: [0.0])[2]
        judged = behind.judged(second, decay)
        found = torch.cat([block.importance for block in judged.blocks()])
        assert close(found, torch.as_tensor(wanted))
        assert next(iter(rows.blocks())).importance is None


@pytest.mark.parametrize("weighted", [False, True])
def test_reweighed_moments_are_those_of_scaled_labels(weighted):
    z, y, w = data()
    weights = w if weighted else None
    told = torch.rand(30, dtype=torch.float64) + 5
    rows = replace(HeldRows(z, y + 3, weights), importance=told)
    wanted = moments_of(HeldRows(z, (y + 3) * told[:, None], weights))
    found = reweighed(rows, moments_of(rows))
    assert close(found.scatter, wanted.scatter)
    assert close(found.mean, wanted.mean)
    assert (found.rows, found.weight) == (wanted.rows, wanted.weight)
    parts = streamed(z, y + 3, weights, (11,)).judged(head(3), 0.5)
    seen = torch.cat([block.importance for block in parts.blocks()])
    again = moments_of(HeldRows(z, (y + 3) * seen[:, None], weights))
    assert close(reweighed(parts, moments_of(parts)).scatter, again.scatter)


def test_rows_become_float64():
    z, y, w = data()
    rows = HeldRows(z.float(), y.float(), w.float())
    assert rows.z.dtype == rows.y.dtype == rows.weights.dtype == torch.float64
    parts = StreamedRows(lambda: iter([Block(z.float(), y.float(), w.float())]))
    assert close(moments_of(parts).scatter, moments_of(rows).scatter)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((3, 2), (2, 1)), "targets"),
        (((3,), (3, 1)), "features are"),
        (((3, 2), (3,)), "targets"),
        (((3, 2), (3, 1), (2,)), "weights"),
        (((3, 2), (3, 1), (3, 1)), "weights"),
        (((3, 2), (3, 1), (3,), (4,)), "importance"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(shapes, said):
    given_rows = [torch.ones(*shape) for shape in shapes]
    with pytest.raises(TaskError, match=said):
        HeldRows(*given_rows)
    with pytest.raises(TaskError, match=said):
        moments_of(StreamedRows(lambda: iter([Block(*given_rows)])))


def test_no_rows_are_refused():
    used_up = iter([Block(*data()[:2])])
    rows = StreamedRows(lambda: used_up)
    moments_of(rows)
    with pytest.raises(TaskError, match="starts anew"):
        rows.best_of(layers(), lambda several: [0.0] * len(several))
    for empty in (
        StreamedRows(lambda: iter([])),
        HeldRows(torch.ones(0, 2), torch.ones(0, 1)),
        HeldRows(torch.ones(2, 2), torch.ones(2, 1), torch.zeros(2)),
    ):
        with pytest.raises(TaskError, match="no rows"):
            moments_of(empty)


def test_batches_of_other_widths_are_refused():
    z, y, _ = data()
    rows = StreamedRows(lambda: iter([Block(z, y), Block(z[:, :2], y)]))
    with pytest.raises(TaskError, match="3 features"):
        moments_of(rows)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e200])
def test_what_is_not_finite_is_refused(bad):
    z, y, w = data()
    for where in (z, y):
        kept, where[4] = where[4].clone(), bad
        with pytest.raises(TaskError, match="not finite"):
            moments_of(HeldRows(z, y))
        where[4] = kept
    if bad != 1e200:  # a weight is never squared
        w[4] = bad
        with pytest.raises(TaskError, match="negative" if bad == -torch.inf else "not finite"):
            moments_of(HeldRows(z, y, w))


def test_activations_are_named_or_given():
    for name in ("relu", "tanh", "softplus", "identity"):
        rising = activation_of(name)(torch.linspace(-3, 3, 50))
        assert bool((rising.diff() >= 0).all())
    assert activation_of(torch.sin) is torch.sin
    with pytest.raises(SettingsError, match="tanh"):
        activation_of("tahn")
    with pytest.raises(SettingsError, match="function"):
        activation_of(3)
