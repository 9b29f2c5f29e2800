"""Tasks from tables: which columns are inputs, and which the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from dovetail.core.errors import TaskError, argument, nearest
from dovetail.core.words import listed
from dovetail.tasks.data_files import refuse_large
from dovetail.tasks.table_files import Column, Table, is_parquet, read_csv, read_parquet
from dovetail.tasks.task import Kind, Task

USUAL_TARGETS = ("target", "label", "class", "y")
_MOST_VALUES = 64
"""A text column with more values than this is rather a name than a category."""

_MOST_NAMES = 100
"""Columns that an error names."""

_FEW_VALUES = 20
"""A target of whole numbers with at most so many values means classes."""

Missing = Literal["refuse", "drop", "mean"]


def read_table(
    path: str | Path,
    *,
    target: str | Sequence[str] | None = None,
    kind: Kind | None = None,
    drop: str | Sequence[str] = (),
    missing: Missing = "refuse",
    name: str | None = None,
    seed: int = 0,
) -> Task:
    """A task from a CSV file (``.csv``, ``.tsv``) or a Parquet file with named columns.

    Numeric columns become float32 inputs as they are, text columns one-hot inputs (up to 64 values,
    in sorted order).  A text target, or one of whole numbers with at most 20 values, means classes;
    any other numbers mean regression.

    Args:
        path: The file; for how its cells are read, see
            :func:`~dovetail.tasks.table_files.read_csv`.
        target: The column to predict; by default the one called target, label, class or y, or else
            the only one of text, if its values come again (a note says so).  Several columns mean
            multilabel if they are all 0 and 1, else regression to several numbers.
        kind: What the target means, if not as above.
        drop: Columns to leave out.
        missing: With ``"drop"`` rows that lack a value are left out; with ``"mean"`` a missing
            input becomes the mean over the training rows (of a text, the shares of its values).
        name: What reports call the task; by default the file's name.
        seed: For the split.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "houses.csv"
    >>> _ = file.write_text("rooms,town,price\\n" + "3,Bonn,1.5\\n4,Ulm,2.5\\n" * 10)
    >>> read_table(file, target="price")
    Task('houses', regression to 1, 20 inputs 3, train 14 / validation 2 / test 4)
    """
    if missing not in ("refuse", "drop", "mean"):
        raise TaskError(f'missing must be "refuse", "drop" or "mean", got {missing!r}')
    table = open_table(path)
    path = Path(table.path)
    gone = _known(table, [drop] if isinstance(drop, str) else drop)
    wanted, guessed = _target_names(table, target, gone)
    table = replace(table, columns=tuple(c for c in table.columns if c.name not in set(gone)))
    for column in table.columns:
        refuse_strange(table, column)
    targets = set(wanted)
    table, notes = _complete(table, targets, missing)
    notes += guessed
    by_name = {column.name: column for column in table.columns}
    inputs = [column for column in table.columns if column.name not in targets]
    if not inputs:
        raise TaskError(f"{path}: no column is left to predict {listed(wanted)} from")
    values, owners, names = _encoded(table, inputs)
    target_values, known, classes = _targets(table, [by_name[name] for name in wanted], kind)
    task = Task(
        np.nan_to_num(values),
        target_values,
        name=path.stem if name is None else name,
        kind=known,
        classes=classes,
        seed=seed,
        input_names=names,
        notes=notes,
    )
    lacking = np.isnan(values)
    if not lacking.any():
        return task
    # only now is it known which rows train, and no other may say what a missing value is
    train = task.indices("train").numpy()
    unseen = lacking[train].all(0)
    if unseen.any():
        owner = owners[int(unseen.argmax())]
        raise TaskError(f"{path}: column {owner!r} has no value in any training row")
    means = np.nanmean(values[train], axis=0, dtype=np.float64).astype(np.float32)
    filled = torch.from_numpy(np.where(lacking, means, values))
    return task.derived(task.name, inputs=filled)


def open_table(path: str | Path) -> Table:
    """The columns of a CSV or Parquet file, told apart by its ending.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "toy.csv"
    >>> _ = file.write_text("age\\n41\\n"); len(open_table(file).columns)
    1
    """
    path = Path(path).expanduser()
    return read_parquet(path) if is_parquet(path) else read_csv(path)


def _target_names(
    table: Table, target: str | Sequence[str] | None, gone: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The columns to predict, and a note where they were guessed."""
    names = [column.name for column in table.columns]
    if target is not None:
        wanted = [target] if isinstance(target, str) else list(target)
        if not wanted or len(set(wanted)) < len(wanted):
            raise TaskError(f"target must name one or several different columns, got {target!r}")
        return _known(table, wanted), []
    usual = [name for name in names if name.lower() in USUAL_TARGETS]
    if len(usual) == 1:
        return usual, []
    remaining = [column for column in table.columns if column.name not in gone]
    texts = [column for column in remaining if column.texts is not None]
    if not usual and len(remaining) > 1 and len(texts) == 1 and _is_category(texts[0]):
        guess = texts[0].name
        return [guess], [f"the target is {guess!r}, the only column of text, as none was named"]
    known = f"{', '.join(USUAL_TARGETS[:-1])} or {USUAL_TARGETS[-1]}"
    why = f"both {' and '.join(usual[:2])} could be it" if usual else f"none is called {known}"
    raise TaskError(
        f"{table.path}: which is the target? ({why}); give {argument('target', ...)} one of "
        f"{listed(names, most=_MOST_NAMES)}"
    )


