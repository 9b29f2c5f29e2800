"""Bytes to weights: Algorithm 2 of the thesis "Efficient deep learning", chapter 3.

Nothing in a container is believed before it is checked: see :mod:`dovetail.pack.container`.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import FormatError, SettingsError, argument
from dovetail.core.files import open_plain
from dovetail.pack.container import (
    HEAD,
    TAIL,
    fill_exact,
    fill_quantised,
    read_index,
    read_ranges,
    tail_sizes,
)
from dovetail.pack.index import Entry, Index
from dovetail.pack.tensors import dtype_name, raw_bytes
from dovetail.pack.threads import Pool

_ALWAYS_ALLOWED, _TIMES = 256 << 20, 100

_LARGE = 4 << 20


def decompress(
    data: bytes, *, most_bytes: int | None = None, into: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The tensors of a container, in their order, with their names, shapes and dtypes.

    A container of a few bytes may truly hold gigabytes of zeros, or only claim to: what would need
    more than ``most_bytes`` of memory is refused before any of it is allocated.  Unless told, that
    is a hundred times the container's own size, and at least 256 MB.  The container's index, too,
    takes no more than ``most_bytes``, or four megabytes.

    Tensors of ``into`` with the name, shape and dtype of one in the container are filled instead
    of new ones (contiguous, on the CPU, none sharing memory with one before it): memory that was
    touched before is filled far sooner.
    Should the container prove damaged, those hold neither the old weights nor the new.

    >>> from dovetail.pack.compressing import compress
    >>> decompress(compress({"a": torch.zeros(2, 3), "b": torch.tensor([True])}))
    {'a': tensor([[0., 0., 0.], [0., 0., 0.]]), 'b': tensor([True])}
    """
    return dict(tensors(Source.of(data, most_bytes), most_bytes=most_bytes, into=into))


def read(path: str | Path, *, most_bytes: int | None = None) -> dict[str, Tensor]:
    """The tensors of a file; see :func:`decompress`."""
    with opened(path, most_bytes) as source:
        return dict(tensors(source, most_bytes=most_bytes))


