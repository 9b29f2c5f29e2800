"""Work grows with the number of names, not with its square, and memory with the file."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from dovetail.core.errors import DovetailError, TaskError
from dovetail.tasks import data_files, new_rows, table_files, tables
from dovetail.tasks.arrays import class_targets, multilabel_targets
from dovetail.tasks.derive import common_classes, few, only_classes
from dovetail.tasks.new_rows import read_new_rows
from dovetail.tasks.table_files import refuse_names
from dovetail.tasks.tables import read_table
from dovetail.tasks.task import Task

MANY = 400


class Counted(str):
    """A text that counts how often texts of its kind are compared."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__

    def __str__(self):
        return self


@pytest.fixture
def names():
    Counted.compared = 0
    yield [Counted(f"c{i}") for i in range(MANY)]
    assert Counted.compared < 10 * MANY


def many_classes(names):
    task = Task(torch.rand(2 * MANY, 1), [f"c{i}" for i in range(MANY)] * 2)
    return task.derived("many", classes=tuple(names))


def test_names_of_columns_are_told_apart_in_one_pass(names, tmp_path):
    refuse_names(tmp_path, names)
    with pytest.raises(TaskError, match="two columns are called 'c7'"):
        refuse_names(tmp_path, [*names, names[7]])


def test_names_of_classes_are_told_apart_in_one_pass(names):
    class_targets(np.arange(MANY), names)
    multilabel_targets(np.zeros((1, MANY)), names)
    with pytest.raises(TaskError, match="'c7' is named twice"):
        class_targets(np.arange(MANY), [*names, names[7]])


def test_chosen_and_common_classes_are_found_in_one_pass(names):
    task = many_classes(names)
    assert only_classes(task, names).classes == task.classes
    common_classes(task, task)


def test_columns_are_found_by_name_in_one_pass(names, tmp_path):
    row = ",".join("1" for _ in range(2 * MANY + 1))
    header = ",".join([*names, *(f"d{i}" for i in range(MANY)), "x"])
    (tmp_path / "a.csv").write_text(f"{header}\n" + f"{row}\n" * 10)
    wanted = [f"d{i}" for i in range(MANY)]
    task = read_table(tmp_path / "a.csv", target=[Counted(name) for name in wanted], drop=names)
    assert (task.outputs, task.input_names) == (MANY, ("x",))


class Calls(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_few_of_each_class_take_as_many_steps_as_a_few_of_two():
    counts = []
    for classes in (2, 50):
        task = Task(torch.rand(600, 1), torch.arange(600) % classes)
        with Calls() as calls:
            found = few(task, 3)
        counts.append(calls.count)
        assert found.targets[found.indices("train")].bincount().tolist() == [3] * classes
    assert counts[0] == counts[1]


def test_the_texts_of_new_rows_are_looked_up_once_a_column(tmp_path, monkeypatch):
    asked = []
    texts = new_rows._texts
    monkeypatch.setattr(new_rows, "_texts", lambda *args: asked.append(1) or texts(*args))
    (tmp_path / "a.csv").write_text("town\n" + "".join(f"t{i}\n" for i in range(50)))
    _, rows = read_new_rows(tmp_path / "a.csv", [f"town=t{i}" for i in range(50)])
    assert (rows == torch.eye(50)).all()
    assert len(asked) == 2  # to know that they can be read, and to read them


def peak_of(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_one_long_label_does_not_make_all_of_them_long(tmp_path):
    rows = [*("1,p" for _ in range(400)), *(f"2,{'q' * 100_000}" for _ in range(2))]
    (tmp_path / "a.csv").write_text("x,y\n" + "\n".join(rows))
    assert peak_of(lambda: read_table(tmp_path / "a.csv")) < 20 << 20  # 160 MB, were they alike


def test_inputs_that_take_more_than_memory_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f"t{i % 50},{i % 2}\n" for i in range(100)))
    monkeypatch.setattr(data_files, "MOST_BYTES", 100 * 50 * 4 - 1)
    with pytest.raises(TaskError, match=r"100 rows of 50 inputs take .*leave columns out"):
        read_table(tmp_path / "a.csv")


