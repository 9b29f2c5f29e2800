"""Two views of one image, found among those of others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.objectives.pretext import check_batch, check_images, scores_of, share_right
from dovetail.objectives.unit import unit_rows

__all__ = ["Views"]


@dataclass(frozen=True)
class Views:
    r"""Which other view shows the same image?  Two changed views of each, embedded and compared.

    With embeddings of unit length :math:`u_i`, the other view :math:`p(i)` of the same image, and
    a temperature :math:`\tau`,

    .. math::
        \ell_i = -\log \frac{\exp(\langle u_i, u_{p(i)}\rangle / \tau)}
            {\sum_{j \neq i} \exp(\langle u_i, u_j\rangle / \tau)},

    averaged over all ``2 n`` views (Chen, Kornblith, Norouzi and Hinton 2020).  Each view is
    mirrored, cropped and scaled back, moved, made brighter or darker, and given noise, each sample
    its own; what comes from outside the image is zero, the mean of standardised inputs.

    Suits classes that these changes leave alone.  A mirrored digit or letter is no such letter:
    say ``flip=False``; where brightness or size is what counts, turn that change off.  One image
    in a batch has no rivals, and a loss of 0 from which nothing is learnt.

    Args:
        outputs: Numbers an embedding.
        temperature: The lower, the more the nearest rivals count.
        flip: Mirror left to right with probability one half.
        crop: The least share of a side that is kept; 1 for the whole.
        shift: How far the crop may reach beyond the image, as a share of the side.
        brightness: Largest relative change of contrast, and of brightness in standard deviations.
        noise: Standard deviation of noise a pixel.

    >>> changes = Views(outputs=8, flip=False)
    >>> views, targets = changes.views(torch.rand(3, 1, 8, 8))
    >>> views.shape, targets.tolist()
    (torch.Size([6, 1, 8, 8]), [0, 1, 2, 0, 1, 2])
    >>> embedding = torch.eye(8)[:3].repeat(2, 1)
    >>> changes.solved(embedding, targets), changes.chance_among(3)
    (1.0, 0.2)
    """

    name: ClassVar[str] = "views"
    answers: ClassVar[None] = None
    """The outputs are an embedding."""
    chance: ClassVar[float] = 0.0
    """The limit for many images; see :meth:`chance_among`."""
    outputs: int = 32
    temperature: float = 0.2
    flip: bool = True
    crop: float = 0.8
    shift: float = 0.05
    brightness: float = 0.4
    noise: float = 0.1

    def __post_init__(self) -> None:
        if self.outputs < 1 or not self.temperature > 0:
            raise SettingsError(
                "views need at least one output and a temperature above 0, got "
                f"outputs={self.outputs}, temperature={self.temperature}"
            )
        if not 0 < self.crop <= 1:
            raise SettingsError(f"crop is a share of the side, above 0 up to 1, got {self.crop}")
        for change in ("shift", "brightness", "noise"):
            if not 0 <= getattr(self, change) < float("inf"):
                raise SettingsError(f"{change} must be 0 or more, got {getattr(self, change)}")

    def chance_among(self, images: int) -> float:
        """What guessing reaches among the views of so many images: one of ``2 n - 1``."""
        return 1 / (2 * images - 1)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse what is no image, or a single pixel wide."""
        check_images(self.name, shape, 2)

    def views(self, inputs: Tensor, draw: Generator | None = None) -> tuple[Tensor, Tensor]:
        """The first view of each image, then the second; targets number the images."""
        check_batch(self, inputs)
        if not inputs.is_floating_point():
            raise TaskError(f"views change prepared float images, got {inputs.dtype}")
        numbers = torch.arange(len(inputs), device=inputs.device)
        return torch.cat([self._changed(inputs, draw) for _ in range(2)]), numbers.repeat(2)

    def _changed(self, inputs: Tensor, draw: Generator | None) -> Tensor:
        """Each image as seen through a window of its own, in a light of its own."""
        n, chance = len(inputs), torch.rand(len(inputs), 6, generator=draw).to(inputs)
        size = self.crop + (1 - self.crop) * chance[:, 0]
        mirror = 1 - 2 * (chance[:, 1] < 0.5).to(inputs) * self.flip
        # in the coordinates of a grid an image reaches from -1 to 1
        room = (1 - size + 2 * self.shift)[:, None]
        centre = (2 * chance[:, 2:4] - 1) * room
        window = inputs.new_zeros(n, 2, 3)
        window[:, 0, 0], window[:, 1, 1], window[:, :, 2] = size * mirror, size, centre
        grid = F.affine_grid(window, list(inputs.shape), align_corners=False)
        seen = F.grid_sample(inputs, grid, padding_mode="zeros", align_corners=False)
        light = (2 * chance[:, 4:, None, None, None] - 1) * self.brightness
        speckle = torch.randn(inputs.shape, generator=draw).to(inputs) * self.noise
        return seen * (1 + light[:, 0]) + light[:, 1] + speckle

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of the formula above over all views."""
        likeness, other = self._likeness(outputs, targets)
        return F.cross_entropy(likeness / self.temperature, other)

    def solved(self, outputs: Tensor, targets: Tensor) -> float:
        """How often the nearest other view is one of the same image."""
        likeness, other = self._likeness(outputs.detach(), targets)
        return share_right(likeness, other)

    def _likeness(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines ``[m, m]`` with nothing on the diagonal, and the row of each one's other view."""
        rows = unit_rows(scores_of(self, outputs, targets))
        oneself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        same = (targets[:, None] == targets) & ~oneself
        if not bool((same.sum(1) == 1).all()):
            raise TaskError("each image must have exactly two views in a batch")
        return (rows @ rows.T).masked_fill(oneself, float("-inf")), same.int().argmax(1)

    def described(self) -> dict[str, Any]:
        """Name and settings."""
        return {"name": self.name, **asdict(self)}
