"""Records: to disk and back, their view included, also where nobody knows their kind."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from dovetail.core import records
from dovetail.core.errors import FormatError
from dovetail.core.records import Record, StoredRecord, load_record
from dovetail.core.views import Figure, Heatmap, Series, Table, Text, read_view, write_view

VIEW = (
    Text("Better than chance.", style="note"),
    Table(("part", "accuracy"), (("lenet", 0.5), ("none", None)), ("", ".1%"), "Accuracy"),
    Figure("line", "Loss", (Series("a", (1.0, 2.0), (0.5, None), (0.0, 0.1), (1.0, 1.0)),)),
    Heatmap("Fit", ("a",), ("b", "c"), ((0.1, None),), low=0.0, high=1.0),
)


@dataclass(frozen=True, kw_only=True)
class Measured(Record, kind="test-measured"):
    value: float
    names: tuple[str, ...] = ()

    def view(self):
        return VIEW


RECORD = Measured(value=0.25, names=("a", "b"), settings={"seed": 3, "norms": "batch"})


def test_there_and_back(tmp_path):
    assert load_record(RECORD.save(tmp_path / "r.json")) == RECORD
    assert RECORD.title == "Test measured"


def test_a_kind_nobody_knows_is_kept_and_shown(tmp_path, monkeypatch):
    path = RECORD.save(tmp_path / "r.json")
    monkeypatch.delitem(records._KINDS, "test-measured")
    stored = load_record(path)
    assert isinstance(stored, StoredRecord)
    assert stored.title == "Test measured"
    assert stored.view() == VIEW
    assert stored.data["value"] == 0.25
    assert stored.save(tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_views_there_and_back():
    assert read_view(json.loads(json.dumps(write_view(VIEW)))) == VIEW


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: [r], "not a dovetail record"),
        (lambda r: r.pop("view") is None, r"no view\)"),
        (lambda r: r.update(format=2), "record format 2, this dovetail reads 1; update"),
        (lambda r: r.update(record=["a"]), "a record's kind is a word"),
        (lambda r: r["data"].update(value="much"), r"value: expected float"),
        (lambda r: r["data"].update(more=1), "unknown field 'more'"),
        (lambda r: r.update(record="other", data=[]), "data: expected dict"),
        (lambda r: r.update(record="other", view={}), "view: expected a list of blocks"),
        (lambda r: r.update(record="other", view=[{"song": {}}]), r"view\[0\]: expected one of"),
        (lambda r: r.update(record="other", view=[{"text": {}}]), "field 'text' is missing"),
        (
            lambda r: r.update(
                record="other", view=[{"table": {"columns": ["a", "b"], "rows": [["x"]]}}]
            ),
            r"view\[0\]: every row and the formats must have 2 cells",
        ),
    ],
)
def test_files_that_lie(change, reason, tmp_path):
    value = json.loads(RECORD.to_json())
    changed = change(value)
    (tmp_path / "r.json").write_text(json.dumps(changed if isinstance(changed, list) else value))
    with pytest.raises(FormatError, match=reason):
        load_record(tmp_path / "r.json")


def test_a_record_must_say_how_it_is_shown():
    @dataclass(frozen=True, kw_only=True)
    class Mute(Record):
        pass

    with pytest.raises(TypeError, match="declare shows"):
        Mute().to_json()


def test_cells_as_a_reader_sees_them():
    table = Table(("a", "b", "c"), ((None, 0.5, True), ("x", 1, 2.0)), ("", ".1%", ".2f"))
    assert table.shown() == (("–", "50.0%", "True"), ("x", "100.0%", "2.00"))
