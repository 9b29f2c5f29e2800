"""Products with the Jacobian against the dense one, and the choice of parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import networks
from references.jacobian import dense_jacobian, jacobian_by_steps
from torch import nn

from dovetail.core.errors import DovetailError, SettingsError, TaskError
from dovetail.linalg.jacobian import ForwardModeError, Jacobian, Parametrised
from dovetail.linalg.parameters import chosen_parameters


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def conv():
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    net(torch.randn(16, 2, 6, 6))  # running statistics that are not the first ones
    return net


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x).mean(1)


NETS = {
    "mlp": (mlp, (5, 4)),
    "conv": (conv, (3, 2, 6, 6)),
    "called twice": (networks.CalledTwice, (3, 12)),
    "tied": (networks.TiedAcross, (3, 12)),
    "data-dependent": (networks.Branching, (3, 12)),
    "in place": (networks.InPlaceBranch, (3, 12)),
    "idle": (networks.Idle, (3, 12)),
    "transformer": (Encoder, (3, 4, 4)),
}


@pytest.fixture(params=NETS)
def case(request):
    make, shape = NETS[request.param]
    return make().double(), torch.randn(shape, dtype=torch.float64)


def test_products_are_those_of_the_dense_jacobian(case):
    net, x = case
    if isinstance(net, Encoder):  # jacrev needs the plain kernels, too
        truth = jacobian_by_steps(net, x)
        close = {"rtol": 1e-5, "atol": 1e-7}
    else:
        truth = dense_jacobian(net, x)
        close = {"rtol": 1e-10, "atol": 1e-12}
    around = Jacobian(net, x)
    assert around.size == truth.shape[1]
    v, u = torch.randn(around.size).double(), torch.randn_like(around.forward_value)
    for _ in range(2):  # the second time from what was kept
        torch.testing.assert_close(around.jvp(v).reshape(-1), truth @ v, **close)
        torch.testing.assert_close(around.vjp(u), truth.T @ u.reshape(-1), **close)
    gram = truth @ truth.T @ u.reshape(-1)
    torch.testing.assert_close(around.gram_product(u).reshape(-1), gram, **close)


def test_the_value_is_the_network_s_in_evaluation_mode(case):
    net, x = case
    modes = [child.training for child in net.modules()]
    value = Jacobian(net.train(), x).forward_value
    assert [child.training for child in net.modules()] == modes
    assert not value.requires_grad
    torch.testing.assert_close(value, net.eval()(x).detach())


def test_the_reference_is_the_derivative():
    net, x = mlp(), torch.randn(5, 4)
    torch.testing.assert_close(dense_jacobian(net, x), jacobian_by_steps(net, x))


@pytest.mark.parametrize("caller", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_whatever_the_caller_s_gradient_mode(caller):
    net, x = mlp().double(), torch.randn(5, 4).double()
    truth = dense_jacobian(net, x)
    with caller():
        around = Jacobian(net, x)
        pushed, pulled = around.jvp(truth[0]), around.vjp(torch.ones(5, 3))
    torch.testing.assert_close(pushed.reshape(-1), truth @ truth[0])
    torch.testing.assert_close(pulled, truth.sum(0))


def test_the_module_is_left_alone_and_may_change_afterwards():
    net, x = conv().double(), torch.randn(3, 2, 6, 6).double()
    before, kept = copy.deepcopy(net.state_dict()), x.clone()
    for tensor in net.parameters():
        tensor.requires_grad_(False)
    truth = dense_jacobian(net, x)
    around = Jacobian(net, x)
    v = torch.randn(around.size).double()
    assert all(tensor.grad is None and not tensor.requires_grad for tensor in net.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    for tensor in net.state_dict().values():
        tensor.zero_()
    x.zero_()
    torch.testing.assert_close(around.jvp(v).reshape(-1), truth @ v)
    torch.testing.assert_close(around.vjp(torch.ones(3, 2)), truth.sum(0))
    assert not torch.equal(kept, x)


def test_some_parameters():
    net, x = conv().double(), torch.randn(3, 2, 6, 6).double()
    around = Jacobian(net, x, ["5", "1.weight"])
    truth = dense_jacobian(net, x, ["1.weight", "5.weight", "5.bias"])
    torch.testing.assert_close(around.vjp(torch.ones(6)), truth.sum(0))
    by_name = around.unflatten(torch.arange(around.size))
    assert list(by_name) == ["1.weight", "5.weight", "5.bias"]
    moved = around.jvp({"5.bias": torch.tensor([1.0, 2.0])})
    torch.testing.assert_close(moved, torch.tensor([[1.0, 2.0]]).double().expand(3, 2))


def test_an_unused_parameter_moves_nothing():
    around = Jacobian(networks.Idle(), torch.randn(3, 12), "unused")
    assert torch.equal(around.vjp(torch.ones(3, 4)), torch.zeros(3))
    assert torch.equal(around.jvp(torch.ones(3)), torch.zeros(3, 4))


def test_float32_stays_float32_and_several_inputs_go_in():
    net = networks.Optional()
    around = Jacobian(net, (torch.randn(3, 12).double(), torch.ones(8)))
    assert around.forward_value.dtype == around.jvp(torch.ones(around.size).double()).dtype
    assert around.forward_value.dtype == torch.float32


@settings(deadline=None, max_examples=5)
@given(st.integers(0, 2**31), st.floats(-3, 3))
def test_both_products_are_of_one_linear_map(seed, factor):
    source = torch.Generator().manual_seed(seed)
    net = mlp().double()
    around = Jacobian(net, torch.randn(2, 4, generator=source))
    v, w = torch.randn(2, around.size, generator=source, dtype=torch.float64)
    u = torch.randn(2, 3, generator=source, dtype=torch.float64)
    torch.testing.assert_close((around.jvp(v) * u).sum(), around.vjp(u) @ v)
    both = around.jvp(v) + factor * around.jvp(w)
    torch.testing.assert_close(around.jvp(v + factor * w), both)


# The choice -----------------------------------------------------------------------------------


def test_a_shared_tensor_is_one_whatever_it_is_called():
    net = networks.TiedAcross()
    names = chosen_parameters(net)
    assert names.count("encoder.weight") == 1
    assert "decoder.weight" not in names
    assert chosen_parameters(net, "decoder.weight") == ("encoder.weight",)
    x = torch.randn(3, 12).double()
    tied = Jacobian(net.double(), x, "decoder.weight").vjp(torch.ones(3, 4))
    torch.testing.assert_close(tied, dense_jacobian(net, x, ["encoder.weight"]).sum(0))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("layr", "no parameter is called 'layr'"),
        (["0", "nothing*"], "nothing"),
        ([], "no parameter was chosen"),
        (lambda name, tensor: False, "no parameter was chosen"),
        ([3], "text"),
        (3, r"params is a pattern of names or several, a test of \(name, tensor\), or None"),
        (lambda name: True, r"two arguments, \(name, tensor\)"),
    ],
)
def test_a_choice_of_nothing_is_refused(params, words):
    with pytest.raises(SettingsError, match=words):
        chosen_parameters(mlp(), params)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_layers_without_a_shape_and_numbers_without_derivative_are_refused():
    with pytest.raises(SettingsError, match="call the module once"):
        chosen_parameters(nn.Sequential(nn.LazyLinear(3)))
    net = mlp()
    net.count = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(SettingsError, match="int64"):
        chosen_parameters(net)
    assert len(chosen_parameters(net, "*.weight")) == 2
    assert Parametrised(net, torch.randn(1, 4), ["0", "2"]).size == 51
    with pytest.raises(SettingsError, match="nothing to differentiate"):
        chosen_parameters(nn.ReLU())


# What cannot be -------------------------------------------------------------------------------


def test_directions_of_other_spaces_are_refused():
    around = Jacobian(mlp(), torch.randn(5, 4))
    with pytest.raises(SettingsError, match=r"\[51\]"):
        around.jvp(torch.ones(50))
    with pytest.raises(SettingsError, match=r"did you mean 0\.weight"):
        around.jvp({"0.weigth": torch.ones(6, 4)})
    with pytest.raises(SettingsError, match=r"\[6, 4\]"):
        around.jvp({"0.weight": torch.ones(4, 6)})
    with pytest.raises(SettingsError, match="one number for each output"):
        around.vjp(torch.ones(3, 5))


def test_nan_lists_and_tuples_are_refused():
    with pytest.raises(TaskError, match="nan"):
        Jacobian(mlp(), torch.full((1, 4), torch.nan))
    with pytest.raises(TaskError, match="tensors"):
        Jacobian(mlp(), [[1.0, 2.0, 3.0, 4.0]])
    with pytest.raises(TaskError, match="gives tuple"):
        Jacobian(nn.LSTM(4, 2), torch.randn(3, 4))


def test_a_network_that_draws_is_refused():
    around = Jacobian(networks.Noisy(), torch.randn(3, 12))
    with pytest.raises(TaskError, match="random numbers"):
        around.jvp(torch.ones(around.size))


def test_an_operation_without_forward_mode_says_what_to_do():
    around = Jacobian(networks.Pieces(), torch.randn(3, 12))
    assert around.vjp(torch.ones(3, 4)).norm() > 0
    with pytest.raises(ForwardModeError, match="DifferencedFisher") as caught:
        around.jvp(torch.ones(around.size))
    assert isinstance(caught.value, DovetailError)
