import csv
import io
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import DovetailError, MissingExtraError, TaskError
from dovetail.tasks.load import load_task
from dovetail.tasks.splits import SPLITS
from dovetail.tasks.table_files import read_csv
from dovetail.tasks.tables import read_table


def write(path, header, rows, mark=",", bom=False):
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=mark).writerows([header, *rows])
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + file.getvalue().encode())
    return path


def houses(path, count=20, **options):
    rows = [(i, f"{i / 7:.3f}", ("Bonn", "Ulm")[i % 2], f"{i * 1.5}") for i in range(count)]
    return write(path, ("rooms", "size", "town", "price"), rows, **options)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("bom", [False, True])
def test_numbers_and_texts_become_inputs(tmp_path, mark, bom):
    task = load_task(houses(tmp_path / "houses.csv", mark=mark, bom=bom), target="price")
    assert (task.name, task.kind, task.inputs.dtype) == ("houses", "regression", torch.float32)
    for i, (row, target) in enumerate(
        zip(task.inputs.tolist(), task.targets.tolist(), strict=True)
    ):
        assert row == [i, pytest.approx(i / 7, abs=1e-3), float(i % 2 == 0), float(i % 2)]
        assert target == i * 1.5


numbers = st.floats(-(2.0**100), 2.0**100, width=32)
texts = st.text(
    st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=8
).map(lambda text: "x" + text.strip())


@given(
    st.lists(st.tuples(numbers, texts, numbers), min_size=10, max_size=20), st.sampled_from(",;\t")
)
def test_whatever_is_written_is_read(tmp_path_factory, rows, mark):
    path = write(tmp_path_factory.mktemp("t") / "t.csv", ("a", "b, c", "y"), rows, mark)
    task = read_table(path, kind="regression")
    values = sorted({text for _, text, _ in rows})
    for got, (a, text, y), target in zip(task.inputs, rows, task.targets, strict=True):
        assert float(got[0]) == a
        assert [values[i] for i in got[1:].nonzero()[:, 0].tolist()] == [text]
        assert float(target) == y


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (["a", "b"] * 10, "classes"),
        ([0, 1, 2, 3] * 5, "classes"),
        (["true", "False"] * 10, "classes"),
        (range(20), "regression"),  # whole numbers, but as many as rows
        ([0.5, 1.5] * 10, "regression"),
        (["1.0", "2.0"] * 10, "regression"),  # written as measurements
        ([*range(25)] * 4, "regression"),
    ],
)
def test_the_kind_is_told_by_the_target(tmp_path, target, kind):
    rows = [(i, y) for i, y in enumerate(target)]
    assert load_task(write(tmp_path / "t.csv", ("x", "y"), rows)).kind == kind


def test_the_kind_asked_for_wins(tmp_path):
    path = write(tmp_path / "t.csv", ("x", "y"), [(i, i % 3) for i in range(20)])
    assert load_task(path).classes == ("0", "1", "2")
    assert load_task(path, kind="regression").kind == "regression"
    floats = write(tmp_path / "f.csv", ("x", "y"), [(i, f"{i % 3}.0") for i in range(20)])
    assert load_task(floats, kind="classes").classes == ("0", "1", "2")


