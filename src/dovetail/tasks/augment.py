r"""Images ``[n, c, h, w]`` of floats turned, blurred, resized, and changed at random.

The random ones are for training: each gives as many images of the same shape, changes each sample
in its own way, drawn from an explicit generator, and a batch at once, without a loop over samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from dovetail.core.errors import FormatError, SettingsError, nearest


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


def flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirror each image left to right with probability one half.

    >>> x = torch.tensor([[[[1.0, 2.0]]]]).expand(50, 1, 1, 2)
    >>> flip(x, Generator().manual_seed(0)).unique(dim=0)[:, 0, 0].tolist()
    [[1.0, 2.0], [2.0, 1.0]]
    """
    mirrored = _integers(images, generator, 2).bool()
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def shift(images: Tensor, generator: Generator, pixels: int, *, pad: str = "zero") -> Tensor:
    """Move each image by up to ``pixels`` each way; the border shows zeros or a reflection.

    >>> shift(torch.ones(2, 1, 4, 4), Generator().manual_seed(0), 1).shape
    torch.Size([2, 1, 4, 4])
    """
    height, width = images.shape[2:]
    if pad == "reflect" and pixels >= min(height, width):
        raise SettingsError(f"images {height}×{width} cannot be reflected by {pixels} pixels")
    mode = {"zero": "constant", "reflect": "reflect"}[pad]
    padded = F.pad(images, (pixels,) * 4, mode=mode)
    # every window is a view; only the chosen one of each sample is copied
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    down = _integers(images, generator, 2 * pixels + 1)
    right = _integers(images, generator, 2 * pixels + 1)
    return windows[torch.arange(len(images), device=images.device), :, down, right]


def cutout(images: Tensor, generator: Generator, size: int) -> Tensor:
    """Blank a square of side ``size`` about a random pixel of each image (DeVries and Taylor 2017).

    The centre may lie at the border, so that part of the square falls outside.

    >>> cutout(torch.ones(2, 1, 4, 4), Generator().manual_seed(0), 8).sum()
    tensor(0.)
    """
    height, width = images.shape[2:]
    rows = _band(_integers(images, generator, height), height, size)
    columns = _band(_integers(images, generator, width), width, size)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def rotate(images: Tensor, generator: Generator, degrees: float) -> Tensor:
    r"""Turn each image by an angle drawn evenly from :math:`[-d, d]` degrees, bilinearly.

    >>> rotate(torch.ones(2, 1, 4, 4), Generator().manual_seed(0), 10).shape
    torch.Size([2, 1, 4, 4])
    """
    drawn = torch.rand(len(images), generator=generator, device=generator.device)
    return turn(images, (drawn.to(images.device) * 2 - 1) * degrees)


_STEPS: dict[str, Callable[[Tensor, Generator, float], Tensor]] = {
    "flip": lambda x, generator, _: flip(x, generator),
    "shift": lambda x, generator, by: shift(x, generator, int(by)),
    "shift-reflect": lambda x, generator, by: shift(x, generator, int(by), pad="reflect"),
    "cutout": lambda x, generator, size: cutout(x, generator, int(size)),
    "rotate": rotate,
}
_NO_AMOUNT = ("flip",)
_WHOLE = ("shift", "shift-reflect", "cutout")


@dataclass(frozen=True)
class Augment:
    """Named changes, applied in order.  In settings and files it is its own short text.

    Steps: ``flip``, ``shift:pixels``, ``shift-reflect:pixels``, ``cutout:side`` and
    ``rotate:degrees``.

    >>> augment = Augment.parse("flip,shift:2,rotate:7.5")
    >>> augment.steps, str(augment)
    ((('flip', 0.0), ('shift', 2.0), ('rotate', 7.5)), 'flip,shift:2,rotate:7.5')
    >>> augment(torch.rand(3, 1, 8, 8), Generator().manual_seed(0)).shape
    torch.Size([3, 1, 8, 8])
    """

    steps: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for name, amount in self.steps:
            if name not in _STEPS:
                raise SettingsError(f"unknown augmentation {name!r}{nearest(name, _STEPS)}")
            if name in _NO_AMOUNT:
                if amount != 0:
                    raise SettingsError(f"augmentation {name!r} takes no amount")
            elif not 0 < amount < float("inf"):
                raise SettingsError(f"augmentation {name!r} needs a positive amount, as {name}:4")
            elif name in _WHOLE and amount != int(amount):
                raise SettingsError(f"augmentation {name!r} takes whole pixels, not {amount:g}")

    @classmethod
    def parse(cls, text: str) -> Augment:
        """Read the short text; an empty one changes nothing.

        >>> Augment.parse("cutout:4")
        Augment(steps=(('cutout', 4.0),))
        """
        steps = []
        for step in filter(None, (word.strip() for word in text.split(","))):
            name, _, amount = step.partition(":")
            try:
                steps.append((name, float(amount) if amount else 0.0))
            except ValueError:
                raise SettingsError(f"augmentation {step!r}: {amount!r} is not a number") from None
        return cls(tuple(steps))

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Change a batch of floats ``[n, c, h, w]``."""
        if images.ndim != 4 or not images.is_floating_point():
            raise SettingsError(
                f"augmentation needs float images [n, c, h, w], got {images.dtype} "
                f"{list(images.shape)}"
            )
        for name, amount in self.steps:
            images = _STEPS[name](images, generator, amount)
        return images

    def __str__(self) -> str:
        return ",".join(name if name in _NO_AMOUNT else f"{name}:{by:g}" for name, by in self.steps)

    def to_plain(self) -> str:
        """Itself as JSON: the short text."""
        return str(self)

    @classmethod
    def from_plain(cls, value: Any, where: str) -> Augment:
        """Read the short text from a file."""
        if not isinstance(value, str):
            raise FormatError(f"{where}: expected the text of an augmentation, found {value!r}")
        try:
            return cls.parse(value)
        except SettingsError as error:
            raise FormatError(f"{where}: {error}") from None


def _integers(images: Tensor, generator: Generator, below: int) -> Tensor:
    device = generator.device
    drawn = torch.randint(below, (len(images),), generator=generator, device=device)
    return drawn.to(images.device)


def _band(centre: Tensor, length: int, size: int) -> Tensor:
    """Per sample, which of ``length`` places lie among the ``size`` about the centre."""
    place = torch.arange(length, device=centre.device)
    start = centre[:, None] - size // 2
    return (place >= start) & (place < start + size)
