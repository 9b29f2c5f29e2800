"""Runs of bytes, one after another: each with its length, and through zstd where that is shorter.

zstd is used for its Huffman coder: symbols of weights seldom repeat as sequences, so the search for
repeats is kept small.  Nothing is said about a run that its reader does not know already: the
reader names the size it expects, and whatever unpacks to another size is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import zstandard
from numpy.typing import NDArray

from dovetail.core.errors import FormatError

LARGEST_WINDOW = 1 << 20
"""zstd may look back so far; a frame that asks for more memory is not one of ours."""

_LONGEST_NUMBER = 9

Run = tuple[NDArray[np.uint8], bool] | int
"""Bytes, and whether shrinking them is worth trying; or a whole number."""

_own = threading.local()


def shrink(data: bytes | NDArray[np.uint8]) -> bytes:
    """A zstd frame without its size, which the reader knows.

    >>> len(shrink(bytes(1000))) < 20
    True
    """
    if not hasattr(_own, "compressor"):  # one a thread: they cannot be shared
        _own.compressor = zstandard.ZstdCompressor(
            # A small table of long repeats: short ones are chance, and cost more than they save.
            compression_params=zstandard.ZstdCompressionParameters(
                strategy=zstandard.STRATEGY_FAST,
                window_log=17,
                hash_log=6,
                min_match=7,
                write_content_size=False,
                format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            )
        )
    packed: bytes = _own.compressor.compress(data)
    return packed


def unshrink(data: bytes | memoryview, size: int) -> bytes:
    """What :func:`shrink` was given, if it has this size; memory is bounded by it.

    >>> unshrink(shrink(b"abc" * 100), 300)[:6]
    b'abcabc'
    >>> unshrink(shrink(b"abc" * 100), 299)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: a run of bytes does not unpack to the 299 it should have
    """
    if not hasattr(_own, "decompressor"):
        _own.decompressor = zstandard.ZstdDecompressor(
            max_window_size=LARGEST_WINDOW, format=zstandard.FORMAT_ZSTD1_MAGICLESS
        )
    wrong = FormatError(f"a run of bytes does not unpack to the {size} it should have")
    try:
        # A frame that names its size would be given that much memory: ours never do.
        frame = zstandard.get_frame_parameters(data, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        if frame.content_size not in (zstandard.CONTENTSIZE_UNKNOWN, size) or size == 0:
            raise wrong
        unpacked: bytes = _own.decompressor.decompress(
            data, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError:
        raise wrong from None
    if len(unpacked) != size:
        raise wrong
    return unpacked


def written(runs: Iterable[Run]) -> list[bytes]:
    """Runs, each as its length, whether it was shrunk, and its bytes; numbers as they are.

    >>> written([(np.arange(3, dtype=np.uint8), True)])
    [b'\\x06', b'\\x00\\x01\\x02']
    """
    out = []
    for run in runs:
        if isinstance(run, int):
            out.append(_number(run))
            continue
        data, worth = run
        shorter = shrink(data) if worth and data.size > 8 else None
        if shorter is not None and len(shorter) < data.size:
            out += [_number(len(shorter) << 1 | 1), shorter]
        else:
            out += [_number(data.size << 1), data.tobytes()]
    return out


class Reader:
    """Runs read back, one at a time, each with the size it must have.

    >>> reader = Reader(b"".join(written([(np.arange(3, dtype=np.uint8), True)])))
    >>> reader.run(3); reader.end()
    array([0, 1, 2], dtype=uint8)
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def run(self, size: int) -> NDArray[np.uint8]:
        """The next run, which must have ``size`` bytes."""
        length, shrunk = divmod(self.number(), 2)
        data = self._data[self._at : self._at + length]
        if len(data) != length:
            raise FormatError("a run of bytes ends too early")
        self._at += length
        if shrunk:
            data = memoryview(unshrink(data, size))
        elif length != size:
            raise FormatError(f"a run of bytes has {length} instead of {size}")
        return np.frombuffer(data, np.uint8)

    def end(self) -> None:
        """Refuse what is left over."""
        if self._at != len(self._data):
            raise FormatError(f"{len(self._data) - self._at} bytes follow the last run")

    def number(self) -> int:
        """The next whole number."""
        value = 0
        for place in range(_LONGEST_NUMBER):
            if self._at >= len(self._data):
                break
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value
        raise FormatError("the length of a run of bytes is cut off")


def _number(value: int) -> bytes:
    """Seven bits a byte, the smallest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
