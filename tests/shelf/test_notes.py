import os

import pytest

from dovetail.core.errors import FormatError, ShelfError
from dovetail.shelf.names import HIGHEST
from dovetail.shelf.notes import Note, claim, note_path, read_note, with_tags, write_note


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
