"""A disk that fills up: one clear sentence, the old state intact, nothing to clean up.

Twice over: on a real small disk where one can be mounted, and with a disk that only pretends.
"""

import builtins
import errno
import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import save_file

from dovetail.cli.main import _parser, main
from dovetail.core.errors import DovetailError, ShelfError
from dovetail.jobs.frame import RUNS
from dovetail.jobs.report import report
from dovetail.jobs.train import train
from dovetail.parts.cutting import cut
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf


def tiny(seed=0):
    return build("mlp", shape=(3,), hidden=(4,), classes=2, seed=seed)


def snapshot(folder):
    """Every file, hidden ones too, but for the index, which is nobody's truth."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".index.json"
    }


@pytest.fixture
def filled(tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(tiny(), "net", tags=["old"])
    return shelf


class FullDisk:
    """Lets ``room`` operations that need space pass, and refuses every later one."""

    def __init__(self, monkeypatch, room):
        self.room, self.refused = room, 0
        self.real_open = builtins.open
        for where in (builtins, io):  # pathlib opens through io
            monkeypatch.setattr(where, "open", self.open)
        for name in ("mkdir", "link", "fsync"):
            monkeypatch.setattr(os, name, self.needing_space(getattr(os, name)))

    def take(self):
        self.room -= 1
        if self.room < 0:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")

    def needing_space(self, act):
        def spend(first, *args, **more):
            if not (isinstance(first, Path) and first.is_dir()):  # it is there: nothing is made
                self.take()
            return act(first, *args, **more)

        return spend

    def open(self, file, mode="r", *args, **more):
        if set(mode) & set("wax+"):
            self.take()
        return self.real_open(file, mode, *args, **more)


def until_it_works(act, check, most=80):
    """Give the disk room for one more operation each time until the act succeeds."""
    for room in range(most):
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, room)
            try:
                act()
                return room
            except DovetailError as error:
                said = str(error)
        assert "No space left on device" in said
        assert disk.refused
        check()
    raise AssertionError("it never worked")


def test_adding_at_every_moment_the_disk_may_fill_up(filled):
    before = snapshot(filled.folder)

    def check():
        assert snapshot(filled.folder) == before
        found = filled.verify()
        assert (found.ok, found.leftovers, found.foreign) == (True, (), ())

    steps = until_it_works(lambda: filled.add(tiny(1), "net", tags=["new"]), check)
    assert steps > 10
    assert filled.get("net@2").digest == tiny(1).digest  # no number was spent on the way
    assert filled.entry("net@2").tags == ("new",)


def test_the_first_part_of_a_name_leaves_no_empty_folder(filled):
    def check():
        assert not (filled.folder / "other").exists()

    until_it_works(lambda: filled.add(tiny(), "other"), check)
    assert "other@1" in filled


def run(*words):
    """A command, whose refusal is raised as it would be in Python."""
    args = _parser().parse_args(words)
    assert args.run(args) == 0


def test_cutting_leaves_both_halves_or_none(filled):
    before = snapshot(filled.folder)

    def check():
        assert snapshot(filled.folder) == before
        assert sorted(path.name for path in filled.folder.glob("net*")) == ["net"]
        found = filled.verify()
        assert (found.ok, found.leftovers, found.foreign) == (True, (), ())

    at = ("--at", "hidden1", "--shelf", str(filled.folder))
    assert until_it_works(lambda: run("cut", "net", *at), check) > 20
    assert [entry.ref for entry in filled] == ["net@1", "net.back@1", "net.front@1"]


def test_halves_that_were_there_stay_when_others_are_refused(filled):
    front, back = cut(tiny(), at="hidden1")
    filled.add(front, "net.front")
    before = snapshot(filled.folder)

    def check():
        assert snapshot(filled.folder) == before

    halves = {"net.front": front, "net.back": back}
    until_it_works(lambda: filled.add_all(halves), check)
    assert filled.add_all(halves) == [filled.entry("net.front@1"), filled.entry("net.back@1")]


@pytest.mark.parametrize("to", ["shelf", "another shelf", "folder", "folder in folders", "file"])
def test_packing_leaves_all_or_nothing(filled, tmp_path, to):
    plain = tmp_path / "w.safetensors"
    save_file(tiny().module.state_dict(), plain)
    shelf = ("--shelf", str(filled.folder))
    words = {
        "shelf": ("net", "--bits", "4", *shelf),
        "another shelf": (str(filled.entry("net").folder), "--name", "new", "--shelf", "{new}"),
        "folder": ("net", "--to", "{new}", *shelf),
        "folder in folders": ("net", "--to", "{new}/a/b", *shelf),
        "file": (str(plain), "--to", "{new}"),
    }[to]
    words = [word.replace("{new}", str(tmp_path / "new")) for word in words]
    before, there = snapshot(tmp_path), {path.name for path in tmp_path.iterdir()}

    def check():
        assert snapshot(tmp_path) == before
        assert {path.name for path in tmp_path.iterdir()} - {"new"} == there
        assert to == "another shelf" or not (tmp_path / "new").exists()  # which may stay, empty
        assert filled.verify().leftovers == ()

    until_it_works(lambda: run("pack", *words), check)
    assert snapshot(tmp_path) != before


def test_tagging(filled):
    def check():
        assert Shelf(filled.folder).entry("net").tags == ("old",)
        assert filled.verify().leftovers == ()

    until_it_works(lambda: filled.add(tiny(), "net", tags=["new"]), check)
    assert filled.entry("net").tags == ("new", "old")


def test_listing_does_without_an_index(filled):
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch, 0)
        assert [entry.ref for entry in Shelf(filled.folder, create=False)] == ["net@1"]
    assert disk.refused
    assert filled.verify().leftovers == ()


def test_removing_works_without_room(filled):
    filled.add(tiny(1), "net")
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, 0)
        filled.rm("net@2")
    assert filled.add(tiny(2), "net").ref == "net@3"
    found = filled.verify()
    assert (found.ok, found.leftovers, found.foreign) == (True, (), ())


QUICK = {"net": "mlp", "args": {"hidden": []}, "name": "net", "epochs": 1, "batch_size": 256}


@pytest.mark.parametrize("room", [0, 9, 17])
def test_training_that_cannot_keep_a_checkpoint_keeps_the_last_one(tmp_path, room):
    whole = train("digits", **QUICK, shelf=tmp_path / "whole" / "shelf").data["ref"]
    shelf = Shelf(tmp_path / "shelf")
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, room)
        with pytest.raises(DovetailError, match=r"cannot write .*No space left on device"):
            train("digits", **QUICK, shelf=shelf.folder, checkpoint_seconds=0)
    assert len(shelf) == 0
    assert shelf.verify().leftovers == ()
    kept = list((tmp_path / RUNS).glob("*"))
    assert len(kept) == (room > 0)
    done = train("digits", **QUICK, shelf=shelf.folder)
    assert done.data["resumed"] == (room > 0)
    assert shelf.get("net").digest == Shelf(tmp_path / "whole" / "shelf").get(whole).digest
    assert list((tmp_path / RUNS).glob("*")) == []


@pytest.mark.parametrize("room", [0, 4], ids=["before the training", "after it"])
def test_training_that_cannot_be_shelved_leaves_the_shelf_as_it_was(filled, capsys, room):
    before = snapshot(filled.folder)
    command = ["train", "digits", "--net", "mlp", "--epochs", "1", "--name", "net"]
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, room)
        assert main([*command, "--shelf", str(filled.folder)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("dovetail: cannot write to the shelf")
    assert said[-1].endswith("No space left on device")
    assert snapshot(filled.folder) == before


def test_a_report_that_does_not_fit_leaves_the_old_one(filled, tmp_path, capsys):
    page = tmp_path / "page.html"
    report([], output=page, shelf=filled.folder)
    before = page.read_bytes()
    filled.add(tiny(1), "net")
    command = ["report", "--shelf", str(filled.folder), "--output", str(page)]
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, 0)
        assert main(command) == 2
    assert capsys.readouterr().err == f"dovetail: cannot write {page}: No space left on device\n"
    assert page.read_bytes() == before
    assert not list(tmp_path.glob(".dovetail-*"))
    assert main(command) == 0
    assert page.read_bytes() != before


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of one megabyte, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill_up(disk, leave):
    """Fill the disk but for some bytes."""
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(max(0, free - leave)))


def test_a_real_disk_that_is_too_small_for_a_part(small_disk, capsys, tmp_path):
    shelf = Shelf(small_disk / "shelf")
    shelf.add(tiny(), "net")
    before = snapshot(shelf.folder)
    large = build("mlp", shape=(64,), hidden=(4096,), classes=10)  # over a megabyte
    with pytest.raises(ShelfError, match=r"cannot write to the shelf .*No space left on device"):
        shelf.add(large, "net")
    assert snapshot(shelf.folder) == before
    large.save_pretrained(tmp_path / "large")
    assert main(["shelf", "add", str(tmp_path / "large"), "--shelf", str(shelf.folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert snapshot(shelf.folder) == before
    assert main(["shelf", "verify", "--shelf", str(shelf.folder)]) == 0
    found = shelf.verify()
    assert (found.leftovers, found.foreign) == ((), ())


@pytest.mark.parametrize("pages", range(0, 12, 3))
def test_a_real_disk_that_fills_up_on_the_way(small_disk, capsys, pages):
    shelf = Shelf(small_disk / "shelf")
    shelf.add(tiny(), "net")
    page = small_disk / "page.html"
    page.write_text("the old page")
    before = snapshot(shelf.folder)
    fill_up(small_disk, 4096 * pages)
    at = ["--shelf", str(shelf.folder)]
    commands = (
        ["train", "digits", "--net", "lenet5", "--epochs", "1", "--name", "net", *at],
        ["report", *at, "--output", str(page)],
    )
    keep = [*commands[0], "--checkpoint-seconds", "0"]
    assert [main(command) for command in (*commands[:1], keep)] == [2, 2]
    if pages < 2:
        assert main(commands[1]) == 2
        assert page.read_text() == "the old page"
    assert "No space left on device" in capsys.readouterr().err
    assert snapshot(shelf.folder) == before
    assert main(["shelf", "ls", *at]) == 0
    found = shelf.verify()
    assert (found.ok, found.leftovers, found.foreign) == (True, (), ())
    (small_disk / "filler").unlink()
    assert main(commands[0]) == 0
    assert "net@2" in shelf


def test_a_real_full_disk_can_be_emptied(small_disk):
    shelf = Shelf(small_disk / "shelf")
    shelf.add(tiny(), "net")
    fill_up(small_disk, 0)
    assert shelf.rm("net@1") == ("net@1",)
    assert shelf.verify().ok
    assert shelf.entries() == []
