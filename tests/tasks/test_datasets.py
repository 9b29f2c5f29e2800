import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from dovetail.core.errors import TaskError
from dovetail.tasks import datasets
from dovetail.tasks.builtin import load_task
from dovetail.tasks.task import SPLITS, Task

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
        datasets.read_dataset(Endless())
    with pytest.raises(TaskError, match="the test data set is a Endless"):
        load_task(Pictures(), test=Endless())
    with pytest.raises(TaskError, match="not from a Endless"):
        load_task(Endless())
    monkeypatch.setattr(datasets, "MOST_BYTES", 1000)
    with pytest.raises(TaskError, match=r"20 items like item 0 .* make them smaller"):
        load_task(Pictures())
