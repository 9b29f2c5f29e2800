"""Which files of a folder are images, of which class and of which split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.core.errors import TaskError
from dovetail.tasks.image_files import ENDINGS

__all__ = ["Found", "has_images", "scan_classes", "scan_flat"]

_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


@dataclass
class Found:
    """Image files in a fixed order, with their labels and splits where there are such.

    ``names`` are paths relative to the folder, with forward slashes; ``split`` maps to ranges of
    rows and is empty when the folder has no split; ``ignored`` counts files that are no images.

    >>> Found(Path("pets")).names
    []
    """

    folder: Path
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    split: dict[str, range] = field(default_factory=dict)
    ignored: int = 0


def has_images(folder: Path) -> bool:
    """Whether a folder holds an image, itself or in a sub-folder.

    >>> has_images(Path("no such folder"))
    False
    """
    return folder.is_dir() and any(_is_image(name) for name in _walk(folder))


def scan_classes(folder: Path) -> Found:
    """The images of a folder of class folders, or of ``train/``, ``val/`` and ``test/`` of such.

    >>> scan_classes(Path("no such folder"))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: no such folder: no such folder
    """
    found = Found(folder)
    parts = _split_folders(folder)
    if not parts:
        _add_classes(found, folder)
    for part in ("train", "validation", "test"):
        if part in parts:
            start = len(found.names)
            _add_classes(found, parts[part])
            found.split[part] = range(start, len(found.names))
    _refuse_untrained(found)
    return found


def scan_flat(folder: Path) -> Found:
    """All the images of a folder and its sub-folders, without classes.

    >>> import tempfile
    >>> scan_flat(Path(tempfile.mkdtemp())).names
    []
    """
    found = Found(folder)
    for name in sorted(_walk(folder)):
        if _is_image(name):
            found.names.append(name)
        else:
            found.ignored += 1
    return found


def _add_classes(found: Found, folder: Path) -> None:
    files, classes = _listing(folder)
    found.ignored += len(files)
    if not classes:
        loose = sum(_is_image(file) for file in files)
        raise TaskError(
            f"{folder}: holds {loose or 'no'} images and no class folders; make one folder a "
            "class, or for a flat folder give pairs="
        )
    prefix = "" if folder == found.folder else f"{folder.relative_to(found.folder).as_posix()}/"
    for label in classes:
        names = sorted(_walk(folder / label))
        images = [name for name in names if _is_image(name)]
        if not images:
            raise TaskError(
                f"{folder / label}: a class folder without PNG, JPEG, WebP or BMP files"
            )
        found.ignored += len(names) - len(images)
        found.names += [f"{prefix}{label}/{name}" for name in images]
        found.labels += [label] * len(images)


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


def _refuse_untrained(found: Found) -> None:
    if "train" not in found.split:
        return
    known = {found.labels[row] for row in found.split["train"]}
    for part, rows in found.split.items():
        unknown = sorted({found.labels[row] for row in rows} - known)
        if unknown:
            raise TaskError(f"{found.folder}: class {unknown[0]!r} is in {part} but not in train")


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
