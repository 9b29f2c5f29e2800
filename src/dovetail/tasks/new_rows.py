"""Rows of a table to look at once: no target, no split, encoded as a part's inputs are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.tasks.table_files import Column, Table, read_csv, read_parquet
from dovetail.tasks.tables import USUAL_TARGETS

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
    path = Path(path).expanduser()
    table = read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else read_csv(path)
    columns = {column.name: column for column in table.columns}
    if any(name.lower() in USUAL_TARGETS for name in columns):
        return None
    if inputs is None:
        inputs = [column.name for column in table.columns]
    known: dict[str, list[str]] = {}
    for name in inputs:
        column, parted, value = name.rpartition("=")
        if name not in columns and parted:
            known.setdefault(column, []).append(value)
    rows = []
    for name in inputs:
        if name in columns:
            rows.append(_numbers(table, columns[name]))
            continue
        column, parted, value = name.rpartition("=")
        wanted = column if parted else name
        if wanted not in columns:
            raise TaskError(f"{path}: no column {wanted!r}{nearest(wanted, columns)}")
        rows.append(np.array([text == value for text in _texts(table, columns[wanted], known)]))
    places = [table.place(row) for row in range(len(table.places))]
    return places, torch.from_numpy(np.stack(rows, 1).astype(np.float32))


def _numbers(table: Table, column: Column) -> np.ndarray:
    if column.numbers is None:
        raise TaskError(f"{table.path}: column {column.name!r} is text, the part takes numbers")
    _refuse_missing(table, column)
    return column.numbers


def _texts(table: Table, column: Column, known: dict[str, list[str]]) -> list[str]:
    _refuse_missing(table, column)
    if column.numbers is not None:
        found = [f"{number:.0f}" if column.whole else str(number) for number in column.numbers]
    else:
        assert column.texts is not None
        found = [str(text) for text in column.texts]
    values = known[column.name]
    for row, text in enumerate(found):
        if text not in values:
            raise TaskError(
                f"{table.path}, {table.place(row)}: column {column.name!r} has {text!r}, which the "
                f"part never saw{nearest(text, values)}"
            )
    return found


def _refuse_missing(table: Table, column: Column) -> None:
    if column.missing.any():
        place = table.place(int(column.missing.argmax()))
        raise TaskError(f"{table.path}, {place}: column {column.name!r} has no value; fill it in")