def _is_category(column: Column) -> bool:
    """Whether texts come again, as those of a class do and names do not."""
    texts = [text for text in column.texts if text is not None] if column.texts is not None else []
    return 2 <= len(set(texts)) <= min(_MOST_VALUES, len(texts) // 2)


def _known(table: Table, wanted: Sequence[str]) -> list[str]:
    names = {column.name: column for column in table.columns}
    for name in wanted:
        if name not in names:
            raise TaskError(f"{table.path}: no column {name!r}{nearest(str(name), names)}")
    return list(wanted)


def refuse_strange(table: Table, column: Column) -> None:
    """Refuse a column of no use, and infinite numbers: float32 has fewer than a file may hold.

    >>> when = Column("when", problem="holds date32")
    >>> refuse_strange(Table("toy.parquet", (when,), np.arange(3), "row"), when)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: toy.parquet: column 'when' holds date32; leave it out with...
    """
    if column.problem:
        raise TaskError(
            f"{table.path}: column {column.name!r} {column.problem}; "
            f"leave it out with drop=[{column.name!r}]"
        )
    if column.numbers is not None:
        with np.errstate(over="ignore"):
            infinite = np.isinf(column.numbers.astype(np.float32))
        if infinite.any():
            place = table.place(int(infinite.argmax()))
            raise TaskError(f"{table.path}, {place}: column {column.name!r} is infinite")


def _complete(table: Table, wanted: set[str], missing: Missing) -> tuple[Table, list[str]]:
    """The table with rows left out as asked, or an error at the first value that is missing."""
    lacking = {column.name: column.missing for column in table.columns}
    anywhere = np.any(list(lacking.values()), axis=0)
    if missing == "drop" and anywhere.any():
        if anywhere.all():
            raise TaskError(f"{table.path}: every row lacks a value; nothing is left")
        count = int(anywhere.sum())
        note = f"{count} of {len(anywhere)} rows lack a value and were left out"
        return table.take(~anywhere), [note]
    for name, where in lacking.items():
        if where.any() and (missing == "refuse" or name in wanted):
            known = ("drop",) if name in wanted else ("drop", "mean")
            ways = " or ".join(argument("task_set.missing", way) for way in known)
            place = table.place(int(where.argmax()))
            raise TaskError(f"{table.path}, {place}: column {name!r} has no value; give {ways}")
    count = int(anywhere.sum())
    return table, [f"{count} rows lack a value; means were filled in"] if count else []


def _encoded(
    table: Table, columns: Sequence[Column]
) -> tuple[npt.NDArray[np.float32], list[str], list[str]]:
    """Inputs with NaN where missing; for each its column's name, and its own (``town=Bonn``)."""
    values = {column.name: _values(table, column) for column in columns if column.texts is not None}
    width = len(columns) - len(values) + sum(len(known) for known in values.values())
    whose = f"{table.path}: {len(table.places)} rows of {width} inputs"
    refuse_large(whose, len(table.places) * width * 4, "leave columns out with drop=")
    encoded = np.zeros((len(table.places), width), np.float32)
    owners: list[str] = []
    names: list[str] = []
    for column in columns:
        start = len(names)
        if column.numbers is not None:
            encoded[:, start] = column.numbers
            names.append(column.name)
        else:
            assert column.texts is not None
            known = values[column.name]
            names += [f"{column.name}={value}" for value in known]
            one_hot = column.texts[:, None] == np.array(known, object)
            encoded[:, start : len(names)] = np.where(column.missing[:, None], np.nan, one_hot)
        owners += [column.name] * (len(names) - start)
    return encoded, owners, names


def _values(table: Table, column: Column) -> list[str]:
    """The different texts of a column, sorted."""
    assert column.texts is not None
    values = sorted({text for text in column.texts if text is not None})
    if len(values) > _MOST_VALUES:
        raise TaskError(
            f"{table.path}: the text column {column.name!r} has {len(values)} different values, "
            f"more than {_MOST_VALUES}; leave it out with drop=[{column.name!r}]"
        )
    return values


def _targets(
    table: Table, columns: Sequence[Column], kind: Kind | None
) -> tuple[npt.NDArray[Any], Kind, list[str] | None]:
    """The targets, their kind, and for multilabel the names of the labels."""
    first, alone = columns[0], len(columns) == 1
    known = kind or _kind_of(columns)
    if known == "pairs" or (known == "classes" and not alone):
        raise TaskError(f"{table.path}: a table with these targets cannot be of kind {known!r}")
    if known == "classes":
        single = first.numbers if first.texts is None else first.texts
        assert single is not None
        return single, known, None
    for column in columns:
        if column.numbers is None:
            raise TaskError(f"{table.path}: column {column.name!r} is text, {known} needs numbers")
    values = np.stack([c.numbers for c in columns if c.numbers is not None], axis=1)
    if known == "multilabel":
        return values, known, [column.name for column in columns]
    return values[:, 0] if alone else values, known, None


def _kind_of(columns: Sequence[Column]) -> Kind:
    numbers = [column.numbers for column in columns]
    if len(columns) > 1:
        flags = (each is not None and np.isin(each, (0, 1)).all() for each in numbers)
        return "multilabel" if all(flags) else "regression"
    if numbers[0] is None:
        return "classes"
    few = min(_FEW_VALUES, len(numbers[0]) // 2)
    return "classes" if columns[0].whole and len(np.unique(numbers[0])) <= few else "regression"


def is_table(path: str | Path) -> bool:
    """Whether a path names a table by its ending.

    >>> is_table("a/b.CSV"), is_table("b.npy")
    (True, False)
    """
    return Path(path).suffix.lower() in (".csv", ".tsv", ".parquet", ".pq")
