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

_BATCH, _BATCH_BYTES = 1 << 16, 1 << 30
"""Rows read at once, and the bytes that they may take where every text is spelt out."""


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
            packed = parquet.ParquetFile(
                file, metadata=facts, read_dictionary=texts, pre_buffer=False
            )
            reading = _Reading(path, size_of(file), rows, opened, packed, arrow)
            columns = tuple(reading.column(field) for field in schema)
        except DovetailError:
            raise
        except MemoryError:
            raise FormatError(f"{path}: holds more than fits into this machine's memory") from None
        except Exception as error:  # pyarrow's have no root of their own
            raise FormatError(f"{path}: not a readable Parquet file: {first_line(error)}") from None
    return Table(str(path), columns, np.arange(rows), "row")


@dataclass
class _Reading:
    """A file as it is read, and the bytes it took so far: its own promises may be lies."""

    path: Path
    size: int
    rows: int
    opened: Any
    packed: Any
    """The same file, a text that is repeated being read once; not all encodings allow that."""

    arrow: Any
    held: int = 0

    def column(self, field: Any) -> Column:
        name, types = field.name, self.arrow.types
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        self._hold(self.rows * _CELL)
        if _is_text(kind, types):
            return Column(name, texts=self._texts(name))
        whole = types.is_boolean(kind) or types.is_integer(kind)
        if not (whole or types.is_floating(kind) or types.is_decimal(kind)):
            return Column(name, problem=f"holds {shown(str(field.type))[1:-1]}")
        chunks = _chunks(self.opened, name, _BATCH)
        numbers = _joined((_numbers(chunk, self.arrow) for chunk in chunks), self.rows, np.float64)
        return Column(name, numbers=numbers, whole=whole)

    def _texts(self, name: str) -> npt.NDArray[np.object_]:
        try:
            return _joined(self._words(_chunks(self.packed, name, _BATCH)), self.rows, object)
        except (self.arrow.ArrowException, OSError):
            facts = self.opened.metadata  # a text is no longer than what its rows unpack to
            groups = (facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
            step = min(_BATCH, max(1, _BATCH_BYTES // max(1, *groups)))
            return _joined(self._words(_chunks(self.opened, name, step)), self.rows, object)

    def _words(self, chunks: Iterator[Any]) -> Iterator[npt.NDArray[np.object_]]:
        """The texts of each chunk, a text that comes again being the same object."""
        known: dict[str | None, str | None] = {None: None}
        for chunk in chunks:
            as_read = self.arrow.types.is_dictionary(chunk.type)
            packed = chunk if as_read else chunk.dictionary_encode()
            words = np.full(len(packed.dictionary) + 1, None, object)  # the last: for the missing
            for i, word in enumerate(packed.dictionary.to_pylist()):
                if word not in known:
                    self._hold(len(word))
                words[i] = known.setdefault(word, word)
            places = packed.indices.cast(self.arrow.int64()).fill_null(-1)
            yield words[places.to_numpy(zero_copy_only=False)]

    def _hold(self, more: int) -> None:
        self.held += more
        refuse_bomb(self.path, self.size, self.held, _WAY_OUT)


def _promised(path: Path, size: int, facts: Any) -> int:
    """How many rows there are, unless they or their bytes would be far more than the file."""
    groups = [facts.row_group(i) for i in range(facts.num_row_groups)]
    rows = sum(int(group.num_rows) for group in groups)
    if rows != facts.num_rows or any(group.num_rows < 0 for group in groups):
        raise FormatError(f"{path}: damaged: {facts.num_rows} rows, but {rows} in its groups")
    unpacked = sum(max(0, group.total_byte_size) for group in groups)
    refuse_bomb(path, size, max(unpacked, rows * facts.num_columns * _CELL), _WAY_OUT)
    return rows


def _chunks(opened: Any, name: str, step: int) -> Iterator[Any]:
    # of a column its facts are better not asked: where they are damaged, pyarrow ends the process
    batches = opened.iter_batches(batch_size=step, columns=[name], use_threads=False)
    return (batch.column(name) for batch in batches)


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


def _joined(pieces: Iterator[npt.NDArray[Any]], rows: int, dtype: Any) -> npt.NDArray[Any]:
    values, count = np.empty(rows, dtype), 0
    for piece in pieces:
        values[count : count + len(piece)] = piece  # more than there is room for is an error
        count += len(piece)
    if count < rows:
        raise EOFError(f"{count} of {rows} rows")
    return values
