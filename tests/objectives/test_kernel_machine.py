"""A layer as a kernel machine: equal to the layer, features against loops, and the theory."""

import pytest
import torch
from sklearn.svm import SVC
from torch import nn

import dovetail as dt
from dovetail.core.errors import SettingsError, TaskError
from dovetail.objectives import Pairwise, kernel_machine, mean_kernel

CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": 3, "stride": (2, 3)},
    "padded": {"kernel_size": (3, 2), "padding": (1, 2)},
    "dilated": {"kernel_size": 3, "dilation": (2, 1), "padding": 2},
    "grouped": {"kernel_size": 3, "groups": 2, "stride": 2, "padding": 1},
    "depthwise": {"kernel_size": 3, "groups": 4, "bias": False},
    "same": {"kernel_size": (4, 2), "padding": "same", "dilation": (1, 2)},
    "valid": {"kernel_size": 2, "padding": "valid"},
    "reflecting": {"kernel_size": 3, "padding": (2, 1), "padding_mode": "reflect"},
    "around": {"kernel_size": 3, "padding": (2, 1), "padding_mode": "circular"},
}
COUNTED = {  # padded by a number of zeros, which is all the loop below knows
    name: settings
    for name, settings in CONVOLUTIONS.items()
    if name not in ("same", "valid", "reflecting", "around")
}
TOLERANCES = [(torch.float32, 1e-6), (torch.float64, 1e-12)]
conv = pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
precisely = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["single", "double"])


def agree(found, expected, tolerance):
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@conv
@precisely
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's own, about its own copy
def test_a_convolution_is_its_machine(settings, dtype, tolerance):
    layer, maps = nn.Conv2d(4, 8, **settings).to(dtype), torch.randn(3, 4, 9, 8, dtype=dtype)
    machine = kernel_machine(layer, torch.relu)
    agree(machine(maps), layer(maps.relu()), tolerance)
    assert machine.positions(maps) == layer(maps).shape[2:]


@precisely
@pytest.mark.parametrize("shape", [(5, 6), (5, 3, 6), (5, 2, 3, 6)], ids=len)
def test_a_dense_layer_is_its_machine(shape, dtype, tolerance):
    layer, rows = nn.Linear(6, 4).to(dtype), torch.randn(shape, dtype=dtype)
    machine = kernel_machine(layer, nn.Tanh())
    agree(machine(rows), layer(rows.tanh()), tolerance)
    assert machine.positions(rows) == shape[1:-1]
    assert machine.kernel(rows, rows[:2]).shape == (*shape[1:-1], 5, 2)


@precisely
@pytest.mark.parametrize("size", [8, 28])
def test_layers_of_lenet5(size, dtype, tolerance):
    net = dt.build("lenet5", size=size, activation="tanh", seed=1)
    middle, late = dt.cut(net, at="conv1.conv"), dt.cut(net, at="fc2.linear")
    for part in (net, *middle, *late):
        part.module.to(dtype).eval()
    images = torch.rand(4, 1, size, size, dtype=dtype)

    conv1, conv2 = net.module.conv1, net.module.conv2  # F1 ends before the nonlinearity
    machine = kernel_machine(conv2.conv, nn.Sequential(conv1.act, conv1.pool))
    before = middle[0].module(images)
    agree(machine(before), conv2.conv(conv1(images)), tolerance)
    rest = nn.Sequential(conv2.act, conv2.pool, *list(net.module)[2:])
    agree(rest(machine(before)), middle[1].module(before), tolerance)

    machine = kernel_machine(late[1].module.get_submodule("head"), nn.Tanh())
    before = late[0].module(images)
    agree(machine(before), net.module(images), tolerance)
    agree(machine(before), late[1].module(before), tolerance)


@pytest.mark.parametrize("settings", COUNTED.values(), ids=COUNTED)
def test_features_are_the_receptive_field_channel_after_channel(settings):
    """By loops over positions and taps, zero outside the map."""
    layer = nn.Conv2d(4, 8, **settings)
    maps = torch.randn(2, 4, 6, 7)
    found = kernel_machine(layer).features(maps)
    high, wide = layer(maps).shape[2:]
    each = 4 // layer.groups
    found = found.reshape(2, layer.groups, high, wide, -1)
    for group in range(layer.groups):
        for top in range(high):
            for left in range(wide):
                field = []
                for channel in range(group * each, (group + 1) * each):
                    for a in range(layer.kernel_size[0]):
                        for b in range(layer.kernel_size[1]):
                            y = top * layer.stride[0] + a * layer.dilation[0] - layer.padding[0]
                            x = left * layer.stride[1] + b * layer.dilation[1] - layer.padding[1]
                            inside = 0 <= y < 6 and 0 <= x < 7
                            field.append(maps[:, channel, y, x] if inside else torch.zeros(2))
                assert torch.equal(found[:, group, top, left], torch.stack(field, 1))