def test_several_targets(tmp_path):
    rows = [(i, i % 2, (i // 2) % 2, i / 3) for i in range(20)]
    path = write(tmp_path / "t.csv", ("x", "sky", "sea", "depth"), rows)
    task = load_task(path, target=["sea", "sky"], drop=["depth"])
    assert (task.kind, task.classes, task.input_shape) == ("multilabel", ("sea", "sky"), (1,))
    assert task.targets.tolist() == [[row[2], row[1]] for row in rows]
    numbers = load_task(path, target=["depth", "sky"], drop="sea")
    assert (numbers.kind, numbers.outputs) == ("regression", 2)
    assert numbers.targets[3].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["target", "Label", "CLASS", "y"])
def test_the_usual_names_of_a_target(tmp_path, name):
    rows = [(i, i % 2) for i in range(20)]
    task = load_task(write(tmp_path / "t.csv", ("x", name), rows))
    assert task.targets.tolist() == [row[1] for row in rows]


def test_decimal_commas_where_semicolons_part(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x;y\n" + "1,5;0,25\n-2,25e1;7\n" * 10)
    task = load_task(path, kind="regression")
    assert task.inputs[:2, 0].tolist() == [1.5, -22.5]
    assert task.targets[:2].tolist() == [0.25, 7.0]


def with_gaps(path):
    rows = [[i, i * 2.0, ("p", "q", "p")[i % 3], i % 2] for i in range(30)]
    rows[4][1], rows[9][2], rows[20][0] = "", "NA", "nan"
    return write(path, ("a", "b", "c", "y"), rows)


def test_a_missing_value_is_named(tmp_path):
    path = with_gaps(tmp_path / "t.csv")
    with pytest.raises(TaskError, match=r"t.csv, line 22: column 'a' has no value; .*='mean'"):
        load_task(path)
    dropped = load_task(path, missing="drop")
    assert (dropped.size(), dropped.notes) == (27, ("3 of 30 rows lack a value and were left out",))
    with pytest.raises(TaskError, match='missing must be "refuse"'):
        load_task(path, missing="zero")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_means_are_those_of_the_training_rows(tmp_path, seed):
    task = load_task(with_gaps(tmp_path / "t.csv"), missing="mean", seed=seed)
    train = task.indices("train").tolist()
    whole = {0: [row for row in train if row != 20], 1: [row for row in train if row != 4]}
    assert float(task.inputs[20, 0]) == pytest.approx(np.mean(whole[0]))
    assert float(task.inputs[4, 1]) == pytest.approx(2 * np.mean(whole[1]))
    share = np.mean([row % 3 == 1 for row in train if row != 9])
    assert task.inputs[9, 2:].tolist() == pytest.approx([1 - share, share])
    assert task.inputs[5].tolist() == [5.0, 10.0, 1.0, 0.0]
    assert task.notes == ("3 rows lack a value; means were filled in",)


def test_a_missing_target_is_never_made_up(tmp_path):
    rows = [[i, i % 2] for i in range(20)]
    rows[3][1] = ""
    path = write(tmp_path / "t.csv", ("x", "y"), rows)
    with pytest.raises(TaskError, match=r"line 5: column 'y' has no value; give missing='drop'$"):
        load_task(path, missing="mean")
    assert load_task(path, missing="drop").size() == 19


def test_a_column_without_a_training_value(tmp_path):
    rows = [(i, "", i % 2) for i in range(20)]
    path = write(tmp_path / "t.csv", ("a", "b", "y"), rows)
    with pytest.raises(TaskError, match="column 'b' has no value in any training row"):
        load_task(path, missing="mean")
    with pytest.raises(TaskError, match="every row lacks a value"):
        load_task(path, missing="drop")


ROWS = [(i, f"id{i}", i % 2) for i in range(70)]


@pytest.mark.parametrize(
    ("header", "rows", "options", "words"),
    [
        (("a", "b"), [(1, 2)] * 9, {}, r"which is the target\? .*give target= one of a, b"),
        (("y", "label", "x"), [(1, 2, 3)] * 9, {}, "both y and label could be it"),
        (("a", "y"), [(1, 2)] * 9, {"target": "z"}, "no column 'z'; there is a, y"),
        (("size", "y"), [(1, 2)] * 9, {"drop": ["siz"]}, "no column 'siz'; did you mean size"),
        (("a", "y"), [(1, 2)] * 9, {"target": []}, "target must name one or several"),
        (("a", "y"), [(1, 2)] * 9, {"drop": "a"}, "no column is left to predict y from"),
        (("a", "a"), [(1, 2)], {}, "two columns are called 'a'"),
        (("a", ""), [(1, 2)], {}, "column 2 has no name; is there a header row"),
        (("a", "y"), [(1, 2), (3,)], {}, "line 3: 1 cells, but 2 columns"),
        (("a", "y"), [], {}, "has a header but no rows"),
        (("a", "name", "y"), ROWS, {}, r"'name' has 70 different values.*drop=\['name'\]"),
        (("a", "y"), [("inf", 1)] * 9, {}, "line 2: column 'a' is infinite"),
        (("a", "y"), [("1e300", 1)] * 9, {}, "line 2: column 'a' is infinite"),
        (("a", "y"), [(1, "p")] * 9, {"kind": "regression"}, "'y' is text, regression needs"),
        (("a", "y"), [(1, 2)] * 9, {"kind": "pairs"}, "cannot be of kind 'pairs'"),
        (("a", "y"), [(1, 1)] * 9 + [(1, 2)], {}, "class '2' has one sample"),
    ],
)
def test_tables_that_are_refused(tmp_path, header, rows, options, words):
    path = write(tmp_path / "t.csv", header, rows)
    with pytest.raises(TaskError, match=words):
        load_task(path, **options)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        ("x,y\nä,1\n".encode("latin-1"), "not UTF-8 text"),
        (b'x,y\n"' + b"a" * 140_000 + b'",1\n', "field larger than field limit"),
        (b'"' + b"a" * 140_000 + b'",y\n1,1\n', "field larger than field limit"),
    ],
)
def test_files_that_are_refused(tmp_path, data, words):
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(DovetailError, match=words):
        load_task(tmp_path / "t.csv")


def test_quotes_hide_marks_and_line_breaks(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('x,"a, ""b""",y\n' + '1,"p\nq",0\n2,r,1\n' * 6)
    table = read_csv(path)
    assert [column.name for column in table.columns] == ["x", 'a, "b"', "y"]
    assert table.columns[1].texts[:2].tolist() == ["p\nq", "r"]
    assert table.place(1) == "line 4"


def test_parquet_is_read_like_csv(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {
        "rooms": list(range(20)),
        "size": [None if i == 3 else i / 7 for i in range(20)],
        "town": arrow.array(["Bonn", "Ulm"] * 10).dictionary_encode(),
        "garden": [i % 3 == 0 for i in range(20)],
        "y": ["p", "q"] * 10,
        "when": arrow.array([0] * 20, arrow.timestamp("ms")),
    }
    pq.write_table(arrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(TaskError, match=r"'when' holds timestamp\[ms\]; .*drop=\['when'\]"):
        load_task(tmp_path / "t.parquet")
    with pytest.raises(TaskError, match="row 3: column 'size' has no value"):
        load_task(tmp_path / "t.parquet", drop="when")
    task = load_task(tmp_path / "t.parquet", drop="when", missing="drop")
    rows = [
        (i, i / 7, ("Bonn", "Ulm")[i % 2], str(i % 3 == 0).lower(), "pq"[i % 2])
        for i in range(20)
        if i != 3
    ]
    same = load_task(write(tmp_path / "t.csv", ("rooms", "size", "town", "garden", "y"), rows))
    assert task.fingerprint == same.fingerprint
    assert [task.size(split) for split in SPLITS] == [same.size(split) for split in SPLITS]


def test_a_damaged_parquet_and_none(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(DovetailError, match="not a readable Parquet file"):
        load_task(tmp_path / "t.parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r"Reading Parquet needs pyarrow: .*\[tables\]"):
        load_task(tmp_path / "t.parquet")


def test_the_only_column_of_text_is_taken_for_the_target_and_that_is_said(tmp_path):
    file = tmp_path / "flowers.csv"
    lines = ["petal,sepal,species", *(f"{i},{i % 7},{'ab'[i % 2]}" for i in range(40))]
    file.write_text("\n".join(lines))
    task = read_table(file)
    assert task.classes == ("a", "b")
    assert task.notes == ("the target is 'species', the only column of text, as none was named",)
    assert read_table(file, target="petal", kind="regression").notes == ()
    with pytest.raises(TaskError, match=r"which is the target\? .*petal, sepal, species"):
        read_table(file, drop="species")


@pytest.mark.parametrize(
    ("head", "row"),
    [("name,a", "n{i},{i}"), ("town,kind,a", "t{half},k{half},{i}"), ("a,b", "{i},{i}")],
    ids=["names that never come again", "two columns of text", "no text"],
)
def test_what_could_be_anything_is_asked_for_with_all_names(tmp_path, head, row):
    file = tmp_path / "some.csv"
    file.write_text("\n".join([head, *(row.format(i=i, half=i % 2) for i in range(30))]))
    with pytest.raises(TaskError, match=f"which is the target.*{', '.join(head.split(','))}"):
        read_table(file)
