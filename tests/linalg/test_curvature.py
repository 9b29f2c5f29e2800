"""Curvature products against dense matrices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from references import networks
from references.jacobian import dense_fisher, dense_hessian
from torch import nn

from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg.curvature import (
    DifferencedFisher,
    LossHessian,
    fisher_product,
    gauss_newton_product,
    output_curvature,
)
from dovetail.linalg.jacobian import Jacobian


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 3))


def conv():
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3),
        nn.Softplus(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    net(torch.randn(16, 2, 6, 6))
    return net


NETS = {
    "mlp": (mlp, (7, 4)),
    "conv": (conv, (5, 2, 6, 6)),
    "tied": (networks.TiedAcross, (5, 12)),
}


@pytest.fixture(params=NETS)
def case(request):
    make, shape = NETS[request.param]
    return make(), torch.randn(shape)


@pytest.mark.parametrize(("likelihood", "noise"), [("gaussian", 0.3), ("softmax", 1.0)])
def test_fisher_products(case, likelihood, noise):
    net, x = case
    truth = dense_fisher(net, x, likelihood, noise)
    around = Jacobian(net.double(), x)
    v = torch.randn(len(truth)).double()
    torch.testing.assert_close(fisher_product(around, v, likelihood, noise), truth @ v)
    by_name = around.unflatten(v)
    torch.testing.assert_close(fisher_product(around, by_name, likelihood, noise), truth @ v)


@pytest.mark.parametrize(("likelihood", "noise"), [("gaussian", 0.3), ("softmax", 1.0)])
@pytest.mark.parametrize(("kind", "within"), [(torch.float32, 1e-2), (torch.float64, 1e-5)])
def test_differences_are_near_the_fisher_product(case, likelihood, noise, kind, within):
    net, x = case
    truth = dense_fisher(net, x, likelihood, noise)
    fisher = DifferencedFisher(net.to(kind), x, likelihood, noise)
    for size in (1e-4, 1.0, 1e4):  # the step must follow the vector's length
        v = size * torch.randn(fisher.size, dtype=kind)
        exact = truth @ v.double()
        found = fisher.product(v)
        assert found.dtype == kind
        assert (found.double() - exact).norm() <= within * exact.norm()


class Cube(nn.Module):
    """A number to the third, and a large one that only lengthens the step."""

    def __init__(self):
        super().__init__()
        self.number, self.large = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(100.0))

    def forward(self, x):
        return x * self.number**3 + 0 * self.large


def test_a_step_that_moves_the_outputs_far_is_taken_both_ways():
    fisher = DifferencedFisher(Cube(), torch.ones(1, 1))  # one way alone is 1.7 % off
    found = fisher.product(torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found, torch.tensor([144.0, 0.0]), rtol=1e-3, atol=0)


@pytest.mark.parametrize("likelihood", ["gaussian", "softmax"])
def test_differences_hold_along_the_steepest_direction(likelihood):
    net, x = nn.Sequential(nn.Linear(4, 40), nn.ELU(), nn.Linear(40, 3)), torch.randn(30, 4)
    truth = dense_fisher(net, x, likelihood)
    steepest = torch.linalg.eigh(truth)[1][:, -1]
    found = DifferencedFisher(net.float(), x, likelihood).product(steepest.float()).double()
    assert (found - truth @ steepest).norm() <= 1e-3 * (truth @ steepest).norm()


def test_differences_work_where_forward_mode_does_not():
    net, x = networks.Pieces(), torch.randn(6, 12)
    truth = dense_fisher(net, x, "softmax")
    v = torch.randn(len(truth))
    found = DifferencedFisher(net, x, "softmax").product(v).double()
    assert (found - truth @ v.double()).norm() <= 1e-2 * (truth @ v.double()).norm()


def test_differences_of_no_step_and_of_no_weights():
    net, x = nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 2.0]])
    assert torch.equal(DifferencedFisher(net, x).product(torch.zeros(2)), torch.zeros(2))
    nn.init.zeros_(net.weight)
    found = DifferencedFisher(net, x).product(torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found, torch.tensor([1.0, 2.0]), rtol=1e-3, atol=0)


def test_hessian_products(case):
    net, x = case
    labels = torch.arange(len(x)) % 3
    loss = lambda outputs: F.cross_entropy(outputs, labels)  # noqa: E731
    truth = dense_hessian(net, x, loss)
    hessian = LossHessian(net.double(), x, loss)
    v = torch.randn(len(truth)).double()
    torch.testing.assert_close(hessian.product(v), truth @ v)
    torch.testing.assert_close(hessian.product(v), truth @ v)


def test_some_parameters_only():
    net, x = mlp().double(), torch.randn(7, 4).double()
    loss = lambda outputs: outputs.square().sum()  # noqa: E731
    v = torch.randn(27).double()
    truth = dense_hessian(net, x, loss, ["2.weight", "2.bias"])
    torch.testing.assert_close(LossHessian(net, x, loss, "2").product(v), truth @ v)
    fisher = dense_fisher(net, x, "gaussian", names=["2.weight", "2.bias"])
    torch.testing.assert_close(fisher_product(Jacobian(net, x, "2"), v), fisher @ v)
    # The last layer is linear: there the Hessian of a squared loss is Gauss-Newton, twice.
    torch.testing.assert_close(truth, 2 * fisher)


def test_a_loss_that_does_not_bend_or_does_not_depend():
    net, x = nn.Linear(2, 1), torch.randn(4, 2)
    linear = LossHessian(net, x, lambda outputs: outputs.sum())
    assert linear.gradient[-1] == 4
    assert torch.equal(linear.product(torch.ones(3)), torch.zeros(3))
    idle = LossHessian(
        networks.Idle(), torch.randn(2, 12), lambda out: out.square().sum(), "unused"
    )
    assert torch.equal(idle.gradient, torch.zeros(3))
    assert torch.equal(idle.product(torch.ones(3)), torch.zeros(3))


def test_any_output_hessian():
    net, x = mlp().double(), torch.randn(7, 4).double()
    around, v = Jacobian(net, x), torch.randn(67).double()
    weights = torch.rand(7, 3).double()
    found = gauss_newton_product(around, v, lambda moved: weights * moved)
    torch.testing.assert_close(found, around.vjp(weights * around.jvp(v)))


def test_a_softmax_is_blind_to_a_common_shift():
    logits = 50 * torch.randn(5, 4).double()  # nearly certain: no overflow either
    moved = output_curvature(logits, "softmax")(torch.ones(5, 4).double())
    torch.testing.assert_close(moved, torch.zeros(5, 4).double())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"likelihood": "poisson"}, "poisson"),
        ({"noise": 0.0}, "variance"),
        ({"noise": float("nan")}, "variance"),
        ({"likelihood": "softmax"}, "two classes"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, words):
    net, x = nn.Linear(2, 1), torch.randn(3, 2)
    with pytest.raises(SettingsError, match=words):
        DifferencedFisher(net, x, **settings)
    with pytest.raises(SettingsError, match=words):
        fisher_product(Jacobian(net, x), torch.ones(3), **settings)


def test_losses_and_vectors_that_are_no_numbers_are_refused():
    net, x = nn.Linear(2, 1), torch.randn(3, 2)
    with pytest.raises(SettingsError, match="sum or average"):
        LossHessian(net, x, lambda outputs: outputs)
    with pytest.raises(TaskError, match="nan"):
        LossHessian(net, x, lambda outputs: outputs.sum() * torch.nan)
    with pytest.raises(SettingsError, match="nan"):
        DifferencedFisher(net, x).product(torch.full((3,), torch.nan))
    with pytest.raises(TaskError, match="nan"):
        DifferencedFisher(net, x * torch.nan)