def test_labels_that_floats_cannot_tell_apart_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,1000000000000000000000\n2,1\n" * 10)
    with pytest.raises(TaskError, match="too large to be told apart"):
        read_table(tmp_path / "a.csv")


def test_lone_carriage_returns_part_lines(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x;y\r" + b"1,5;p\r2,5;q\r" * 10)
    assert read_table(tmp_path / "a.csv").inputs[:2, 0].tolist() == [1.5, 2.5]


def test_a_class_that_cannot_be_written_is_refused_and_one_with_controls_is_quoted():
    with pytest.raises(TaskError, match=r"class '\\udcff' cannot be written"):
        Task(torch.rand(8, 2), ["\udcff", "a"] * 4)
    assert Task(torch.rand(8, 2), ["\x1b[31m", "a\nb"] * 4).classes == ("\x1b[31m", "a\nb")
    with pytest.raises(TaskError, match=r"class '\\x1b\[31m' has one sample"):
        Task(torch.rand(9, 2), ["\x1b[31m", *["a", "b"] * 4])


class TestParquet:
    @pytest.fixture(autouse=True)
    def _pyarrow(self, monkeypatch):
        self.arrow = pytest.importorskip("pyarrow")
        self.parquet = pytest.importorskip("pyarrow.parquet")
        monkeypatch.setattr(data_files, "_LARGE", 1 << 16)

    def written(self, path, columns, **options):
        self.parquet.write_table(self.arrow.table(columns), path, compression="zstd", **options)
        return path

    def repeated(self, text, rows):
        return self.arrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [text])

    @pytest.mark.parametrize("honest", [True, False])
    def test_many_rows_in_few_bytes_are_refused_unread(self, tmp_path, monkeypatch, honest):
        columns = {f"x{i}": np.zeros(20_000) for i in range(16)}
        path = self.written(tmp_path / "a.parquet", columns)
        if honest:
            monkeypatch.setattr(table_files, "_chunks", lambda *_: pytest.fail("read"))
        else:  # as if the footer lied
            monkeypatch.setattr(table_files, "_promised", lambda *_: 20_000)
        with pytest.raises(DovetailError, match=r"would unpack to \d+; if that is meant, write"):
            read_table(path)

    @pytest.mark.parametrize("honest", [True, False])
    def test_a_giant_text_is_refused(self, tmp_path, monkeypatch, honest):
        path = self.written(tmp_path / "a.parquet", {"x": ["a" * (1 << 20), "b"]})
        if not honest:
            monkeypatch.setattr(table_files, "_promised", lambda *_: 2)
        with pytest.raises(DovetailError, match="would unpack to 1048"):
            read_table(path)

    @pytest.mark.parametrize("store_schema", [True, False])
    def test_a_text_that_is_repeated_is_held_once(self, tmp_path, monkeypatch, store_schema):
        monkeypatch.setattr(table_files, "_BATCH", 10)
        columns = {"y": self.repeated("a" * 60_000, 3000), "x": np.random.rand(3000)}
        path = self.written(tmp_path / "a.parquet", columns, store_schema=store_schema)
        found = []
        assert peak_of(lambda: found.append(tables.open_table(path))) < 8 << 20  # of 180 MB
        assert set(found[0].columns[0].texts) == {"a" * 60_000}

    def test_texts_that_must_be_spelt_out_are_read_in_small_steps(self, tmp_path, monkeypatch):
        encoding = {"column_encoding": {"town": "DELTA_BYTE_ARRAY"}, "use_dictionary": False}
        texts = [None if i % 5 == 0 else f"town {i % 7}" for i in range(100)]
        path = self.written(tmp_path / "a.parquet", {"town": texts}, **encoding)
        monkeypatch.setattr(table_files, "_BATCH_BYTES", 2000)
        steps, chunks = [], table_files._chunks
        monkeypatch.setattr(
            table_files, "_chunks", lambda *args: steps.append(args[2]) or chunks(*args)
        )
        assert tables.open_table(path).columns[0].texts.tolist() == texts
        assert len(steps) == 2
        assert steps[1] < 100 < steps[0]
