import json
import os
from pathlib import Path

import pytest
from torch import nn

from dovetail.core.errors import FormatError, RecipeError, ShelfError
from dovetail.parts import builders
from dovetail.parts.builders import builder
from dovetail.parts.foreign.adopting import adopt
from dovetail.shelf.entry import (
    Entry,
    Note,
    claim,
    note_path,
    read_entry,
    read_note,
    with_tags,
    write_note,
)
from dovetail.shelf.names import HIGHEST


def test_an_entry_says_what_the_part_says(shelf, tiny):
    part = tiny()
    entry = shelf.add(part, "net", tags=["b", "a"])
    assert (entry.contract, entry.origin, entry.digest) == (part.contract, part.origin, part.digest)
    assert entry.ref == str(entry) == "net@1"
    assert entry.tags == ("a", "b")
    assert entry.added.endswith("Z")
    listed = json.loads((entry.folder / "manifest.json").read_text())["files"]
    assert entry.bytes == sum(file["size"] for file in listed.values())
    assert repr(entry) == "Entry(net@1, mlp: 3 -> 2)"
    assert entry.load(verify=True).digest == part.digest


def test_damage_is_an_entry_with_a_problem(tmp_path):
    entry = read_entry("net", 1, tmp_path)
    assert "manifest.json: no such file" in entry.problem
    assert "damaged" in repr(entry)
    assert str(tmp_path) not in entry.problem


def test_loading_what_is_gone_names_the_folder(tmp_path):
    with pytest.raises(FormatError, match="no-such"):
        Entry("net", 1, tmp_path / "no-such").load()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_loading_what_is_damaged_names_the_folder(shelf, tiny, name):
    entry = shelf.add(tiny(), "net")
    (entry.folder / name).write_bytes(b"{}")
    with pytest.raises(FormatError, match="net"):
        entry.load()


def test_a_part_whose_builder_is_unknown_here_is_listed_but_not_loaded(shelf, monkeypatch):
    @builder("shelf-test-net")
    def net(*, width: int = 3) -> nn.Module:
        return nn.Linear(width, 2)

    entry = shelf.add(adopt(net(width=4)), "mine")
    monkeypatch.delitem(builders._KNOWN, "shelf-test-net")
    (again,) = type(shelf)(shelf.folder)
    assert again == entry
    assert again.what == "shelf-test-net"
    with pytest.raises(RecipeError, match=r"'mine@1'.*unknown builder 'shelf-test-net'"):
        shelf.get("mine")
    assert "unknown builder" in shelf.verify().problems[0].what


def test_a_damaged_note_costs_the_tags_only(shelf, tiny):
    entry = shelf.add(tiny(), "net", tags=["x"])
    Path(f"{entry.folder}.json").write_text("{")
    assert shelf.entry("net").tags == ()
    assert shelf.get("net").digest == entry.digest
    assert "1.json" in shelf.verify().problems[0].what


def test_a_note_comes_back(tmp_path):
    note = Note("2024-05-01T12:00:00Z", ("a", "ü"), removed=None)
    write_note(tmp_path / "3", note)
    assert read_note(tmp_path / "3") == note


def test_no_note_is_an_empty_note(tmp_path):
    assert read_note(tmp_path / "3") == Note()


def test_tags_are_added_to_what_is_there():
    assert with_tags(Note("x", ("b",)), ("a", "b")) == Note("x", ("a", "b"))


def test_claims_go_past_folders_and_notes_of_what_is_gone(tmp_path):
    (tmp_path / "4").mkdir()
    (tmp_path / "words").mkdir()
    assert claim(tmp_path, Note()) == 5
    write_note(tmp_path / "7", Note(removed="2024-05-01T12:00:00Z"))
    assert claim(tmp_path, Note(tags=("x",))) == 8
    assert read_note(tmp_path / "8").tags == ("x",)
    assert not list(tmp_path.glob(".*"))


def test_claims_work_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert [claim(tmp_path, Note(tags=("x",))) for _ in range(3)] == [1, 2, 3]
    assert read_note(tmp_path / "2").tags == ("x",)


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
def test_every_changed_byte_of_a_note_is_noticed(tmp_path, mask):
    folder = tmp_path / "1"
    write_note(folder, Note("2024-05-01T12:00:00Z", ("small", "mine")))
    whole = note_path(folder).read_bytes()
    for i in range(len(whole)):
        note_path(folder).write_bytes(whole[:i] + bytes([whole[i] ^ mask]) + whole[i + 1 :])
        with pytest.raises(FormatError):
            read_note(folder)


def test_after_the_highest_number_none_is_claimed(tmp_path):
    (tmp_path / str(HIGHEST - 1)).mkdir()
    assert claim(tmp_path, Note()) == HIGHEST
    for _ in range(2):
        with pytest.raises(ShelfError, match=f"no version after {HIGHEST}; rename its folder"):
            claim(tmp_path, Note())
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(HIGHEST - 1), f"{HIGHEST}.json"]


def test_a_number_that_is_taken_though_nothing_seems_to_be_there_is_passed_over(
    tmp_path, monkeypatch
):
    tried, link = [], os.link

    def taken(source, target):  # as where 1.JSON and 1.json are one file
        assert target not in tried
        tried.append(target)
        if len(tried) < 3:
            raise FileExistsError
        link(source, target)

    monkeypatch.setattr(os, "link", taken)
    assert claim(tmp_path, Note()) == 3
