"""What theory expects of a transfer, against loops and against networks that were trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.two_layer import TwoLayer, gram_by_loops

import dovetail as dt
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens import gram_theory
from dovetail.lens.theory import relu_gram
from dovetail.tasks.derive import rotated


def units(n, d, seed):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def problem(seed, n=12, d=6):
    """Two half-spaces that nearly agree: inputs and labels of -1 or 1 of source and target."""
    draw = torch.Generator().manual_seed(100 + seed)
    normal, turn = torch.randn(2, d, generator=draw, dtype=torch.float64)
    source, target = units(n, d, 2 * seed), units(n, d, 2 * seed + 1)
    return (source, (source @ normal).sign()), (target, (target @ (normal + 0.5 * turn)).sign())


def test_all_quantities_are_those_of_dense_inverses():
    (xp, yp), (xq, yq) = problem(0)
    found = gram_theory((xp, yp), (xq, yq))
    of_p, of_pq, of_q = (gram_by_loops(a, b) for a, b in ((xp, xp), (xp, xq), (xq, xq)))
    come = of_pq.T @ torch.linalg.inv(of_p) @ yp.double()
    left, inverse = yq.double() - come, torch.linalg.inv(of_q)
    assert [row[0] for row in found.transferred] == pytest.approx(come.tolist(), abs=1e-6)
    assert found.lipschitz_change == pytest.approx(float(left @ left - yq @ yq), rel=1e-6)
    assert found.deviation == pytest.approx(float(left @ inverse @ left), rel=1e-6)
    assert found.deviation_scratch == pytest.approx(
        float(yq.double() @ inverse @ yq.double()), rel=1e-6
    )
    least = [float(torch.linalg.eigvalsh(gram)[0]) for gram in (of_p, of_q)]
    assert [found.least_source, found.least_target] == pytest.approx(least, rel=1e-5)


def test_the_matrix_is_the_mean_over_random_features():
    x, z = units(8, 5, 0), units(6, 5, 1)
    net = TwoLayer(40_000, 5, seed=0)
    kernel = net.gradient_to_outputs(x) @ net.gradient_to_outputs(z).T
    torch.testing.assert_close(kernel, relu_gram(x, z), atol=0.02, rtol=0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trained_networks_come_nearer_the_wider_they_are(seed):
    (xp, yp), (xq, yq) = problem(seed)
    found = gram_theory((xp, yp), (xq, yq))

    def errors(width):
        scratch = TwoLayer(width, xp.shape[1], seed)
        net = TwoLayer(width, xp.shape[1], seed)
        net.fit(xp, yp, 600)
        learnt, come = net.weights, net(xq)
        net.fit(xq, yq, 600)
        start = scratch.weights
        scratch.fit(xq, yq, 600)
        assert (net(xq) - yq).abs().max() < 1e-3
        moved = float((net.weights - learnt).square().sum())
        from_scratch = float((scratch.weights - start).square().sum())
        expected = torch.tensor(found.transferred)[:, 0]
        return (
            abs(moved / found.deviation - 1),
            abs(from_scratch / found.deviation_scratch - 1),
            float((come - expected).norm() / expected.norm()),
        )

    narrow, wide = errors(60), errors(4000)
    assert all(error < 0.15 for error in wide)
    assert sum(wide) < sum(narrow) / 2


def test_a_target_that_is_the_source_leaves_nothing_to_do():
    (x, y), _ = problem(3)
    found = gram_theory((x, y), (x, y))
    assert found.deviation == pytest.approx(0, abs=1e-8)
    assert found.lipschitz_change == pytest.approx(-12, rel=1e-6)
    assert "100 % less far" in found.summary
    assert "help" in found.summary


def test_the_opposite_labels_hurt():
    (x, y), _ = problem(3)
    found = gram_theory((x, y), (x, -y))
    assert found.deviation == pytest.approx(4 * found.deviation_scratch, rel=1e-6)
    assert not found.helps
    assert "hurt" in found.summary


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_neither_the_length_of_inputs_nor_a_rotation_matters(seed, length):
    (xp, yp), (xq, yq) = problem(seed)
    draw = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=draw, dtype=torch.float64))[0]
    found = gram_theory((xp, yp), (xq, yq))
    other = gram_theory((length * xp.double() @ turn, yp), (xq.double() @ turn, yq))
    assert other.deviation == pytest.approx(found.deviation, rel=1e-4)
    assert other.lipschitz_change == pytest.approx(found.lipschitz_change, rel=1e-4, abs=1e-4)


def test_examples_said_twice_change_nothing_but_the_sum_over_examples():
    (xp, yp), (xq, yq) = problem(1)
    once = gram_theory((xp, yp), (xq, yq))
    twice = gram_theory(
        (torch.cat([xp, 3 * xp[:4]]), torch.cat([yp, yp[:4]])),
        (torch.cat([xq, xq]), torch.cat([yq, yq])),
    )
    assert twice.deviation == pytest.approx(once.deviation, rel=1e-5)
    assert twice.lipschitz_change == pytest.approx(2 * once.lipschitz_change, rel=1e-5)
    assert twice.settings["distinct"] == [12, 12]


def test_one_input_with_two_labels_takes_a_ridge():
    (xp, yp), (xq, yq) = problem(1)
    x, y = torch.cat([xq, xq[:1]]), torch.cat([yq, -yq[:1]])
    with pytest.raises(TaskError, match="examples 0 and 12 of 'target' are one input"):
        gram_theory((xp, yp), (x, y))
    found = gram_theory((xp, yp), (x, y), jitter=0.1)
    gram = gram_by_loops(x, x) + 0.1 * torch.eye(13, dtype=torch.float64)
    assert found.deviation_scratch == pytest.approx(
        float(y.double() @ torch.linalg.inv(gram) @ y.double()), rel=1e-6
    )


def test_inputs_that_make_the_matrix_singular_are_refused():
    """A direction and its opposite differ by a constant; a plane has two."""
    angles = torch.arange(6).double() * torch.pi / 3
    hexagon = torch.stack([angles.cos(), angles.sin()], 1)
    y = torch.arange(6) % 2 * 2.0 - 1
    with pytest.raises(TaskError, match="singular to float64"):
        gram_theory((hexagon, y), (hexagon, y))
    assert gram_theory((hexagon, y), (hexagon, y), jitter=1e-3).helps


def test_two_classes_are_signs_and_more_are_one_hot():
    (xp, yp), (xq, yq) = problem(2)
    signs = gram_theory((xp, yp), (xq, yq))
    words = gram_theory(
        (xp, np.where(yp > 0, "yes", "no")), (xq, np.where(yq.numpy() > 0, "yes", "no"))
    )
    assert words.deviation == pytest.approx(signs.deviation, rel=1e-9)
    three = gram_theory((xp, np.arange(12) % 3), (xq, np.arange(12) % 3))
    columns = [
        gram_theory((xp, (np.arange(12) % 3 == k) * 1.0), (xq, (np.arange(12) % 3 == k) * 1.0))
        for k in range(3)
    ]
    assert three.deviation == pytest.approx(sum(one.deviation for one in columns), rel=1e-9)
    assert three.outputs == ("0", "1", "2")


def test_classes_are_matched_by_name_or_by_order():
    (xp, _), (xq, _) = problem(4)
    ours, theirs = np.array(list("abc") * 4), np.array(list("cde") * 4)
    by_name = gram_theory((xp, ours), (xq, theirs))
    zeros = [[row[1], row[2]] for row in by_name.transferred]  # d and e, which are new
    assert by_name.outputs == ("c", "d", "e")
    assert not np.any(zeros)
    renamed = gram_theory((xp, ours), (xq, np.array(list("abc") * 4)))
    by_order = gram_theory((xp, ours), (xq, theirs), match="order")
    assert by_order.deviation == pytest.approx(renamed.deviation, rel=1e-9)
    with pytest.raises(TaskError, match='share no class; match="order"'):
        gram_theory((xp, ours), (xq, np.array(list("xyz") * 4)))
    with pytest.raises(TaskError, match="as many classes"):
        gram_theory((xp, ours), (xq, np.array(list("xy") * 6)), match="order")


def test_tasks_are_drawn_and_named(tmp_path):
    digits = dt.load_task("digits")
    turned = rotated(digits, 180)
    same = gram_theory(digits, digits.derived("again"), limit=150, jitter=1e-3)
    other = gram_theory(turned, digits, limit=150, jitter=1e-3, seed=1)
    assert (same.n_source, same.source, same.target) == (150, "digits", "again")
    assert same.distance / same.distance_scratch < other.distance / other.distance_scratch
    assert "scaled to unit length" in str(same.view())
    again = load_record(same.save(tmp_path / "theory.json"))
    assert again == same
    assert again.summary == same.summary


def test_many_rows_find_the_least_eigenvalue_too():
    x = units(260, 20, 0)
    y = torch.randn(260, generator=torch.Generator().manual_seed(1))
    found = gram_theory((x, y), (x[:40], y[:40]))
    assert found.least_source == pytest.approx(
        float(torch.linalg.eigvalsh(relu_gram(x / x.norm(dim=1, keepdim=True)))[0]), rel=1e-3
    )


X, Y = torch.eye(4), torch.tensor([1.0, -1.0, 1.0, -1.0])


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ((X, Y), (torch.eye(5)[:4], Y), "have 4 numbers, of the target 5"),
        ((X, Y), (X * 0, Y), "input 0 of the target is zero"),
        ((X * float("nan"), Y), (X, Y), "NaN"),
        ((X, Y * float("nan")), (X, Y), "NaN"),
        ((X, ["a", "b", "a", "b"]), (X, Y), "like with like"),
        ((X, ["a"] * 4), (X, ["a", "b"] * 2), "one class only"),
        ((X, Y[:3]), (X, Y), "a pair of x"),
        (3, (X, Y), "is a task or a pair"),
        ((X, torch.ones(4, 2)), (X, Y), "2 numbers to predict, the target 1"),
        ((X[:0], Y[:0]), (X, Y), "no examples"),
        ((torch.ones(10_001, 2), torch.ones(10_001)), (X, Y), "10,000 at most"),
    ],
)
def test_mistakes_are_told(source, target, said):
    with pytest.raises(TaskError, match=said):
        gram_theory(source, target)


@pytest.mark.parametrize("wrong", [{"match": "x"}, {"jitter": -1}, {"limit": 0}])
def test_settings_are_checked(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        gram_theory((X, Y), (X, Y), **wrong)
