"""Folders that may not be read, and parts that others take away while we look."""

import json
import os

import pytest

from dovetail.cli.main import main
from dovetail.core.errors import DovetailError
from dovetail.shelf import entry, index, verify
from dovetail.shelf.store import Shelf


@pytest.fixture
def three(shelf, tiny):
    for name in ("a", "b", "c"):
        shelf.add(tiny(), name)
    return shelf


def close(monkeypatch, folder):
    """Let the system refuse to list a folder; for the superuser a mode would change nothing."""
    for name in ("scandir", "listdir"):
        real = getattr(os, name)

        def refuse(path=".", real=real):
            if str(path) == str(folder):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        monkeypatch.setattr(os, name, refuse)


def test_a_closed_name_is_named_and_the_others_are_listed(three, monkeypatch, capsys):
    close(monkeypatch, three.folder / "b")
    said = {entry.ref: entry.problem for entry in Shelf(three.folder)}
    assert said == {"a@1": None, "b": "cannot be read (Permission denied)", "c@1": None}
    assert main(["shelf", "ls", "--shelf", str(three.folder), "--json"]) == 0
    assert [row["ref"] for row in json.loads(capsys.readouterr().out)["rows"]] == [
        "a@1",
        "b",
        "c@1",
    ]
    assert main(["shelf", "ls", "--shelf", str(three.folder)]) == 0
    assert "Damaged: b: cannot be read (Permission denied)." in capsys.readouterr().out
    assert main(["shelf", "verify", "--shelf", str(three.folder), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == [{"ref": "b", "what": "cannot be read (Permission denied)"}]
    assert (found["checked"], found["foreign"]) == (3, [])
    with pytest.raises(DovetailError, match="b"):
        three.get("b")
    assert three.get("c").digest == three.get("a").digest


@pytest.mark.parametrize("name", ["_fits", ".work", "b/1"])
def test_another_closed_folder_does_not_hide_the_parts(three, monkeypatch, name):
    (three.folder / "_fits").mkdir()
    close(monkeypatch, three.folder / name)
    assert len(Shelf(three.folder).entries()) == 3
    told = [str(problem) for problem in three.verify().problems]
    assert told == (["_fits: cannot be read (Permission denied)"] if name == "_fits" else [])


def test_a_file_that_may_not_be_read_is_damage_of_its_part_alone(three, monkeypatch):
    real = os.open

    def refuse(path, *args, **kwargs):
        if str(path).endswith("b/1/manifest.json"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    (entry,) = (entry for entry in Shelf(three.folder) if entry.problem)
    assert (entry.ref, "Permission denied" in entry.problem) == ("b@1", True)
    assert [problem.ref for problem in three.verify().problems] == ["b@1"]


def once(monkeypatch, where, name, happens):
    """Let something happen right before the first call of a function that is about ``b``."""
    real, left = getattr(where, name), [happens]

    def call(*args, **kwargs):
        if left and any("/b" in str(arg) for arg in args):
            left.pop()()
        return real(*args, **kwargs)

    monkeypatch.setattr(where, name, call)


@pytest.mark.parametrize("moment", ["_reload", "read_note", "_identity", "_files_of"])
@pytest.mark.parametrize("whole_name", [True, False], ids=["name", "version"])
def test_a_part_taken_away_while_the_shelf_is_verified_is_no_damage(
    three, monkeypatch, moment, whole_name
):
    other = Shelf(three.folder)
    ref = "b" if whole_name else "b@1"
    once(monkeypatch, verify, moment, lambda: other.rm(ref, all_versions=whole_name))
    found = three.verify()
    assert found.problems == ()
    assert found.foreign == ()
    assert "b@1" not in other
    assert found.checked == (2 if moment in ("_reload", "_identity", "_files_of") else 3)


def test_a_part_exchanged_while_it_is_verified_is_read_again(three, tiny, monkeypatch):
    other = Shelf(three.folder)

    def exchange():
        other.rm("b", all_versions=True)
        other.add(tiny(1), "b")

    once(monkeypatch, verify.disk, "read_module", exchange)  # the facts are of the old one
    found = three.verify()
    assert (found.problems, found.checked) == ((), 3)


def test_a_measurement_taken_away_is_no_damage(three, monkeypatch):
    path = three.folder / "_fits" / "b.json"
    path.parent.mkdir()
    path.write_text("{}")
    assert not three.verify().ok
    once(monkeypatch, verify, "read_fit", path.unlink)
    assert three.verify().ok


def test_a_part_taken_away_while_the_shelf_is_listed_is_not_shown_as_damaged(three, monkeypatch):
    other = Shelf(three.folder)
    (three.folder / index.FILE).unlink(missing_ok=True)
    once(monkeypatch, index, "read_entry", lambda: other.rm("b@1"))
    assert [entry.ref for entry in Shelf(three.folder)] == ["a@1", "c@1"]


def test_a_tag_added_while_a_note_is_read_is_no_damage(three, tiny, monkeypatch):
    other = Shelf(three.folder)
    once(monkeypatch, entry, "from_plain", lambda: other.add(tiny(), "b", tags=["new"]))
    assert three.verify().ok
    assert other.entry("b").tags == ("new",)
