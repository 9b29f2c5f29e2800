r"""Turning, blurring and resizing images in plain torch, on tensors ``[n, c, h, w]`` of floats."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["blur", "resize", "turn"]


def turn(images: Tensor, degrees: float | Tensor) -> Tensor:
    r"""Turn images counter-clockwise about their centre, by one angle or one each.

    Multiples of 90° given as one number move pixels exactly (and swap height and width); any other
    angle keeps the size and is bilinear, with zeros where the image has nothing to show.  A pixel
    :math:`p`, measured from the centre with :math:`y` downwards, takes the value at

    .. math:: q = \begin{pmatrix}\cos a & -\sin a\\ \sin a & \cos a\end{pmatrix} p .

    >>> turn(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 90)
    tensor([[[[2., 4.],
              [1., 3.]]]])
    """
    if not isinstance(degrees, Tensor):
        if degrees % 90 == 0:
            return torch.rot90(images, round(degrees / 90) % 4, (2, 3)).contiguous()
        degrees = torch.tensor([float(degrees)])
    height, width = images.shape[2:]
    angle = (degrees * (math.pi / 180)).to(images)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # affine_grid counts each axis from -1 to 1, hence the ratios of the sides
    to_source = torch.stack(
        [
            torch.stack([cos, -sin * (height / width), zero], 1),
            torch.stack([sin * (width / height), cos, zero], 1),
        ],
        1,
    )
    grid = F.affine_grid(to_source, [len(angle), 1, height, width], align_corners=False)
    grid = grid.expand(len(images), height, width, 2)  # one angle makes one grid for all
    return F.grid_sample(images, grid, align_corners=False)


def resize(images: Tensor, height: int, width: int) -> Tensor:
    """Resize bilinearly; shrinking averages over all the pixels that a new one covers.

    >>> resize(torch.ones(1, 1, 4, 4), 2, 3).shape
    torch.Size([1, 1, 2, 3])
    """
    return F.interpolate(images, (height, width), mode="bilinear", antialias=True)


def blur(images: Tensor, sigma: float) -> Tensor:
    r"""Each channel through a Gaussian, :math:`w_k \propto e^{-k^2 / 2\sigma^2}`.

    First along the rows, then along the columns; beyond the border the last pixel is repeated.

    >>> point = torch.zeros(1, 1, 5, 5)
    >>> point[0, 0, 2, 2] = 1
    >>> blur(point, 0.5).sum().round(decimals=4), blur(point, 0.5)[0, 0, 2, 2] < 1
    (tensor(1.), tensor(True))
    """
    reach = max(1, math.ceil(3 * sigma))
    steps = torch.arange(-reach, reach + 1, dtype=images.dtype)
    weights = torch.exp(-steps.square() / (2 * sigma**2))
    weights = weights / weights.sum()
    flat = images.reshape(-1, 1, *images.shape[2:])
    for kernel, padding in (
        (weights[None, None, None, :], (reach, reach, 0, 0)),
        (weights[None, None, :, None], (0, 0, reach, reach)),
    ):
        flat = F.conv2d(F.pad(flat, padding, mode="replicate"), kernel)
    return flat.reshape(images.shape)
