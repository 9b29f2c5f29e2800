"""What is no plain file is refused with what to do instead, whoever reads it."""

import os
import socket

import pytest

from dovetail.core.errors import DovetailError
from dovetail.tasks.array_files import read_arrays, read_idx
from dovetail.tasks.image_files import open_image, read_images
from dovetail.tasks.load import load_task
from dovetail.tasks.new_rows import read_new_rows
from dovetail.tasks.pairs import read_pairs


def header_of(path):
    with open_image(str(path)) as image:
        return image.size


READERS = {
    "a.npz": load_task,
    "a.npy": lambda path: read_arrays(path, single=True),
    "a.csv": load_task,
    "b.csv": read_new_rows,
    "c.csv": lambda path: read_pairs(path, 3),
    "a.parquet": load_task,
    "b.parquet": read_new_rows,
    "train-images-idx3-ubyte": read_idx,
    "train-images-idx3-ubyte.gz": read_idx,
    "a.png": lambda path: read_images([path], channels=1, size=(2, 2)),
    "b.png": header_of,
    "stdin": load_task,
}


def listening(path, kept=[]):  # noqa: B006 (a socket that is collected is gone)
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(str(path))


MAKERS = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to(os.devnull),
    "a socket": listening,
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("what", MAKERS)
def test_what_is_no_plain_file_is_refused(tmp_path, monkeypatch, what, name):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    MAKERS[what](tmp_path.relative_to(tmp_path) / name)
    with pytest.raises(DovetailError) as caught:
        READERS[name](tmp_path / name)
    said = str(caught.value)
    assert said.startswith(str(tmp_path / name)), said
    assert "\n" not in said
    if what == "a folder":
        assert "a folder" in said or "cannot read a task from it" in said
    else:
        assert f"{what}, not a plain file; save what it gives to one and name that" in said


def test_a_sparse_file_larger_than_memory_is_refused_unread(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DovetailError, match=r"a.csv: 1099\.5 GB, more than the 8\.6 that are read"):
        load_task(path)


@pytest.mark.parametrize("ending", ["", ".csv", ".npz", "~grey"])
def test_a_name_too_long_is_refused(tmp_path, ending):
    with pytest.raises(DovetailError, match="File name too long"):
        load_task(f"{tmp_path}/{'a' * 300}{ending}")