def read_header(path: str | Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every tensor in a file, without decoding any."""
    with opened(path) as source:
        return {
            entry.name: (dtype_name(entry.dtype), entry.shape) for entry in source.index.entries
        }


class Source:
    """A container's bytes, wherever they are, and its index, checked.

    ``bytes_at(at, length)`` gives some of its ``size`` bytes, ``most_bytes`` is what the index may
    take, if less than is usual for the container's size.
    """

    def __init__(
        self,
        size: int,
        bytes_at: Callable[[int, int], bytes | memoryview],
        most_bytes: int | None = None,
    ) -> None:
        self.size, self.bytes_at = size, bytes_at
        tail = self.bytes_at(max(0, size - TAIL), TAIL)
        _, shrunk, _ = tail_sizes(bytes(tail), size, most_bytes)
        data = self.bytes_at(size - TAIL - shrunk, shrunk)
        head = self.bytes_at(0, len(HEAD))
        self.index: Index = read_index(bytes(head), bytes(data), bytes(tail), size, most_bytes)

    @staticmethod
    def of(data: bytes, most_bytes: int | None = None) -> Source:
        """A container in memory."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise SettingsError("packed bytes are wanted here; dovetail.pack.read takes a file")
        view = memoryview(data).cast("B")
        return Source(len(view), lambda at, length: view[at : at + length], most_bytes)

    def blocks(self) -> Iterator[memoryview]:
        """All blocks, in order, each from a group whose checksum was right."""
        at, groups = len(HEAD), iter(self.index.groups)
        group, place = memoryview(b""), 0
        for entry in self.index.entries:
            for length in entry.lengths:
                if place == len(group):
                    wanted = next(groups)
                    group, place = memoryview(self.bytes_at(at, wanted.size)), 0
                    at += wanted.size
                    if len(group) != wanted.size or zlib.crc32(group) != wanted.crc:
                        raise FormatError("damaged: its checksum differs")
                if place + length > len(group):
                    raise FormatError("a block crosses the end of a group")
                yield group[place : place + length]
                place += length


@contextmanager
def opened(path: str | Path, most_bytes: int | None = None) -> Iterator[Source]:
    """A container in a file; what is wrong with it is said with the file's name."""
    with open_plain(Path(path)) as file:

        def bytes_at(at: int, length: int) -> bytes:
            file.seek(at)
            return file.read(length)

        try:
            yield Source(os.fstat(file.fileno()).st_size, bytes_at, most_bytes)
        except FormatError as error:
            raise FormatError(f"{path}: {error.marked}") from None
        except OSError as error:
            raise FormatError(f"{path}: cannot be read ({error.strerror or error})") from None


def tensors(
    source: Source, *, most_bytes: int | None = None, into: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors, one at a time."""
    allowed = max(_ALWAYS_ALLOWED, _TIMES * source.size) if most_bytes is None else most_bytes
    needed = sum(entry.size for entry in source.index.entries)
    if needed > allowed:
        raise FormatError(
            f"these tensors need {needed} bytes, {allowed} are allowed: if you trust where they "
            f"come from, pass {argument('most_bytes', needed)}"
        )
    blocks, ready = source.blocks(), _fitting(source.index.entries, into or {})
    with Pool() as threads:
        for entry in source.index.entries:
            try:
                yield entry.name, _tensor(entry, blocks, threads, ready.get(entry.name))
            except FormatError as error:
                raise FormatError(f"tensor {entry.name!r}: {error}") from None


def _tensor(
    entry: Entry, blocks: Iterator[memoryview], threads: Pool, ready: Tensor | None
) -> Tensor:
    tensor = _unfilled(entry) if ready is None else ready
    where = entry.blocks()
    if not entry.rows:
        data = raw_bytes(tensor)
        work = ((next(blocks), data[columns]) for _, columns in where)
        for _ in threads.each(lambda some: fill_exact(*some), work, entry.block_count):
            pass
        if entry.dtype == torch.bool and data.size and int(data.max()) > 1:
            raise FormatError("a truth value that is neither")
        return tensor
    low, high = read_ranges(next(blocks), entry.rows, entry.dtype)
    matrix = tensor.view(entry.rows, -1)
    if entry.code is None:
        matrix.copy_(torch.from_numpy(low)[:, None])
        return tensor
    code, grid = entry.code, entry.grid(low, high)

    quantised = ((next(blocks), grid, rows, code, matrix[rows, cols]) for rows, cols in where)
    for _ in threads.each(lambda some: fill_quantised(*some), quantised, entry.block_count):
        pass
    return tensor


def _fitting(entries: Iterable[Entry], into: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The given tensors that can be filled; of those that share memory, the first."""
    fillable: dict[str, Tensor] = {}
    ranges: list[tuple[int, int]] = []  # first bytes and ends, rising, apart from each other
    for entry in entries:
        tensor = into.get(entry.name)
        if tensor is None or tensor.dtype != entry.dtype or tuple(tensor.shape) != entry.shape:
            continue
        plain = tensor.device.type == "cpu" and not (tensor.is_neg() or tensor.is_conj())
        if not plain or tensor.layout != torch.strided or not tensor.is_contiguous():
            continue
        start, stop = tensor.data_ptr(), tensor.data_ptr() + entry.size
        place = bisect(ranges, (start, stop))
        before = place > 0 and ranges[place - 1][1] > start
        after = place < len(ranges) and ranges[place][0] < stop
        if not (before or after):
            ranges.insert(place, (start, stop))
            fillable[entry.name] = tensor.detach()
    return fillable


def _unfilled(entry: Entry) -> Tensor:
    """Memory for a tensor: of numpy if large, which asks for huge pages.

    To touch a hundred thousand small pages for the first time takes longer than the decoding.
    """
    try:
        if entry.size < _LARGE:
            return torch.empty(entry.shape, dtype=entry.dtype)
        memory = torch.from_numpy(np.empty(entry.size, np.uint8))
        return memory.view(entry.dtype).reshape(entry.shape)
    except (RuntimeError, MemoryError):
        raise FormatError(f"no memory for its {entry.size} bytes") from None
