"""Similarity of Jacobians, against Jacobians written out."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import similarity as slow
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens import JacobianSimilarity, jacobian_similarity
from dovetail.parts.contract import Preprocess
from dovetail.parts.norms import with_batch_statistics


def net(seed=0, outputs=3, hidden=5, act=nn.Tanh):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, hidden), act(), nn.Linear(hidden, outputs)).double()


def conv(seed=0, outputs=2):
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, outputs)
    return nn.Sequential(*layers).double()


X = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
IMAGES = torch.rand(5, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("make", "x"), [(net, X), (conv, IMAGES)], ids=["mlp", "conv"])
def test_parameters_are_the_squared_cosine_of_dense_jacobians(make, x):
    nets = [make(seed) for seed in range(3)]
    found = jacobian_similarity(nets, x)
    assert found.names == ("part 1", "part 2", "part 3")
    for i, one in enumerate(nets):
        for j, other in enumerate(nets):
            assert found.matrix[i][j] == pytest.approx(slow.of_parameters(one, other, x), rel=1e-9)


def test_parameters_of_a_choice():
    one, other = net(0), net(1)
    found = jacobian_similarity([one, other], X, params="0.*")
    expected = slow.of_parameters(one, other, X, names=("0.weight", "0.bias"))
    assert found.matrix[0][1] == pytest.approx(expected, rel=1e-9)
    assert found.settings["parameters"] == {"part 1": 25, "part 2": 25}
    assert found.matrix[0][1] != pytest.approx(slow.of_parameters(one, other, X), rel=1e-3)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_functions_are_the_cosine_of_dense_kernels(outputs, centred):
    one, other = net(0), net(1, hidden=9, act=nn.ReLU)
    found = jacobian_similarity(
        {"a": one, "b": other}, X, reading="functions", outputs=outputs, centred=centred
    )
    expected = slow.of_functions(one, other, X, trace=outputs == "trace", centred=centred)
    assert found["a", "b"] == found["b", "a"] == pytest.approx(expected, rel=1e-9)
    assert found["a", "a"] == 1.0


def test_other_numbers_of_outputs_are_compared_by_their_sum():
    one, other = net(0, outputs=3), net(1, outputs=2)
    found = jacobian_similarity([one, other], X, reading="functions")
    assert found.settings["outputs"] == "trace"
    assert found.matrix[0][1] == pytest.approx(slow.of_functions(one, other, X, trace=True))
    with pytest.raises(ContractError, match=r"2, 3 outputs.*trace"):
        jacobian_similarity([one, other], X, reading="functions", outputs="full")


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 10), reading=st.sampled_from(["p", "f"]))
def test_in_zero_to_one_and_blind_to_the_scale_of_the_outputs(seed, scale, reading):
    reading = {"p": "parameters", "f": "functions"}[reading]
    one, other = net(seed), net(seed + 1)

    class Scaled(nn.Sequential):
        def forward(self, x):
            return scale * super().forward(x)

    plain = jacobian_similarity([one, other], X, reading=reading).matrix[0][1]
    scaled = jacobian_similarity([one, Scaled(*other)], X, reading=reading).matrix[0][1]
    assert 0 <= plain <= 1
    assert scaled == pytest.approx(plain, rel=1e-9)


def test_exchanged_hidden_units_change_the_reading_of_parameters_only():
    one = net(0)
    turned = net(0)
    order = torch.tensor([4, 0, 1, 2, 3])
    with torch.no_grad():
        turned[0].weight.copy_(one[0].weight[order])
        turned[0].bias.copy_(one[0].bias[order])
        turned[2].weight.copy_(one[2].weight[:, order])
    assert torch.allclose(one(X), turned(X))
    functions = jacobian_similarity([one, turned], X, reading="functions").matrix[0][1]
    parameters = jacobian_similarity([one, turned], X).matrix[0][1]
    assert functions == pytest.approx(1.0, abs=1e-12)
    assert parameters < 0.99


def test_parts_are_preprocessed_by_their_own_contracts():
    parts = [dt.build("mlp", shape=(4,), hidden=(6,), classes=3, seed=seed) for seed in (0, 1)]
    how = Preprocess(mean=(0.5,), std=(0.2,))
    moved = parts[1].changed(contract=replace(parts[1].contract, preprocess=how))
    x = X.float()
    found = jacobian_similarity([parts[0], moved], x)
    expected = slow.of_parameters(parts[0].module, moved.module, x, (x - 0.5) / 0.2)
    assert found.matrix[0][1] == pytest.approx(expected, rel=1e-4)
    other = slow.of_parameters(parts[0].module, moved.module, x)
    assert found.matrix[0][1] != pytest.approx(other, rel=1e-2)


def test_a_task_is_drawn_from():
    digits = dt.load_task("digits")
    nets = [dt.build("lenet5", channels=1, size=8, classes=10, seed=seed) for seed in (0, 1)]
    one, again, other = (
        jacobian_similarity(nets, digits, limit=12, split="validation", seed=seed)
        for seed in (0, 0, 1)
    )
    assert one.n == 12
    assert one == again
    assert one.matrix != other.matrix
    assert one.settings["split"] == "validation"
    assert jacobian_similarity(nets, digits.subset("test")[0][:9]).n == 9


def test_the_networks_are_left_as_they_were():
    one, other = net(0).train(), net(1).eval()
    one[0].weight.requires_grad_(False)
    with torch.no_grad():
        jacobian_similarity([one, other], X)
    assert (one.training, other.training) == (True, False)
    assert one[2].weight.grad is None
    assert not one[0].weight.requires_grad


def test_the_record_goes_to_a_file_and_back_and_is_shown(tmp_path):
    found = jacobian_similarity([net(0), net(1), net(2)], X, names=["a", "b", "c"])
    assert load_record(found.save(tmp_path / "similarity.json")) == found
    assert isinstance(found, JacobianSimilarity)
    text, heat = found.view()
    assert "Most alike" in text.text
    assert heat.rows == heat.columns == ("a", "b", "c")
    assert "Least" not in jacobian_similarity([net(0), net(1)], X).view()[0].text
    json.loads(found.to_json())
    with pytest.raises(SettingsError, match="no part 'd'"):
        found["a", "d"]


@pytest.mark.parametrize(
    ("parts", "options", "error", "words"),
    [
        ([net()], {}, SettingsError, "two parts"),
        (net(), {}, SettingsError, "two parts"),
        ([], {}, SettingsError, "two parts"),
        ([net(), "net"], {}, ContractError, "expected a Part"),
        ([net(), net(hidden=6)], {}, ContractError, r"'0.weight' is .*functions"),
        ([net(), net(outputs=2)], {}, ContractError, "share their parameters"),
        ([net(), nn.Linear(4, 3).double()], {}, ContractError, "only one has"),
        ([net(), net()], {"reading": "weights"}, SettingsError, "reading is"),
        ([net(), net()], {"outputs": "some"}, SettingsError, "outputs is"),
        ([net(), net()], {"centred": True}, SettingsError, "functions"),
        ([net(), net()], {"names": ["a", "a"]}, SettingsError, "different"),
        ([net(), net()], {"names": ["a"]}, SettingsError, "2 different"),
        ({"a": net(), "b": net()}, {"names": ["a", "b"]}, SettingsError, "already"),
        ([net(), net()], {"params": "nothing.*"}, SettingsError, "nothing"),
    ],
)
def test_what_cannot_be_compared_is_refused(parts, options, error, words):
    with pytest.raises(error, match=words):
        jacobian_similarity(parts, X, **options)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X[:0], "at least one"),
        (torch.full((3, 4), torch.nan, dtype=torch.float64), "finite"),
        ("images", "tensor"),
        (X[:, :2], "shape"),
    ],
)
def test_inputs_that_are_none_are_refused(x, words):
    with pytest.raises(TaskError, match=words):
        jacobian_similarity([net(0), net(1)], x)
    with pytest.raises(SettingsError, match="limit"):
        jacobian_similarity([net(0), net(1)], dt.load_task("digits"), limit=0)


def test_a_jacobian_of_zero_and_statistics_of_the_batch_are_refused():
    dead = net(0, act=nn.ReLU)
    with torch.no_grad():
        dead[0].bias.fill_(-1e3)
    with pytest.raises(TaskError, match="zero on these inputs"):
        jacobian_similarity([dead, net(1, act=nn.ReLU)], X, params="0.*")
    with pytest.raises(ContractError, match="batch"):
        jacobian_similarity([conv(0), with_batch_statistics(conv(1))], IMAGES)


def test_one_input_is_enough():
    found = jacobian_similarity([net(0), net(1)], X[:1])
    assert found.matrix[0][1] == pytest.approx(slow.of_parameters(net(0), net(1), X[:1]))


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 8 * 21**2),
        ({"reading": "functions"}, 2 * 8 * 21**2),
        ({"reading": "functions", "outputs": "trace"}, 8 * 7**2 * (2 + 3)),
    ],
    ids=["parameters", "full", "trace"],
)
def test_kernels_that_are_too_large_are_refused_before_they_are_made(monkeypatch, options, most):
    nets = [net(0), net(1)]
    monkeypatch.setattr("dovetail.lens.similarity.MEMORY", most)
    jacobian_similarity(nets, X, **options)
    monkeypatch.setattr("dovetail.lens.similarity.MEMORY", most - 1)
    monkeypatch.setattr("dovetail.lens.similarity.TangentFeatures.gram", None)
    with pytest.raises(TaskError, match="give fewer inputs"):
        jacobian_similarity(nets, X, **options)


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "all"])
def test_a_limit_that_is_none_is_refused_for_any_inputs(limit):
    with pytest.raises(SettingsError, match="limit"):
        jacobian_similarity([net(0), net(1)], X, limit=limit)


def test_arrays_are_read_as_tensors_are():
    nets = [net(0), net(1)]
    found, expected = (jacobian_similarity(nets, x) for x in (X.numpy()[::-1], X.flip(0)))
    assert found.matrix == expected.matrix
    with pytest.raises(TaskError, match="inputs are numbers"):
        jacobian_similarity(nets, np.array(["a", "b"]))
