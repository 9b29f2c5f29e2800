"""New inputs from files, batch by batch: images, tables without a target, arrays.

Pixels and the rows of CSV files are read when their batch is due, so that thousands of them take no
more memory than a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import ContractError, DovetailError, TaskError, argument
from dovetail.pack.tensors import dtype_name
from dovetail.parts.contract import Contract, shown_shape
from dovetail.parts.part import Part
from dovetail.tasks.array_files import read_arrays
from dovetail.tasks.image_files import ENDINGS, read_images
from dovetail.tasks.image_folder import images_below
from dovetail.tasks.new_rows import NewRows, open_new_rows
from dovetail.tasks.tables import is_table

_KEYS = ("x", "X", "inputs", "x_test")
_MOST_INPUTS, _MOST_BYTES = 512, 64 << 20
"""Of a batch: inputs, and bytes of them as float32."""


class Batch(NamedTuple):
    """Some inputs, what each is called, and what is true of them, if that is known."""

    names: list[str | int]
    inputs: Tensor
    truths: Any = None


@dataclass(frozen=True)
class Source:
    """So many inputs of which ``read(start, stop)`` gives some, each of so many numbers."""

    count: int
    width: int
    read: Callable[[int, int], Batch]
    has_truths: bool = False

    @classmethod
    def of(cls, inputs: Tensor, names: Sequence[str] | None = None, truths: Any = None) -> Source:
        """Inputs that are in memory."""

        def read(start: int, stop: int) -> Batch:
            known = range(start, stop) if names is None else names[start:stop]
            return Batch(
                list(known), inputs[start:stop], None if truths is None else truths[start:stop]
            )

        width = inputs[0].numel() if len(inputs) else 1
        return cls(len(inputs), width, read, truths is not None)


class _Image(NamedTuple):
    """Where it is, what it is called, and the class that its folder is named after, if it is."""

    path: Path
    name: str
    truth: str | None = None


@dataclass
class NewInputs:
    """All sources one after the other; what cannot be read is told by name.

    Args:
        sources: Where the inputs come from.
        skip_bad: Leave out what cannot be read; else that is an error, once all of it is known.
        bad: By name, why it cannot be read.
    """

    sources: list[Source]
    skip_bad: bool = False
    bad: dict[str, str] = field(default_factory=dict)

    def plan(self, most: int | None = None) -> list[tuple[Source, int, int]]:
        """The batches as places in their sources, of the first ``most`` inputs."""
        spans, room = [], most
        for source in self.sources:
            count = source.count if room is None else min(room, source.count)
            room = None if room is None else room - count
            size = max(1, min(_MOST_INPUTS, _MOST_BYTES // (4 * source.width)))
            pieces = max(1, -(-count // size))
            even = -(-count // pieces)  # where a batch's statistics count, none is left alone
            spans += [
                (source, start, min(start + even, count)) for start in range(0, count, even or 1)
            ]
        return spans

    def batches(self, most: int | None = None) -> Iterator[Batch]:
        """Every batch of the plan; an empty one where nothing in it could be read."""
        for source, start, stop in self.plan(most):
            batch = source.read(start, stop)
            if self.bad and not self.skip_bad:
                continue  # nothing will come of it, but all bad files are to be told at once
            yield batch
        if self.bad and not self.skip_bad:
            raise self.refusal()

    def refusal(self) -> TaskError:
        """The error that names the first bad file, says how many there are, and the way out."""
        first, why = next(iter(self.bad.items()))
        more = len(self.bad) - 1
        also = f"; so {'is' if more == 1 else 'are'} {more} more" if more else ""
        others = sum(source.count for source in self.sources) > len(self.bad)
        skip = argument("skip_bad", True)
        way = f"; leave such files out with {skip}" if others and not self.skip_bad else ""
        return TaskError(f"{first}: {why}{also}{way}")


def as_paths(inputs: Any) -> list[Path] | None:
    """Paths, if that is what is given: one, or several in a list.

    >>> as_paths("a.png"), as_paths(["a.png", Path("b.png")]), as_paths([[1.0, 2.0]])
    ([PosixPath('a.png')], [PosixPath('a.png'), PosixPath('b.png')], None)
    """
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    if not isinstance(paths, list | tuple) or not paths:
        return None
    return [Path(each) for each in paths] if all(isinstance(e, str | Path) for e in paths) else None


def as_batch(inputs: Any, contract: Contract) -> Tensor:
    """Raw inputs as a tensor ``[n, ...]`` of bytes or float32.

    The batch axis, and the channel axis of grey images, are put in where they were left out.

    >>> from dovetail.parts.contract import Port
    >>> as_batch([1, 2], Contract((Port((2,)),)))
    tensor([[1., 2.]])
    """
    x = _tensor(inputs)
    shape = contract.takes[0].shape
    if shape is None:
        return x
    grey = len(shape) == 3 and shape[0] == 1
    if grey and x.shape == shape[1:]:
        return x[None, None]
    if grey and x.ndim == 3 and x.shape[0] != 1:
        return x[:, None]
    if x.ndim == len(shape):
        x = x[None]
    if contract.preprocess is not None and x.ndim == 4 and x.shape[1] not in (1, 3):
        return x.movedim(3, 1) if x.shape[3] in (1, 3) else x  # channels came last
    return x


def _tensor(inputs: Any) -> Tensor:
    try:
        array = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.array(inputs))
    except (TypeError, ValueError) as error:
        raise TaskError(f"inputs must be an array of numbers ({error})") from None
    if array.dtype != torch.uint8:
        if array.ndim > 2 and not (array.is_floating_point() or array.dtype == torch.bool):
            raise TaskError(
                f"images of dtype {dtype_name(array.dtype)} have no known scale; give uint8 "
                "(0 to 255) or floats (0 to 1)"
            )
        array = array.float()
        if not array.isfinite().all():
            raise TaskError("the inputs hold NaN or infinite values")
    return array


def open_inputs(
    part: Part,
    paths: Sequence[str | Path],
    *,
    skip_bad: bool = False,
    otherwise: Callable[[str], Source] | None = None,
) -> NewInputs:
    """What the files and folders hold for a part, in their order.

    Args:
        part: Says which images and columns it takes.
        paths: Images, folders (every image in them and their sub-folders; where a sub-folder is
            called as a class, that is what is true of its images), tables without their target,
            ``.npy`` and ``.npz`` files.
        skip_bad: Whether what cannot be read is left out.
        otherwise: What to make of other names.
    """
    alone = len(paths) == 1
    sources = NewInputs([], skip_bad)
    known = part.contract.classes if part.contract.kind == "classes" else None
    images: list[_Image] = []

    def add_images() -> None:
        if images:
            sources.sources.append(_images(part, list(images), sources.bad))
            images.clear()

    for path in paths:
        if here := _images_at(Path(path), known, alone):
            images += here
            continue
        add_images()
        try:
            sources.sources.append(_opened(part, path, alone, otherwise))
        except ContractError:
            raise  # of the part, not of the file
        except DovetailError as error:
            if alone:
                raise
            sources.bad[str(path)] = str(error).removeprefix(f"{path}: ")
    add_images()
    if not sources.sources:
        raise sources.refusal()
    return sources


def _opened(
    part: Part, named: str | Path, alone: bool, otherwise: Callable[[str], Source] | None
) -> Source:
    path = Path(named)
    if path.suffix in (".npy", ".npz"):
        arrays = read_arrays(path, single=True)
        key = next((key for key in _KEYS if key in arrays), None)
        if key is None:
            names = ", ".join(sorted(arrays)) or "nothing"
            raise TaskError(f"{path}: no array named x or inputs; it holds {names}")
        x = as_batch(arrays[key], part.contract)
        if x.ndim == 0:
            raise TaskError(f"{path}: one number; there are no inputs to run")
        return Source.of(x, None if alone else [f"{path} {i}" for i in range(len(x))])
    if is_table(path) and path.is_file():
        rows = open_new_rows(path, part.contract.inputs)
        if rows is not None:
            return _rows(rows, "" if alone else f"{path} ")
    if otherwise is not None:
        return otherwise(str(named))
    if not path.exists():
        raise TaskError(f"{path}: no such file or folder")
    raise TaskError(f"{path}: neither an image, a folder of images, a table nor an array")


def _rows(rows: NewRows, before: str) -> Source:
    def read(start: int, stop: int) -> Batch:
        places, inputs = rows.read(start, stop)
        return Batch([before + place for place in places], inputs)

    return Source(rows.count, rows.width, read)


def _images_at(given: Path, classes: Sequence[str] | None, alone: bool) -> list[_Image]:
    """The image that a path names, or all in a folder and below; else nothing."""
    if given.is_file() and given.suffix.lower() in ENDINGS:
        return [_Image(given, given.name if alone else str(given))]

    def image(name: str) -> _Image:
        path, inside = given / name, Path(name).parent.name
        known = inside if classes and inside in classes else None
        return _Image(path, name if alone else str(path), known)

    return [image(name) for name in images_below(given)]


def _images(part: Part, images: list[_Image], bad: dict[str, str]) -> Source:
    shape = _image_shape(part)
    has_truths = any(image.truth is not None for image in images)

    def read(start: int, stop: int) -> Batch:
        wanted = images[start:stop]
        unreadable: dict[Path, str] = {}
        paths = [image.path for image in wanted]
        pixels = read_images(paths, channels=shape[0], size=shape[1:], unreadable=unreadable)
        bad.update({str(path): why for path, why in unreadable.items()})
        there = [image for image in wanted if image.path not in unreadable]
        truths = [image.truth for image in there] if has_truths else None
        return Batch([image.name for image in there], pixels, truths)

    return Source(len(images), shape[0] * shape[1] * shape[2], read, has_truths)


def _image_shape(part: Part) -> tuple[int, int, int]:
    how = part.contract.preprocess
    if how is not None and how.size is not None and how.channels is not None:
        return (how.channels, *how.size)
    shape = part.contract.takes[0].shape or ()
    sizes = [axis for axis in shape if axis is not None]
    if len(shape) != 3 or len(sizes) != 3:
        raise ContractError(f"{part.described!r} takes {shown_shape(shape)}, not images")
    return (sizes[0], sizes[1], sizes[2])