@conv
def test_the_kernel_is_the_product_of_features(settings):
    machine = kernel_machine(nn.Conv2d(4, 8, **settings), torch.tanh)
    one, two = torch.randn(3, 4, 6, 7), torch.randn(2, 4, 6, 7)
    kernel = machine.kernel(one, two)
    a, b = machine.features(one), machine.features(two)
    for i in range(3):
        for j in range(2):
            agree(kernel[..., i, j], (a[i] * b[j]).sum(-1), 1e-5)


def test_unit_features_have_length_one_and_the_kernel_its_range():
    machine = kernel_machine(nn.Conv2d(2, 3, 3), torch.tanh, unit=True)
    maps = torch.randn(4, 2, 5, 5)
    agree(machine.features(maps).norm(dim=-1), torch.ones(4, 9), 1e-6)
    kernel = machine.kernel(maps, maps)
    agree(kernel.diagonal(dim1=1, dim2=2), torch.ones(9, 4), 1e-6)
    assert kernel.abs().max() <= 1 + 1e-6


def test_the_machine_shares_the_weights_of_its_layer():
    layer = nn.Linear(3, 2)
    machine, rows = kernel_machine(layer), torch.randn(4, 3)
    machine(rows).sum().backward()
    assert torch.equal(layer.weight.grad, rows.sum(0).expand(2, 3))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(7)
    assert torch.equal(machine(rows), torch.full((4, 2), 7.0))


def test_what_is_no_machine_is_refused():
    with pytest.raises(SettingsError, match="a Conv1d is no kernel machine here"):
        kernel_machine(nn.Conv1d(2, 3, 3))
    with pytest.raises(TaskError, match=r"takes \[n, 3\], but gets \[4, 5\]; the activation"):
        kernel_machine(nn.Linear(3, 2))(torch.randn(4, 5))
    with pytest.raises(TaskError, match=r"takes \[n, 2, height, width\], but gets \[2, 5, 5\]"):
        kernel_machine(nn.Conv2d(2, 3, 3)).features(torch.randn(2, 5, 5))
    machine = kernel_machine(nn.Conv2d(2, 3, 3))
    with pytest.raises(TaskError, match="at the same position"):
        machine.kernel(torch.randn(2, 2, 5, 5), torch.randn(2, 2, 6, 6))


# Theorem IV.1 in numbers --------------------------------------------------------------------------


def best_hinge_loss(features, signs, decay):
    """The least mean hinge loss plus ``decay / 2 * |w|^2`` of a linear head with a bias."""
    n = len(features)
    machine = SVC(kernel="linear", C=1 / (n * decay), tol=1e-9).fit(features, signs)
    w, b = torch.tensor(machine.coef_[0]), float(machine.intercept_[0])
    hinge = (1 - torch.tensor(signs) * (features.double() @ w + b)).clamp(min=0).mean()
    return float(hinge + decay / 2 * w.square().sum())


@pytest.mark.parametrize("decay", [0.05, 0.5, 3.0])
def test_at_the_least_kernel_the_head_reaches_the_least_loss(decay):
    """With opposite classes w = c v gives max(0, 1 - c) + decay c^2 / 2.

    That is least at c = min(1, 1 / decay).  No other arrangement of unit vectors does better, and
    one found by ascent on the objective, which never saw the loss, does as well.
    """
    c = min(1.0, 1 / decay)
    least = max(0.0, 1 - c) + decay * c * c / 2
    signs = [1, -1] * 5
    labels = torch.tensor(signs)
    for seed in range(5):
        raw = torch.randn(10, 3, generator=torch.Generator().manual_seed(seed))
        others = nn.functional.normalize(raw.tanh(), dim=1)
        assert best_hinge_loss(others, signs, decay) > least + 1e-3

    objective, raw = Pairwise("cts-neo", "tanh"), raw.double().requires_grad_()
    optimiser = torch.optim.Adam([raw], lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        (-objective(raw.tanh(), labels)).backward()
        optimiser.step()
    trained = nn.functional.normalize(raw.detach().tanh(), dim=1)
    assert mean_kernel(trained, labels).different < -0.999
    assert best_hinge_loss(trained, signs, decay) == pytest.approx(least, abs=1e-3)
