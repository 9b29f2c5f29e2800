"""The limits leave room for everything we write ourselves."""

from __future__ import annotations

import difflib
import os
import tracemalloc

import numpy as np
import pytest

from dovetail.core.errors import DovetailError, FormatError, nearest, shown
from dovetail.core.plain import DEEPEST as DEEPEST_JSON
from dovetail.core.plain import dumps, parse_json
from dovetail.core.views import Table
from dovetail.parts import disk
from dovetail.parts.part import build
from dovetail.parts.recipe import DEEPEST, Build, Join, read_recipe
from dovetail.shelf.store import Shelf
from dovetail.tasks.array_files import read_idx, read_npz
from dovetail.train.checkpoint import load_checkpoint


def test_the_deepest_recipe_is_not_too_deep_as_json():
    recipe = Build("mlp", {"hidden": [5]})
    for _ in range(DEEPEST):
        recipe = Join((recipe, Build("mlp")))
    config = parse_json(dumps({"recipe": recipe}).encode(), "config.json")
    assert read_recipe(config["recipe"]) == recipe


@pytest.mark.parametrize(("depth", "refused"), [(DEEPEST_JSON, False), (DEEPEST_JSON + 1, True)])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_the_depth_is_counted(depth, refused, opening, closing):
    data = (opening * depth + "1" + closing * depth).encode()
    if refused:
        with pytest.raises(FormatError, match="nested deeper than"):
            parse_json(data, "a.json")
    else:
        parse_json(data, "a.json")


def test_text_beyond_the_first_plane_is_read_and_half_of_it_is_not():
    assert parse_json(dumps("🪵").encode(), "a.json") == "🪵"
    assert parse_json(rb'"\\ud800"', "a.json") == r"\ud800"  # a backslash, not a character
    with pytest.raises(FormatError, match="not readable as JSON"):
        parse_json(rb'"\ud800"', "a.json")


def test_names_of_any_length_are_shown_without_being_written_out():
    name = "x" * 10_000_000
    tracemalloc.start()
    try:
        assert nearest(name, ["mlp"]) == "; there is mlp"
        assert len(shown(name)) == 80
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_names_that_nobody_types_are_not_compared(monkeypatch):
    monkeypatch.setattr(difflib, "get_close_matches", None)
    assert nearest("x" * 201, ["mlp"]) == "; there is mlp"
    with pytest.raises(TypeError):
        nearest("x" * 200, ["mlp"])


def test_no_more_is_written_out_than_is_shown():
    class Counted:
        written = 0

        def __repr__(self):
            Counted.written += 1
            return "1"

    assert len(shown([[Counted()] * 10_000] * 10_000)) == 80
    assert Counted.written <= 80 * 80


def test_what_repr_cannot_write_is_still_shown():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "[[[[[[[...]]]]]]]"
    assert shown(10**5000) == "<int>"
    while deep:  # taken apart by hand: the collector would go as deep
        deep = deep.pop()  # type: ignore[assignment]


def test_a_cell_that_its_format_does_not_fit_is_shown_as_it_is():
    table = Table(("a", "b"), ((0.5, 10**400),), formats=("d", ".1%"))
    assert table.shown() == (("0.5", str(10**400)),)


@pytest.mark.parametrize("spec", ["1000000000d", ".1000000000f", "{0.__class__}", ">999999999"])
def test_a_format_that_is_none_of_ours_is_not_applied(spec):
    assert Table(("a",), ((1,),), formats=(spec,)).shown() == (("1",),)


@pytest.mark.parametrize("spec", ["", "d", ".1%", ".4g", ",", "+.2f", "5.1f", ",.0f", "8,d"])
def test_ordinary_formats_are_formats(spec):
    assert Table(("a",), ((1234,),), formats=(spec,)).shown() == ((format(1234, spec),),)


@pytest.mark.parametrize("reader", ["idx", "npz", "checkpoint", "index"])
def test_a_pipe_is_refused_and_not_waited_for(reader, tmp_path):
    pipe = tmp_path / {"npz": "data.npz", "index": ".index.json"}.get(reader, "file")
    os.mkfifo(pipe)
    if reader == "index":
        assert len(Shelf(tmp_path).entries()) == 0  # an index that cannot be read is made anew
        return
    read = {
        "idx": lambda: read_idx(pipe),
        "npz": lambda: read_npz(pipe),
        "checkpoint": lambda: load_checkpoint(pipe, {}),
    }[reader]
    with pytest.raises(DovetailError, match="not a plain file"):
        read()


def test_an_archive_that_unpacks_to_hundreds_of_times_its_size_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((90, 1024, 1024), np.uint8), y=[0] * 90)
    with pytest.raises(DovetailError, match="would unpack to"):
        read_npz(tmp_path / "bomb.npz")


def test_a_part_of_large_maps_has_no_probe(monkeypatch):
    part = build("mlp", shape=(4,), hidden=(), classes=3)
    assert set(disk._recorded_run(part.module, part.contract)) == {"input.0", "output.0"}
    monkeypatch.setattr(disk, "MOST_OF_REPLAY", (1 << 20) + 2 * 4 * (4 + 3) - 1)
    assert disk._recorded_run(part.module, part.contract) == {}
