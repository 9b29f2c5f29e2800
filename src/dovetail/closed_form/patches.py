r"""A convolutional first layer by the recurrence on patches.

A convolution is one linear layer applied to every patch of an image, so what gives the weights of
a layer from rows gives filters from patches :math:`p \in \mathbb{R}^{c s^2}`, each with the label
of its image.  The mean of a patch is taken off first: filters then add up to zero and answer to
shape, not to brightness.  Patches of one colour have no shape and are left out; they would be
most of the rows of a drawing.  Behind the filters, a ReLU and average pooling bring the image down
to a size that dense layers can take.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from dovetail.closed_form.platonic import platonic
from dovetail.closed_form.rows import HeldRows
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.tasks.arrays import as_float

__all__ = ["patch_layer", "patches_of"]

SAMPLE = 100_000
"""Patches that are looked at: some thousand a weight of a filter."""


def patch_layer(
    images: Tensor,
    labels: Tensor,
    filters: int,
    *,
    size: int = 5,
    pool: int = 4,
    projection: str = "pca",
    seed: int = 0,
) -> nn.Sequential:
    """Filters, ReLU and average pooling: images ``[n, c, h, w]`` to maps ``[n, filters, ., .]``.

    Args:
        images: Those to learn from; bytes are divided by 255, as estimators and parts do.
        labels: Their classes, integers ``[n]``.
        filters: How many.
        size: Side of a patch.
        pool: Side of the squares that are averaged, after the filters.
        projection: ``"pca"`` (platonic PCA, at most as many filters as a patch has numbers and the
            labels classes), ``"random"``, or ``"sorted-pca"`` (patches as filters).
        seed: Of the patches looked at, and of random projections.

    Returns:
        The layer as a float64 module, to put in front of what is fitted to its maps.

    >>> x, y = torch.rand(20, 1, 8, 8), torch.arange(20) % 2
    >>> front = patch_layer(x, y, 6, size=3, pool=2)
    >>> front(x.double()).shape
    torch.Size([20, 6, 3, 3])
    """
    if images.ndim != 4 or labels.shape != (len(images),) or len(images) == 0:
        raise TaskError(
            "patches are of images [n, c, h, w] with a label [n] each; got "
            f"{list(images.shape)} and {list(labels.shape)}"
        )
    side = min(images.shape[2:])
    if size < 1 or pool < 1 or size + pool - 1 > side:
        raise SettingsError(
            f"patches of side {size} pooled by {pool} need images of side {size + pool - 1} or "
            f"more; these have {side}: take smaller ones"
        )
    if labels.is_floating_point() or int(labels.min()) < 0:
        raise TaskError("labels are classes by number, from zero up")
    rows, owners = patches_of(images, size, SAMPLE, seed)
    told = one_hot(labels.long()).double()[owners]
    layer = platonic(HeldRows(rows, told), (filters,), projections=(projection,), seed=seed)
    found = layer.layers[0]
    convolution = nn.Conv2d(images.shape[1], filters, size, dtype=torch.float64)
    weights = found.weights.T.reshape(filters, images.shape[1], size, size)
    convolution.load_state_dict({"weight": weights, "bias": found.bias})
    return nn.Sequential(
        OrderedDict(filters=convolution, act=nn.ReLU(), pool=nn.AvgPool2d(pool))
    ).requires_grad_(False)


def patches_of(images: Tensor, size: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Some patches of images, less their means ``[m, c * size**2]``, and whose they are ``[m]``.

    Of ``count`` places drawn at random (of all places, if there are no more), those with more than
    one colour.

    >>> picture = torch.zeros(1, 1, 4, 4)
    >>> picture[..., 0] = 1
    >>> rows, owners = patches_of(picture, 2, 100)
    >>> rows
    tensor([[ 0.5000, -0.5000,  0.5000, -0.5000],
            [ 0.5000, -0.5000,  0.5000, -0.5000],
            [ 0.5000, -0.5000,  0.5000, -0.5000]], dtype=torch.float64)
    """
    windows = images.unfold(2, size, 1).unfold(3, size, 1)  # a view: [n, c, h', w', size, size]
    sides = len(images), *windows.shape[2:4]
    if count >= math.prod(sides):
        owners, down, right = torch.cartesian_prod(*map(torch.arange, sides)).T
    else:
        draw = generator(seed, "patches")
        owners, down, right = (torch.randint(most, (count,), generator=draw) for most in sides)
        owners = owners.sort().values
    rows = as_float(windows[owners, :, down, right]).double().flatten(1)
    if not bool(rows.isfinite().all()):
        raise TaskError("the images hold values that are not finite; drop or fill them")
    coloured = rows.amax(1) > rows.amin(1)
    if not bool(coloured.any()):
        raise TaskError("all patches are of one colour: there is nothing for filters to answer to")
    rows, owners = rows[coloured], owners[coloured]
    return rows - rows.mean(1, keepdim=True), owners
