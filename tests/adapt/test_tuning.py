"""Moving weights under a head that stays: how fast, how hot, in which order."""

import math

import pytest
import torch
import torch.nn.functional as F

from dovetail.adapt.networks import Front, front_of
from dovetail.adapt.tuning import LEAST, Moves, _AdamW, hot_temperature, moved
from dovetail.core.errors import ContractError
from dovetail.linalg.ridge_sums import Linear
from dovetail.parts.part import build


@pytest.mark.parametrize("steps", [1, 2, 3, 16, 200])
def test_the_rate_rises_to_its_peak_and_falls_towards_zero(steps):
    rates = [Moves(steps, 32, 0.1).at(step) for step in range(steps)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(0.1)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert min(rates) > 0


@pytest.mark.parametrize(("size", "heated"), [(20.0, True), (0.1, False)])
def test_a_head_that_tells_all_apart_is_heated_until_there_is_something_to_learn(size, heated):
    codes = torch.arange(12) % 4
    logits = size * F.one_hot(codes, 4).double()
    hot = hot_temperature(logits, codes)
    loss = float(F.cross_entropy(logits / hot, codes))
    assert loss >= LEAST * math.log(4) - 1e-6
    if heated:
        assert loss == pytest.approx(LEAST * math.log(4), abs=1e-5)
    else:
        assert hot == 1.0


def test_one_step_is_one_of_adamw_on_the_mean_loss_of_all():
    front = front_of(build("mlp", shape=(3,), hidden=(5,), classes=2))
    twin = front_of(build("mlp", shape=(3,), hidden=(5,), classes=2))
    x, codes = torch.randn(6, 3), torch.arange(6) % 2
    head = Linear(torch.randn(5, 2).double(), torch.randn(2).double(), 1.0)
    assert list(moved(front, head, x, codes, Moves(1, 6, 0.01, 0.1), [1])) == [1]
    adamw = torch.optim.AdamW(twin.part.module.parameters(), lr=0.01, weight_decay=0.1)
    outputs = twin.part.module(x) @ head.weights.float() + head.intercept.float()
    torch.stack(
        [-outputs.log_softmax(1)[i, code] for i, code in enumerate(codes)]
    ).mean().backward()
    adamw.step()
    for mine, theirs in zip(
        front.part.module.parameters(), twin.part.module.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_many_steps_are_those_of_adamw():
    weights = [torch.randn(4, 3), torch.randn(3)]
    twins = [torch.nn.Parameter(each.clone()) for each in weights]
    mine, theirs = _AdamW(weights, 0.1), torch.optim.AdamW(twins, lr=0.01, weight_decay=0.1)
    for step in range(20):
        slopes = [torch.sin(each + step) for each in weights]
        for twin, slope in zip(twins, slopes, strict=True):
            twin.grad = slope.clone()
        mine(slopes, 0.01)
        theirs.step()
    for weight, twin in zip(weights, twins, strict=True):
        torch.testing.assert_close(weight, twin.detach(), atol=1e-5, rtol=1e-5)


def test_every_step_is_told():
    front = front_of(build("mlp", shape=(3,), hidden=(5,), classes=2))
    head, told = Linear(torch.ones(5, 2), torch.zeros(2), 1.0), []
    codes = torch.arange(6) % 2
    list(moved(front, head, torch.randn(6, 3), codes, Moves(3, 4, 0.1), [1, 3], step=told.append))
    assert len(told) == 3


def test_it_stops_at_the_marks_and_goes_on_from_there():
    def run(marks):
        front = front_of(build("mlp", shape=(3,), hidden=(5,), classes=2))
        x = torch.linspace(-1, 1, 30).reshape(10, 3)
        head = Linear(torch.ones(5, 2).double() * torch.tensor([1, -1]), torch.zeros(2), 1.0)
        return [
            [p.detach().clone() for p in front.part.module.parameters()]
            for _ in moved(front, head, x, torch.arange(10) % 2, Moves(6, 4, 0.01), marks, seed=1)
        ]

    halfway, end = run([3, 6])
    (straight,) = run([6])
    assert all(a.equal(b) for a, b in zip(end, straight, strict=True))
    assert not all(a.equal(b) for a, b in zip(halfway, end, strict=True))


def test_without_a_network_nothing_moves():
    head = Linear(torch.ones(1, 2), torch.zeros(2), 1.0)
    with pytest.raises(ContractError, match="no weights to move"):
        next(moved(Front(None), head, torch.ones(2, 1), torch.arange(2), Moves(1, 1, 0.1), [1]))
