from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import BaseEstimator
from torch import nn

from dovetail.adapt.ablr import AdaptiveBayesianRegressor
from dovetail.adapt.classifier import LinearizedClassifier
from dovetail.adapt.networks import default_network, network_of, standardising
from dovetail.adapt.probe import ProbeRegressor
from dovetail.adapt.rbf import RBFRegressor
from dovetail.adapt.regressor import LinearizedRegressor
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.measure.estimator_inputs import (
    InputTypeError,
    as_classes,
    as_inputs,
    as_numbers,
    as_rows,
    refuse_other_count,
    seed_of,
)
from dovetail.parts.contract import Contract, Preprocess
from dovetail.parts.part import build


@pytest.mark.parametrize("shape", [(5, 3), (5, 1, 8, 8), (5, 8, 8)])
def test_arrays_tensors_and_lists_read_alike(shape):
    values = np.random.default_rng(0).normal(size=shape)
    read = [as_inputs(each) for each in (values, torch.tensor(values), values.tolist())]
    assert all(each.dtype == torch.float32 for each in read)
    assert all(torch.equal(each, torch.tensor(values).float()) for each in read)


def test_pixels_stay_bytes_and_rows_of_them_are_in_natural_units():
    pixels = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert as_inputs(pixels).dtype == torch.uint8
    torch.testing.assert_close(as_rows(pixels), torch.tensor([[0.0, 0.2, 1.0]]).double())


def test_what_is_read_is_a_copy():
    values = np.zeros((2, 2), dtype=np.float32)
    as_inputs(values)[:] = 1.0
    as_rows(values.astype(np.float64))[:] = 1.0
    assert not values.any()


def test_rows_keep_all_the_digits_of_float64():
    assert as_rows([[1 + 1e-12, 0.0]])[0, 0] != 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[1.0, float("nan")]], "NaN"),
        ([[1.0, float("inf")]], "infinity"),
        ([[1e39, 0.0]], "too large"),
        (np.zeros((0, 3)), "0 sample"),
        (np.zeros((3, 0)), "0 feature"),
        ([1.0, 2.0], "Reshape"),
        ([["a", "b"]], "could not convert|not numbers"),
        (np.ones((2, 2), dtype=complex), "Complex"),
    ],
)
def test_inputs_that_no_network_can_take_are_refused_with_a_reason(given, said):
    with pytest.raises(TaskError, match=said):
        as_inputs(given)


def test_sparse_inputs_are_refused_as_of_the_wrong_type():
    with pytest.raises(InputTypeError, match=r"[Ss]parse"):
        as_inputs(sparse.csr_matrix(np.eye(3)))


def test_an_estimator_learns_how_wide_its_inputs_are_and_refuses_others():
    estimator = BaseEstimator()
    as_inputs(np.ones((4, 3)), estimator)
    assert estimator.n_features_in_ == 3
    with pytest.raises(TaskError, match="4 features, but BaseEstimator is expecting 3"):
        as_inputs(np.ones((4, 4)), estimator, reset=False)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["ant", "bee", "cow"]), min_size=2, max_size=12))
def test_codes_point_at_the_classes_they_came_from(labels):
    if len(set(labels)) < 2:
        with pytest.raises(TaskError, match="one class"):
            as_classes(labels)
        return
    codes, classes = as_classes(labels)
    assert classes[codes.numpy()].tolist() == labels
    assert sorted(set(labels)) == classes.tolist()


@pytest.mark.parametrize("labels", [[3, 1, 3], torch.tensor([3, 1, 3]), np.array([3.0, 1.0, 3.0])])
def test_classes_keep_the_spelling_of_whole_numbers(labels):
    codes, classes = as_classes(labels)
    assert codes.tolist() == [1, 0, 1]
    assert classes.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "requires y"),
        ([0.5, 1.5, 2.2], "Unknown label type"),
        ([1.0, float("nan"), 2.0], "NaN"),
        ([[1, 0], [0, 1]], "1d"),
        ([], "0 sample|minimum|empty"),
    ],
)
def test_labels_that_name_no_classes_are_refused(labels, said):
    with pytest.raises(TaskError, match=said):
        as_classes(labels)


def test_numbers_know_whether_they_had_a_column_axis():
    flat, was_flat = as_numbers([1, 2, 3])
    wide, was_wide = as_numbers([[1], [2], [3]])
    assert torch.equal(flat, wide)
    assert (was_flat, was_wide) == (True, False)


@pytest.mark.parametrize(
    "given", [None, [1.0, float("nan")], [], np.zeros((2, 2, 2)), ["a", "b"], 3.0]
)
def test_targets_that_are_no_numbers_are_refused(given):
    with pytest.raises(TaskError):
        as_numbers(given)


