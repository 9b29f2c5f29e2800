"""Gradients of layers, against derivatives one example and one entry at a time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dovetail as dt
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens import gradient_flow, loss_variation, weight_projection


def net():
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(48, 8), nn.ReLU(inplace=True), nn.Linear(8, 3),
    )  # fmt: skip
    return nn.Sequential(*layers).double()


def data(n=6):
    draw = torch.Generator().manual_seed(1)
    return torch.rand(n, 1, 6, 6, generator=draw, dtype=torch.float64), torch.arange(n) % 3


def slopes_of(module, x, y):
    module = copy.deepcopy(module).eval()
    F.cross_entropy(module(x), y).backward()
    return {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("protocol", ["gradient", "fixed"])
def test_losses_along_the_gradient_are_those_of_moved_networks(protocol, tmp_path):
    module, (x, y) = net(), data()
    found = loss_variation(module, (x, y), protocol=protocol, step=0.3, points=4)
    slopes = slopes_of(module, x, y)
    length = float(torch.cat([g.flatten() for g in slopes.values()]).norm())
    whole = 0.3 if protocol == "gradient" else 0.3 / length
    for i, loss in enumerate(found.losses):
        moved = copy.deepcopy(module).eval()
        with torch.no_grad():
            for name, weight in moved.named_parameters():
                weight -= whole * i / 4 * slopes[name]
        truth = F.cross_entropy(moved(x), y).detach()
        assert loss == pytest.approx(float(truth), rel=1e-9)
        assert found.distances[i] == pytest.approx(whole * length * i / 4)
    assert found.slope == pytest.approx(length)
    assert found.variation == max(abs(v - found.losses[0]) for v in found.losses)
    assert load_record(found.save(tmp_path / "v.json")) == found


def test_what_comes_back_is_each_examples_own_gradient():
    module, (x, y) = net(), data()
    rows = {row["layer"]: row for row in gradient_flow(module, (x, y)).rows}
    assert list(rows) == ["0", "4", "6"]
    plain = copy.deepcopy(module).eval()
    for layer, place in (("0", 1), ("4", 5), ("6", 7)):
        lengths = []
        for i in range(len(x)):
            h = plain[:place](x[i : i + 1]).detach().clone().requires_grad_()
            F.cross_entropy(plain[place:](h.clone()), y[i : i + 1]).backward()
            lengths.append(float(h.grad.norm()))
        assert rows[layer]["back"] == pytest.approx(np.mean(lengths), rel=1e-9)
        slope = slopes_of(module, x, y)[f"{layer}.weight"]
        assert rows[layer]["length"] == pytest.approx(float(slope.norm()))
        middle = float(slope.abs().flatten().sort().values[round(0.5 * (slope.numel() - 1))])
        assert rows[layer]["50%"] == pytest.approx(middle)
    assert rows["6"]["scale"] == 1.0
    assert module.training
    assert all(p.grad is None for p in module.parameters())
    assert not module[0]._forward_hooks


def test_projections_are_read_off_the_singular_vectors(tmp_path):
    module, (x, y) = net(), data()
    found = weight_projection(module, (x, y))
    slopes = slopes_of(module, x, y)
    for name, along in found.projections.items():
        matrix = slopes[name].flatten(1).numpy()
        weight = dict(module.named_parameters())[name].detach().flatten(1).numpy()
        u, s, vh = np.linalg.svd(matrix, full_matrices=False)
        assert found.values[name] == pytest.approx(s, abs=1e-12)
        for i in range(np.sum(s > 1e-9 * s[0])):  # the rest have no direction of their own
            assert along[i] == pytest.approx(abs(u[:, i] @ weight @ vh[i]), abs=1e-9)
    assert len(found.projections["0.weight"]) == 3
    assert load_record(found.save(tmp_path / "p.json")) == found


def test_a_constant_layer_is_named_not_divided_by():
    module, (x, y) = net(), data()
    with torch.no_grad():
        module[4].weight.zero_()
        module[4].bias.fill_(1.0)
    found = weight_projection(module, (x, y))
    assert found.without == ("0.weight",)
    assert "No gradient in" in found.view()[1].text
    rows = {row["layer"]: row for row in gradient_flow(module, (x, y)).rows}
    assert rows["0"]["length"] == 0
    still = loss_variation(module, (x, y), protocol="fixed", module="0")
    assert still.variation == 0
    with pytest.raises(TaskError, match="every gradient is zero"):
        weight_projection(module, (x, y), module="0")


def test_parts_on_tasks(tmp_path):
    part, task = dt.build("lenet5", channels=1, size=8, classes=10), dt.load_task("digits")
    found = gradient_flow(part, task, limit=20)
    assert len(found.rows) == 5
    assert load_record(found.save(tmp_path / "f.json")) == found


def test_mistakes_are_told():
    with pytest.raises(SettingsError, match="protocol"):
        loss_variation(net(), data(), protocol="random")
    with pytest.raises(SettingsError, match="step"):
        loss_variation(net(), data(), step=0)
    with pytest.raises(SettingsError, match="no module is called"):
        weight_projection(net(), data(), module="head")
    with pytest.raises(SettingsError, match="no weight matrices"):
        weight_projection(net(), data(), module="1")


@pytest.mark.parametrize("look", [loss_variation, gradient_flow, weight_projection])
def test_labels_that_the_network_has_no_output_for_are_told(look):
    x, y = data()
    with pytest.raises(TaskError, match=r"outputs of shape \[6, 3\] and .* do not suit the loss"):
        look(net(), (x, y + 5))
