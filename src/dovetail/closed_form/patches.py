r"""A convolutional first layer whose filters are patches of the images: no label, no gradient.

Patches are made alike in light and contrast, :math:`\hat p = (p - \mu_p) / \sqrt{v_p + \epsilon}`
with their own mean and variance, and whitened: with the mean :math:`m` and the covariance
:math:`\Sigma` of all :math:`\hat p`

.. math:: u = A\,(\hat p - m), \qquad
          A = (\Sigma + \delta \tfrac{\operatorname{tr} \Sigma}{d} I)^{-1/2} ,

so that neighbouring pixels, which nearly agree, do not outweigh what tells patches apart.  Some of
the :math:`u`, evenly spaced along their first principal component and of length one, are the
filters; :math:`u_i^\top A (\hat p - m)` is one filter :math:`A u_i` on :math:`\hat p`.  Patches of
one colour have no shape and are left out: they would be most of a drawing.

What a filter answers is kept in both signs, and averaged over squares
(:class:`~dovetail.parts.zoo.patches.Patches`).  (After Coates, Ng and Lee, 2011.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dovetail.closed_form.projections import evenly
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.parts.zoo.patches import Patches
from dovetail.tasks.arrays import as_float

SAMPLE = 100_000
"""Patches that are looked at: some thousand a weight of a filter."""
FLAT, NEARLY_WHITE = 0.1, 1.0
r""":math:`\epsilon` in units of the mean variance of patches, and :math:`\delta`."""
SIDES, MAPS = (3, 7), 4
"""Of a patch: a quarter of the image's, within these limits; and of the maps, about."""
AT_ONCE = 64
"""Images whose maps are made at once: they and what is between fit into a processor's cache."""


def patch_layer(
    images: Tensor,
    filters: int = 32,
    *,
    size: int | None = None,
    pool: int | None = None,
    seed: int = 0,
) -> Patches:
    """Filters of both signs and average pooling, ``[n, c, h, w]`` to ``[n, 2 filters, h', w']``.

    Args:
        images: Those to learn from; bytes are divided by 255, as estimators and parts do.
        filters: How many.
        size: Side of a patch; unless said a quarter of the image's, from 3 to 7.
        pool: Side of the squares that are averaged; unless said what leaves maps of 4 by 4.
        seed: Of the patches looked at.

    Returns:
        The layer as a float64 module, to put in front of what is fitted to its maps.

    >>> x = torch.rand(20, 1, 8, 8)
    >>> patch_layer(x, 6, size=3, pool=2)(x).shape
    torch.Size([20, 12, 3, 3])
    """
    if images.ndim != 4 or len(images) == 0:
        raise TaskError(f"patches are of images [n, c, h, w]; got {list(images.shape)}")
    channels, side = images.shape[1], min(images.shape[2:])
    size = min(max(side // 4, SIDES[0]), SIDES[1]) if size is None else size
    pool = max(1, (side - size + 1) // MAPS) if pool is None else pool
    if size < 1 or pool < 1 or size + pool - 1 > side:
        raise SettingsError(
            f"patches of side {size} pooled by {pool} need images of side {size + pool - 1} or "
            f"more; these have {side}: take smaller ones"
        )
    rows, _ = patches_of(images, size, SAMPLE, seed)
    if not 1 <= filters <= len(rows):
        raise SettingsError(
            f"filters are patches: from 1 to {len(rows)} of them, as many as there are; got "
            f"{filters}"
        )
    variance = rows.square().mean(1, keepdim=True)
    contrast = FLAT * float(variance.mean())
    alike = rows / (variance + contrast).sqrt()
    mean = alike.mean(0)
    alike -= mean
    spread, axes = torch.linalg.eigh(alike.T @ alike / len(alike))
    whitening = (axes * (spread.clamp(min=0) + NEARLY_WHITE * spread.mean()).rsqrt()) @ axes.T
    chosen = alike[evenly(alike @ axes[:, -1], None, filters)] @ whitening
    weights = normalize(chosen, dim=1) @ whitening
    layer = Patches(channels, filters=filters, size=size, pool=pool, contrast=contrast).double()
    layer.filters.load_state_dict(
        {"weight": weights.reshape(layer.filters.weight.shape), "bias": -weights @ mean}
    )
    return layer.requires_grad_(False)


def maps_of(layer: Patches, images: Tensor) -> Tensor:
    """What a layer makes of images ``[n, c, h, w]``, as rows ``[n, d]`` of float64, bit by bit.

    >>> x = torch.rand(20, 1, 8, 8)
    >>> maps_of(patch_layer(x, 6, size=3, pool=2), x).shape
    torch.Size([20, 108])
    """
    return torch.cat([layer(as_float(some)).flatten(1) for some in torch.split(images, AT_ONCE)])


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
