"""Many processes at once, some of them killed: what was told to be there is there, whole.

A part counts as acknowledged when ``add`` returned and its process told the reference.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from dovetail.cli.main import main
from dovetail.shelf import writing
from dovetail.shelf.store import Shelf

NURSERY = """
import os, sys, time
import torch
torch.set_num_threads(1)
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf

folder, count, told = sys.argv[1], int(sys.argv[2]), os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND)

def part(seed):
    return build("mlp", shape=(1,), hidden=(), classes=2, seed=seed)

def tell(*words):
    os.write(told, (" ".join(map(str, words)) + "\\n").encode())  # in one piece

def work(me):
    shelf = Shelf(folder)
    WORK

gate, opened = os.pipe()
children = []
for me in range(count):
    child = os.fork()
    if not child:
        try:
            os.close(opened)
            os.read(gate, 1)  # ends for all at once, when the parent closes the other end
            work(me)
            os._exit(0)
        except Exception as error:
            tell("error", error)
            os._exit(1)
    children.append(child)
print(*children, flush=True)
sys.stdin.readline()
os.close(opened)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""

ADD_SOME = """
    from itertools import cycle
    turns = cycle if me in {victims} else iter  # a victim is not through before it is shot
    for i in turns(range({parts})):
        mine = part(1000 * me + i)
        tell(shelf.add(mine, f"net{{i % {names}}}", tags=[f"by-{{me}}"]).ref, mine.digest)
"""


class Nursery:
    """Processes that have loaded everything and begin their work at one moment."""

    def __init__(self, tmp_path, work, count):
        self.told_path = tmp_path / "told.txt"
        self.told_path.write_text("")
        code = NURSERY.replace("    WORK", work)
        command = [sys.executable, "-c", code, tmp_path / "shelf", str(count), self.told_path]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.parent = subprocess.Popen(command, **pipes, text=True)
        self.children = list(map(int, self.parent.stdout.readline().split()))
        assert len(self.children) == count, self.parent.stderr.read()

    def begin(self):
        self.parent.stdin.write("go\n")
        self.parent.stdin.flush()

    def kill(self, which):
        with suppress(ProcessLookupError):  # it may be through already
            os.kill(self.children[which], signal.SIGKILL)

    def end(self):
        """What was told, and each process's exit code."""
        out, err = self.parent.communicate(timeout=300)
        assert self.parent.returncode == 0, err
        return self.told_path.read_text().splitlines(), list(map(int, out.split()))


def under_fire(tmp_path, *, writers, parts, names, kills, seconds, seed):
    """Run writers and kill some of them at random moments; the references and digests told."""
    dice = random.Random(seed)
    victims = dice.sample(range(writers), kills)
    work = ADD_SOME.format(parts=parts, names=names, victims=victims)
    nursery = Nursery(tmp_path, work, writers)
    nursery.begin()
    began = time.monotonic()
    for victim, when in zip(
        victims, sorted(dice.uniform(0, seconds) for _ in victims), strict=True
    ):
        time.sleep(max(0.0, began + when - time.monotonic()))
        nursery.kill(victim)
    told, codes = nursery.end()
    assert [code == -signal.SIGKILL for code in codes] == [me in victims for me in range(writers)]
    assert {code for code in codes if code != -signal.SIGKILL} <= {0}, told
    return {tuple(line.split()) for line in told}  # a victim may have begun anew, and told twice


