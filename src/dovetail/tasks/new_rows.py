"""New rows of a table, as the inputs of a part that was trained on such; piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.tasks.table_files import Column, Table, is_parquet, read_csv_pieces, read_parquet
from dovetail.tasks.tables import USUAL_TARGETS, refuse_strange

_PIECE = 4096
"""Rows of a CSV file that are read at once."""

Piece = tuple[list[str], Tensor]
"""Where each row is in its file, and the rows ``[n, d]``."""


class NewRows:
    """So many rows of so many inputs each, of which ``read`` gives some.

    A CSV file is gone through twice, a few thousand rows at a time: first to know that all of it
    can be read, then as its rows are asked for.  They are best asked for in their order.
    """

    def __init__(self, path: Path, pieces: Callable[[], Iterator[Piece]]) -> None:
        self._path, self._pieces = path, pieces
        self.count, self.width = 0, 0
        for _, rows in pieces():
            self.count, self.width = self.count + len(rows), rows.shape[1]
        self._begin()

    def _begin(self) -> None:
        self._coming = self._pieces()
        self._at, self._places, self._rows = 0, list[str](), torch.empty(0, self.width)

    def read(self, start: int, stop: int) -> Piece:
        """Rows from ``start`` to before ``stop``."""
        if start < self._at:
            self._begin()
        while self._at + len(self._rows) < stop:
            self._forget(start)
            piece = next(self._coming, None)
            if piece is None:
                raise TaskError(f"{self._path}: became shorter while it was read")
            self._places += piece[0]
            self._rows = torch.cat([self._rows, piece[1]])
        self._forget(start)
        count = stop - start
        return self._places[:count], self._rows[:count]

    def _forget(self, before: int) -> None:
        gone = min(before - self._at, len(self._rows))
        self._at += gone
        self._places, self._rows = self._places[gone:], self._rows[gone:]


def open_new_rows(path: str | Path, inputs: Sequence[str] | None = None) -> NewRows | None:
    """The rows of a table as the inputs that are named.

    A name is that of a column of numbers, or ``column=value`` for a column of texts, as
    :func:`~dovetail.tasks.tables.read_table` names what it makes; other columns are left out.
    None for a table with a column called target, label, class or y: that is a task's.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "new.csv"
    >>> _ = file.write_text("town,rooms\\nUlm,3\\nBonn,4\\n")
    >>> open_new_rows(file, ("rooms", "town=Bonn", "town=Ulm")).read(1, 2)
    (['line 3'], tensor([[4., 1., 0.]]))
    """
    path = Path(path).expanduser()
    if is_parquet(path):
        table = read_parquet(path)
        if _is_of_task(table):
            return None
        whole = _piece(table, inputs)
        return NewRows(path, lambda: iter([whole]))
    texts = {name.rpartition("=")[0] for name in inputs or () if "=" in name} - set(inputs or ())
    first = next(read_csv_pieces(path, 1, texts))
    if _is_of_task(first):
        return None
    return NewRows(
        path, lambda: (_piece(each, inputs) for each in read_csv_pieces(path, _PIECE, texts))
    )


def read_new_rows(path: str | Path, inputs: Sequence[str] | None = None) -> Piece | None:
    """All of :func:`open_new_rows` at once.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "new.csv"
    >>> _ = file.write_text("rooms\\n3\\n4\\n")
    >>> read_new_rows(file)
    (['line 2', 'line 3'], tensor([[3.],
            [4.]]))
    """
    rows = open_new_rows(path, inputs)
    return None if rows is None else rows.read(0, rows.count)


def _is_of_task(table: Table) -> bool:
    return any(column.name.lower() in USUAL_TARGETS for column in table.columns)


def _piece(table: Table, inputs: Sequence[str] | None) -> Piece:
    columns = {column.name: column for column in table.columns}
    wanted = [_source(name, columns, table) for name in inputs or columns]
    known: dict[str, set[str]] = {}
    for column, value in wanted:
        if value is not None:
            known.setdefault(column.name, set()).add(value)
    texts = {name: _texts(table, columns[name], values) for name, values in known.items()}
    rows = np.empty((len(table.places), len(wanted)), np.float32)
    for i, (column, value) in enumerate(wanted):
        rows[:, i] = _numbers(table, column) if value is None else texts[column.name] == value
    places = [table.place(row) for row in range(len(table.places))]
    return places, torch.from_numpy(rows)


def _source(name: str, columns: Mapping[str, Column], table: Table) -> tuple[Column, str | None]:
    """The column that an input comes from, and of a text which value."""
    if name in columns:
        return columns[name], None
    column, parted, value = name.rpartition("=")
    wanted = column if parted else name
    if wanted not in columns:
        raise TaskError(f"{table.path}: no column {wanted!r}{nearest(wanted, columns)}")
    return columns[wanted], value


def _numbers(table: Table, column: Column) -> npt.NDArray[np.float64]:
    _refuse_useless(table, column)
    if column.numbers is None:
        raise TaskError(f"{table.path}: column {column.name!r} is text, the part takes numbers")
    return column.numbers


def _texts(table: Table, column: Column, values: set[str]) -> npt.NDArray[np.object_]:
    _refuse_useless(table, column)
    if column.numbers is not None:
        texts = [f"{number:.0f}" if column.whole else str(number) for number in column.numbers]
    else:
        assert column.texts is not None
        texts = [str(text) for text in column.texts]
    for row, text in enumerate(texts):
        if text not in values:
            raise TaskError(
                f"{table.path}, {table.place(row)}: column {column.name!r} has {text!r}, which the "
                f"part never saw{nearest(text, sorted(values))}"
            )
    return np.array(texts, object)


def _refuse_useless(table: Table, column: Column) -> None:
    refuse_strange(table, column)
    if column.missing.any():
        place = table.place(int(column.missing.argmax()))
        raise TaskError(f"{table.path}, {place}: column {column.name!r} has no value; fill it in")
