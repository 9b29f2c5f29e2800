"""How far weights moved, and maps of many networks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens import deviation, matched_weights, weight_map


def conv(seed=0, classes=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, classes)
    )


def shuffled(net, order):
    """The same function with its hidden channels in another order."""
    other = conv()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
        state[name] = state[name][order]
    state["4.weight"] = state["4.weight"].reshape(3, 4, 16)[:, order].reshape(3, 64)
    other.load_state_dict(state)
    return other


def test_deviation_is_the_norm_over_the_root_of_the_examples(tmp_path):
    net, start = conv(0), conv(1)
    found = deviation(net, start, examples=50)
    for name in ("0.weight", "4.weight"):
        a, b = (dict(m.named_parameters())[name].detach().double().numpy() for m in (net, start))
        assert found.layers[name] == pytest.approx(np.linalg.norm(a - b) / np.sqrt(50), rel=1e-12)
    assert list(found.layers) == ["0.weight", "4.weight"]
    assert found.total == pytest.approx(sum(found.layers.values()))
    assert load_record(found.save(tmp_path / "d.json")) == found


def test_a_new_head_is_left_out_and_said():
    found = deviation(conv(0), conv(0, classes=5))
    assert found.layers == {"0.weight": 0.0}
    assert found.left_out == ("4.weight",)
    assert "4.weight" in found.view()[1].text


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ContractError, match="share no layer"):
        deviation(conv(), nn.Linear(2, 2))
    with pytest.raises(SettingsError, match="examples"):
        deviation(conv(), conv(), examples=0)
    broken = conv()
    broken[0].weight.data[0] = torch.nan
    with pytest.raises(TaskError, match="NaN"):
        deviation(broken, conv())
    with pytest.raises(ContractError, match="expected a Part"):
        deviation("lenet", conv())


def test_a_callback_follows_the_deviation_to_its_end():
    task = dt.load_task("digits")
    net = dt.build("mlp", hidden=(8,))
    start = dt.build("mlp", hidden=(8,))
    n = task.size("train")
    history = dt.train.WeightHistory(packing=None, start=net, examples=n)
    fit = dt.train.end_to_end(net, task, epochs=2, callbacks=(history,))
    end = deviation(fit.part, start, examples=n)
    record = history.record()
    for layer, value in end.layers.items():
        first, last = record.curve(layer, "deviation")
        assert 0 < first < last
        assert last == pytest.approx(value, rel=1e-9)
    assert any(block.title == "Deviation" for block in record.view()[1:])


def test_matched_networks_are_where_their_original_is():
    net = conv(3)
    order = torch.tensor([2, 0, 3, 1])
    other = shuffled(net, order)
    x = torch.rand(2, 1, 6, 6)
    torch.testing.assert_close(net.eval()(x), other.eval()(x))
    nets = {"a": net, "b": other, "c": conv(4)}
    apart, together = weight_map(nets), weight_map(nets, match=True, example=x)
    with pytest.raises(ContractError, match="example="):
        weight_map(nets, match=True)
    assert apart.distances[0][1] > 0.1
    assert together.distances[0][1] == pytest.approx(0, abs=1e-12)
    assert together.distances[0][2] <= apart.distances[0][2]


def test_matching_never_takes_networks_apart():
    for seed in range(4):
        one, other = (conv(s) for s in (seed, seed + 10))
        moved, wanted = matched_weights(other, one, torch.rand(2, 1, 6, 6)), one.state_dict()
        first = "0.weight"
        states = (other.state_dict(), moved)
        before, after = (float((t[first] - wanted[first]).norm()) for t in states)
        assert after <= before + 1e-9


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_matched_networks_of_the_zoo_give_what_they_gave(norm):
    one, other = (dt.build("lenet5", channels=1, size=28, seed=s, norm=norm) for s in (0, 1))
    before = other.module.state_dict()
    moved = matched_weights(other, one)
    assert any(not torch.equal(moved[name], before[name]) for name in moved)
    assert all(torch.equal(before[name], t) for name, t in other.module.state_dict().items())
    x = torch.rand(3, 1, 28, 28)
    found = copy.deepcopy(other.module).eval()
    found.load_state_dict(moved)
    torch.testing.assert_close(found(x), other.module.eval()(x), rtol=1e-4, atol=1e-5)


class Skipping(nn.Module):
    """Widths agree everywhere, but a sum ties the channels of two layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.c(h + torch.relu(self.b(h)))


class Backwards(nn.Module):
    """Layers are made in another order than they are used."""

    def __init__(self):
        super().__init__()
        self.second, self.first, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


@pytest.mark.parametrize("kind", [Skipping, Backwards])
def test_what_is_no_chain_is_refused_though_shapes_fit(kind):
    nets = [kind() for _ in range(3)]
    with pytest.raises(ContractError, match="no chain of layers"):
        matched_weights(nets[1], nets[0])
    with pytest.raises(ContractError, match="no chain of layers"):
        weight_map(nets, match=True)
    resnets = [dt.build("resnet8", channels=1, size=8, classes=3, seed=s) for s in range(2)]
    with pytest.raises(ContractError):
        matched_weights(*resnets)


def test_matching_refuses_other_architectures_and_other_inputs():
    with pytest.raises(ContractError, match="not of one architecture"):
        matched_weights(nn.Linear(2, 3), nn.Linear(3, 3))
    with pytest.raises(ContractError, match="do not go through"):
        matched_weights(conv(0), conv(1), torch.rand(2, 3))


def test_pca_keeps_distances_that_fit_a_plane():
    nets = [nn.Linear(2, 1, bias=False) for _ in range(5)]
    found = weight_map(nets)
    for i in range(5):
        for j in range(5):
            far = np.hypot(found.x[i] - found.x[j], found.y[i] - found.y[j])
            assert far == pytest.approx(found.distances[i][j], abs=1e-9)
    assert found.kept == pytest.approx(1)


def test_tsne_keeps_two_families_apart(tmp_path):
    nets = {}
    for family in range(2):
        torch.manual_seed(family)
        centre = torch.randn(8, 8) * 3
        for i in range(6):
            net = nn.Linear(8, 8, bias=False)
            net.weight.data = centre + 0.1 * torch.randn(8, 8)
            nets[f"{family}.{i}"] = net
    found = weight_map(nets, by="tsne", groups=[n[0] for n in nets])
    places = np.array([found.x, found.y]).T
    inner = max(np.linalg.norm(places[:6] - places[:6].mean(0), axis=1).max(), 1e-9)
    assert np.linalg.norm(places[:6].mean(0) - places[6:].mean(0)) > inner
    assert [s.name for s in found.scatter().series] == ["0", "1"]
    assert load_record(found.save(tmp_path / "m.json")) == found


def test_a_map_is_of_one_architecture():
    with pytest.raises(ContractError, match="not of one architecture"):
        weight_map([conv(), conv(), nn.Linear(2, 2)])
    with pytest.raises(SettingsError, match="three parts"):
        weight_map([conv(), conv()])
    with pytest.raises(SettingsError, match="by is"):
        weight_map([conv()] * 3, by="umap")
