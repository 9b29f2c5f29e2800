import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dovetail.core.errors import TaskError
from dovetail.tasks.builtin import load_task
from dovetail.tasks.catalogue import CATALOGUE
from dovetail.tasks.task import SPLITS


def write_idx(folder, shade=0):
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 40), ("t10k", 20)):
        images = np.full((count, 4, 4), shade, np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        head = struct.pack(">BBBBIII", 0, 0, 8, 3, *images.shape)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">BBBBI", 0, 0, 8, 1, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    return folder


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A machine without any data: an empty home and an empty current folder."""
    monkeypatch.delenv("DOVETAIL_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_digits_are_the_bundled_ones_from_zero_to_one():
    task, bundled = load_task("digits"), load_digits()
    assert (task.input_shape, task.inputs.dtype) == ((1, 8, 8), torch.float32)
    np.testing.assert_allclose(task.inputs[:, 0].numpy() * 16, bundled.images)
    assert [int(task.classes[i]) for i in task.targets] == bundled.target.tolist()
    assert float(task.inputs.max()) == 1.0


def test_the_seed_moves_the_split():
    a, b = load_task("digits", seed=0), load_task("digits", seed=1)
    assert not torch.equal(a.indices("test"), b.indices("test"))


def test_mnist_is_found_in_the_folder_given(nowhere):
    write_idx(nowhere / "mine" / "mnist")
    task = load_task("mnist", data=nowhere / "mine")
    assert (task.name, task.classes) == ("mnist", tuple("0123456789"))
    assert [task.size(split) for split in SPLITS] == [30, 10, 20]  # one at least of each class


def test_the_folders_are_searched_in_the_documented_order(nowhere, monkeypatch):
    def shade():
        return int(load_task("mnist").inputs.max())

    write_idx(nowhere / "home/.local/share/dovetail/mnist", 1)
    assert shade() == 1
    write_idx(nowhere / "here/data/mnist", 2)
    assert shade() == 2
    write_idx(nowhere / "told/mnist", 3)
    monkeypatch.setenv("DOVETAIL_DATA", str(nowhere / "told"))
    assert shade() == 3
    write_idx(nowhere / "given/mnist", 4)
    assert int(load_task("mnist", data=nowhere / "given").inputs.max()) == 4


def test_fashion_has_its_names_and_its_standard_place(nowhere, monkeypatch):
    standard = write_idx(nowhere / "standard")
    there = replace(CATALOGUE["fashion-mnist"], elsewhere=(str(standard),))
    monkeypatch.setitem(CATALOGUE, "fashion-mnist", there)
    task = load_task("fashion-mnist")
    assert task.name == "fashion-mnist"
    assert task.classes[:2] == ("T-shirt/top", "Trouser")
    assert task.classes[9] == "Ankle boot"
    assert task.targets[:10].tolist() == list(range(10))


def test_what_is_not_there_says_what_to_do(nowhere):
    with pytest.raises(TaskError) as caught:
        load_task("mnist", data=nowhere / "mine")
    assert f"looked in {nowhere / 'mine' / 'mnist'})" in str(caught.value)
    command = f"dovetail data get mnist --data {nowhere / 'mine'}"
    assert str(caught.value).endswith(f"run `{command}`")


def test_a_path_to_npz_and_to_idx_files(nowhere):
    np.savez("toy.npz", x=np.zeros((20, 3)), y=np.arange(20) % 2)
    assert load_task("toy.npz").name == "toy"
    folder = write_idx(nowhere / "shapes")
    assert load_task(folder).name == "shapes"
    assert load_task(str(folder)).size() == 60


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("digit", "unknown task 'digit'; did you mean digits"),
        ("fashion", "did you mean fashion-mnist"),
        ("xyz", "unknown task 'xyz'; there is digits, mnist, fashion-mnist"),
        ("no/such", "no/such: no such file or folder"),
        ("toy.npz", "toy.npz: no such file"),
        ("toy.parquet", "toy.parquet: no such file"),
        (".", "cannot read a task from it; these are known: an .npz file; a .csv"),
        ("", "cannot read a task from it"),
        (7, "a name, a path or a map-style data set, not from a int"),
    ],
)
def test_sources_that_are_refused(nowhere, source, words):
    with pytest.raises(TaskError, match=words):
        load_task(source)


@pytest.mark.parametrize(
    ("source", "option", "words"),
    [
        ("digits", "size", "'digits' takes no options; not 'size'"),
        ("mnist", "kind", "'mnist' takes no options"),
        ("toy.npz", "target", "an .npz file takes kind, name; not 'target'"),
        ("toy.csv", "size", "file takes target, kind, drop, missing, name; not 'size'"),
        (["an", "item"], "size", "a data set takes test, classes, kind, name; not 'size'"),
    ],
)
def test_options_of_another_kind_of_source_are_refused(nowhere, source, option, words):
    with pytest.raises(TaskError, match=words):
        load_task(source, **{option: 1})


def test_options_reach_the_reader(nowhere):
    np.savez("toy.npz", x=np.zeros((20, 3)), y=np.arange(20) % 2)
    assert load_task("toy.npz", kind="regression", name="mine").kind == "regression"
    assert load_task(write_idx(nowhere / "shapes"), classes=list("abcdefghij")).classes[2] == "c"
