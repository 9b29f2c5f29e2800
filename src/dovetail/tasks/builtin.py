"""Tasks by name or by path."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail.core.errors import TaskError, nearest
from dovetail.tasks.readers import find_idx, read_idx_folder, read_npz
from dovetail.tasks.task import Task

__all__ = ["data_folders", "load_task"]

_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def load_task(
    source: str | os.PathLike[str], *, data: str | os.PathLike[str] | None = None, seed: int = 0
) -> Task:
    """A task by name (``digits``, ``mnist``, ``fashion-mnist``), or from an npz file or idx folder.

    Args:
        source: A name, or a path to ``.npz`` or to a folder with the four idx files of MNIST.
        data: The folder that holds ``mnist/`` and ``fashion-mnist/``; by default
            ``$DOVETAIL_DATA``, or else ``./data`` and ``~/.local/share/dovetail``.
        seed: For the split.

    >>> load_task("digits")
    Task('digits', 10 classes, 1797 images 1×8×8, train 1258 / validation 180 / test 359)
    """
    name = os.fspath(source)
    if name in _NAMED:
        return _NAMED[name](name, None if data is None else Path(data), seed)
    path = Path(name).expanduser()
    for form in _FORMS:
        if form.fits(path):
            return form.read(path, seed)
    if path.exists():
        forms = "; ".join(form.what for form in _FORMS)
        raise TaskError(f"{path}: cannot read a task from it; these are known: {forms}")
    if path.suffix or len(path.parts) > 1:
        raise TaskError(f"{path}: no such file or folder")
    raise TaskError(f"unknown task {name!r}{nearest(name, _NAMED)}")


def data_folders(data: Path | None = None) -> tuple[Path, ...]:
    """Where data sets are looked for, in this order.

    >>> data_folders(Path("here"))
    (PosixPath('here'),)
    """
    if data is not None:
        return (data.expanduser(),)
    if told := os.environ.get("DOVETAIL_DATA"):
        return (Path(told).expanduser(),)
    return Path("data"), Path("~/.local/share/dovetail").expanduser()


def _digits(name: str, data: Path | None, seed: int) -> Task:
    from sklearn.datasets import load_digits  # slow to import, and only digits needs it

    bundled = load_digits()
    images = (bundled.images / 16).astype(np.float32)
    return Task(images, bundled.target, name=name, seed=seed)


def _idx_named(
    classes: tuple[str, ...], *elsewhere: str
) -> Callable[[str, Path | None, int], Task]:
    """A loader that looks for a sub-folder of that name, then in further places."""

    def load(name: str, data: Path | None, seed: int) -> Task:
        ours = [folder / name for folder in data_folders(data)]
        for folder in (*ours, *map(Path, elsewhere)):
            if find_idx(folder):
                return read_idx_folder(folder, name=name, classes=classes, seed=seed)
        looked = ", ".join(str(folder) for folder in (*ours, *elsewhere))
        raise TaskError(
            f"{name!r} is not here (looked in {looked}): run `make data` in a checkout, or put "
            f"the four files {{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte[.gz] in {ours[0]}"
        )

    return load


_NAMED: dict[str, Callable[[str, Path | None, int], Task]] = {
    "digits": _digits,
    "mnist": _idx_named(tuple("0123456789")),
    "fashion-mnist": _idx_named(_FASHION, "/usr/share/datasets/fashion-mnist"),
}
"""One row a data set known by name: called with the name, the data folder and the seed."""


@dataclass(frozen=True)
class _Form:
    """A way to keep a task on disk: how it is told, and how it is read."""

    what: str
    fits: Callable[[Path], bool]
    read: Callable[[Path, int], Task]


_FORMS = (
    _Form(
        "an .npz file",
        lambda path: path.suffix == ".npz",
        lambda path, seed: read_npz(path, seed=seed),
    ),
    _Form(
        "a folder of idx files",
        lambda path: bool(find_idx(path)),
        lambda path, seed: read_idx_folder(path, seed=seed),
    ),
)
"""The first form that fits reads the path."""
