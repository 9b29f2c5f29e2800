"""Tables on disk, column by column: CSV, and Parquet with pyarrow."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.core.errors import FormatError, TaskError, shown
from dovetail.core.extras import need
from dovetail.tasks.data_files import guarded, open_data, read_data, refuse_bomb, size_of

_DELIMITERS = (",", ";", "\t")
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
_TRUTHS = {"true": 1.0, "false": 0.0}
_LONGEST = 32
"""Columns with a longer cell are read cell by cell."""

_LONGEST_LINE = 1 << 24
"""Of a file that is read piece by piece, in letters."""

_WHOLE = re.compile(r"[+-]?\d+|true|false", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """One column: numbers (NaN where missing), or texts (``None`` where missing).

    ``whole`` says that numbers are integers or truth values, by how they are written; ``problem``
    says what is wrong with a column that is neither.

    >>> Column("age", numbers=np.array([41.0, np.nan]), whole=True).missing
    array([False,  True])
    """

    name: str
    numbers: npt.NDArray[np.float64] | None = None
    texts: npt.NDArray[np.object_] | None = None
    whole: bool = False
    problem: str = ""

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Which rows have no value."""
        if self.numbers is not None:
            return np.isnan(self.numbers)
        texts = () if self.texts is None else self.texts
        return np.array([text is None for text in texts], dtype=bool)

    def take(self, rows: npt.NDArray[Any]) -> Column:
        """The rows that an index or a mask selects."""
        return replace(
            self,
            numbers=None if self.numbers is None else self.numbers[rows],
            texts=None if self.texts is None else self.texts[rows],
        )


@dataclass(frozen=True)
class Table:
    """Columns of one length, and where each row is in the file: its line, or its row number.

    >>> Table("toy.csv", (), np.array([2, 3]), "line").place(1)
    'line 3'
    """

    path: str
    columns: tuple[Column, ...]
    places: npt.NDArray[np.int64]
    unit: str

    def place(self, row: int) -> str:
        """Where a row is, in words."""
        return f"{self.unit} {self.places[row]}"

    def take(self, rows: npt.NDArray[Any]) -> Table:
        """The rows that an index or a mask selects."""
        columns = tuple(column.take(rows) for column in self.columns)
        return replace(self, columns=columns, places=self.places[rows])


def read_csv(path: str | Path) -> Table:
    """Read a CSV file with a header row, in UTF-8, parted by commas, semicolons or tabs.

    A column is numeric if all its values are; ``true`` and ``false`` count as 1 and 0.  Where
    semicolons part the columns, decimal commas are understood.  Empty cells, ``NA``, ``N/A``,
    ``NaN``, ``null``, ``None`` and ``?`` are missing.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "toy.csv"
    >>> _ = file.write_text("age;town\\n41,5;Bonn\\n7;Ulm\\n")
    >>> [column.name for column in read_csv(file).columns]
    ['age', 'town']
    """
    path = Path(path)
    (table,) = _tables(io.StringIO(_text(path), newline=""), path, None, frozenset())
    return table


