"""A task from a folder of images, read eagerly into one tensor."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError, argument, first_line
from dovetail.core.progress import progress
from dovetail.tasks.arrays import refuse_lone_classes
from dovetail.tasks.data_files import MOST_BYTES, refuse_large
from dovetail.tasks.image_files import ENDINGS, covering, is_grey, open_image, upright, upright_size
from dovetail.tasks.pairs import read_pairs
from dovetail.tasks.splits import SPLITS
from dovetail.tasks.task import Task

_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}

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
            :func:`~dovetail.tasks.pairs.read_pairs`; images are named by their path relative
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
    files = _scan_classes(folder) if pairs is None else _scan_flat(folder)
    if not files.names:
        raise TaskError(f"{folder}: holds no PNG, JPEG, WebP or BMP files")
    if pairs is None:  # what a task would refuse, but before a long reading
        refuse_lone_classes(Counter(files.labels), f"{folder}: ", "image")
    notes = []
    if files.ignored:
        notes.append(f"{_are(files.ignored)} no image or in no class folder, ignored")
    images, skipped, resized = _read(files, wanted, unreadable)
    shape = "×".join(str(side) for side in images.shape[2:])
    if resized:
        notes.append(f"{resized} of {len(images)} images were resized and cropped to {shape}")
    parts = [part for part in SPLITS if part in files.splits]  # even if none of its files is left
    if skipped:
        files = files.without(skipped)
        some = ", ".join(skipped[:3]) + (", ..." if len(skipped) > 3 else "")
        notes.append(f"{_are(len(skipped))} unreadable, skipped: {some}")
    named = folder.resolve().name if name is None else name
    if pairs is not None:
        labelled = read_pairs(_beside(pairs, folder), files.names)
        return Task(images, name=named, kind="pairs", pairs=labelled, seed=seed, notes=notes)
    if not parts:
        return Task(images, files.labels, name=named, seed=seed, notes=notes)
    split = {str(part): np.flatnonzero(np.array(files.splits) == part) for part in parts}
    if "validation" in split and "test" not in split:
        split = {"train": split["train"], "test": split["validation"]}
        notes.append("there is no test folder: val is the test split")
    return Task(images, files.labels, name=named, split=split, seed=seed, notes=notes)


def has_images(folder: Path) -> bool:
    """Whether a folder holds an image, itself or in a sub-folder.

    >>> has_images(Path("no such folder"))
    False
    """
    return folder.is_dir() and any(_is_image(name) for name in _walk(folder))


def images_below(source: str | Path) -> list[str]:
    """Every image in a folder and its sub-folders, as paths from there; none of what is no folder.

    >>> images_below("no such folder")
    []
    """
    folder = Path(source)
    return _scan_flat(folder).names if folder.is_dir() else []


@dataclass
class _ImageFiles:
    """Image files in a fixed order, with their labels and splits where there are such.

    ``names`` are paths relative to the folder, with forward slashes; ``ignored`` counts files that
    are no images.
    """

    folder: Path
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    ignored: int = 0

    def without(self, skipped: list[str]) -> _ImageFiles:
        gone = set(skipped)
        stays = [name not in gone for name in self.names]
        names, labels, splits = (
            list(compress(each, stays)) for each in (self.names, self.labels, self.splits)
        )
        return _ImageFiles(self.folder, names, labels, splits, self.ignored)


def _scan_classes(folder: Path) -> _ImageFiles:
    """The images of a folder of class folders, or of ``train/``, ``val/`` and ``test/`` of such."""
    files = _ImageFiles(folder)
    parts = _split_folders(folder)
    if not parts:
        _add_classes(files, folder)
    for part in SPLITS:
        if part in parts:
            _add_classes(files, parts[part])
            files.splits += [part] * (len(files.names) - len(files.splits))
    placed = list(zip(files.labels, files.splits, strict=False))  # none where nothing is split
    trained = {label for label, where in placed if where == "train"}
    for label, where in placed:
        if label not in trained:
            raise TaskError(f"{folder}: class {label!r} is in {where} but not in train")
    return files


def _scan_flat(folder: Path) -> _ImageFiles:
    """All the images of a folder and its sub-folders, without classes."""
    names = sorted(_walk(folder))
    images = list(filter(_is_image, names))
    return _ImageFiles(folder, images, ignored=len(names) - len(images))


def _add_classes(files: _ImageFiles, folder: Path) -> None:
    loose, classes = _listing(folder)
    files.ignored += len(loose)
    if not classes:
        count = sum(map(_is_image, loose))
        raise TaskError(
            f"{folder}: holds {count or 'no'} images and no class folders; make one folder a "
            "class, or for a flat folder give pairs="
        )
    prefix = "" if folder == files.folder else f"{folder.relative_to(files.folder).as_posix()}/"
    for label in classes:
        inside = _scan_flat(folder / label)
        if not inside.names:
            raise TaskError(f"{inside.folder}: a class folder without PNG, JPEG, WebP or BMP files")
        files.ignored += inside.ignored
        files.names += [f"{prefix}{label}/{name}" for name in inside.names]
        files.labels += [label] * len(inside.names)


def _split_folders(folder: Path) -> dict[str, Path]:
    """The folders that are splits: only if all are named so, and train itself holds folders."""
    _, names = _listing(folder)
    parts: dict[str, Path] = {}
    for name in names:
        part = _SPLIT_NAMES.get(name.lower())
        if part is None:
            return {}
        if part in parts:
            raise TaskError(f"{folder}: both {parts[part].name}/ and {name}/ name the {part} split")
        parts[part] = folder / name
    if "train" not in parts or not _listing(parts["train"])[1]:
        return {}
    if len(parts) == 1:
        raise TaskError(f"{folder}: has train/ but no test/; to split it, load {parts['train']}")
    return parts


def _listing(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the files and of the folders in a folder, sorted; no hidden or special ones."""
    files: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                # a broken link is somebody's image; a pipe would keep its reader waiting for ever
                elif entry.is_file() or not Path(entry.path).exists():
                    files.append(entry.name)
    except FileNotFoundError:
        raise TaskError(f"{folder}: no such folder") from None
    except OSError as error:
        raise TaskError(f"{folder}: {error.strerror or error}") from None
    return sorted(files), sorted(folders)


