"""Tasks from files: idx (as MNIST is published) and NumPy's npz."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from dovetail.core.errors import FormatError, TaskError
from dovetail.tasks.data_files import open_data, refuse_bomb, size_of
from dovetail.tasks.npz_files import read_arrays

if TYPE_CHECKING:
    from dovetail.tasks.task import Kind, Task

__all__ = [
    "IDX_FILES",
    "find_idx",
    "read_idx",
    "read_idx_bytes",
    "read_idx_folder",
    "read_npz",
]

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
IDX_FILES = {
    "train images": "train-images-idx3-ubyte",
    "train labels": "train-labels-idx1-ubyte",
    "test images": "t10k-images-idx3-ubyte",
    "test labels": "t10k-labels-idx1-ubyte",
}
"""The files of MNIST's layout, by what they hold."""

_MOST_DEFLATED = 1032
"""Deflate cannot shrink by more than this, so a header that promises more is a lie."""

_MOST_AXES = 32
"""NumPy has no arrays of many more."""

_WHOLE_KEYS = (("inputs", "targets"), ("x", "y"), ("X", "y"))
_SPLIT_KEYS = (
    {
        "train": ("x_train", "y_train"),
        "validation": ("x_val", "y_val"),
        "test": ("x_test", "y_test"),
    },
    {
        "train": ("train_images", "train_labels"),
        "validation": ("val_images", "val_labels"),
        "test": ("test_images", "test_labels"),
    },
)


def read_idx(path: str | Path) -> npt.NDArray[Any]:
    """Read one idx file, plain or gzipped: two zero bytes, type, rank, sizes, then the values.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "labels"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    >>> read_idx(file)
    array([7, 2, 1], dtype=uint8)
    """
    path = Path(path)
    try:
        with open_data(path) as file:
            return _unzip_idx(file, str(path), size_of(file), path.suffix == ".gz")
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror or error}") from None


def read_idx_bytes(content: bytes, name: str) -> npt.NDArray[Any]:
    """Read an idx file that is in memory; ``name`` is what an error calls it.

    >>> read_idx_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]), "labels")
    array([7, 2, 1], dtype=uint8)
    """
    return _unzip_idx(io.BytesIO(content), name, len(content), name.endswith(".gz"))


def find_idx(folder: str | Path) -> dict[str, Path]:
    """The four idx files of MNIST's layout in a folder, as far as they are there.

    >>> find_idx("no such folder")
    {}
    """
    found = {}
    for what, name in IDX_FILES.items():
        spellings = (name, name.replace("-idx", ".idx"))
        candidates = [Path(folder) / f"{name}{end}" for name in spellings for end in ("", ".gz")]
        present = [file for file in candidates if file.is_file()]
        if present:
            found[what] = present[0]
    return found


