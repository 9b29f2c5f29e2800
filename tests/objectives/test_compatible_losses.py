"""Gradients without conflicts, against the definition and its promise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.pretexts import without_conflicts

from dovetail.core.errors import SettingsError
from dovetail.objectives import project_conflicts


def cut_up(vector, sizes):
    return list(vector.split(sizes))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 10_000))
def test_is_the_definition_read_aloud(losses, seed):
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(losses, 6, dtype=torch.float64, generator=draw)
    gradients = [cut_up(vector, [1, 3, 2]) for vector in vectors]
    found = project_conflicts(gradients, torch.Generator().manual_seed(seed))
    again = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(losses, generator=again).tolist() for _ in range(losses)]
    expected = torch.tensor(without_conflicts(vectors, orders), dtype=torch.float64)
    torch.testing.assert_close(torch.cat(found), expected)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([1e-30, 1e-6, 1.0, 1e15]), st.sampled_from([1.0, -1.0])
)
def test_of_two_losses_neither_steps_back(seed, scale, sign):
    draw = torch.Generator().manual_seed(seed)
    one = torch.randn(5, generator=draw)
    two = (torch.randn(5, generator=draw) + sign * one) * scale
    (step,) = project_conflicts([[one], [two]])
    assert bool(step.isfinite().all())
    for gradient in (one, two):
        unit = gradient.double() / gradient.double().norm()
        assert float(step.double() @ unit) >= -1e-5 * float(step.double().norm() + 1)


def test_without_conflict_it_is_the_sum():
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.5])
    assert torch.equal(project_conflicts([[one], [two]])[0], one + two)


def test_opposite_gradients_cancel():
    one = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(project_conflicts([[one], [-3 * one]])[0], torch.zeros(2))


def test_a_gradient_of_zero_changes_nothing():
    one = torch.tensor([1.0, -2.0])
    assert torch.equal(project_conflicts([[one], [torch.zeros(2)]])[0], one)


def test_a_parameter_that_a_loss_does_not_touch_counts_as_zero():
    a, b, c = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0]), torch.tensor([2.0])
    missing = project_conflicts([[a, None], [b, c]])
    filled = project_conflicts([[a, torch.zeros(1)], [b, c]])
    for one, two in zip(missing, filled, strict=True):
        torch.testing.assert_close(one, two)
    (untouched,) = project_conflicts([[None], [None]])
    assert untouched.shape == ()
    assert float(untouched) == 0


def test_the_gradients_given_stay_as_they_are():
    gradients = [[torch.tensor([1.0, 0.0])], [torch.tensor([-1.0, 1.0])]]
    before = [gradient[0].clone() for gradient in gradients]
    (step,) = project_conflicts(gradients)
    step.fill_(7)
    (alone,) = project_conflicts(gradients[:1])
    alone.fill_(7)
    assert all(torch.equal(g[0], b) for g, b in zip(gradients, before, strict=True))


def test_what_is_not_a_number_stays_seen():
    (step,) = project_conflicts([[torch.tensor([float("nan"), 1.0])], [torch.ones(2)]])
    assert bool(step.isnan().any())


def test_gradients_that_do_not_belong_together_are_refused():
    with pytest.raises(SettingsError, match="no loss"):
        project_conflicts([])
    with pytest.raises(SettingsError, match="of 1, 2 parameters"):
        project_conflicts([[torch.ones(2)], [torch.ones(2), torch.ones(2)]])
    with pytest.raises(SettingsError, match="parameter 0 has gradients of other shapes"):
        project_conflicts([[torch.ones(2)], [torch.ones(3)]])