def _walk(folder: Path) -> Iterator[str]:
    """Relative paths of all files below; a link back to a folder above is not followed."""

    def below(path: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
        status = path.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            return
        files, folders = _listing(path)
        for name in files:
            yield prefix + name
        for name in folders:
            yield from below(path / name, f"{prefix}{name}/", above | {here})

    yield from below(folder, "", frozenset())


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in ENDINGS  # noqa: PTH122 (a Path a file is slow)


class _ImageFormat(NamedTuple):
    """What every image becomes."""

    height: int
    width: int
    grey: bool
    all_sizes: bool
    """Whether images of other sizes are welcome; if not, one means that the format is wrong."""


class _Differs(Exception):
    """An image is not like the few that were looked at."""


def _read(
    files: _ImageFiles, size: tuple[int, int] | None, unreadable: Unreadable
) -> tuple[Tensor, list[str], int]:
    """The images, the names of those that were skipped, and how many were resized.

    Reading a header costs nearly as much as reading a small image, so it is tried first whether all
    are like the few that were looked at; only if not, all headers are read for a better format.
    """
    few = files.names[:: max(1, len(files.names) // _FEW)]
    common = _common_format(files.folder, few, size)
    if common is not None:
        with suppress(_Differs):
            return _fill(files, common, unreadable)
    common = _common_format(files.folder, files.names, size, majority=True)
    return _fill(files, common or _ImageFormat(1, 1, grey=False, all_sizes=True), unreadable)


def _common_format(
    folder: Path, names: Sequence[str], size: tuple[int, int] | None, *, majority: bool = False
) -> _ImageFormat | None:
    """What all images shall be, by these headers; if they differ, nothing or the majority."""
    sizes: Counter[tuple[int, int]] = Counter()
    greys: Counter[bool] = Counter()
    for name in names:
        # of a damaged file, whoever reads the pixels will say what is wrong with it
        with suppress(Exception), open_image(f"{folder}/{name}") as image:
            sizes[upright_size(image)] += 1
            greys[is_grey(image)] += 1
    if not sizes or not (majority or ((size or len(sizes) == 1) and len(greys) == 1)):
        return None
    common = max(sizes, key=lambda side: (sizes[side], side))  # of equals the larger
    all_sizes = majority or size is not None
    return _ImageFormat(*(size or common), grey=not greys[False], all_sizes=all_sizes)


def _fill(
    files: _ImageFiles, form: _ImageFormat, unreadable: Unreadable
) -> tuple[Tensor, list[str], int]:
    count, channels = len(files.names), 1 if form.grey else 3
    shape = (channels, form.height, form.width)
    shrink = math.sqrt(MOST_BYTES / (count * math.prod(shape)))
    fits = max(1, int(form.height * shrink)), max(1, int(form.width * shrink))
    whose = f"{files.folder}: {count} images of {'×'.join(map(str, shape))}"
    refuse_large(whose, count * math.prod(shape), f"size={fits} would fit")
    images = torch.empty(count, *shape, dtype=torch.uint8)
    rows, row, resized = images.numpy(), 0, 0
    skipped: list[str] = []
    with progress("reading images", -(-count // 100)) as step:
        for number, name in enumerate(files.names):
            if number % 100 == 0:
                step(name)
            path = f"{files.folder}/{name}"
            try:
                with open_image(path) as file:
                    if form.grey and not is_grey(file):
                        raise _Differs
                    image = upright(file, grey=form.grey)
                    if image.size != (form.width, form.height):
                        if not form.all_sizes:
                            raise _Differs
                        image, resized = covering(image, form.height, form.width), resized + 1
                    values = np.asarray(image)
            except _Differs:
                raise
            except Exception as error:  # a decoder may raise anything on a damaged file
                if unreadable == "refuse":
                    why = first_line(error).removeprefix(f"{path}: ")
                    raise TaskError(
                        f"{path}: not a readable image ({why}); "
                        f"to leave such files out, give {argument('task_set.unreadable', 'skip')}"
                    ) from None
                skipped.append(name)
                continue
            rows[row] = values if form.grey else values.transpose(2, 0, 1)
            row += 1
    if not row:
        raise TaskError(f"{files.folder}: none of its {count} images can be read")
    return images[:row], skipped, resized


def _size(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise TaskError(f"size must be a side or (height, width) in pixels, got {size!r}")
    return sides[0], sides[1]


def _beside(pairs: str | os.PathLike[str], folder: Path) -> Path:
    """The pairs' file as named from here, or else as named from the folder."""
    path = Path(pairs).expanduser()
    return path if path.exists() or not (folder / path).exists() else folder / path


def _are(count: int) -> str:
    return "1 file is" if count == 1 else f"{count} files are"
