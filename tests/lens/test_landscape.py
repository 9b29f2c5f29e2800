"""Landscapes, against setting the weights point by point."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens import landscape
from dovetail.lens.landscape import random_direction
from dovetail.lens.perturbed import Perturbed
from dovetail.lens.subject import inside, subject_of


class Residual(nn.Module):
    """Uses what a layer gives twice: a ReLU must not write over it."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.one(x)
        return self.two(h + F.relu(h))


class Hidden(nn.Module):
    """Hides from gradients that its second layer's input depends on the first."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        with torch.no_grad():
            h = self.one(x)
        return self.two(h)


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def conv():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(4, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3),
    )  # fmt: skip


NETS = {
    "mlp": (mlp, (4,)),
    "conv": (conv, (1, 10, 10)),
    "residual": (Residual, (4,)),
    "hidden": (Hidden, (4,)),
}


def made(name):
    torch.manual_seed(0)
    make, shape = NETS[name]
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(12, *shape, generator=draw)
    return make().double(), x.double(), torch.arange(12) % 3


def by_hand(net, x, y, directions, point):
    """Set the weights, look at the loss."""
    other = copy.deepcopy(net).eval()
    with torch.no_grad():
        tensors = {**dict(other.named_parameters()), **dict(other.named_buffers())}
        for far, direction in zip(point, directions, strict=True):
            for name, step in direction.items():
                tensors[name] += far * step
        return float(F.cross_entropy(other(x), y))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("module", [None, "last"])
def test_every_point_is_what_setting_the_weights_gives(name, module):
    net, x, y = made(name)
    chosen = None if module is None else [n for n, m in net.named_modules() if n][-1]
    before = {n: t.clone() for n, t in net.state_dict().items()}
    found = landscape(net, (x, y), points=5, module=chosen, seed=3)
    names = inside(net, chosen)
    directions = [random_direction(net, names, "filter", 3, axis) for axis in range(2)]
    at = [-1.0, -0.5, 0.0, 0.5, 1.0]
    for i, row in enumerate(found.values):
        for j, value in enumerate(row):
            truth = by_hand(net, x, y, directions, (at[j], at[i]))
            assert value == pytest.approx(truth, rel=1e-9)
    assert found.centre == found.values[2][2]
    assert net.training
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())


def test_points_together_and_one_by_one_agree():
    net, x, y = made("mlp")
    subject = subject_of(net, (x, y))
    directions = [random_direction(net, inside(net, None), axis=axis) for axis in range(2)]
    perturbed = Perturbed(subject, directions)
    points = [(a / 3, b / 3) for b in range(-3, 4) for a in range(-3, 4)]
    assert perturbed.together > 1
    together = perturbed.losses(points)
    perturbed.together = 1
    assert perturbed.losses(points) == pytest.approx(together, rel=1e-12)


def test_what_gradients_do_not_show_is_evaluated_plainly():
    net, x, y = made("hidden")
    directions = [random_direction(net, inside(net, None))]
    assert not Perturbed(subject_of(net, (x, y)), directions)._swift
    net, x, y = made("mlp")
    assert Perturbed(subject_of(net, (x, y)), [random_direction(net, inside(net, None))])._swift


def test_many_examples_go_through_in_pieces(monkeypatch):
    net, x, y = made("conv")
    whole = landscape(net, (x, y), points=3)
    monkeypatch.setattr("dovetail.lens.perturbed._CHUNK", 5 * 100 * 8)
    pieces = landscape(net, (x, y), points=3)
    assert [v for row in pieces.values for v in row] == pytest.approx(
        [v for row in whole.values for v in row], rel=1e-9
    )


def test_filters_keep_their_lengths_and_scaled_networks_their_landscape():
    net, x, y = made("mlp")
    direction = random_direction(net, inside(net, None))
    for name, step in direction.items():
        weight = dict(net.named_parameters())[name]
        torch.testing.assert_close(step.norm(dim=1), weight.detach().norm(dim=1))
    assert set(direction) == {"0.weight", "2.weight"}
    scaled = copy.deepcopy(net)
    with torch.no_grad():  # another scale of the layers, the same function
        scaled[0].weight *= 7
        scaled[0].bias *= 7
        scaled[2].weight /= 7
    one, other = (landscape(n, (x, y), points=5) for n in (net, scaled))
    assert [v for row in other.values for v in row] == pytest.approx(
        [v for row in one.values for v in row], rel=1e-9
    )
    wholes = random_direction(net, inside(net, None), "layer")
    torch.testing.assert_close(wholes["0.weight"].norm(), net[0].weight.detach().norm())


def test_between_two_networks_the_ends_are_their_own():
    net, x, y = made("conv")
    other = conv().double()
    other[1].running_mean.normal_()
    other[1].running_var.uniform_(0.5, 2)
    found = landscape(net, (x, y), to=other, points=11)
    for module, value in ((net, found.values[0][0]), (other, found.values[0][-1])):
        truth = F.cross_entropy(copy.deepcopy(module).eval()(x), y).detach()
        assert value == pytest.approx(float(truth), rel=1e-9)
    assert found.barrier >= 0
    assert "statistics" in found.settings["norms"]


def test_a_grid_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    net, x, y = made("conv")
    whole = landscape(net, (x, y), points=5, file=tmp_path / "whole.json")
    rows = Perturbed.losses
    calls = []

    def killed(self, points):
        calls.append(len(points))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rows(self, points)

    monkeypatch.setattr(Perturbed, "losses", killed)
    with pytest.raises(KeyboardInterrupt):
        landscape(net, (x, y), points=5, file=tmp_path / "part.json")
    calls.clear()
    monkeypatch.setattr(Perturbed, "losses", lambda s, p: (calls.append(len(p)), rows(s, p))[1])
    resumed = landscape(net, (x, y), points=5, file=tmp_path / "part.json")
    assert calls == [5, 5, 5, 1]  # three rows, and the centre
    assert resumed.to_json() == whole.to_json()
    assert (tmp_path / "part.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    with pytest.raises(SettingsError, match="another landscape"):
        landscape(net, (x, y), points=5, seed=1, file=tmp_path / "part.json")


def test_a_bowl_is_smooth_and_waves_are_not():
    from dovetail.lens import Landscape

    side = [i / 10 - 1 for i in range(21)]
    bowl = tuple(tuple(x * x + y * y for x in side) for y in side)
    waves = tuple(tuple(math.sin(9 * x) * math.cos(9 * y) for x in side) for y in side)
    ends = (-1.0, 1.0)
    one, other = (Landscape(x=ends, y=ends, values=v, centre=0.0) for v in (bowl, waves))
    assert one.roughness == pytest.approx(0, abs=1e-12)
    assert other.roughness > 0.1
    assert one.rise == pytest.approx(
        sum(v for i, row in enumerate(bowl) for j, v in enumerate(row) if {i, j} & {0, 20}) / 80
    )


def test_a_part_on_a_task_is_kept_as_it_is(tmp_path):
    part = dt.build("lenet5", channels=1, size=8, classes=10)
    found = landscape(part, dt.load_task("digits"), points=3, limit=20)
    assert load_record(found.save(tmp_path / "l.json")) == found
    line = landscape(part, dt.load_task("digits"), dimensions=1, points=4, limit=20)
    assert line.y is None
    assert line.view()[-1].kind == "line"


def test_mistakes_are_told():
    net, x, y = made("mlp")
    with pytest.raises(ContractError, match="different architectures"):
        landscape(net, (x, y), to=Residual())
    with pytest.raises(SettingsError, match="no module is called"):
        landscape(net, (x, y), module="0.linear")
    with pytest.raises(SettingsError, match="only biases and norms"):
        landscape(made("conv")[0], made("conv")[1:], module="1")
    with pytest.raises(SettingsError, match="dimension"):
        landscape(net, (x, y), dimensions=3)
    with pytest.raises(TaskError, match="do not suit the loss"):
        landscape(net, (x, y + 5), points=3)
    with torch.no_grad():
        net[0].weight[0] = torch.nan
    with pytest.raises(TaskError, match="nan"):
        landscape(net, (x, y), points=3)
