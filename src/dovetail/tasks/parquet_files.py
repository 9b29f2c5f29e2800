"""Tables from Parquet files, with pyarrow: a column at a time, so that none grows unseen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.core.errors import DovetailError, FormatError, TaskError, first_line, shown
from dovetail.core.extras import need
from dovetail.tasks.data_files import open_data, refuse_bomb, size_of
from dovetail.tasks.table_files import Column, Table, refuse_names

__all__ = ["read_parquet"]

_WAY_OUT = "write it without compression and dictionaries, or as CSV"
_CELL = 8
"""Bytes that a cell takes here: a number, or where a text is."""

_BATCH, _BATCH_BYTES = 1 << 16, 256 << 20
"""Rows read at once, and the bytes that their texts may take where each is spelt out."""

_PACKED = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
"""Encodings of texts that pyarrow can read without spelling out every repetition."""


def read_parquet(path: str | Path) -> Table:
    """Read a Parquet file of numbers, truth values and texts; needs pyarrow.

    >>> read_parquet("no-such.parquet")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: no-such.parquet: no such file
    """
    path = Path(path)
    with open_data(path) as file:
        feature = {"feature": "Reading Parquet", "extra": "tables"}
        arrow, parquet = need("pyarrow", **feature), need("pyarrow.parquet", **feature)
        try:
            opened = parquet.ParquetFile(file, pre_buffer=False)
            schema, facts = opened.schema_arrow, opened.metadata
            refuse_names(path, schema.names)
            rows = _promised(path, size_of(file), facts)
            if not rows:
                raise TaskError(f"{path}: has no rows")
            texts = [field.name for field in schema if _is_text(field.type, arrow.types)]
            steps = _steps(facts, set(texts))
            packed = [name for name in texts if name not in steps]
            opened = parquet.ParquetFile(
                file, metadata=facts, read_dictionary=packed, pre_buffer=False
            )
            held = _Held(path, size_of(file))
            columns = tuple(
                _column(opened, field, rows, steps.get(field.name, _BATCH), held, arrow)
                for field in schema
            )
        except DovetailError:
            raise
        except MemoryError:
            raise FormatError(f"{path}: holds more than fits into this machine's memory") from None
        except Exception as error:  # pyarrow's have no root of their own
            raise FormatError(f"{path}: not a readable Parquet file: {first_line(error)}") from None
    return Table(str(path), columns, np.arange(rows), "row")


@dataclass
class _Held:
    """What was read so far: the file's own promises may be lies."""

    path: Path
    size: int
    bytes: int = 0

    def add(self, more: int) -> None:
        self.bytes += more
        refuse_bomb(self.path, self.size, self.bytes, _WAY_OUT)


def _promised(path: Path, size: int, facts: Any) -> int:
    """How many rows there are, unless they or their bytes would be far more than the file."""
    groups = [facts.row_group(i) for i in range(facts.num_row_groups)]
    rows = sum(int(group.num_rows) for group in groups)
    if rows != facts.num_rows or any(group.num_rows < 0 for group in groups):
        raise FormatError(f"{path}: damaged: {facts.num_rows} rows, but {rows} in its groups")
    unpacked = sum(max(0, group.total_byte_size) for group in groups)
    refuse_bomb(path, size, max(unpacked, rows * facts.num_columns * _CELL), _WAY_OUT)
    return rows


def _steps(facts: Any, texts: set[str]) -> dict[str, int]:
    """Of texts that pyarrow spells out one by one, how many may be read at once.

    Such a text may be as long as all that its column unpacks to.
    """
    steps: dict[str, int] = {}
    for group in (facts.row_group(i) for i in range(facts.num_row_groups)):
        for part in (group.column(i) for i in range(facts.num_columns)):
            name = part.path_in_schema
            if name in texts and not set(part.encodings) <= _PACKED:
                most = _BATCH_BYTES // max(1, part.total_uncompressed_size)
                steps[name] = min(steps.get(name, _BATCH), max(1, most))
    return steps


def _column(opened: Any, field: Any, rows: int, step: int, held: _Held, arrow: Any) -> Column:
    name, types = field.name, arrow.types
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    whole = types.is_boolean(kind) or types.is_integer(kind)
    if not (whole or types.is_floating(kind) or types.is_decimal(kind) or _is_text(kind, types)):
        return Column(name, problem=f"holds {shown(str(field.type))[1:-1]}")
    batches = opened.iter_batches(batch_size=step, columns=[name], use_threads=False)
    chunks = (batch.column(name) for batch in batches)
    held.add(rows * _CELL)
    if _is_text(kind, types):
        texts = _joined(_texts(chunks, held, arrow), rows, object)
        return Column(name, texts=texts)
    numbers = _joined((_numbers(chunk, arrow) for chunk in chunks), rows, np.float64)
    return Column(name, numbers=numbers, whole=whole)


def _is_text(kind: Any, types: Any) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _numbers(chunk: Any, arrow: Any) -> npt.NDArray[Any]:
    if arrow.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    if not arrow.types.is_floating(chunk.type):
        chunk = chunk.cast(arrow.float64(), safe=False)
    return np.asarray(chunk.to_numpy(zero_copy_only=False))


def _texts(chunks: Iterator[Any], held: _Held, arrow: Any) -> Iterator[npt.NDArray[Any]]:
    """The texts of each chunk, a text that comes again being the same object."""
    known: dict[str | None, str | None] = {None: None}
    for chunk in chunks:
        packed = chunk if arrow.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        words = np.full(len(packed.dictionary) + 1, None, object)  # the last is for the missing
        for i, word in enumerate(packed.dictionary.to_pylist()):
            if word not in known:
                held.add(len(word))
            words[i] = known.setdefault(word, word)
        places = packed.indices.cast(arrow.int64()).fill_null(-1)
        yield words[places.to_numpy(zero_copy_only=False)]


def _joined(pieces: Iterator[npt.NDArray[Any]], rows: int, dtype: Any) -> npt.NDArray[Any]:
    values, count = np.empty(rows, dtype), 0
    for piece in pieces:
        values[count : count + len(piece)] = piece  # more than there is room for is an error
        count += len(piece)
    if count < rows:
        raise EOFError(f"{count} of {rows} rows")
    return values
