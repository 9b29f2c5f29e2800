"""Filters that are patches: against loops over places, on images that were made for it, refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from references.patches import answered, patches, whitening
from sklearn.base import clone

import dovetail as dt
from dovetail.closed_form.estimators import PlatonicClassifier, PlatonicRegressor
from dovetail.closed_form.patches import FLAT, NEARLY_WHITE, maps_of, patch_layer, patches_of
from dovetail.core.errors import RecipeError, SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.jobs.train import train
from dovetail.reuse.packing import pack_part


@pytest.fixture(scope="module")
def images():
    return torch.rand(12, 2, 7, 6, generator=generator(0, "images")).double()


def test_some_patches_are_those_of_their_images(images):
    rows, owners = patches_of(images, 3, 100)
    assert len(rows) == 100
    seen = set()
    for row, owner in zip(rows.numpy(), owners.tolist(), strict=True):
        apart = [np.abs(row - each).max() for each in patches(images[owner].numpy(), 3)]
        assert min(apart) < 1e-12
        seen.add((owner, int(np.argmin(apart))))
    assert len(seen) > 60
    assert not torch.equal(patches_of(images, 3, 100, seed=1)[0], rows)


def test_all_patches_are_all_there_are(images):
    rows, owners = patches_of(images, 3, 240)
    wanted = [each for image in images.numpy() for each in patches(image, 3)]
    np.testing.assert_allclose(rows.numpy(), np.stack(wanted), atol=1e-12)
    assert owners.tolist() == [i for i in range(12) for _ in range(20)]


def test_the_layer_answers_to_each_patch_in_both_signs(images):
    layer = patch_layer(images, 5, size=3, pool=2)
    weights, bias = (each.numpy() for each in layer.filters.parameters())
    found = layer(images).numpy()
    for image, maps in zip(images.numpy(), found, strict=True):
        np.testing.assert_allclose(
            maps, answered(image, weights, bias, 2, layer.contrast), atol=1e-12
        )
    assert (found[:, :5].max() > 0, found[:, 5:].max() > 0) == (True, True)


def test_filters_are_whitened_patches(images):
    """A filter answers to a patch by the product of two whitened patches, one of length one."""
    layer = patch_layer(images, 4, size=3, pool=1)
    rows = patches_of(images, 3, 100_000)[0].numpy()
    variance = (rows**2).mean(1, keepdims=True)
    assert layer.contrast == pytest.approx(FLAT * variance.mean())
    alike = rows / np.sqrt(variance + layer.contrast)
    centred = alike - alike.mean(0)
    white = centred @ whitening(centred, NEARLY_WHITE)
    unit = white / np.linalg.norm(white, axis=1, keepdims=True)
    weights, bias = (each.numpy() for each in layer.filters.parameters())
    answers = alike @ weights.reshape(4, -1).T + bias  # [m, 4]
    for filter_answers in answers.T:
        apart = np.abs(unit @ white.T - filter_answers).max(1)
        assert apart.min() < 1e-9


@pytest.mark.parametrize("change", [lambda x: x + 5.0, lambda x: x * 40.0 - 3.0])
def test_light_and_the_unit_of_pixels_change_nothing(images, change):
    layer, other = (patch_layer(each, 5, size=3, pool=2) for each in (images, change(images)))
    torch.testing.assert_close(layer(images), other(change(images)), atol=1e-8, rtol=0)


def test_light_changes_nothing_even_for_rounded_weights(images):
    layer = patch_layer(images, 5, size=3, pool=2).float()
    torch.testing.assert_close(layer(images), layer(images + 50.0), atol=1e-3, rtol=0)


def test_bytes_are_the_same_as_their_shares(images):
    pixels = (images * 255).byte()
    one, other = (patch_layer(each, 4, size=3, pool=2) for each in (pixels, pixels.float() / 255))
    assert torch.equal(one.filters.weight, other.filters.weight)
    assert torch.equal(maps_of(one, pixels), maps_of(one, pixels.float() / 255))


@pytest.mark.parametrize(("side", "patch", "maps"), [(8, 3, 6), (28, 7, 4), (96, 7, 4)])
def test_sizes_follow_from_the_images(side, patch, maps):
    x = torch.rand(3, 1, side, side, generator=generator(side))
    layer = patch_layer(x, 2)
    assert layer.size == patch
    assert layer(x).shape == (3, 4, maps, maps)


def bars(count):
    """Upright or level bars at any place: no pixel tells, their patches do."""
    draw = generator(1, "bars")
    images, labels = torch.zeros(count, 1, 12, 12), torch.arange(count) % 2
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = torch.randint(0, 8, (2,), generator=draw).tolist()
        if label:
            image[0, top : top + 5, left] = 1.0
        else:
            image[0, top, left : left + 5] = 1.0
    return images, labels


def test_a_stroke_anywhere_is_told_by_filters_alone():
    x, y = bars(400)
    asked = {"filters": 8, "patch_size": 3, "pool": 10, "random_state": 0}
    with_filters = PlatonicClassifier((8,), **asked).fit(x[:200], y[:200])
    assert with_filters.score(x[200:], y[200:]) == 1.0
    assert (
        PlatonicClassifier((8,), random_state=0).fit(x[:200], y[:200]).score(x[200:], y[200:]) < 0.9
    )


def test_the_same_seed_gives_the_same_filters(images, monkeypatch):
    monkeypatch.setattr("dovetail.closed_form.patches.SAMPLE", 100)
    weights = [patch_layer(images, 4, size=3, seed=seed).filters.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.fixture(scope="module")
def digits():
    task = dt.load_task("digits")
    x, y = task.subset("train")
    return task, x, np.array(task.classes)[y.numpy()]


@pytest.mark.parametrize("asked", [{}, {"hidden_layer_sizes": (60, 40), "rank": 8}])
def test_a_network_behind_filters_is_an_estimator_and_a_part(digits, asked, tmp_path):
    task, x, y = digits
    net = PlatonicClassifier(filters=12, projection="random", **asked).fit(x, y)
    behind = PlatonicClassifier(projection="random", **asked)
    behind.fit(maps_of(net.front_, x), y)
    test = task.subset("test")[0]
    np.testing.assert_allclose(
        net.decision_function(test), behind.decision_function(maps_of(net.front_, test))
    )
    with torch.no_grad():
        found = net.to_torch()(test).softmax(1)
    np.testing.assert_allclose(found, net.predict_proba(test), atol=1e-12)
    part = net.to_part(torch.float32)
    loaded = dt.from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True)
    assert (loaded.digest, loaded.recipe) == (part.digest, part.recipe)
    accuracy = dt.evaluate(loaded, task).accuracy
    assert accuracy > 0.95
    packed = pack_part(part, task, loss_budget=0.05)
    assert dt.evaluate(packed.part, task).accuracy > accuracy - 0.03
    for again in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net), clone(net).fit(x, y)):
        assert np.array_equal(again.predict(test), net.predict(test))


def test_numbers_of_images_are_told_behind_filters():
    x, y = bars(200)
    net = PlatonicRegressor((8,), filters=8, patch_size=3, pool=10).fit(x[:150], y[:150].double())
    assert net.score(x[150:], y[150:].double()) > 0.95


def test_filters_on_the_command_line(tmp_path):
    shelf = tmp_path / "shelf"
    outcome = train(
        "digits",
        how="closed-form",
        filters=16,
        projection=("random",),
        args={"hidden": [200]},
        name="filtered",
        shelf=shelf,
    )
    part = dt.Shelf(shelf).get(outcome.data["ref"])
    assert part.recipe.build == "patch-mlp"
    assert part.origin.settings["filters"] == 16
    measures = dt.evaluate(part, dt.load_task("digits")).measures
    assert measures["accuracy"] > 0.97
    assert measures["nll"] < 0.12
    front, _ = dt.cut(part, at="patches")
    assert front.contract.gives[0].shape == (32, 6, 6)


def test_what_cannot_be_is_refused(images):
    with pytest.raises(TaskError, match=r"\[n, c, h, w\]"):
        patch_layer(images.flatten(1), 4)
    with pytest.raises(TaskError, match=r"\[n, c, h, w\]"):
        patch_layer(images[:0], 4)
    with pytest.raises(SettingsError, match="side 8 or more; these have 6"):
        patch_layer(images, 4, size=4, pool=5)
    for filters in (0, 241):
        with pytest.raises(SettingsError, match="from 1 to 240"):
            patch_layer(images, filters, size=3, pool=2)
    with pytest.raises(TaskError, match="one colour"):
        patch_layer(torch.ones_like(images), 4, size=3, pool=2)
    broken = images.clone()
    broken[3] = torch.nan
    with pytest.raises(TaskError, match="not finite"):
        patch_layer(broken, 4, size=3, pool=2)
    with pytest.raises(TaskError, match=r"images \[n, c, h, w\]"):
        PlatonicClassifier(filters=4).fit(np.eye(4), [0, 1, 0, 1])
    with pytest.raises(SettingsError, match="filters must be a whole number"):
        PlatonicClassifier(filters=0).fit(images, np.arange(12) % 2)
    for alone in ({"patch_size": 3}, {"pool": 2}):
        with pytest.raises(SettingsError, match="say how many, as filters=32"):
            PlatonicClassifier(**alone).fit(images, np.arange(12) % 2)
    with pytest.raises(SettingsError, match="batches of its maps"):
        PlatonicClassifier(filters=4).fit_batches([(images, np.arange(12) % 2)])
    for wrong in ({"patch": 7, "pool": 3}, {"contrast": 0.0}, {"filters": 0}):
        with pytest.raises(RecipeError):
            dt.build("patch-mlp", shape=(1, 8, 8), **wrong)
