"""Image files to look at once: no classes, no split, brought to one size as a folder's would be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError, first_line
from dovetail.tasks.image_files import ENDINGS, covering, open_image, pillow_guarded, upright

__all__ = ["image_paths", "read_images"]


def image_paths(source: str | Path) -> list[Path]:
    """The image that a path names, or those directly in a folder; else nothing.

    >>> image_paths("no such file")
    []
    """
    path = Path(source)
    if path.is_file() and path.suffix.lower() in ENDINGS:
        return [path]
    if not path.is_dir():
        return []
    return sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)


def read_images(paths: list[Path], *, channels: int, size: tuple[int, int]) -> Tensor:
    """The pixels of image files as uint8 ``[n, channels, height, width]``, upright, centre-cropped.

    >>> import tempfile; from PIL import Image; file = Path(tempfile.mkdtemp()) / "a.png"
    >>> Image.new("RGB", (8, 4), "white").save(file)
    >>> read_images([file], channels=1, size=(4, 4)).shape
    torch.Size([1, 1, 4, 4])
    """
    pixels = np.empty((len(paths), channels, *size), np.uint8)
    with pillow_guarded():
        for i, path in enumerate(paths):
            try:
                with open_image(str(path)) as image:
                    shown = covering(upright(image, grey=channels == 1), *size)
            except Exception as error:  # Pillow's plug-ins fail in many ways
                why = first_line(error).removeprefix(f"{path}: ")
                raise TaskError(f"{path}: not a readable image ({why})") from None
            pixels[i] = np.asarray(shown).reshape(*size, channels).transpose(2, 0, 1)
    return torch.from_numpy(pixels)
