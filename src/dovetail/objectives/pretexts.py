"""The pretexts by name: which way is up, in what order, and which two belong together."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from itertools import permutations
from random import Random
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.objectives.pretext import Pretext, check_batch, check_images, scores_of, share_right
from dovetail.objectives.unit import unit_rows


class _Choice:
    """A pretext whose answer is one of several, told by the largest output."""

    def loss(self: Pretext, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over the answers."""
        return F.cross_entropy(scores_of(self, outputs, targets), targets)

    def solved(self: Pretext, outputs: Tensor, targets: Tensor) -> float:
        """The share of views whose answer was told."""
        return share_right(scores_of(self, outputs, targets), targets)


@dataclass(frozen=True)
class Rotation(_Choice):
    r"""By how much was the image turned?  All four rotations of each image, exactly.

    Block :math:`s` of ``n`` rows is turned by :math:`90 s` degrees, :math:`s = 0, \dots, 3`
    anticlockwise, so nothing is drawn and the first block is the images themselves (Gidaris,
    Singh and Komodakis 2018).

    Suits things with an upright position: animals, vehicles, most digits.  A 0, a 1 and an 8 look
    alike upside down, and textures, cells and satellite images have no upright: there the question
    has no answer, and what is learnt for it is noise.

    >>> rotation = Rotation()
    >>> views, targets = rotation.views(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    >>> targets.tolist(), views[1, 0].tolist()
    ([0, 1, 2, 3], [[2.0, 4.0], [1.0, 3.0]])
    >>> rotation.answers, rotation.chance
    (('0', '90', '180', '270'), 0.25)
    """

    name: ClassVar[str] = "rotation"
    outputs: ClassVar[int] = 4
    answers: ClassVar[tuple[str, ...]] = ("0", "90", "180", "270")
    """The angles in degrees."""
    chance: ClassVar[float] = 0.25

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse what is no image, no square, or a single pixel."""
        check_images(self.name, shape, 2)
        if shape[1] != shape[2]:
            raise TaskError(
                f"images {shape[1]}×{shape[2]} change their shape when turned: rotation needs "
                "squares; crop or resize them (Preprocess(size=...)), or take another pretext"
            )

    def views(self, inputs: Tensor, draw: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Four blocks ``[4 n, c, h, h]``; targets say which rotation."""
        check_batch(self, inputs)
        views = torch.cat([inputs.rot90(turns, (2, 3)) for turns in range(4)])
        return views, torch.arange(4, device=inputs.device).repeat_interleave(len(inputs))

    def described(self) -> dict[str, Any]:
        """``{"name": "rotation"}``."""
        return {"name": self.name}


