"""Whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import threading

import pytest

from dovetail.core import files
from dovetail.core.errors import FormatError
from dovetail.core.files import sha256_of, whole_folder, write_whole


def full_disk(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(step, tmp_path, monkeypatch):
    target = tmp_path / "a.txt"
    write_whole(target, "old")
    monkeypatch.setattr(files.os, step, full_disk)
    with pytest.raises(FormatError, match=r"cannot write .*a\.txt: No space left on device"):
        write_whole(target, "new")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.txt", "new")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a.txt", "\ud800")
    assert names(tmp_path) == []


def test_writing_makes_the_folders_it_needs(tmp_path):
    write_whole(tmp_path / "a" / "b" / "c.txt", b"\x00\xff")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b"\x00\xff"


def test_a_file_in_the_way_of_a_folder_is_our_error(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(FormatError, match="cannot write"):
        write_whole(tmp_path / "a" / "b.txt", "x")
    with pytest.raises(FormatError, match="cannot write"), whole_folder(tmp_path / "a" / "b"):
        pytest.fail("not reached")
    assert (tmp_path / "a").read_text() == "mine"


def test_a_folder_appears_at_the_end(tmp_path):
    target = tmp_path / "part"
    with whole_folder(target) as hidden:
        (hidden / "a").write_text("1")
        (hidden / "sub").mkdir()
        (hidden / "sub" / "b").write_text("2")
        assert not target.exists()
    assert names(target) == ["a", "sub"]
    assert names(tmp_path) == ["part"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError()]
)
@pytest.mark.parametrize("replace", [False, True])
def test_a_failed_block_leaves_what_was_there(error, replace, tmp_path):
    target = tmp_path / "part"
    if replace:
        target.mkdir()
        (target / "old").write_text("old")
    expected = FormatError if isinstance(error, OSError) else type(error)

    def half_a_folder():
        with whole_folder(target, replace=replace) as hidden:
            (hidden / "a").write_text("half")
            raise error

    with pytest.raises(expected):
        half_a_folder()
    assert names(tmp_path) == (["part"] if replace else [])
    if replace:
        assert names(target) == ["old"]


def test_a_failed_exchange_brings_the_old_folder_back(tmp_path, monkeypatch):
    target = tmp_path / "part"
    target.mkdir()
    (target / "old").write_text("old")
    real, calls = os.rename, []

    def second_fails(source, destination):
        calls.append(source)
        if len(calls) == 2:
            full_disk()
        real(source, destination)

    monkeypatch.setattr(files.os, "rename", second_fails)
    with pytest.raises(FormatError, match="No space"), whole_folder(target, replace=True) as hidden:
        (hidden / "new").write_text("new")
    assert names(target) == ["old"]
    assert names(tmp_path) == ["part"]


def test_an_exchange_lost_to_another_writer_leaves_the_other(tmp_path, monkeypatch):
    target = tmp_path / "part"
    target.mkdir()
    real, calls = os.rename, []

    def another_is_faster(source, destination):
        calls.append(source)
        if len(calls) == 2:
            target.mkdir()
            (target / "theirs").write_text("theirs")
        real(source, destination)

    monkeypatch.setattr(files.os, "rename", another_is_faster)
    with pytest.raises(FormatError), whole_folder(target, replace=True) as hidden:
        (hidden / "mine").write_text("mine")
    assert names(target) == ["theirs"]
    assert names(tmp_path) == ["part"]


def test_an_older_folder_is_an_error_without_replace(tmp_path):
    target = tmp_path / "part"
    for text in ("first", "second"):
        if text == "first":
            with whole_folder(target) as hidden:
                (hidden / "a").write_text(text)
        else:
            with pytest.raises(FileExistsError), whole_folder(target) as hidden:
                (hidden / "a").write_text(text)
    assert (target / "a").read_text() == "first"
    assert names(tmp_path) == ["part"]


def test_replacing_exchanges_everything(tmp_path):
    target = tmp_path / "part"
    for name in ("a", "b"):
        with whole_folder(target, replace=True) as hidden:
            (hidden / name).write_text(name)
    assert names(target) == ["b"]
    assert names(tmp_path) == ["part"]


def test_of_many_writers_one_wins(tmp_path):
    target, start, outcomes = tmp_path / "part", threading.Barrier(6), []

    def write(number):
        try:
            with whole_folder(target) as hidden:
                for name in "abc":
                    (hidden / name).write_text(str(number))
                start.wait()
            outcomes.append(number)
        except FileExistsError:
            outcomes.append(None)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [outcome for outcome in outcomes if outcome is not None]
    assert {(target / name).read_text() for name in "abc"} == {str(winner)}
    assert names(tmp_path) == ["part"]


def test_the_sum_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"dovetail" * 100_000)
    assert sha256_of(tmp_path / "a") == hashlib.sha256(b"dovetail" * 100_000).hexdigest()
