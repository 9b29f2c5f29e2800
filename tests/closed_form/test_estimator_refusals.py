"""What the platonic estimators refuse, what they read all the same, and how they say so."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from dovetail.closed_form import PlatonicClassifier, PlatonicRegressor
from dovetail.closed_form.scaling import Spread
from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.estimator_inputs import InputTypeError

BAD_SETTINGS = [
    ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be whole numbers from 1 on, got 0"),
    ({"hidden_layer_sizes": (2.5,)}, "got 2.5"),
    ({"hidden_layer_sizes": "8"}, "'auto' or a tuple with a width"),
    ({"scale_inputs": "both"}, "scale_inputs is one of auto, together, each; got 'both'"),
    ({"scale_inputs": None}, "scale_inputs is one of"),
    ({"hidden_layer_sizes": None}, "a tuple with a width"),
    ({"activation": "gelu"}, "activation is one of relu, .*; got 'gelu'; did you mean elu"),
    ({"activation": 3}, "name or a function"),
    ({"projection": "sorted"}, "did you mean sorted-pca"),
    ({"projection": ("random", "pca")}, "names 2 layers, hidden_layer_sizes 1"),
    ({"projection": ()}, "projection is a name or a tuple"),
    ({"projection": 7}, "projection is a name or a tuple"),
    ({"n_tries": 0}, "n_tries must be a whole number from 1 on"),
    ({"n_tries": True}, "n_tries must be"),
    ({"target_scale": 0}, "target_scale must be a positive number"),
    ({"target_scale": float("nan")}, "target_scale must be a positive number"),
    ({"label_weight": -1}, "label_weight must be a number from 0 on"),
    ({"label_weight": "much"}, "label_weight must be 'auto'"),
    ({"ridge": "gcv"}, "ridge must be 'auto'"),
    ({"ridge": float("inf")}, "ridge must be a number from 0 on"),
    ({"solver": "colesky"}, "did you mean cholesky"),
    ({"ema": 1.5}, "ema must be between 0 and 1"),
    ({"patience": 0}, "patience must be a whole number"),
    ({"rank": 0}, "rank must be a whole number from 1 on, got 0"),
    ({"rank": 2.0}, "rank must be a whole number"),
    ({"rank": True}, "rank must be a whole number"),
    ({"rank": "low"}, "rank must be a whole number from 1 on, got 'low'"),
    ({"random_state": "x"}, "random_state must be"),
]


@pytest.mark.parametrize(("wrong", "said"), BAD_SETTINGS)
def test_settings_that_make_no_sense_are_refused(rows, wrong, said):
    x, y, _ = rows
    with pytest.raises(SettingsError, match=said):
        PlatonicClassifier(**{"hidden_layer_sizes": (4,)} | wrong).fit(x, y)


@pytest.mark.parametrize(
    ("x", "y", "weights", "error", "said"),
    [
        ([[1.0], [np.nan]], [0, 1], None, TaskError, "NaN"),
        ([[1.0], [2.0]], [0, 0], None, TaskError, "one class"),
        ([[1.0], [2.0]], [0, 1, 1], None, TaskError, "2 inputs but 3 targets"),
        (scipy.sparse.eye(2).tocsr(), [0, 1], None, InputTypeError, "[Ss]parse"),
        ([[1.0], [2.0]], [0, 1], [1.0], TaskError, "one for each row"),
        ([[1.0], [2.0]], [0, 1], [1.0, -1.0], TaskError, "not be negative"),
        ([[1.0], [2.0]], [0, 1], [1.0, np.inf], TaskError, "infinity"),
        ([[1.0], [2.0]], [0, 1], [0.0, 0.0], TaskError, "zero"),
        ([[1.0], [2.0]], [0, 1], [0.0, 1.0], TaskError, "all but the class 1 are zero"),
        ([[1e200], [-1e200]], [0, 1], None, TaskError, "beyond float64"),
        (np.zeros((0, 2)), [], None, TaskError, "0 sample"),
    ],
)
def test_data_that_make_no_sense_are_refused(x, y, weights, error, said):
    with pytest.raises(error, match=said):
        PlatonicClassifier((4,)).fit(x, y, weights)


def test_a_fit_that_fails_changes_nothing(rows):
    x, y, _ = rows
    net = PlatonicClassifier((4,), "tanh").fit(x, y)
    before = dict(vars(net))
    for inputs, labels in ((np.ones((3, 5)), [0, 0, 0]), (np.full((4, 3), np.nan), [0, 1, 0, 1])):
        with pytest.raises(TaskError):
            net.fit(inputs, labels)
    net.set_params(projection="pca", hidden_layer_sizes=(400,))
    with pytest.raises(SettingsError):
        net.fit(x[:, :1], y)
    net.set_params(projection="auto", hidden_layer_sizes=(4,))
    after = vars(net)
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before if name.endswith("_"))


def test_images_are_flattened_and_their_shape_is_remembered():
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 4, 4), dtype=np.uint8)
    y = images[:, 0, 0, 0] > 127
    net = PlatonicClassifier((20,)).fit(images, y)
    same = PlatonicClassifier((20,)).fit(images.reshape(40, 16) / 255, y)
    np.testing.assert_allclose(
        net.decision_function(images),
        same.decision_function(images.reshape(40, 16) / 255),
        atol=1e-4,
    )
    for shape in ((1, 8, 2), (4, 2, 2), (16,), (2, 8)):
        said = f"inputs have shape {list(shape)}, those that were fitted [1, 4, 4]"
        for other in (images.reshape(40, *shape), images.reshape(40, *shape).tolist()):
            with pytest.raises(TaskError, match=re.escape(said)):
                net.predict(other)
    with pytest.raises(TaskError, match=r"\[1, 4, 4\], those that were fitted \[16\]"):
        same.predict(images / 255)
    with pytest.raises(TaskError, match="X has 3 features, but PlatonicClassifier is expecting 16"):
        same.predict(np.ones((2, 3)))


def test_an_unknown_activation_is_answered_once(rows):
    x, y, _ = rows
    for name, near in (("rellu", 1), ("swish", 0)):
        with pytest.raises(SettingsError) as caught:
            PlatonicClassifier((4,), activation=name).fit(x, y)
        assert str(caught.value).count("softplus") == 1
        assert str(caught.value).count("did you mean") == near


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.floats(-1e6, 1e6), st.booleans())
def test_spread_is_that_of_all_rows_at_once(counts, offset, with_weights):
    draw = np.random.default_rng(sum(counts))
    x = offset + draw.normal(size=(sum(counts), 3))
    x[:, 2] = offset
    weights = draw.uniform(0.1, 2, len(x)) if with_weights else np.ones(len(x))
    spread, start = Spread(3), 0
    for count in counts:
        part = slice(start, start + count)
        start += count
        weight = torch.from_numpy(weights[part]) if with_weights else None
        other = Spread(3).update(torch.from_numpy(x[part]), weight)
        spread = spread.merge(Spread.from_state(other.state()))
    mean = np.average(x, axis=0, weights=weights)
    np.testing.assert_allclose(spread.mean, mean, rtol=1e-12)
    variance = np.average((x - mean) ** 2, axis=0, weights=weights)
    np.testing.assert_allclose(spread.variance, variance, atol=1e-8)
    assert spread.constant.tolist() == [len(x) == 1, len(x) == 1, True]


@pytest.mark.parametrize("streamed", [False, True])
def test_weights_that_are_not_whole_are_only_compared(streamed):
    x, y = load_digits(return_X_y=True)
    x, y = x[:300] / 16, y[:300]
    weights = np.random.default_rng(0).uniform(0.5, 1.5, 300)

    def fitted(scale):
        net = PlatonicClassifier((50,), solver="eigen")
        if streamed:
            return net.fit_batches([(x, y, scale * weights)])
        return net.fit(x, y, scale * weights)

    scores = [fitted(scale).decision_function(x) for scale in (1.0, 1 / 300, 1e6)]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(scores[2], scores[0], rtol=1e-6, atol=1e-8)


def test_bytes_and_numbers_are_not_mixed():
    pixels = np.random.default_rng(0).integers(0, 256, (60, 4)).astype(np.uint8)
    y = pixels[:, 0] > 100
    net = PlatonicClassifier((8,)).fit(pixels, y)
    with pytest.raises(TaskError, match="fitted to bytes"):
        net.predict(pixels.astype(float))
    with pytest.raises(TaskError, match="fitted to other numbers"):
        PlatonicClassifier((8,)).fit(pixels.astype(float), y).predict(pixels)
    with pytest.raises(TaskError, match="fitted to bytes"):
        PlatonicClassifier((8,)).fit_batches([(pixels, y), (pixels.astype(float), y)])


@pytest.mark.parametrize("scale", [1e-170, 1e-200, 1e170])
def test_units_beyond_float64_are_refused(scale):
    x = np.random.default_rng(0).normal(size=(50, 3))
    y = x[:, 0]
    with pytest.raises(TaskError, match="nearer to one"):
        PlatonicRegressor((8,)).fit(x * scale, y)
    with pytest.raises(TaskError):
        PlatonicRegressor((8,)).fit(x, y * scale)


def test_what_was_fitted_does_not_change_with_the_arguments():
    x = np.random.default_rng(0).normal(size=(80, 3))
    net = PlatonicRegressor((8,), activation="tanh").fit(x, x[:, 0])
    before = net.predict(x)
    net.set_params(activation="relu")
    np.testing.assert_array_equal(net.predict(x), before)


def test_half_precision_is_read():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = x[:, 0].numpy()
    found = PlatonicRegressor((8,)).fit(x.bfloat16(), y).predict(x.bfloat16())
    assert np.corrcoef(found, y)[0, 1] > 0.99


@pytest.mark.parametrize(
    "activation",
    [lambda z: z.float(), lambda z: z[:, :1], lambda z: z.log(), lambda z: z.numpy(), np.sum],
)
def test_an_activation_that_is_none_is_refused(activation):
    x = np.random.default_rng(0).normal(size=(50, 3))
    with pytest.raises(SettingsError, match="activation"):
        PlatonicRegressor((8,), activation=activation).fit(x, x[:, 0])
