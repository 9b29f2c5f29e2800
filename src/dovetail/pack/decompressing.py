"""Bytes to weights: Algorithm 2 of the thesis "Efficient deep learning", chapter 3.

Nothing in a container is believed before it is checked: see :mod:`dovetail.pack.container`.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import FormatError, SettingsError
from dovetail.core.files import open_plain
from dovetail.pack.blocks import fill_exact, fill_quantised, read_ranges
from dovetail.pack.container import HEAD, TAIL, read_index, tail_sizes
from dovetail.pack.dtypes import name_of, raw_bytes
from dovetail.pack.entries import Entry, Index
from dovetail.pack.pool import Pool, pool
from dovetail.pack.quantise import Grid

__all__ = ["decompress", "opened", "read", "read_header", "tensors"]

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
        return {entry.name: (name_of(entry.dtype), entry.shape) for entry in source.index.entries}


class Source:
    """A container's bytes, wherever they are, and its index, checked.

    ``most_bytes`` is what the index may take, if less than is usual for the container's size.
    """

    def __init__(self, size: int, most_bytes: int | None = None) -> None:
        self.size = size
        tail = self.bytes_at(max(0, size - TAIL), TAIL)
        _, _, shrunk, _ = tail_sizes(bytes(tail), size, most_bytes)
        data = self.bytes_at(size - TAIL - shrunk, shrunk)
        head = self.bytes_at(0, len(HEAD))
        self.index: Index = read_index(bytes(head), bytes(data), bytes(tail), size, most_bytes)

    @staticmethod
    def of(data: bytes, most_bytes: int | None = None) -> Source:
        """A container in memory."""
        return _Memory(data, most_bytes)

    def bytes_at(self, at: int, length: int) -> bytes | memoryview:
        """Some of the container's bytes."""
        raise NotImplementedError

    def blocks(self) -> Iterator[memoryview]:
        """All blocks, in order, each from a group whose checksum was right."""
        at, groups = len(HEAD), iter(self.index.groups)
        group, place = memoryview(b""), 0
        for entry in self.index.entries:
            for length in entry.lengths:
                if place == len(group):
                    told = next(groups)
                    group, place = memoryview(self.bytes_at(at, told.size)), 0
                    at += told.size
                    if len(group) != told.size or zlib.crc32(group) != told.crc:
                        raise FormatError("damaged: its checksum differs")
                if place + length > len(group):
                    raise FormatError("a block crosses the end of a group")
                yield group[place : place + length]
                place += length


class _Memory(Source):
    def __init__(self, data: bytes, most_bytes: int | None) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise SettingsError("packed bytes are wanted here; dovetail.pack.read takes a file")
        self._data = memoryview(data).cast("B")
        super().__init__(len(self._data), most_bytes)

    def bytes_at(self, at: int, length: int) -> memoryview:
        return self._data[at : at + length]


class _File(Source):
    def __init__(self, file: BufferedReader, most_bytes: int | None) -> None:
        self._file = file
        super().__init__(os.fstat(file.fileno()).st_size, most_bytes)

    def bytes_at(self, at: int, length: int) -> bytes:
        self._file.seek(at)
        return self._file.read(length)


@contextmanager
def opened(path: str | Path, most_bytes: int | None = None) -> Iterator[Source]:
    """A container in a file; what is wrong with it is said with the file's name."""
    with open_plain(Path(path)) as file:
        try:
            yield _File(file, most_bytes)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
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
            f"come from, pass most_bytes={needed}"
        )
    blocks, ready = source.blocks(), _fitting(source.index.entries, into or {})
    with pool() as threads:
        for entry in source.index.entries:
            try:
                yield entry.name, _tensor(entry, blocks, threads, ready.get(entry.name))
            except FormatError as error:
                raise FormatError(f"tensor {entry.name!r}: {error}") from None


def _tensor(
    entry: Entry, blocks: Iterator[memoryview], threads: Pool, ready: Tensor | None
) -> Tensor:
    tensor = _unfilled(entry) if ready is None else ready
    if not entry.rows:
        _fill_exactly(tensor, entry, blocks, threads)
        return tensor
    low, high = read_ranges(next(blocks), entry.rows, entry.dtype)
    matrix = tensor.view(entry.rows, -1)
    if entry.plan is None:
        matrix.copy_(torch.from_numpy(low)[:, None])
        return tensor
    plan, grid = entry.plan, Grid(entry.plan.bits, low, high)

    def fill(work: tuple[memoryview, tuple[slice, slice]]) -> None:
        block, where = work
        fill_quantised(block, grid, where[0], plan, matrix[where])

    work = ((next(blocks), where) for where in entry.blocks())
    for _ in threads.each(fill, work, entry.block_count):
        pass
    return tensor


def _fitting(entries: Iterable[Entry], into: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The given tensors that can be filled; of those that share memory, the first."""
    found: dict[str, Tensor] = {}
    taken: list[tuple[int, int]] = []  # first bytes and ends, rising, apart from each other
    for entry in entries:
        given = into.get(entry.name)
        if given is None or given.dtype != entry.dtype or tuple(given.shape) != entry.shape:
            continue
        plain = given.device.type == "cpu" and not (given.is_neg() or given.is_conj())
        if not plain or given.layout != torch.strided or not given.is_contiguous():
            continue
        start, stop = given.data_ptr(), given.data_ptr() + entry.size
        place = bisect(taken, (start, stop))
        before = place > 0 and taken[place - 1][1] > start
        after = place < len(taken) and taken[place][0] < stop
        if not (before or after):
            taken.insert(place, (start, stop))
            found[entry.name] = given.detach()
    return found


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


def _fill_exactly(
    tensor: Tensor, entry: Entry, blocks: Iterator[memoryview], threads: Pool
) -> None:
    data = raw_bytes(tensor)

    def fill(work: tuple[memoryview, slice]) -> None:
        block, where = work
        fill_exact(block, data[where])

    work = ((next(blocks), columns) for _, columns in entry.blocks())
    for _ in threads.each(fill, work, entry.block_count):
        pass
    if entry.dtype == torch.bool and data.size and int(data.max()) > 1:
        raise FormatError("a truth value that is neither")
