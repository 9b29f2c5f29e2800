"""Rows of a table to look at once: no target, no split, encoded as a part's inputs are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.tasks.table_files import Column, Table
from dovetail.tasks.tables import USUAL_TARGETS, open_table, refuse_strange

__all__ = ["is_table", "read_new_rows"]


def is_table(path: str | Path) -> bool:
    """Whether a path names a table by its ending.

    >>> is_table("a/b.CSV"), is_table("b.npy")
    (True, False)
    """
    return Path(path).suffix.lower() in (".csv", ".tsv", ".parquet", ".pq")


def read_new_rows(
    path: str | Path, inputs: Sequence[str] | None = None
) -> tuple[list[str], Tensor] | None:
    """Where each row is, and all of them as the inputs that are named: float32 ``[n, d]``.

    A name is that of a column of numbers, or ``column=value`` for a column of texts, as
    :func:`~dovetail.tasks.tables.read_table` names what it makes; other columns are left out.
    None for a table with a column called target, label, class or y: that is a task's.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "new.csv"
    >>> _ = file.write_text("town,rooms\\nUlm,3\\nBonn,4\\n")
    >>> read_new_rows(file, ("rooms", "town=Bonn", "town=Ulm"))
    (['line 2', 'line 3'], tensor([[3., 0., 1.],
            [4., 1., 0.]]))
    """
    table = open_table(path)
    columns = {column.name: column for column in table.columns}
    if any(name.lower() in USUAL_TARGETS for name in columns):
        return None
    if not inputs:
        inputs = [column.name for column in table.columns]
    wanted = [_source(name, columns, table) for name in inputs]
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
        found = [f"{number:.0f}" if column.whole else str(number) for number in column.numbers]
    else:
        assert column.texts is not None
        found = [str(text) for text in column.texts]
    for row, text in enumerate(found):
        if text not in values:
            raise TaskError(
                f"{table.path}, {table.place(row)}: column {column.name!r} has {text!r}, which the "
                f"part never saw{nearest(text, sorted(values))}"
            )
    return np.array(found, object)


def _refuse_useless(table: Table, column: Column) -> None:
    refuse_strange(table, column)
    if column.missing.any():
        place = table.place(int(column.missing.argmax()))
        raise TaskError(f"{table.path}, {place}: column {column.name!r} has no value; fill it in")