def read_csv_pieces(
    path: str | Path, most: int, texts: Collection[str] = frozenset()
) -> Iterator[Table]:
    """The same file as tables of at most so many rows each, one at a time in memory.

    Whether a column holds numbers is asked of each piece alone; those of ``texts`` stay texts.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "toy.csv"
    >>> _ = file.write_text("age,size\\n41,1\\n7,2\\n9,x\\n")
    >>> [table.columns[1].numbers is None for table in read_csv_pieces(file, 2)]
    [False, True]
    """
    path = Path(path)
    with open_data(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            yield from _tables(_short_lines(text, path), path, most, texts)
        except UnicodeDecodeError:
            raise FormatError(f"{path}: not UTF-8 text; save it so") from None
        except OSError as error:
            raise TaskError(f"{path}: {error.strerror or error}") from None


def _short_lines(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    while line := text.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise FormatError(
                f"{path}: a line of more than {_LONGEST_LINE} letters; is it a table?"
            )
        yield line


def _tables(
    lines: Iterable[str], path: Path, most: int | None, texts: Collection[str]
) -> Iterator[Table]:
    """The rows under a header as tables of ``most`` rows, or as one; always at least one row."""
    begun, delimiter = _delimited(lines)
    rows = _rows(begun, delimiter, path)
    try:
        _, header = next(rows)
    except StopIteration:
        raise TaskError(f"{path}: is empty") from None
    names = [cell.strip() for cell in header]
    refuse_names(path, names)

    def table(some: list[tuple[int, list[str]]]) -> Table:
        for line, row in some:
            if len(row) != len(names):
                raise TaskError(f"{path}, line {line}: {len(row)} cells, but {len(names)} columns")
        by_column = zip(names, zip(*(row for _, row in some), strict=True), strict=True)
        columns = tuple(
            _worded(name, cells) if name in texts else _parsed(name, cells, delimiter == ";")
            for name, cells in by_column
        )
        return Table(str(path), columns, np.array([line for line, _ in some]), "line")

    some = list(islice(rows, most))
    if not some:
        raise TaskError(f"{path}: has a header but no rows")
    while some:
        yield table(some)
        some = list(islice(rows, most))


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a delimited text file with the number of the line where each ends.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "toy.csv"
    >>> _ = file.write_text('a,"b, c"\\n\\n1,2\\n')
    >>> list(read_rows(file))
    [(1, ['a', 'b, c']), (3, ['1', '2'])]
    """
    return _rows(*_delimited(io.StringIO(_text(path), newline="")), path)


def refuse_names(path: Path, names: Sequence[str]) -> None:
    """Refuse columns without a name, and two of one name.

    >>> refuse_names(Path("toy.csv"), ["age", "age"])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: toy.csv: two columns are called 'age'
    """
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        if not name:
            raise TaskError(f"{path}: column {number} has no name; is there a header row?")
        if name in seen:
            raise TaskError(f"{path}: two columns are called {shown(name)}")
        seen.add(name)


def _text(path: Path) -> str:
    try:
        return read_data(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text (byte {error.start}); save it so") from None


def _delimited(lines: Iterable[str]) -> tuple[Iterator[str], str]:
    """The lines, and what parts the first row into most cells; of equals the comma."""
    coming, begun = iter(lines), list[str]()
    for line in coming:
        begun.append(line)
        if line.strip():
            break
    first = begun[-1:] if begun and begun[-1].strip() else [""]

    def cells(mark: str) -> int:
        try:
            return len(next(csv.reader(first, delimiter=mark), ()))
        except csv.Error:  # whoever reads all the rows says what is wrong
            return 0

    return chain(begun, coming), max(_DELIMITERS, key=cells)


def _rows(lines: Iterator[str], delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num}: {error}") from None


def _worded(name: str, cells: tuple[str, ...]) -> Column:
    values = [None if cell.strip().lower() in _MISSING else cell.strip() for cell in cells]
    return Column(name, texts=np.array(values, dtype=object))


def _parsed(name: str, cells: tuple[str, ...], comma: bool) -> Column:
    plain = _all_numbers(cells)
    if plain is not None:
        whole = all(_WHOLE.fullmatch(cell.strip()) for cell in cells)
        return Column(name, numbers=plain, whole=whole)
    worded = _worded(name, cells)
    assert worded.texts is not None
    values = worded.texts.tolist()
    present = [value for value in values if value is not None]
    numbers = _numbers(present)
    if numbers is None and comma:
        present = [value.replace(",", ".") for value in present]
        numbers = _numbers(present)
    if numbers is None:
        return worded
    filled = np.full(len(values), np.nan)
    filled[[value is not None for value in values]] = numbers
    whole = all(_WHOLE.fullmatch(value) for value in present)
    return Column(name, numbers=filled, whole=whole)


def _all_numbers(cells: tuple[str, ...]) -> npt.NDArray[np.float64] | None:
    """The cells as numpy reads them, several times as fast as one by one; nothing if it cannot."""
    if max(map(len, cells)) > _LONGEST:  # every cell would take the room of the longest
        return None
    try:
        numbers = np.array(cells).astype(np.float64)
    except ValueError:
        return None
    return numbers if not np.isnan(numbers).any() else None


def _numbers(values: list[str]) -> list[float] | None:
    numbers = []
    for value in values:
        try:
            number = _TRUTHS.get(value.lower())
            numbers.append(float(value) if number is None else number)
        except ValueError:
            return None
    return numbers


_WAY_OUT = "write it without compression and dictionaries, or as CSV"
_CELL = 8
"""Bytes that a cell takes here: a number, or where a text is."""

_BATCH, _BATCH_BYTES = 1 << 16, 1 << 30
"""Rows read at once, and the bytes that they may take where every text is spelt out."""


def is_parquet(path: Path) -> bool:
    """Whether a path names such a file by its ending.

    >>> is_parquet(Path("a.PQ")), is_parquet(Path("a.csv"))
    (True, False)
    """
    return path.suffix.lower() in (".parquet", ".pq")


def read_parquet(path: str | Path) -> Table:
    """Read a Parquet file of numbers, truth values and texts; needs pyarrow.

    >>> read_parquet("no-such.parquet")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: no-such.parquet: no such file
    """
    path = Path(path)
    with open_data(path) as file, guarded(path, "Parquet file"):
        feature = {"feature": "Reading Parquet", "extra": "tables"}
        arrow, parquet = need("pyarrow", **feature), need("pyarrow.parquet", **feature)
        opened = parquet.ParquetFile(file, pre_buffer=False)
        schema, facts = opened.schema_arrow, opened.metadata
        refuse_names(path, schema.names)
        rows = _promised(path, size_of(file), facts)
        if not rows:
            raise TaskError(f"{path}: has no rows")
        texts = [field.name for field in schema if _is_text(field.type, arrow.types)]
        packed = parquet.ParquetFile(file, metadata=facts, read_dictionary=texts, pre_buffer=False)
        reading = _Reading(path, size_of(file), rows, opened, packed, arrow)
        columns = tuple(reading.column(field) for field in schema)
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
        pieces = (_chunk_numbers(chunk, self.arrow) for chunk in chunks)
        numbers = _joined(pieces, self.rows, np.float64)
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


def _chunk_numbers(chunk: Any, arrow: Any) -> npt.NDArray[Any]:
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