def check(folder, told, capsys):
    shelf = Shelf(folder)
    there = {entry.ref: entry for entry in shelf}
    assert len({ref for ref, _ in told}) == len(told)
    for ref, digest in told:
        assert there[ref].digest == digest
    for entry in there.values():  # acknowledged or not, nothing is half there
        assert entry.problem is None
        assert len(entry.tags) == 1
        assert entry.added is not None
    assert main(["shelf", "verify", "--shelf", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["checked"], found["problems"], found["foreign"]) == (len(there), [], [])
    assert len({entry.digest for entry in there.values()}) == len(there)
    shelf.sweep(older_than=0)
    assert shelf.verify().leftovers == ()
    return there


@pytest.mark.slow
def test_four_writers_at_once_all_succeed_and_no_number_is_lost(tmp_path, capsys):
    shot = {"writers": 4, "parts": 5, "names": 1, "kills": 0}
    told = under_fire(tmp_path, **shot, seconds=0, seed=0)
    assert sorted(ref for ref, _ in told) == sorted(f"net0@{i}" for i in range(1, 21))
    assert len(check(tmp_path / "shelf", told, capsys)) == 20


def test_four_writers_of_whom_two_are_killed(tmp_path, capsys):
    shot = {"writers": 4, "parts": 12, "names": 2, "kills": 2}
    told = under_fire(tmp_path, **shot, seconds=0.2, seed=1)
    there = check(tmp_path / "shelf", told, capsys)
    assert 24 <= len(told) <= len(there) <= 48
    assert len(there) - len(told) <= 2  # at most one a victim was there before it was told


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_eight_writers_of_fifty_parts_of_whom_five_are_killed(tmp_path, capsys, seed):
    shot = {"writers": 8, "parts": 50, "names": 7, "kills": 5}
    told = under_fire(tmp_path, **shot, seconds=2.0, seed=seed)
    there = check(tmp_path / "shelf", told, capsys)
    assert len(told) >= 150
    assert len(there) - len(told) <= 5
    # Who comes after the killed is not hindered by them, and finds what they left.
    again = under_fire(tmp_path, **{**shot, "kills": 0}, seconds=0, seed=0)
    assert len(again) == 400
    assert told <= again
    check(tmp_path / "shelf", again, capsys)


ADD_THE_SAME = """
    for seed in range(6):
        tell(me, shelf.add(part(seed), "net", tags=[f"by-{me}"]).ref)
"""


@pytest.mark.slow
def test_the_same_parts_added_by_four_at_once_are_there_once_with_every_tag(tmp_path):
    nursery = Nursery(tmp_path, ADD_THE_SAME, 4)
    nursery.begin()
    told, codes = nursery.end()
    refs = [f"net@{i}" for i in range(1, 7)]
    assert codes == [0] * 4, told
    assert sorted(told) == [f"{me} {ref}" for me in range(4) for ref in refs]
    entries = Shelf(tmp_path / "shelf").entries()
    assert [entry.ref for entry in entries] == refs
    assert {entry.tags for entry in entries} == {("by-0", "by-1", "by-2", "by-3")}


OPEN_MANY = """
    from pathlib import Path
    from dovetail.core.errors import ShelfError
    from dovetail.shelf.writing import Homes
    homes = Homes(Path(folder))
    for i in range(60):
        try:
            homes.open(("Net", "net", "NET")[me] + str(i))
        except ShelfError as error:
            tell(error)
"""


@pytest.mark.slow
def test_names_that_differ_by_case_are_not_both_made_by_three_at_once(tmp_path):
    nursery = Nursery(tmp_path, OPEN_MANY, 3)
    nursery.begin()
    told, codes = nursery.end()
    assert codes == [0, 0, 0]
    assert len(told) == 120
    assert all("by its case only" in line for line in told)
    assert len({path.name for path in (tmp_path / "shelf").iterdir()}) == 60


def test_names_that_vanish_under_a_writer_come_back(tmp_path):
    nursery = Nursery(tmp_path, ADD_SOME.format(parts=15, names=1, victims=[]), 1)
    nursery.begin()
    shelf, removed = Shelf(tmp_path / "shelf"), 0
    while nursery.told_path.read_text().count("\n") < 15:
        if "net0" in shelf:
            removed += len(shelf.rm("net0", all_versions=True))
        time.sleep(0.005)
    told, codes = nursery.end()
    assert (len(told), codes) == (15, [0]), told
    assert removed > 0
    assert shelf.verify().ok
    assert list((shelf.folder / ".work").iterdir()) == []


HOLD = """
    from dovetail.shelf.writing import locked
    if me == 0:
        with locked(shelf.folder / "net"):
            tell("held")
            time.sleep(600)
    while os.stat(told).st_size == 0:
        time.sleep(0.001)
    tell(shelf.add(part(me), "net").ref)
"""


def test_a_writer_waits_for_the_lock_and_a_killed_holder_lets_go(shelf, tiny, tmp_path):
    shelf.add(tiny(), "net")
    nursery = Nursery(tmp_path, HOLD, 2)
    nursery.begin()
    while not nursery.told_path.read_text():
        time.sleep(0.001)
    time.sleep(0.3)
    assert len(shelf) == 1
    assert shelf.get("net").digest == tiny().digest  # a reader does not wait
    nursery.kill(0)
    assert nursery.end() == (["held", "net@2"], [-signal.SIGKILL, 0])


def test_a_folder_removed_while_waiting_is_not_mistaken_for_the_new_one(tmp_path, monkeypatch):
    folder = tmp_path / "net"
    folder.mkdir()
    real = writing._wait_for

    def slow(handle):
        real(handle)
        folder.rmdir()
        folder.mkdir()

    monkeypatch.setattr(writing, "_wait_for", slow)
    (tmp_path / "other").mkdir()  # takes the number of the old folder, should the system reuse it
    with pytest.raises(FileNotFoundError), writing.locked(folder):
        pass


def test_without_locks_parts_are_still_added_whole(shelf, tiny, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(writing.fcntl, "flock", refuse)
    assert [shelf.add(tiny(i % 2), "net").ref for i in range(3)] == ["net@1", "net@2", "net@1"]
    monkeypatch.setattr(writing, "fcntl", None)
    assert shelf.add(tiny(), "net", tags=["x"]).tags == ("x",)
    assert shelf.verify().ok
