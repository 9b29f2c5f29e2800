"""The forms in which a known data set travels and lies on disk, to and from its four arrays."""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from dovetail.core.errors import FormatError, first_line
from dovetail.tasks.catalogue import ARRAYS, DataSet
from dovetail.tasks.readers import IDX_FILES, find_idx, read_idx, read_idx_bytes

__all__ = ["TENSORS", "decode", "read_folder", "read_tensors", "refuse_wrong", "write_folder"]

Arrays = dict[str, npt.NDArray[np.uint8]]

_PARTS = ("train", "test")

TENSORS = "data.safetensors"
"""Where the layout ``tensors`` keeps ``images`` and ``labels``: training examples, then test."""


def decode(data: DataSet, files: Mapping[str, bytes]) -> Arrays:
    """The arrays in the files that a source gave, told apart by their names.

    >>> from dovetail.tasks.catalogue import CATALOGUE
    >>> decode(CATALOGUE["mnist"], {"train-images-idx3-ubyte": b"hello"})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: train-images-idx3-ubyte: not an idx file
    """
    named = {name.rpartition("/")[2]: content for name, content in files.items()}
    if data.layout == "idx":
        return {_role(name): read_idx_bytes(content, name) for name, content in named.items()}
    try:
        if "data_batch_1.png" in named:
            return _from_pictures(named)
        return _from_records(named, data.image)
    except (ValueError, KeyError, OSError, SyntaxError) as error:
        raise FormatError(f"{data.name}: damaged on the way ({first_line(error)})") from None


def refuse_wrong(data: DataSet, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Refuse arrays that are not, byte by byte, those of the catalogue.

    >>> from dovetail.tasks.catalogue import CATALOGUE
    >>> refuse_wrong(CATALOGUE["mnist"], {})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: mnist: there are no train images
    """
    for what, total in zip(ARRAYS, data.sums, strict=True):
        if what not in arrays:
            raise FormatError(f"{data.name}: there are no {what}")
        array = arrays[what]
        if array.dtype != np.uint8 or array.shape != data.shapes[what]:
            raise FormatError(
                f"{data.name}: {what} are {array.dtype} {list(array.shape)}, "
                f"expected uint8 {list(data.shapes[what])}"
            )
        if hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() != total:
            raise FormatError(f"{data.name}: the sha256 of the {what} is not the expected one")


def read_folder(data: DataSet, folder: Path) -> Arrays:
    """The arrays as they lie in a folder; those that are missing are left out.

    >>> from dovetail.tasks.catalogue import CATALOGUE
    >>> read_folder(CATALOGUE["mnist"], Path("no such folder"))
    {}
    """
    if data.layout == "idx":
        return {what: read_idx(file) for what, file in find_idx(folder).items()}
    file = folder / TENSORS
    if not file.is_file():
        return {}
    images, labels = read_tensors(file)
    return {
        "train images": images[: data.train],
        "train labels": labels[: data.train],
        "test images": images[data.train :],
        "test labels": labels[data.train :],
    }


def write_folder(data: DataSet, arrays: Mapping[str, npt.NDArray[Any]], folder: Path) -> None:
    """Write the arrays into a folder in the data set's layout.

    >>> import tempfile; from dovetail.tasks.catalogue import CATALOGUE
    >>> folder, few = Path(tempfile.mkdtemp()), {"train labels": np.array([7, 2], np.uint8)}
    >>> write_folder(CATALOGUE["mnist"], few, folder)
    >>> read_folder(CATALOGUE["mnist"], folder)
    {'train labels': array([7, 2], dtype=uint8)}
    """
    if data.layout == "idx":
        for what, array in arrays.items():
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            with open(folder / IDX_FILES[what], "wb") as file:
                file.write(head)
                file.write(np.ascontiguousarray(array).data)
        return
    from safetensors.numpy import save_file

    whole = {
        # safetensors stores memory as it lies, so the planes must not be a view of pixels
        what: np.ascontiguousarray(np.concatenate([arrays[f"{part} {what}"] for part in _PARTS]))
        for what in ("images", "labels")
    }
    save_file(whole, folder / TENSORS)


def read_tensors(file: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The images and the labels in a file of the layout ``tensors``, train before test.

    >>> import tempfile; from safetensors.numpy import save_file
    >>> file = Path(tempfile.mkdtemp()) / TENSORS
    >>> zeros = np.zeros((2, 3, 4, 4), np.uint8)
    >>> save_file({"images": zeros, "labels": zeros[:, 0, 0, 0]}, file)
    >>> read_tensors(file)[1]
    array([0, 0], dtype=uint8)
    """
    from safetensors.numpy import load_file

    try:
        held = load_file(file)
    except Exception as error:  # the reader's errors have no common root but this
        raise FormatError(f"{file}: not a readable safetensors file: {first_line(error)}") from None
    images, labels = held.get("images"), held.get("labels")
    if images is None or labels is None or len(images) != len(labels):
        raise FormatError(f"{file}: expected as many images as labels, holds {sorted(held)}")
    return images, labels


def _role(name: str) -> str:
    """Which array a file of MNIST's layout holds."""
    plain = name.removesuffix(".gz")
    return next(what for what, known in IDX_FILES.items() if known == plain)


def _from_pictures(named: Mapping[str, bytes]) -> Arrays:
    """CIFAR-10 as large pictures: each row is one image, its pixels in reading order."""
    arrays: Arrays = {}
    for part, names in _batches("png").items():
        rows = []
        for name in names:
            with Image.open(io.BytesIO(named[name]), formats=["PNG"]) as picture:
                rows.append(np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3))
        arrays[f"{part} images"] = np.concatenate(rows).transpose(0, 3, 1, 2)
        labels = json.loads(named[f"{part}_lables.json"])
        arrays[f"{part} labels"] = np.array(labels, np.uint8)
    return arrays


def _from_records(named: Mapping[str, bytes], shape: tuple[int, ...]) -> Arrays:
    """CIFAR-10's binary version: records of a label and the planes of red, green and blue."""
    arrays: Arrays = {}
    for part, names in _batches("bin").items():
        data = b"".join(named[name] for name in names)
        records = np.frombuffer(data, np.uint8).reshape(-1, 1 + math.prod(shape))
        arrays[f"{part} images"] = records[:, 1:].reshape(-1, *shape)
        arrays[f"{part} labels"] = records[:, 0]
    return arrays


def _batches(ending: str) -> dict[str, list[str]]:
    return {
        "train": [f"data_batch_{i}.{ending}" for i in range(1, 6)],
        "test": [f"test_batch.{ending}"],
    }
