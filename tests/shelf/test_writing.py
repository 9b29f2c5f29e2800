"""Writers that die, are refused, or meet others; many at once are in test_under_fire.py."""

import os
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

from dovetail.core.errors import ShelfError
from dovetail.shelf import writing
from dovetail.shelf.entry import Note, write_note
from dovetail.shelf.store import Shelf
from dovetail.shelf.writing import put, sweep


def script(text, *args):
    command = [sys.executable, "-c", textwrap.dedent(text), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


DIE_AT_EACH_STEP = """
    import os, signal, sys
    import torch
    torch.set_num_threads(1)
    from dovetail.parts.part import build
    from dovetail.shelf.store import Shelf
    shelf = Shelf(sys.argv[1])
    shelf.add(build("mlp", shape=(3,), hidden=(), seed=0), "net")

    def dying(act, left):
        def step(*args, **more):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*args, **more)
        return step

    at = arrived = 0
    while True:
        part = build("mlp", shape=(3,), hidden=(), seed=1 + at)
        child = os.fork()
        if not child:
            left = [at]
            for name in ("rename", "replace", "link", "mkdir", "unlink", "rmdir", "fsync", "open"):
                setattr(os, name, dying(getattr(os, name), left))
            Shelf(sys.argv[1]).add(part, "net")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found = shelf.verify()
        assert found.ok, found
        assert all(entry.problem is None for entry in shelf)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        at += 1
        *old, _ = shelf
        arrived += len(old)
        for entry in old:  # few parts, or verifying all of them each time takes long
            shelf.rm(entry.ref)
    print(at, arrived, len(found.leftovers))
    assert shelf.get("net").digest == part.digest
    shelf.sweep(older_than=0)
    assert shelf.verify().leftovers == ()
"""


def test_killed_at_any_step_the_shelf_is_whole(tmp_path):
    """Each change to the file system in turn is the last thing a writer lives to begin."""
    steps, arrived, leftovers = map(int, finish(script(DIE_AT_EACH_STEP, tmp_path)).split())
    assert steps > 10
    assert leftovers > 5  # it died in the midst of writing
    assert arrived >= 3  # of writers that died after the rename


def test_old_leftovers_are_swept_by_the_next_writer(shelf, tiny):
    work, home = shelf.folder / writing.WORK, shelf.folder / "net"
    shelf.add(tiny(), "net")
    left = [folder / name for folder in (work, home) for name in (".dovetail-old", ".dovetail-new")]
    for path in left:
        (path / "deep").mkdir(parents=True)
    for old in left[::2]:
        os.utime(old, (time.time() - 2 * writing.DAY,) * 2)
    shelf.add(tiny(1), "net")
    assert [path.exists() for path in left] == [False, True, False, True]
    assert shelf.verify().leftovers == (".work/.dovetail-new", "net/.dovetail-new")
    assert sweep(shelf.folder, older_than=0) == 2
    assert sorted(path.name for path in shelf.folder.iterdir()) == [".work", "net"]
    assert shelf.verify().leftovers == shelf.verify().foreign == ()


def test_unfinished_work_anywhere_is_swept_when_asked(shelf):
    for place in (".dovetail-1", "net/.dovetail-2", ".work/.dovetail-3"):
        (shelf.folder / place).mkdir(parents=True)
    assert (shelf.sweep(), shelf.sweep(older_than=0)) == (0, 3)


def test_sweeping_never_follows_a_link(shelf, tmp_path):
    (tmp_path / "precious").mkdir()
    (shelf.folder / ".dovetail-link").symlink_to(tmp_path / "precious")
    assert sweep(shelf.folder, older_than=0) == 1
    assert (tmp_path / "precious").is_dir()


def test_a_name_removed_under_the_writer_comes_back(tmp_path, tiny, monkeypatch):
    home, real, tries = tmp_path / "net", writing.claim, []

    def slow_claim(home, note):
        number = real(home, note)
        tries.append(number)
        if len(tries) == 1:
            shutil.rmtree(home)  # by someone who asks for no lock
        return number

    monkeypatch.setattr(writing, "claim", slow_claim)
    assert put(tiny(), home, Note()).version == 1
    assert tries == [1, 1]
    assert Shelf(tmp_path).verify().ok


def test_a_folder_copied_to_the_claimed_number_is_not_replaced(tmp_path, tiny, monkeypatch):
    home, real = tmp_path / "net", writing.claim

    def slow_claim(home, note):
        number = real(home, note)
        if number == 1:
            tiny(7).save_pretrained(home / "1")
        return number

    monkeypatch.setattr(writing, "claim", slow_claim)
    assert put(tiny(), home, Note()).version == 2
    assert Shelf(tmp_path).get("net@1").digest == tiny(7).digest


@pytest.mark.parametrize("step", ["mkdir", "rename"])
def test_a_refusing_file_system_is_a_shelf_error_and_leaves_nothing(shelf, tiny, monkeypatch, step):
    real = os.rename

    def refuse(*args):
        if step == "mkdir" or args[1].name == "1":
            raise PermissionError(13, "Permission denied")
        return real(*args)

    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(ShelfError, match=r"cannot write to the shelf .*: Permission denied"):
        shelf.add(tiny(), "net")
    monkeypatch.undo()
    assert len(shelf) == 0
    assert shelf.verify().leftovers == ()


def test_a_removed_number_is_not_given_again(tmp_path, tiny):
    home = tmp_path / "net"
    assert put(tiny(), home, Note()).version == 1
    write_note(home / "5", Note(removed="2024-05-01T12:00:00Z"))
    assert put(tiny(), home, Note()).version == 6
