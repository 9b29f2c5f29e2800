"""Amplified losses: gradients as printed, maps, large outputs, probabilities, mistakes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import SettingsError, TaskError
from dovetail.objectives import NegativeCorrelation, SparseCrossEntropy, SquaredError

LOSSES = [
    SparseCrossEntropy(),
    SparseCrossEntropy(alpha=0.5, targets=(0, 2)),
    NegativeCorrelation(),
    NegativeCorrelation(alpha=0.001, beta=0.0, targets=(-2, 10)),
    SquaredError(),
    SquaredError(targets=(0, 1)),
]
ids = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def summed(loss):
    """The same with the printed sum over examples."""
    return type(loss)(**{**vars(loss), "reduction": "sum"})


def by_hand(loss, x, label):
    """One example's loss and deltas, by the printed formulas, a class at a time."""
    low, high = loss.targets
    total, deltas = 0.0, []
    for k, value in enumerate(x):
        t = high if k == label else low
        match loss:
            case SparseCrossEntropy(alpha=a):
                y = a * math.exp(value)
                total += abs(y) - t * math.log(y)
            case NegativeCorrelation(alpha=a, beta=b):
                y = a * value**3 + b
                total += a * value**4 / 4 + b * value - t * value
            case _:
                y = value
                total += (y - t) ** 2 / 2
        deltas.append(y - t)
    return total, deltas


@ids
@given(rows=st.lists(st.lists(st.floats(-6, 6), min_size=3, max_size=3), min_size=1, max_size=4))
def test_values_and_gradients_are_the_printed_ones(loss, rows):
    if hasattr(loss, "straight"):
        loss = replace(loss, straight=1e6)  # nothing is far out
    x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(len(rows)) % 3
    hand = [by_hand(loss, row, int(label)) for row, label in zip(rows, labels, strict=True)]
    value = summed(loss)(x, labels)
    value.backward()
    deltas = torch.tensor([d for _, d in hand], dtype=torch.float64)
    torch.testing.assert_close(value.item(), sum(v for v, _ in hand), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(x.grad, deltas, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(loss.deltas(x.detach(), labels), deltas, rtol=1e-9, atol=1e-9)
    mean = loss(x, labels)
    torch.testing.assert_close(mean * len(rows), value, rtol=1e-9, atol=1e-9)


@ids
def test_gradcheck(loss):
    x = torch.randn(3, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 4, (3, 2, 2))
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x,))


@ids
def test_maps_are_examples_side_by_side(loss):
    x, labels = torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))
    rows = x.movedim(1, -1).reshape(-1, 5)
    torch.testing.assert_close(loss(x, labels), loss(rows, labels.reshape(-1)))
    labels[0, 0], void = loss.ignore, labels.clone()
    counted = void.reshape(-1) != loss.ignore
    torch.testing.assert_close(loss(x, void), loss(rows[counted], void.reshape(-1)[counted]))
    assert loss.probabilities(x).shape == x.shape


@ids
def test_shares_of_one_are_class_indices(loss):
    x, labels = torch.randn(6, 3), torch.randint(0, 3, (6,))
    hot = torch.nn.functional.one_hot(labels, 3).float()
    torch.testing.assert_close(loss(x, labels), loss(x, hot))


@pytest.mark.parametrize("loss", [SparseCrossEntropy(), NegativeCorrelation()], ids=str)
def test_up_to_the_line_the_gradient_is_the_printed_one_and_beyond_it_stays(loss):
    x = loss.far * torch.tensor([[0.5, 1.0, 1.5, 100.0]], dtype=torch.float64)
    x.requires_grad_()
    summed(loss)(x, torch.tensor([0])).backward()
    torch.testing.assert_close(x.grad, loss.deltas(x.detach(), torch.tensor([0])))
    offset = getattr(loss, "beta", 0.0)
    assert x.grad[0, 1:].tolist() == pytest.approx([loss.straight * loss.targets[1] + offset] * 3)


@ids
def test_the_loss_has_no_step_where_the_line_begins(loss):
    if not hasattr(loss, "far"):
        return
    for side in (1, -1) if isinstance(loss, NegativeCorrelation) else (1,):
        edge = side * torch.tensor([[loss.far * (1 - 1e-9), 0.0], [loss.far * (1 + 1e-9), 0.0]])
        labels = torch.zeros(1, dtype=torch.long)
        inside, outside = (loss(row[None].double(), labels) for row in edge.double())
        torch.testing.assert_close(inside, outside, rtol=1e-5, atol=1e-5)


@ids
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_large_outputs_stay_finite(loss, dtype):
    x = torch.tensor([[1e12, -1e12, 90.0], [-1e4, -1e4, -1e12]], dtype=dtype, requires_grad=True)
    value = loss(x, torch.tensor([1, 2]))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    assert x.grad[0, 0] > 0  # a wrong class is pushed down, however far out it is
    assert loss.probabilities(x.detach().double()).isfinite().all()


@ids
def test_probabilities_are_some(loss):
    x = 3 * torch.randn(20, 4, dtype=torch.float64)
    p = loss.probabilities(x)
    torch.testing.assert_close(p.sum(1), torch.ones(20, dtype=torch.float64))
    assert (p >= 0).all()
    certain = p.amax(1) > p.mean(1)
    assert (p.argmax(1) == x.argmax(1))[certain].all()


OUTPUTS_OF = {
    SparseCrossEntropy: lambda loss, y: math.log(y / loss.alpha),
    NegativeCorrelation: lambda loss, y: math.cbrt((y - loss.beta) / loss.alpha),
    SquaredError: lambda loss, y: y,
}


@ids
def test_the_least_loss_tells_the_shares_of_the_classes(loss):
    """One input seen with classes at 3 : 1: the gradient vanishes at the mean targets."""
    low, high = loss.targets
    y = [low + share * (high - low) for share in (0.75, 0.25)]
    x = torch.tensor([[OUTPUTS_OF[type(loss)](loss, each) for each in y]], dtype=torch.float64)
    x.requires_grad_()
    loss(x.expand(4, 2), torch.tensor([0, 0, 0, 1])).backward()
    torch.testing.assert_close(x.grad, torch.zeros_like(x), atol=1e-10, rtol=0)
    shares = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(loss.probabilities(x.detach()), shares)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SparseCrossEntropy(alpha=0),
        lambda: SparseCrossEntropy(targets=(-1, 1)),
        lambda: NegativeCorrelation(beta=-1),
        lambda: SquaredError(targets=(1, 1)),
        lambda: SquaredError(reduction="none"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(SettingsError):
        make()


def test_targets_that_do_not_fit_are_refused():
    with pytest.raises(TaskError, match=r"need class indices \[2\]"):
        SquaredError()(torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(TaskError, match="not one of 0 to 2"):
        SquaredError()(torch.zeros(2, 3), torch.tensor([0, 3]))
