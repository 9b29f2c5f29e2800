"""Filters in closed form: against loops over places, on images that were made for it, refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.patches import answered, patches

from dovetail.closed_form.estimators import PlatonicClassifier
from dovetail.closed_form.patches import patch_layer, patches_of
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator


@pytest.fixture(scope="module")
def images():
    return torch.rand(12, 2, 7, 6, generator=generator(0, "images")).double()


LABELS = torch.arange(12) % 3


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


@pytest.mark.parametrize("projection", ["sorted-pca", "random", "pca"])
def test_the_layer_is_a_convolution_a_relu_and_means(images, projection):
    front = patch_layer(images, LABELS, 5, size=3, pool=2, projection=projection)
    weights, bias = (each.numpy() for each in front.filters.parameters())
    found = front(images).numpy()
    for image, maps in zip(images.numpy(), found, strict=True):
        np.testing.assert_allclose(maps, answered(image, weights, bias, 2), atol=1e-12)
    assert found.max() > 0


@pytest.mark.parametrize("projection", ["sorted-pca", "random", "pca"])
def test_brightness_changes_nothing(images, projection):
    front = patch_layer(images, LABELS, 5, size=3, pool=2, projection=projection)
    torch.testing.assert_close(front(images), front(images + 5.0), atol=1e-9, rtol=0)


def test_sorted_pca_takes_patches_for_filters(images):
    front = patch_layer(images, LABELS, 4, size=3, pool=2, projection="sorted-pca")
    rows, _ = patches_of(images, 3, 100_000)
    mean = rows.mean(0)
    centred = torch.nn.functional.normalize(rows.unique(dim=0) - mean, dim=1)
    filters = torch.nn.functional.normalize(front.filters.weight.flatten(1), dim=1)
    torch.testing.assert_close((filters @ centred.T).amax(1), torch.ones(4).double())


def test_bytes_are_the_same_as_their_shares(images):
    pixels = (images * 255).byte()
    one = patch_layer(pixels, LABELS, 4, size=3, pool=2)
    other = patch_layer(pixels.float() / 255, LABELS, 4, size=3, pool=2)
    assert torch.equal(one.filters.weight, other.filters.weight)


def test_a_stroke_anywhere_is_told_by_filters_alone():
    """Upright or level bars at any place: no pixel tells, their patches do."""
    draw = generator(1, "bars")
    images, labels = torch.zeros(400, 1, 12, 12), torch.arange(400) % 2
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = torch.randint(0, 8, (2,), generator=draw).tolist()
        if label:
            image[0, top : top + 5, left] = 1.0
        else:
            image[0, top, left : left + 5] = 1.0
    front = patch_layer(images[:200], labels[:200], 8, size=3, pool=10)

    def scored(x):
        return PlatonicClassifier((8,), random_state=0).fit(x[:200], labels[:200]), x[200:]

    with_filters, rest = scored(front(images.double()))
    assert with_filters.score(rest, labels[200:]) == 1.0
    pixels, rest = scored(images)
    assert pixels.score(rest, labels[200:]) < 0.9


def test_the_same_seed_gives_the_same_filters(images):
    weights = [
        patch_layer(images, LABELS, 4, size=3, pool=2, projection="random", seed=seed).filters
        for seed in (0, 0, 1)
    ]
    assert torch.equal(weights[0].weight, weights[1].weight)
    assert not torch.equal(weights[0].weight, weights[2].weight)


def test_what_cannot_be_is_refused(images):
    with pytest.raises(TaskError, match=r"\[n, c, h, w\]"):
        patch_layer(images.flatten(1), LABELS, 4)
    with pytest.raises(TaskError, match="a label"):
        patch_layer(images, LABELS[:5], 4, size=3, pool=2)
    with pytest.raises(TaskError, match="a label"):
        patch_layer(images[:0], LABELS[:0], 4, size=3, pool=2)
    with pytest.raises(TaskError, match="by number"):
        patch_layer(images, LABELS - 1, 4, size=3, pool=2)
    with pytest.raises(SettingsError, match="side 8 or more; these have 6"):
        patch_layer(images, LABELS, 4)
    with pytest.raises(SettingsError, match="one unit or more"):
        patch_layer(images, LABELS, 0, size=3, pool=2)
    with pytest.raises(SettingsError, match="projection is one of"):
        patch_layer(images, LABELS, 4, size=3, pool=2, projection="ica")
    with pytest.raises(TaskError, match="one colour"):
        patch_layer(torch.ones_like(images), LABELS, 4, size=3, pool=2)
    broken = images.clone()
    broken[3] = torch.nan
    with pytest.raises(TaskError, match="not finite"):
        patch_layer(broken, LABELS, 4, size=3, pool=2)
