"""Arrays from npz and npy files.  Headers are checked before memory is asked for, and nothing is
ever unpickled."""

from __future__ import annotations

import io
import math
import zipfile
from collections import Counter
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dovetail.core.errors import DovetailError, FormatError, shown
from dovetail.tasks.data_files import open_data, refuse_bomb, size_of

__all__ = ["read_arrays"]

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
    with open_data(path) as file:
        try:
            begins = file.peek(len(_NPY))
            if begins.startswith(_NPY):
                if single:
                    return {"x": _array(f"{path}", file, size_of(file))}
                raise FormatError(f"{path}: a single array, not an npz file; save x and y in one")
            if begins and not begins.startswith(b"PK"):
                raise FormatError(
                    f"{path}: {_unreadable(single)}: holds pickled objects or no arrays at all"
                )
            return _members(path, file)
        except DovetailError:
            raise
        except MemoryError:
            raise FormatError(f"{path}: holds more than fits into this machine's memory") from None
        except Exception:  # zipfile, zlib and NumPy fail on damaged files in a dozen ways
            raise FormatError(f"{path}: {_unreadable(single)}: damaged or truncated") from None


def _unreadable(single: bool) -> str:
    return f"not a readable {'array' if single else 'npz'} file"


def _members(path: Path, file: BufferedReader) -> dict[str, npt.NDArray[Any]]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        way_out = "save it with np.savez instead of np.savez_compressed"
        refuse_bomb(path, size_of(file), unpacked, way_out)
        for name, times in Counter(member.filename for member in members).most_common(1):
            if times > 1:  # two readers could understand it differently
                raise FormatError(f"{path}: holds {shown(name)} {times} times; save it anew")
        found = {}
        for member in members:
            where = f"{path}: {shown(member.filename)}"
            if not member.filename.endswith(_ENDING):
                raise FormatError(f"{where} is no {_ENDING} file; save arrays only, with np.savez")
            if member.compress_type not in _PACKED or member.flag_bits & 1:
                raise FormatError(f"{where} is not packed as np.savez does; save it with that")
            with archive.open(member) as opened:
                key = member.filename.removesuffix(_ENDING)
                found[key] = _array(where, opened, member.file_size)
        return found


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
