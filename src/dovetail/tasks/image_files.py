"""Image files to pixels: upright, eight bits, grey or RGB, of a given size."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from dovetail.core.errors import FormatError, TaskError, first_line
from dovetail.tasks.data_files import open_data

ENDINGS = frozenset((".png", ".jpg", ".jpeg", ".webp", ".bmp"))
"""File names that are taken for images, whatever their case."""

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
_GREY = frozenset(("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F"))
_DEEP = frozenset(("I", "I;16", "I;16L", "I;16B", "I;16N"))
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@contextmanager
def open_image(path: str) -> Iterator[Image.Image]:
    """Open one of the known formats and read its header; use it in a ``with`` block.

    In the block a suspiciously large image is an error; other warnings are silent, as what Pillow
    warns of (odd EXIF data and the like) does not change the pixels.

    >>> import tempfile; path = tempfile.mkdtemp() + "/a.png"
    >>> Image.new("L", (4, 2)).save(path)
    >>> with open_image(path) as image:
    ...     image.size
    (4, 2)
    """
    with open_data(Path(path)) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            opened = Image.open(file, formats=_FORMATS)
        except UnidentifiedImageError:
            raise FormatError(f"{path}: neither PNG, JPEG, WebP nor BMP, or damaged") from None
        with opened as image:
            yield image


def is_grey(image: Image.Image) -> bool:
    """Whether an image has no colour by its mode; a palette counts as colour.

    >>> is_grey(Image.new("L", (1, 1))), is_grey(Image.new("P", (1, 1)))
    (True, False)
    """
    return image.mode in _GREY


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width after the camera's orientation is undone.

    >>> upright_size(Image.new("L", (4, 2)))
    (2, 4)
    """
    width, height = image.size
    return (width, height) if _orientation(image) >= 5 else (height, width)


def upright(image: Image.Image, *, grey: bool) -> Image.Image:
    """The image decoded, the camera's orientation undone, in mode ``L`` if grey, else ``RGB``.

    Sixteen bits are scaled to eight and rounded; transparency is dropped.

    >>> upright(Image.new("RGBA", (8, 4), "red"), grey=False).getpixel((0, 0))
    (255, 0, 0)
    """
    image.load()  # only now is a PNG's orientation known for sure
    turn = _UPRIGHT.get(_orientation(image))
    mode = "L" if grey else "RGB"
    if image.mode != mode:
        image = _converted(image, mode)
    return image if turn is None else image.transpose(turn)


def covering(image: Image.Image, height: int, width: int) -> Image.Image:
    """Resize until the image just covers the size (bilinear, shrinking averages); crop its centre.

    >>> covering(Image.new("L", (8, 4)), 2, 2).size
    (2, 2)
    """
    scale = max(height / image.height, width / image.width)
    wide = max(width, round(image.width * scale))
    high = max(height, round(image.height * scale))
    resized = image.resize((wide, high), Image.Resampling.BILINEAR)
    across, top = (wide - width) // 2, (high - height) // 2
    return resized.crop((across, top, across + width, top + height))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if image.mode in _DEEP:  # Pillow would clip at 255
        deep = np.asarray(image).astype(np.int64).clip(0, 65535)
        made = Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8))
        return made if mode == "L" else made.convert(mode)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)


def _orientation(image: Image.Image) -> int:
    if "exif" not in image.info:  # asking Pillow costs more than a small image
        return 1
    value: Any = image.getexif().get(_ORIENTATION, 1)
    return value if isinstance(value, int) else 1


def read_images(
    paths: list[Path],
    *,
    channels: int,
    size: tuple[int, int],
    unreadable: dict[Path, str] | None = None,
) -> Tensor:
    """The pixels of image files as uint8 ``[n, channels, height, width]``, upright, centre-cropped.

    A file that cannot be read is an error; or, given ``unreadable``, left out, and why told there.

    >>> import tempfile; from PIL import Image; file = Path(tempfile.mkdtemp()) / "a.png"
    >>> Image.new("RGB", (8, 4), "white").save(file)
    >>> read_images([file], channels=1, size=(4, 4)).shape
    torch.Size([1, 1, 4, 4])
    """
    pixels = np.empty((len(paths), channels, *size), np.uint8)
    count = 0
    for path in paths:
        try:
            with open_image(str(path)) as image:
                shown = covering(upright(image, grey=channels == 1), *size)
        except Exception as error:  # Pillow's plug-ins fail in many ways
            why = f"not a readable image ({first_line(error).removeprefix(f'{path}: ')})"
            if unreadable is None:
                raise TaskError(f"{path}: {why}") from None
            unreadable[path] = why
            continue
        pixels[count] = np.asarray(shown).reshape(*size, channels).transpose(2, 0, 1)
        count += 1
    return torch.from_numpy(pixels[:count])