def read_idx_folder(
    folder: str | Path,
    *,
    name: str | None = None,
    classes: Sequence[Any] | None = None,
    seed: int = 0,
) -> Task:
    """A folder in MNIST's layout: t10k is the test split, validation a tenth of train.

    >>> read_idx_folder("no such folder")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: no such folder: no such folder
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise TaskError(f"{folder}: no such folder")
    files = find_idx(folder)
    missing = [name for what, name in IDX_FILES.items() if what not in files]
    if missing:
        raise TaskError(f"{folder}: {', '.join(missing)} not found (also looked for .gz)")
    data = {what: read_idx(file) for what, file in files.items()}
    for part in ("train", "test"):
        images, labels = data[f"{part} images"], data[f"{part} labels"]
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise FormatError(
                f"{folder}: {part} images {list(images.shape)} and labels {list(labels.shape)} "
                "do not belong together"
            )
    shapes = [data[f"{part} images"].shape[1:] for part in ("train", "test")]
    if shapes[0] != shapes[1]:
        raise FormatError(f"{folder}: train images {shapes[0]} but test images {shapes[1]}")
    return _from_parts(
        {part: (data[f"{part} images"], data[f"{part} labels"]) for part in ("train", "test")},
        name=folder.resolve().name if name is None else name,
        kind="classes",
        classes=classes,
        seed=seed,
    )


def read_npz(
    path: str | Path, *, name: str | None = None, kind: Kind | None = None, seed: int = 0
) -> Task:
    """A task from arrays in an npz file.

    Keys: ``inputs, targets``; ``x, y``; ``X, y``; or ``x_train, y_train, x_test, y_test`` (and
    ``x_val, y_val``); or ``train_images, train_labels, ...``; and optionally ``classes``.  Without
    ``kind``, float targets mean regression, a table of integers multilabel, all else classes.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "toy.npz"
    >>> np.savez(file, x=np.zeros((20, 3)), y=["a", "b"] * 10)
    >>> read_npz(file)
    Task('toy', 2 classes, 20 inputs 3, train 14 / validation 2 / test 4)
    """
    path = Path(path)
    arrays = read_arrays(path)
    from dovetail.tasks.task import Task  # torch loads here: files can be compared without it

    named = name if name is not None else path.stem
    classes = _classes(path, arrays["classes"]) if "classes" in arrays else None
    for x, y in _WHOLE_KEYS:
        if x in arrays and y in arrays:
            known = kind or _kind_of(arrays[y])
            return Task(arrays[x], arrays[y], name=named, kind=known, classes=classes, seed=seed)
    for keys in _SPLIT_KEYS:
        parts = {
            split: (arrays[x], arrays[y])
            for split, (x, y) in keys.items()
            if x in arrays and y in arrays
        }
        if "train" in parts and "test" in parts:
            known = kind or _kind_of(parts["train"][1])
            return _from_parts(parts, name=named, kind=known, classes=classes, seed=seed)
    raise TaskError(
        f"{path}: holds {', '.join(sorted(arrays)) or 'nothing'}; expected inputs and targets, "
        "x and y, or x_train, y_train, x_test and y_test"
    )


def _unzip_idx(file: IO[bytes], path: str, size: int, zipped: bool) -> npt.NDArray[Any]:
    if not zipped:
        return _read_idx(file, path, size, size)
    try:
        with gzip.open(file) as plain:
            return _read_idx(cast(IO[bytes], plain), path, size, size * _MOST_DEFLATED)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise FormatError(f"{path}: damaged gzip file ({error})") from None


def _read_idx(file: IO[bytes], path: str, size: int, most: int) -> npt.NDArray[Any]:
    """The values after the header, of which the file's ``size`` allows ``most`` bytes."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES or not magic[3]:
        raise FormatError(f"{path}: not an idx file")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise FormatError(f"{path}: truncated in its header")
    shape = np.frombuffer(sizes, ">u4").tolist()
    if len(shape) > _MOST_AXES:
        raise FormatError(f"{path}: {len(shape)} axes, more than the {_MOST_AXES} of any data")
    if 0 in shape:
        raise FormatError(f"{path}: holds no values, its shape is {shape}")
    dtype = np.dtype(_IDX_TYPES[magic[2]])
    expected = math.prod(shape) * dtype.itemsize
    if expected > most:  # before memory is asked for
        raise FormatError(f"{path}: truncated: its header promises {expected} bytes of values")
    refuse_bomb(path, size, expected, "unzip it first")
    data = bytearray(file.read(expected))
    if len(data) < expected:
        raise FormatError(f"{path}: truncated: {len(data)} of {expected} bytes of values")
    if file.read(1):
        raise FormatError(f"{path}: longer than its header says")
    values = np.frombuffer(data, dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False)


def _classes(path: Path, names: npt.NDArray[Any]) -> list[Any]:
    if names.ndim != 1 or names.dtype.kind not in "iuU":
        raise TaskError(f"{path}: classes must be a list of texts or whole numbers")
    return list(names.tolist())


def _kind_of(targets: npt.NDArray[Any]) -> Kind:
    if targets.dtype.kind == "f":
        return "regression"
    return "multilabel" if targets.ndim == 2 and targets.shape[1] > 1 else "classes"


def _from_parts(
    parts: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    *,
    name: str,
    kind: Kind,
    classes: Sequence[Any] | None,
    seed: int,
) -> Task:
    from dovetail.tasks.task import Task

    split, start = {}, 0
    for part, (x, y) in parts.items():
        if not (x.ndim and y.ndim):
            raise TaskError(f"{name!r}: {part} holds a single value, not one a sample")
        if len(x) != len(y):
            raise TaskError(f"{name!r}: {len(x)} inputs but {len(y)} targets in {part}")
        split[part] = np.arange(start, start + len(x))
        start += len(x)
    try:
        inputs = np.concatenate([x for x, _ in parts.values()])
        targets = np.concatenate([y for _, y in parts.values()])
    except (ValueError, TypeError):  # of shapes and of types that do not go together
        shapes = ", ".join(f"{part} {list(x.shape)}" for part, (x, _) in parts.items())
        raise TaskError(f"{name!r}: the splits do not fit together: {shapes}") from None
    return Task(inputs, targets, name=name, kind=kind, classes=classes, split=split, seed=seed)
