import struct

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import IterableDataset, TensorDataset

from dovetail.core.errors import TaskError
from dovetail.tasks import data_files
from dovetail.tasks.known import KNOWN
from dovetail.tasks.load import load_task, read_dataset
from dovetail.tasks.splits import SPLITS
from dovetail.tasks.task import Task


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
    monkeypatch.setitem(KNOWN["fashion-mnist"], "elsewhere", (str(standard),))
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


X = torch.rand(20, 3, 6, 5)


class Pictures:
    """As torchvision's: PIL images with a target, and the names of the classes."""

    classes = ("zebra", "ant")

    def __init__(self, count=20, mode="RGB", size=(5, 6)):
        rng = np.random.default_rng(0)
        shape = (count, *size[::-1], 3) if mode == "RGB" else (count, *size[::-1])
        self.values = rng.integers(256, size=shape, dtype=np.uint8)
        self.reads = []

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        self.reads.append(i)
        return Image.fromarray(self.values[i]), i % 2


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_with_names(mode):
    dataset = Pictures(mode=mode)
    task = load_task(dataset)
    assert (task.name, task.classes, task.kind) == ("Pictures", ("zebra", "ant"), "classes")
    assert task.targets.tolist() == [0, 1] * 10
    expected = dataset.values.transpose(0, 3, 1, 2) if mode == "RGB" else dataset.values[:, None]
    np.testing.assert_array_equal(task.inputs.numpy(), expected)
    assert dataset.reads == list(range(20))


def test_tensors_are_read_as_they_are():
    task = load_task(TensorDataset(X, torch.arange(20) % 4), name="toy")
    assert torch.equal(task.inputs, X)
    assert (task.name, task.classes) == ("toy", ("0", "1", "2", "3"))
    direct = Task(X, torch.arange(20) % 4)
    assert task.fingerprint == direct.fingerprint


@pytest.mark.parametrize(
    "make", [np.asarray, torch.as_tensor, list], ids=["array", "tensor", "list"]
)
def test_rows_of_numbers(make):
    rows = [([float(i), 2.0], i % 2) for i in range(20)]
    task = load_task([(make(x), y) for x, y in rows])
    assert task.inputs.tolist() == [x for x, _ in rows]


@pytest.mark.parametrize(
    ("targets", "kind", "shape"),
    [
        ([i % 2 for i in range(20)], "classes", ()),
        ([torch.tensor(i % 2) for i in range(20)], "classes", ()),
        ([["ant", "bee"][i % 2] for i in range(20)], "classes", ()),
        ([i / 2 for i in range(20)], "regression", ()),
        ([torch.tensor([i / 2, 1.5]) for i in range(20)], "regression", (2,)),
        ([[i % 2, 1, 0] for i in range(20)], "multilabel", (3,)),
        ([np.array([True, False])] * 20, "multilabel", (2,)),
    ],
)
def test_the_kind_is_told_by_the_targets(targets, kind, shape):
    task = load_task(list(zip(X, targets, strict=True)))
    assert (task.kind, task.targets.shape[1:]) == (kind, shape)


def test_a_test_set_is_the_test_split():
    train, test = Pictures(20), Pictures(6)
    task = load_task(train, test=test)
    assert [task.size(split) for split in SPLITS] == [18, 2, 6]
    np.testing.assert_array_equal(task.subset("test")[0].numpy(), test.values.transpose(0, 3, 1, 2))


def test_an_index_is_not_mistaken_for_a_name():
    """Classes called 1 and 0, in that order: target 0 means the class called 1."""
    task = load_task([(x, i % 2) for i, x in enumerate(X)], classes=["1", "0"])
    assert [task.classes[t] for t in task.targets[:2]] == ["1", "0"]


class Broken(Pictures):
    def __getitem__(self, i):
        if i == 7:
            raise KeyError("no such row\nat all")
        return super().__getitem__(i)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


def items(position, item):
    made = [(x, i % 2) for i, x in enumerate(X)]
    made[position] = item
    return made


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ([], "the data set has no items"),
        (
            items(7, (X[0, :2], 1)),
            r"item 7 of the train data set is float32 \[2, 6, 5\], the first",
        ),
        (items(3, X[0]), "item 3 of the train data set is a Tensor, not a pair"),
        (items(3, (X[0], 1, 2)), "item 3 of the train data set is a tuple, not a pair"),
        (items(5, ("text", 1)), "item 5 of the train data set is not made of numbers"),
        (items(5, (X[0], object())), "item 5 .* not made of numbers: a target of type object"),
        (items(5, (X[0], [0, 1])), "the target of item 5 .* has another shape"),
        (items(5, (X[0].byte(), 1)), "item 5 .* is uint8"),
        (Broken(), "item 7 of the train data set cannot be read"),
    ],
)
def test_data_sets_that_are_refused(dataset, words):
    with pytest.raises(TaskError, match=words):
        load_task(dataset)


def test_more_refusals(monkeypatch):
    with pytest.raises(TaskError, match="target 1 of item 1 is no index of the 1 classes"):
        load_task(Pictures(), classes=["one"])
    with pytest.raises(TaskError, match="a Endless without len"):
        read_dataset(Endless())
    with pytest.raises(TaskError, match="the test data set is a Endless"):
        load_task(Pictures(), test=Endless())
    with pytest.raises(TaskError, match="not from a Endless"):
        load_task(Endless())
    monkeypatch.setattr(data_files, "MOST_BYTES", 1000)
    with pytest.raises(TaskError, match=r"20 items like item 0 .* make them smaller"):
        load_task(Pictures())
