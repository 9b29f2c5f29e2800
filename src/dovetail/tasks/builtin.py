"""Tasks by name, by path, or from a data set."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import TaskError
from dovetail.tasks.catalogue import CATALOGUE, DataSet
from dovetail.tasks.data_files import open_data
from dovetail.tasks.datasets import is_dataset, read_dataset
from dovetail.tasks.decode import TENSORS, read_tensors
from dovetail.tasks.image_folder import read_image_folder
from dovetail.tasks.image_scan import has_images
from dovetail.tasks.known import BUNDLED, folders, not_here, unknown_task
from dovetail.tasks.readers import find_idx, read_idx_folder, read_npz
from dovetail.tasks.spelling import base_of, changes_of, derived_by_name
from dovetail.tasks.tables import read_table
from dovetail.tasks.task import Task

__all__ = ["load_task", "names"]


def load_task(
    source: Any, *, data: str | os.PathLike[str] | None = None, seed: int = 0, **options: Any
) -> Task:
    """A task by name, from a file or folder, or from a map-style data set.

    ==========================================  ===================================================
    source                                      options, and who explains them
    ==========================================  ===================================================
    ``digits``, ``mnist``, ``fashion-mnist``,
    ``cifar10``
    ``file.npz``                                ``kind, name``: ``readers.read_npz``
    ``file.csv``, ``.tsv``, ``.parquet``        ``target, kind, drop, missing, name``:
                                                ``tables.read_table``
    a folder of MNIST's four idx files          ``classes, name``: ``readers.read_idx_folder``
    a folder of images                          ``size, unreadable, pairs, name``:
                                                ``image_folder.read_image_folder``
    a data set with ``len`` and ``[i]``         ``test, classes, kind, name``:
                                                ``datasets.read_dataset``
    ==========================================  ===================================================

    A name or a path may go on with what is derived from it, in the words of
    :mod:`dovetail.tasks.derive`: ``mnist~inverted``, ``digits[0,1,2]~rot90``,
    ``mnist~blur1~noise0.2``, ``cifar10~grey``, ``digits~16x16``, ``mnist~5shot``.  A file that is
    called so comes first.

    Args:
        source: One of the above.
        data: The folder that holds ``mnist/`` and the like; by default ``$DOVETAIL_DATA``, or else
            ``./data`` and ``~/.local/share/dovetail``.
        seed: For the split.
        options: What the source takes; another is refused.

    >>> load_task("digits")
    Task('digits', 10 classes, 1797 images 1×8×8, train 1258 / validation 180 / test 359)
    >>> load_task("digits[0,1]~inverted")
    Task('digits[0,1]~inverted', 2 classes, 360 images 1×8×8, train 252 / validation 36 / test 72)
    """
    if is_dataset(source):
        _refuse_options("a data set", options, ("test", "classes", "kind", "name"))
        return read_dataset(source, seed=seed, **options)
    try:
        name = os.fspath(source)
    except TypeError:
        raise TaskError(
            f"a task comes from a name, a path or a map-style data set, not from a "
            f"{type(source).__name__}"
        ) from None
    if name in names():
        _refuse_options(repr(name), options, ())
        if name == BUNDLED:
            return _digits(seed)
        return _named(CATALOGUE[name], None if data is None else Path(data), seed)
    path = _path(name)
    for form in _FORMS:
        if form.fits(path):
            _refuse_options(form.what, options, form.options)
            return form.read(path, seed=seed, **options)
    if path.exists():
        if not path.is_dir():
            open_data(path).close()  # a pipe is refused with what to do instead
        forms = "; ".join(form.what for form in _FORMS)
        raise TaskError(f"{path}: cannot read a task from it; these are known: {forms}")
    base = base_of(name)
    if base is not None and (base in names() or _path(base).exists()):
        changes_of(name)  # refuse a word nobody knows before reading what may be large
        return derived_by_name(load_task(base, data=data, seed=seed, **options), name, seed)
    raise unknown_task(name, base)


def names() -> tuple[str, ...]:
    """The tasks known by name.

    >>> names()
    ('digits', 'mnist', 'fashion-mnist', 'cifar10')
    """
    return BUNDLED, *CATALOGUE


def _path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # ~somebody, and there is no such user
        path = Path(name)
    try:
        path.exists()
    except OSError as error:  # a name too long, or a folder that is closed
        raise TaskError(f"{path}: {error.strerror}") from None
    return path


def _digits(seed: int) -> Task:
    from sklearn.datasets import load_digits  # slow to import, and only digits needs it

    bundled = load_digits()
    images = (bundled.images / 16).astype(np.float32)
    return Task(images, bundled.target, name="digits", seed=seed)


def _named(known: DataSet, data: Path | None, seed: int) -> Task:
    """A data set of the catalogue, in a sub-folder of its name or in further places."""
    ours = [Path(folder) / known.name for folder in folders(data)]
    for folder in (*ours, *map(Path, known.elsewhere)):
        if known.layout == "idx" and find_idx(folder):
            return read_idx_folder(folder, name=known.name, classes=known.classes, seed=seed)
        if known.layout == "tensors" and (folder / TENSORS).is_file():
            images, labels = read_tensors(folder / TENSORS)
            split = {"train": range(known.train), "test": range(known.train, len(images))}
            return Task(
                images, labels, name=known.name, classes=known.classes, split=split, seed=seed
            )
    raise not_here(known.name, (*ours, *known.elsewhere), data)


def _refuse_options(what: str, given: dict[str, Any], taken: tuple[str, ...]) -> None:
    for option in given:
        if option not in taken:
            takes = ", ".join(taken) if taken else "no options"
            raise TaskError(f"{what} takes {takes}; not {option!r}")


@dataclass(frozen=True)
class _Form:
    """A way to keep a task on disk: how it is told, how it is read, and what can be asked for."""

    what: str
    fits: Callable[[Path], bool]
    read: Callable[..., Task]
    options: tuple[str, ...]


_FORMS = (
    _Form("an .npz file", lambda path: path.suffix == ".npz", read_npz, ("kind", "name")),
    _Form(
        "a .csv, .tsv or .parquet file",
        lambda path: path.suffix.lower() in (".csv", ".tsv", ".parquet", ".pq"),
        read_table,
        ("target", "kind", "drop", "missing", "name"),
    ),
    _Form(
        "a folder of idx files",
        lambda path: bool(find_idx(path)),
        read_idx_folder,
        ("classes", "name"),
    ),
    _Form(
        "a folder of images in class folders",
        has_images,
        read_image_folder,
        ("size", "unreadable", "pairs", "name"),
    ),
)
"""The first form that fits reads the path."""
