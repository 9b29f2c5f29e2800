"""Records that lie: our errors only, little memory, and no more drawn than the file holds."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from io import StringIO

import pytest
from hostile.liars import JUNK, STEERING, honest, import_all_kinds, lie
from rich.console import Console

from dovetail.core.errors import DovetailError, FormatError
from dovetail.core.records import load_record
from dovetail.report import print_view, render_markdown, render_page

SLICE, ALL = 200, 20_000
MEGABYTE = 1 << 20
LONGEST_MESSAGE = 2000
LEAST = 60_000  # characters of a page with nothing on it: style and script


@pytest.fixture(scope="module")
def originals():
    known = import_all_kinds()
    found = honest()
    assert {record["record"] for record in found} == known, "keep an honest record of every kind"
    return found


def shown(record):
    """The record in every form it can take."""
    yield record.to_json()
    yield render_page([record], title="t")
    yield render_markdown([record], title="t")
    for terminal in (False, True):
        out = StringIO()
        print_view(
            record.view(),
            console=Console(file=out, width=80, force_terminal=terminal, color_system=None),
        )
        assert not set(out.getvalue()) & set("\x1b\x9b\r\u202e")
        yield out.getvalue()


def play(value, path):
    """Read and show a record; how large its file and what is shown of it are, or our refusal."""
    text = json.dumps(value)
    path.write_text(text)
    try:
        return len(text), [len(form) for form in shown(load_record(path))]
    except DovetailError as error:
        return len(text), str(error)


def refuses_or_shows(value, path):
    size, found = play(value, path)
    if isinstance(found, str):
        assert len(found) < LONGEST_MESSAGE
        assert found.isprintable()
    else:
        stored, *drawn = found  # a view is bounded by its data, and a drawing by its view
        assert stored < 20 * size + LEAST
        assert max(drawn) < 20 * stored + 2 * LEAST
    return found


def test_an_honest_record_of_every_kind_is_read_and_shown(originals, tmp_path):
    for value in originals:
        found = refuses_or_shows(value, tmp_path / "r.json")
        assert not isinstance(found, str), found
        assert json.loads(load_record(tmp_path / "r.json").to_json())["data"] == value["data"]


@pytest.mark.parametrize(
    "count", [SLICE, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_lies_are_refused_or_shown(count, originals, tmp_path):
    said = {"refused": 0, "shown": 0}
    for i in range(count):
        value = lie(originals[i % len(originals)], random.Random(i))
        try:
            found = refuses_or_shows(value, tmp_path / "r.json")
        except Exception as error:
            raise AssertionError(
                f"lie {i} about {originals[i % len(originals)]['record']}"
            ) from error
        said["refused" if isinstance(found, str) else "shown"] += 1
    assert min(said.values()) > count // 5  # else the liar is no test of one of the two


def unknown(*view, title="t", **settings):
    return {
        "record": "unknown",
        "format": 1,
        "title": title,
        "data": {"settings": settings},
        "view": list(view),
    }


def figure(kind, *series, title=""):
    named = [{"name": n, "x": x, "y": [1.0] * len(x)} for n, x in series]
    return {"figure": {"kind": kind, "title": title, "series": named}}


def table(columns, rows):
    return {"table": {"columns": columns, "rows": rows}}


MANY = 3000  # more than is shown of anything
NAMES = [f"name {i}" for i in range(MANY)]
LARGE = {
    "bars": unknown(figure("bar", ("s", NAMES))),
    "rows of an interval figure": unknown(figure("interval", ("s", NAMES))),
    "directions": unknown(figure("polar", ("s", NAMES))),
    "names along a line": unknown(figure("line", ("s", NAMES))),
    "series": unknown(figure("line", *((name, [1]) for name in NAMES))),
    "a title": unknown(figure("line", title="w" * 300_000), title="T " * 150_000),
    "settings": unknown(**dict.fromkeys(NAMES, 1)),
    "settings below a long name": unknown(**{"k" * 300_000: dict.fromkeys(NAMES, 1)}),
    "rows": unknown(table(["a", "b"], [[name, 1] for name in NAMES])),
    "columns": unknown(table(NAMES, [[1] * MANY])),
    "a cell": unknown(table(["a", "b"], [["x" * 300_000, 1], *[["", 1]] * MANY])),
    "blocks": unknown(*[{"text": {"text": "x"}}] * MANY),
    "figures": unknown(*[figure("line")] * 300),
    "words": unknown({"text": {"text": "word " * 60_000}}),
    "names of a map": unknown(
        {
            "heatmap": {
                "title": "",
                "rows": ["r" * 5000] * 40,
                "columns": ["c" * 5000] * 40,
                "values": [[1] * 40] * 40,
            }
        }
    ),
}


@pytest.mark.parametrize("what", LARGE)
def test_much_is_shown_in_part_and_kept_whole(what, tmp_path):
    text = json.dumps(LARGE[what])
    (tmp_path / "r.json").write_text(text)
    forms = list(shown(load_record(tmp_path / "r.json")))
    assert re.search(r"and [\d,]+ more |[\d,]+ characters left out", forms[1] + forms[2])
    size, (stored, page, *texts) = len(text), map(len, forms)
    assert stored >= size // 2
    assert size // 2 <= page <= 2 * size + 40 * LEAST
    assert max(texts) <= 8 * size + LEAST
    assert json.loads(load_record(tmp_path / "r.json").to_json()) == _as_written(LARGE[what])


def _as_written(value):
    """With what a view leaves to its defaults: the record in one more turn."""
    from dovetail.core.views import read_view, write_view

    return value | {"view": write_view(read_view(value["view"]))}


@pytest.mark.parametrize("side", [500, 3000])
def test_a_map_without_values_is_refused(side, tmp_path):
    names = ["r"] * side
    empty = {"heatmap": {"title": "", "rows": names, "columns": names, "values": []}}
    tracemalloc.start()
    try:
        _, found = play(unknown(empty), tmp_path / "r.json")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"a heat map has values for its {side} x {side} cells" in found
    assert peak < 20 * MEGABYTE


def of_kind(originals, kind, **data):
    (value,) = (record for record in originals if record["record"] == kind)
    return value | {"data": value["data"] | data}


def test_a_known_kind_asks_for_no_more_cells_than_its_file_has(originals, tmp_path):
    pair = {"head_classes": 2, "n": 9, "classes": ["a", "b"], "why_not": []}
    pairs = [{**pair, "front": f"f{i}", "head": f"h{i}"} for i in range(300)]
    rows = [{f"measure {i}": 1.0} for i in range(300)]
    epochs = [{"epoch": float(i)} for i in range(300)]
    stage = {"networks": NAMES[:300], "rows": epochs, "kept": 1}
    sizes = dict.fromkeys(NAMES[:300], 1)
    for value, why in (
        (of_kind(originals, "recombination", pairs=pairs, alike=[]), "300 rows and 300 columns"),
        (of_kind(originals, "evidence", rows=rows), "300 rows and 300 columns"),
        (
            of_kind(originals, "jacobian-similarity", names=NAMES),
            "a row and a column for each part",
        ),
        # Of measures that no epoch has there is nothing to show.
        (of_kind(originals, "device-training", stage=stage, sizes=sizes), None),
    ):
        tracemalloc.start()
        try:
            _, found = play(value, tmp_path / "r.json")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert max(found) < 4 * LEAST if why is None else why in found
        assert peak < 60 * MEGABYTE


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "9" * 5000])
def test_numbers_that_cannot_be_written_again_are_refused(number, tmp_path):
    text = json.dumps(unknown(table(["a"], [["number"]]))).replace('"number"', number)
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(FormatError, match="not readable as JSON"):
        load_record(tmp_path / "r.json")


def test_numbers_that_are_not_finite_in_our_own_notation_are_read(tmp_path):
    value = unknown({"figure": {"kind": "line", "title": "", "series": [
        {"name": "s", "x": [1, 2, 3], "y": ["nan", "inf", 1.0]}]}})  # fmt: skip
    assert not isinstance(refuses_or_shows(value, tmp_path / "r.json"), str)


def test_junk_in_place_of_each_part_of_a_record(tmp_path):
    for key in ("record", "format", "title", "data", "view"):
        for junk in JUNK:
            refuses_or_shows(unknown() | {key: junk}, tmp_path / "r.json")


def test_a_file_with_a_name_that_steers(tmp_path):
    path = tmp_path / f"r{STEERING}.json"
    path.write_text("{}")
    with pytest.raises(FormatError, match="not a dovetail record") as refused:
        load_record(path)
    assert str(refused.value).isprintable()