def test_other_counts_are_refused():
    with pytest.raises(TaskError, match="3 inputs but 2 targets"):
        refuse_other_count(torch.zeros(3), torch.zeros(2))


def test_a_network_is_copied_and_pickles_with_its_preprocessing():
    part = build("mlp", shape=(4,), hidden=(3,), classes=2)
    how = Preprocess(mean=(1.0,), std=(2.0,))
    part = part.changed(contract=Contract(part.contract.takes, part.contract.gives, how))
    module, ready, contract = pickle.loads(pickle.dumps(network_of(part)))
    assert contract == part.contract
    assert torch.equal(ready(torch.full((1, 4), 5.0)), torch.full((1, 4), 2.0))
    with torch.no_grad():
        network_of(part)[0].head.bias.fill_(9.0)
    assert not bool((part.module.head.bias == 9.0).any())
    assert not module.training
    with pytest.raises(ContractError):
        network_of("resnet")


def test_a_plain_module_in_training_mode_is_left_in_it():
    module = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5))
    assert not network_of(module)[0].training
    assert module.training


def test_the_default_network_standardises_and_repeats():
    raw = torch.randn(200, 3) * torch.tensor([1.0, 100.0, 0.0]) + torch.tensor([0.0, 5.0, 7.0])
    part, again = default_network(raw, 2, seed=3), default_network(raw, 2, seed=3)
    assert part.digest == again.digest != default_network(raw, 2, seed=4).digest
    _, ready, _ = network_of(part)
    prepared = ready(raw)
    torch.testing.assert_close(prepared.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(prepared.std(0), torch.tensor([1.0, 1.0, 0.0]), atol=0.01, rtol=0)
    outputs = part(prepared)
    assert outputs.shape == (200, 2)
    assert 0.1 < float(outputs.detach().std()) < 5.0


def test_every_layer_of_the_default_network_has_its_share_in_the_tangent_kernel():
    raw = torch.randn(1, 5)
    module = default_network(raw.repeat(2, 1) + torch.randn(2, 5), 1).module
    gradients = torch.autograd.grad(module(raw).sum(), list(module.parameters()))
    shares = torch.stack([each.square().sum() for each in gradients[::2]])
    assert float(shares.min() / shares.max()) > 0.01


def test_images_are_standardised_by_channel():
    assert standardising(torch.rand(6, 3, 4, 4)).mean[2:] != ()
    assert len(standardising(torch.zeros(6, 3, 4, 4, dtype=torch.uint8)).std) == 3


def test_random_states_become_seeds():
    assert seed_of(np.random.RandomState(1)) == seed_of(np.random.RandomState(1))
    assert isinstance(seed_of(np.random.default_rng(1)), int)
    for wrong in ("7", True, 1.5):
        with pytest.raises(SettingsError, match="random_state"):
            seed_of(wrong)


@pytest.mark.parametrize("make", [ProbeRegressor, AdaptiveBayesianRegressor, RBFRegressor])
def test_numbers_whose_squares_are_none_are_refused(make):
    with pytest.raises(TaskError, match=r"targets reach 3e\+200.*scale them down"):
        make().fit([[0.0], [1.0], [2.0]], [1e200, -3e200, 2e200])


@pytest.mark.parametrize("text", [["owl", "cat"], np.array(["1", "x"]), [1.0, "owl"], [b"a", b"b"]])
def test_text_is_for_a_classifier(text):
    with pytest.raises(TaskError, match="use a classifier"):
        as_numbers(text)


def test_none_among_targets_is_said():
    with pytest.raises(TaskError, match="None is among the labels"):
        as_classes(["owl", None, "cat"])
    with pytest.raises(TaskError, match="None is among the targets"):
        as_numbers([1.0, None])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_inputs_get_the_type_of_the_weights(dtype):
    whole = build("mlp", shape=(3,))
    for model in (nn.Linear(3, 2).to(dtype), whole.changed(module=whole.module.to(dtype))):
        module, ready, _ = pickle.loads(pickle.dumps(network_of(model)))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert module(ready(torch.rand(4, 3))).dtype == wide
    assert network_of(nn.Flatten())[1](torch.rand(4, 3)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_linearised_estimators_take_networks_of_other_types(dtype):
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype),
        torch.randn(20, 3),
    )
    y = (2 * x[:, 0]).numpy()
    assert LinearizedRegressor(net).fit(x, y).score(x, y) > 0.8
    assert LinearizedClassifier(net).fit(x, y > 0).score(x, y > 0) > 0.8
