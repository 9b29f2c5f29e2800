"""Arrays in files, and tasks of them: idx (as MNIST is published), NumPy's npz and npy.

Headers are checked before memory is asked for, and nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import io
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from dovetail.core.errors import FormatError, TaskError, shown
from dovetail.tasks.data_files import guarded, open_data, refuse_bomb, size_of

if TYPE_CHECKING:
    from dovetail.tasks.task import Kind, Task

_NPY, _ENDING = b"\x93NUMPY", ".npy"
_HEADER = 1 << 16
"""A header of plain numbers or texts takes some hundred bytes."""

_STEP = 1 << 20
"""How many bytes are unpacked at once."""

_PACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""What np.savez writes.  Python unpacks the others without a bound on what a few bytes become."""


def read_arrays(path: Path, *, single: bool = False) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz file by name; with ``single`` also the one of an npy file, called x.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "a.npy"
    >>> np.save(file, [1, 2]); read_arrays(file, single=True)
    {'x': array([1, 2])}
    """
    what = "array file" if single else "npz file"
    with open_data(path) as file, guarded(path, what, "damaged or truncated"):
        begins = file.peek(len(_NPY))
        if begins.startswith(_NPY):
            if single:
                return {"x": _array(f"{path}", file, size_of(file))}
            raise FormatError(f"{path}: a single array, not an npz file; save x and y in one")
        if begins and not begins.startswith(b"PK"):
            raise FormatError(
                f"{path}: not a readable {what}: holds pickled objects or no arrays at all"
            )
        return _members(path, file)


def _members(path: Path, file: BufferedReader) -> dict[str, npt.NDArray[Any]]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        way_out = "save it with np.savez instead of np.savez_compressed"
        refuse_bomb(path, size_of(file), unpacked, way_out)
        for name, times in Counter(member.filename for member in members).most_common(1):
            if times > 1:  # two readers could understand it differently
                raise FormatError(f"{path}: holds {shown(name)} {times} times; save it anew")
        arrays = {}
        for member in members:
            where = f"{path}: {shown(member.filename)}"
            if not member.filename.endswith(_ENDING):
                raise FormatError(f"{where} is no {_ENDING} file; save arrays only, with np.savez")
            if member.compress_type not in _PACKED or member.flag_bits & 1:
                raise FormatError(f"{where} is not packed as np.savez does; save it with that")
            with archive.open(member) as opened:
                key = member.filename.removesuffix(_ENDING)
                arrays[key] = _array(where, opened, member.file_size)
        return arrays


def _array(where: str, file: IO[bytes], size: int) -> npt.NDArray[Any]:
    """The array in an npy file of ``size`` bytes, if that is what its header promises."""
    head = io.BytesIO(file.read(min(size, _HEADER)))
    version = np.lib.format.read_magic(head)
    if version > (2, 0):  # which came for records with names in other alphabets
        raise FormatError(f"{where} holds records; save plain arrays of numbers or texts")
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(head)
    if dtype.hasobject:
        raise FormatError(f"{where} holds pickled objects, which are never loaded")
    if dtype.kind == "V" or not dtype.itemsize:
        raise FormatError(f"{where} has dtype {shown(str(dtype))}; save numbers or texts")
    length = size - head.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != length:
        raise FormatError(
            f"{where} is damaged or truncated: {length} bytes cannot be {dtype} {shown(shape)}"
        )
    data = bytearray(length)
    filled, piece = 0, head.read()
    while piece:
        data[filled : filled + len(piece)] = piece
        filled += len(piece)
        piece = file.read(min(_STEP, length - filled))
    if filled < length:
        raise FormatError(f"{where} is damaged or truncated: it ends after {filled} bytes")
    if dtype.kind == "U":
        letters = np.frombuffer(data, np.dtype(np.uint32).newbyteorder(dtype.byteorder))
        if ((letters >= 0x110000) | ((letters >= 0xD800) & (letters < 0xE000))).any():
            raise FormatError(f"{where} holds what is a letter in no alphabet; save texts anew")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


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
_SPLIT_KEYS = (("x_{}", "y_{}"), ("{}_images", "{}_labels"))
_SPLIT_WORDS = {"train": "train", "validation": "val", "test": "test"}


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
    files = {}
    for what, name in IDX_FILES.items():
        spellings = (name, name.replace("-idx", ".idx"))
        candidates = [Path(folder) / f"{name}{end}" for name in spellings for end in ("", ".gz")]
        present = [file for file in candidates if file.is_file()]
        if present:
            files[what] = present[0]
    return files


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
    for x, y in _SPLIT_KEYS:
        parts = {
            split: (arrays[x.format(word)], arrays[y.format(word)])
            for split, word in _SPLIT_WORDS.items()
            if x.format(word) in arrays and y.format(word) in arrays
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