@dataclass(frozen=True)
class Jigsaw(_Choice):
    """In which order were the pieces put?  A grid of patches in one of some arrangements.

    One arrangement is drawn an image.  What the grid leaves over at the border stays where it is,
    so the view keeps the image's size.  Arrangements differ in as many places as can be; answers
    name them by the patch that each place shows, so that a head says itself which it knows (Noroozi
    and Favaro 2016).

    Suits things whose parts have a fixed arrangement, such as faces or digits.  Where any patch
    may lie anywhere, as in textures and crowds, there is no order to find.

    Args:
        grid: Patches a side, 2 to 5.
        permutations: How many arrangements; by default 24, for a grid of 2 all there are.

    >>> jigsaw = Jigsaw(permutations=3)
    >>> jigsaw.answers
    ('0123', '1032', '2301')
    >>> views, targets = jigsaw.views(torch.rand(5, 1, 9, 9))
    >>> views.shape, targets.shape
    (torch.Size([5, 1, 9, 9]), torch.Size([5]))
    """

    name: ClassVar[str] = "jigsaw"
    grid: int = 2
    permutations: int | None = None

    def __post_init__(self) -> None:
        if self.grid not in range(2, 6):
            raise SettingsError(f"a jigsaw has a grid of 2 to 5 patches a side, got {self.grid}")
        most = 24 if self.grid == 2 else 1000
        if self.permutations is not None and self.permutations not in range(2, most + 1):
            raise SettingsError(
                f"a jigsaw with grid={self.grid} has 2 to {most} arrangements, "
                f"got permutations={self.permutations}"
            )

    @property
    def outputs(self) -> int:
        """One an arrangement."""
        return self.permutations or 24

    @property
    def arrangements(self) -> tuple[tuple[int, ...], ...]:
        """``[k][grid²]``: the patch that each place shows, row by row; the first is the image."""
        return spread_out(self.grid**2, self.outputs)

    @property
    def answers(self) -> tuple[str, ...]:
        """The arrangements, a letter a patch: ``"0123"`` is the image as it was."""
        return tuple("".join(ALPHABET[patch] for patch in order) for order in self.arrangements)

    @property
    def chance(self) -> float:
        """One over the number of arrangements."""
        return 1 / self.outputs

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse what is no image, or too small for patches of two pixels a side."""
        check_images(self.name, shape, 2 * self.grid)

    def views(self, inputs: Tensor, draw: Generator | None = None) -> tuple[Tensor, Tensor]:
        """One rearranged view an image, and the number of its arrangement."""
        check_batch(self, inputs)
        n, grid, device = len(inputs), self.grid, inputs.device
        targets = torch.randint(self.outputs, (n,), generator=draw).to(device)
        order = torch.tensor(self.arrangements, device=device)[targets]  # [n, grid²]
        tall, wide = (side // grid for side in inputs.shape[2:])
        top, left = (side % grid // 2 for side in inputs.shape[2:])
        places = (..., slice(top, top + grid * tall), slice(left, left + grid * wide))
        cells = inputs[places].reshape(n, -1, grid, tall, grid, wide)
        patches = cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [n, grid², c, tall, wide]
        moved = patches[torch.arange(n, device=device)[:, None], order]
        views = inputs.clone()
        cells = moved.reshape(n, grid, grid, -1, tall, wide).permute(0, 3, 1, 4, 2, 5)
        views[places] = cells.flatten(4, 5).flatten(2, 3)
        return views, targets

    def described(self) -> dict[str, Any]:
        """Name, grid and number of arrangements."""
        return {"name": self.name, "grid": self.grid, "permutations": self.outputs}


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


PRETEXTS = {pretext.name: pretext for pretext in (Rotation, Jigsaw, Views)}
"""The pretexts by name."""


def pretext_named(choice: str | Pretext) -> Pretext:
    """A pretext by name with its usual settings, or the one that is given.

    >>> pretext_named("rotation"), pretext_named(Jigsaw(grid=3)).chance
    (Rotation(), 0.041666666666666664)
    """
    if isinstance(choice, str):
        if choice not in PRETEXTS:
            raise SettingsError(f"unknown pretext {choice!r}{nearest(choice, PRETEXTS)}")
        return PRETEXTS[choice]()
    if isinstance(choice, type) or not isinstance(choice, Pretext):
        raise SettingsError(
            f"{choice!r} is no pretext: give a name ({', '.join(PRETEXTS)}), or an object with the "
            "members of dovetail.objectives.Pretext"
        )
    return choice


# Arrangements of things that differ in as many places as can be -----------------------------------


ALPHABET = "0123456789abcdefghijklmno"
"""A letter a thing, so that an arrangement is a word."""

_POOL = 2000


@cache
def spread_out(things: int, count: int) -> tuple[tuple[int, ...], ...]:
    """So many arrangements of ``things``, far from one another; the same ones on every machine.

    The first leaves everything in place.  Each next one is, of all there are or of 2000 fixed ones
    when there are more, the one whose nearest among those chosen differs in the most places.

    >>> spread_out(4, 4)
    ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
    """
    if math.factorial(things) <= _POOL:
        pool = list(permutations(range(things)))
    else:
        # Python promises the same numbers in every version; torch does not.
        chance = Random(things)
        drawn = (sorted(range(things), key=lambda _: chance.random()) for _ in range(_POOL))
        pool = [tuple(range(things)), *map(tuple, drawn)]
    if count > len(pool):
        raise SettingsError(f"{things} things have {len(pool)} arrangements, not {count}")
    places = torch.tensor(pool)
    chosen = [0]
    distance = (places != places[0]).sum(1)
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (places != places[chosen[-1]]).sum(1))
    return tuple(pool[number] for number in chosen)
