"""A task from a folder of images, read eagerly into one tensor."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError, first_line
from dovetail.core.progress import progress
from dovetail.tasks.data_files import MOST_BYTES
from dovetail.tasks.image_files import (
    covering,
    is_grey,
    open_image,
    pillow_guarded,
    upright,
    upright_size,
)
from dovetail.tasks.image_scan import Found, scan_classes, scan_flat
from dovetail.tasks.pair_files import read_pairs
from dovetail.tasks.task import Task

__all__ = ["read_image_folder"]

_FEW = 64
"""How many headers are looked at before the common case (all alike) is tried."""

Unreadable = Literal["refuse", "skip"]


def read_image_folder(
    folder: str | os.PathLike[str],
    *,
    size: int | Sequence[int] | None = None,
    unreadable: Unreadable = "refuse",
    pairs: str | os.PathLike[str] | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Task:
    """A task of images: one sub-folder a class, or those in ``train/``, ``val/`` and ``test/``.

    PNG, JPEG, WebP and BMP files are read, in sorted order; hidden files are passed over, and other
    files too, but counted in the task's ``notes``.  All images get one size: the most common one
    unless ``size`` is given.  An image of another size is resized until it just covers that size
    (so its shorter side, in proportion, fits) and cropped about its centre.  The task is grey only
    if every image is, else RGB.  The camera's orientation is undone, sixteen bits become eight,
    transparency is dropped.  Without ``test/``, ``val/`` tests and a tenth of train validates.

    Args:
        folder: The folder; ``train/``, ``val/`` (or ``validation/``) and ``test/`` are its split
            if it has no other sub-folders.
        size: Side, or height and width, of all images.
        unreadable: ``"skip"`` leaves unreadable files out and says so in ``notes``.
        pairs: A file that says which images are of one class, see
            :func:`~dovetail.tasks.pair_files.read_pairs`; images are named by their path relative
            to the folder and need no class folders.
        name: What reports call the task; by default the folder's name.
        seed: For the split.

    >>> import tempfile; from PIL import Image
    >>> folder = Path(tempfile.mkdtemp()) / "pets"
    >>> for i in range(20):
    ...     (folder / "cat").mkdir(parents=True, exist_ok=True)
    ...     (folder / "dog").mkdir(exist_ok=True)
    ...     Image.new("L", (8, 6)).save(folder / ("cat" if i % 2 else "dog") / f"{i}.png")
    >>> read_image_folder(folder)
    Task('pets', 2 classes, 20 images 1×6×8, train 14 / validation 2 / test 4)
    """
    if unreadable not in ("refuse", "skip"):
        raise TaskError(f'unreadable must be "refuse" or "skip", got {unreadable!r}')
    folder = Path(folder).expanduser()
    wanted = _size(size)
    found = scan_classes(folder) if pairs is None else scan_flat(folder)
    if not found.names:
        raise TaskError(f"{folder}: holds no PNG, JPEG, WebP or BMP files")
    if pairs is None:
        _refuse_few(found)
    notes = []
    if found.ignored:
        notes.append(f"{_files(found.ignored)} no image or in no class folder, ignored")
    with pillow_guarded():
        images, skipped, resized = _read(found, wanted, unreadable)
    shape = "×".join(str(side) for side in images.shape[2:])
    if resized:
        notes.append(f"{resized} of {len(images)} images were resized and cropped to {shape}")
    if skipped:
        found = _without(found, skipped)
        some = ", ".join(skipped[:3]) + (", ..." if len(skipped) > 3 else "")
        notes.append(f"{_files(len(skipped))} unreadable, skipped: {some}")
    named = folder.resolve().name if name is None else name
    if pairs is not None:
        told = read_pairs(_beside(pairs, folder), found.names)
        return Task(images, name=named, kind="pairs", pairs=told, seed=seed, notes=notes)
    if "validation" in found.split and "test" not in found.split:
        found.split["test"] = found.split.pop("validation")
        notes.append("there is no test folder: val is the test split")
    split: Any = {part: np.arange(rows.start, rows.stop) for part, rows in found.split.items()}
    more = {"split": split} if split else {}
    return Task(images, found.labels, name=named, seed=seed, notes=notes, **more)


class _Plan(NamedTuple):
    height: int
    width: int
    grey: bool
    all_sizes: bool
    """Whether images of other sizes are welcome; if not, one means that the plan is wrong."""


class _Differs(Exception):
    """An image is not like the few that were looked at."""


def _read(
    found: Found, size: tuple[int, int] | None, unreadable: Unreadable
) -> tuple[Tensor, list[str], int]:
    """The images, the names of those that were skipped, and how many were resized.

    Reading a header costs nearly as much as reading a small image, so it is tried first whether all
    are like the few that were looked at; only if not, all headers are read for a better plan.
    """
    few = found.names[:: max(1, len(found.names) // _FEW)]
    plan = _plan(found.folder, few, size)
    if plan is not None:
        with suppress(_Differs):
            return _fill(found, plan, unreadable)
    plan = _plan(found.folder, found.names, size, majority=True)
    return _fill(found, plan or _Plan(1, 1, grey=False, all_sizes=True), unreadable)


def _plan(
    folder: Path, names: Sequence[str], size: tuple[int, int] | None, *, majority: bool = False
) -> _Plan | None:
    """What all images shall be, by these headers; if they differ, nothing or the majority."""
    sizes: Counter[tuple[int, int]] = Counter()
    greys: Counter[bool] = Counter()
    for name in names:
        try:
            with open_image(f"{folder}/{name}") as image:
                sizes[upright_size(image)] += 1
                greys[is_grey(image)] += 1
        except Exception:  # whoever reads the pixels will say what is wrong with it
            continue
    if not sizes or not (majority or ((size or len(sizes) == 1) and len(greys) == 1)):
        return None
    common = max(sizes, key=lambda side: (sizes[side], side))  # of equals the larger
    return _Plan(*(size or common), grey=not greys[False], all_sizes=majority or size is not None)


def _fill(found: Found, plan: _Plan, unreadable: Unreadable) -> tuple[Tensor, list[str], int]:
    count, channels = len(found.names), 1 if plan.grey else 3
    _refuse_large(found.folder, count, channels, plan.height, plan.width)
    images = torch.empty(count, channels, plan.height, plan.width, dtype=torch.uint8)
    rows, row, resized = images.numpy(), 0, 0
    skipped: list[str] = []
    with progress("reading images", -(-count // 100)) as step:
        for number, name in enumerate(found.names):
            if number % 100 == 0:
                step(name)
            path = f"{found.folder}/{name}"
            try:
                with open_image(path) as file:
                    if plan.grey and not is_grey(file):
                        raise _Differs
                    image = upright(file, grey=plan.grey)
                    if image.size != (plan.width, plan.height):
                        if not plan.all_sizes:
                            raise _Differs
                        image, resized = covering(image, plan.height, plan.width), resized + 1
                    values = np.asarray(image)
            except _Differs:
                raise
            except Exception as error:  # a decoder may raise anything on a damaged file
                if unreadable == "refuse":
                    why = first_line(error).removeprefix(f"{path}: ")
                    raise TaskError(
                        f"{path}: not a readable image ({why}); "
                        'to leave such files out, give unreadable="skip"'
                    ) from None
                skipped.append(name)
                continue
            rows[row] = values if plan.grey else values.transpose(2, 0, 1)
            row += 1
    if not row:
        raise TaskError(f"{found.folder}: none of its {count} images can be read")
    return images[:row], skipped, resized


def _size(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise TaskError(f"size must be a side or (height, width) in pixels, got {size!r}")
    return sides[0], sides[1]


def _refuse_few(found: Found) -> None:
    """What :class:`Task` would refuse, but before a long reading."""
    counts = Counter(found.labels)
    if len(counts) == 1:
        raise TaskError(
            f"{found.folder}: there is one class, {found.labels[0]!r}; a task of classes needs two"
        )
    for label, count in counts.items():
        if count < 2:
            raise TaskError(
                f"{found.folder}: class {label!r} has one image; each needs two, to train and to "
                "test"
            )


def _refuse_large(folder: Path, count: int, channels: int, height: int, width: int) -> None:
    needed = count * channels * height * width
    if needed <= MOST_BYTES:
        return
    shrink = math.sqrt(MOST_BYTES / needed)
    fits = max(1, int(height * shrink)), max(1, int(width * shrink))
    raise TaskError(
        f"{folder}: {count} images of {channels}×{height}×{width} take {needed / 1e9:.1f} GB of "
        f"memory, more than {MOST_BYTES / 1e9:.1f}; size={fits} would fit"
    )


def _without(found: Found, skipped: list[str]) -> Found:
    gone = set(skipped)
    kept = [row for row, name in enumerate(found.names) if name not in gone]
    place = np.searchsorted(kept, np.arange(len(found.names) + 1))
    return Found(
        found.folder,
        [found.names[row] for row in kept],
        [found.labels[row] for row in kept] if found.labels else [],
        {part: range(int(place[r.start]), int(place[r.stop])) for part, r in found.split.items()},
        found.ignored,
    )


def _beside(pairs: str | os.PathLike[str], folder: Path) -> Path:
    """The pairs' file as named from here, or else as named from the folder."""
    path = Path(pairs).expanduser()
    return path if path.exists() or not (folder / path).exists() else folder / path


def _files(count: int) -> str:
    return "1 file is" if count == 1 else f"{count} files are"
