"""New rows of a table come piece by piece, and are what the whole would be."""

import tracemalloc

import pytest
import torch

from dovetail.core.errors import DovetailError, TaskError
from dovetail.tasks import new_rows, table_files
from dovetail.tasks.new_rows import open_new_rows, read_new_rows
from dovetail.tasks.table_files import read_csv, read_csv_pieces

INPUTS = ("size", "kind=01", "kind=2", "kind=many")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Twenty rows with a line within quotes and an empty one, in pieces of seven."""
    monkeypatch.setattr(new_rows, "_PIECE", 7)
    kinds = ("01", "2", "2", "many")
    rows = [f'{i / 4},{kinds[i // 5]},"re\nmark"' for i in range(20)]
    file = tmp_path / "new.csv"
    file.write_text("size,kind,remark\n" + "\n\n".join(rows))
    return file


def test_pieces_are_rows_of_the_whole(table):
    whole = read_csv(table)
    pieces = list(read_csv_pieces(table, 7, {"kind"}))
    assert [len(piece.places) for piece in pieces] == [7, 7, 6]

    def values(column):
        return list(column.numbers if column.texts is None else column.texts)

    for i, column in enumerate(whole.columns):
        assert [v for piece in pieces for v in values(piece.columns[i])] == values(column)
    assert [place for piece in pieces for place in piece.places] == list(whole.places)


@pytest.mark.parametrize("step", [1, 3, 7, 10, 20])
def test_they_are_read_in_any_steps(table, step):
    places, wanted = read_new_rows(table, INPUTS)
    assert wanted[:, 0].tolist() == [i / 4 for i in range(20)]
    assert wanted[:, 1:].sum(0).tolist() == [5, 10, 5]
    rows = open_new_rows(table, INPUTS)
    assert (rows.count, rows.width) == (20, 4)
    for start in range(0, 20, step):
        stop = min(start + step, 20)
        some, found = rows.read(start, stop)
        assert some == places[start:stop]
        assert torch.equal(found, wanted[start:stop])
    assert rows.read(2, 4)[0] == places[2:4]  # once more from the beginning


def test_what_is_wrong_with_the_last_row_is_known_before_the_first_is_read(table):
    with table.open("a") as file:
        file.write("\nwide,2,x\n")
    with pytest.raises(TaskError, match="column 'size' is text"):
        open_new_rows(table, INPUTS)
    table.write_text(table.read_text().replace("wide,2,x", "1,2"))
    with pytest.raises(TaskError, match="2 cells, but 3 columns"):
        open_new_rows(table, INPUTS)
    table.write_bytes(b"size\n1\n" + b"2\n" * 20_000 + b"\xff\n")
    with pytest.raises(DovetailError, match="not UTF-8 text"):
        open_new_rows(table, ("size",))


def test_a_file_that_becomes_shorter_or_never_ends_its_line_is_told(table, monkeypatch):
    rows = open_new_rows(table, INPUTS)
    table.write_text("size,kind,remark\n1,2,3\n")
    with pytest.raises(TaskError, match="became shorter"):
        rows.read(0, 20)
    monkeypatch.setattr(table_files, "_LONGEST_LINE", 1000)
    table.write_text("size\n" + "1" * 5000)
    with pytest.raises(DovetailError, match="a line of more than 1000 letters"):
        open_new_rows(table, ("size",))


def test_memory_does_not_grow_with_the_rows(tmp_path):
    peaks = []
    for count in (10_000, 40_000):
        file = tmp_path / f"{count}.csv"
        file.write_text("a,b\n" + "1.25,2.5\n" * count)
        tracemalloc.start()
        rows = open_new_rows(file, ("a", "b"))
        for start in range(0, count, 500):
            rows.read(start, start + 500)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
