"""Adding stays as cheap on a large shelf: what is looked at does not grow with it."""

import os
import time

import pytest

from dovetail.core.errors import ShelfError
from dovetail.shelf import writing
from dovetail.shelf.index import FEW, Index
from dovetail.shelf.store import Shelf
from dovetail.shelf.writing import Homes


@pytest.fixture
def lists(monkeypatch):
    """How often all names are listed."""
    seen = []
    real = writing.names

    def counted(folder):
        seen.append(folder)
        return real(folder)

    monkeypatch.setattr(writing, "names", counted)
    return seen


def counts_folders(folder):
    """Whether this file system counts sub-folders; where not, names are listed each time."""
    before = folder.stat().st_nlink
    (folder / "probe").mkdir()
    after = folder.stat().st_nlink
    (folder / "probe").rmdir()
    return after == before + 1


def test_names_are_listed_once_for_many_new_ones(tmp_path, lists):
    if not counts_folders(tmp_path):
        pytest.skip("this file system does not count sub-folders")
    homes = Homes(tmp_path)
    for i in range(20):
        homes.open(f"net{i}")
        homes.open(f"net{i // 2}")
    assert len(lists) == 1
    assert len(list(tmp_path.iterdir())) == 20


def test_a_name_that_someone_else_made_is_seen(tmp_path):
    homes, others = Homes(tmp_path), Homes(tmp_path)
    for i in range(20):
        homes.open(f"a{i}")
        others.open(f"b{i}")
        with pytest.raises(ShelfError, match=f"'B{i}' differs from 'b{i}' by its case only"):
            homes.open(f"B{i}")


def test_a_name_that_someone_else_removed_is_free(tmp_path):
    homes = Homes(tmp_path)
    homes.open("LeNet").rmdir()
    assert homes.open("lenet").is_dir()


def test_names_that_differ_by_case_already_can_both_go_on(tmp_path):
    for name in ("LeNet", "lenet"):
        (tmp_path / name).mkdir()
    homes = Homes(tmp_path)
    assert [homes.open(name).name for name in ("LeNet", "lenet")] == ["LeNet", "lenet"]
    with pytest.raises(ShelfError, match="by its case only"):
        homes.open("LENET")


def test_a_file_system_that_does_not_count_is_listed_each_time(tmp_path, lists, monkeypatch):
    monkeypatch.setattr(writing, "_stamp", lambda shelf: (1, 1, time.monotonic_ns()))
    homes = Homes(tmp_path)
    for i in range(3):
        homes.open(f"net{i}")
    assert len(lists) == 3


def looked_at(monkeypatch, act):
    """How many files and folders an act looks at."""
    seen = []
    real = {name: getattr(os, name) for name in ("scandir", "lstat", "stat")}

    def scan(*args):
        items = list(real["scandir"](*args))
        seen.extend(items)
        return Scan(items)

    def ask(name):
        return lambda *args, **more: (seen.append(args), real[name](*args, **more))[1]

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        for name in ("lstat", "stat"):
            patch.setattr(os, name, ask(name))
        act()
    return len(seen)


class Scan:
    def __init__(self, items):
        self.items = iter(items)

    def __iter__(self):
        return self.items

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_adding_looks_at_no_more_of_a_larger_shelf(tmp_path, tiny, monkeypatch):
    if not counts_folders(tmp_path):
        pytest.skip("this file system does not count sub-folders")
    shelf, part, costs = Shelf(tmp_path), tiny(), []
    shelf.add(part, "first")
    for more in (0, 200):
        for i in range(more):
            (tmp_path / f"net{more}-{i}" / "1").mkdir(parents=True)
        shelf.add(part, f"warm{more}")
        costs.append(looked_at(monkeypatch, lambda more=more: shelf.add(part, f"new{more}")))
    assert costs[0] > 5
    assert costs[1] == costs[0]


def test_a_few_versions_are_read_without_the_index_of_all(shelf, tiny, monkeypatch):
    shelf.add(tiny(), "net")
    shelf.entries()
    index = Index(shelf.folder)
    monkeypatch.setattr(index, "_stored", lambda: pytest.fail("read the whole index"))
    assert [entry.ref for entry in index.entries("net")] == ["net@1"]
    for i in range(2, FEW + 2):
        (shelf.folder / "net" / str(i)).mkdir()
    with pytest.raises(pytest.fail.Exception):
        Index.entries(index, "net")  # of many, the index knows most


def test_only_versions_after_a_number_are_looked_at(shelf, tiny):
    for seed in range(3):
        shelf.add(tiny(seed), "net")
    assert [e.version for e in Index(shelf.folder).entries("net", after=1)] == [2, 3]
