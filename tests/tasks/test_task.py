import hashlib
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import TaskError
from dovetail.tasks import arrays
from dovetail.tasks.derive import only_classes
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.splits import SPLITS
from dovetail.tasks.task import Task

X = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 4


def pair_task():
    first, second = torch.combinations(torch.arange(40)).T
    same = Y[first] == Y[second]
    return Task(X, kind="pairs", pairs=Pairs(first, second, same), name="twins")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            {"inputs": torch.zeros(40, 3, 8, 9), "targets": Y, "name": "toy"},
            "Task('toy', 4 classes, 40 images 3×8×9, train 28 / validation 4 / test 8)",
        ),
        (
            {"inputs": X, "targets": X, "kind": "regression"},
            "Task('task', regression to 3, 40 inputs 3, train 28 / validation 4 / test 8)",
        ),
        (
            {"inputs": X, "targets": X > 0.5, "kind": "multilabel"},
            "Task('task', 3 labels, 40 inputs 3, train 28 / validation 4 / test 8)",
        ),
    ],
)
def test_it_shows_what_it_is(arguments, shown):
    assert repr(Task(**arguments)) == shown


def test_pairs_are_shown_too():
    shown = "Task('twins', 780 pairs, 40 inputs 3, train 28 / validation 4 / test 8)"
    assert repr(pair_task()) == shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"targets": Y, "kind": "clases"}, "unknown kind of task 'clases'; did you mean classes"),
        ({}, "takes targets and no pairs="),
        ({"targets": Y, "kind": "pairs"}, "takes pairs= and no targets"),
        ({"kind": "pairs"}, "takes pairs= and no targets"),
        ({"targets": Y[:-1]}, "40 inputs but 39 targets"),
        ({"targets": torch.zeros(40).long()}, "one class, '0'; a task of classes needs two"),
        ({"targets": [0] * 20 + [1] * 19 + [2]}, "class '2' has one sample"),
        ({"targets": [0, 1] * 20, "classes": "abc"}, "class 'c' has no sample"),
        ({"targets": X, "kind": "regression", "classes": ["a"]}, "has no classes"),
        ({"targets": X * float("nan"), "kind": "regression"}, "target of sample 0 is NaN"),
    ],
)
def test_tasks_that_are_refused(arguments, words):
    with pytest.raises(TaskError, match=words) as caught:
        Task(X, **arguments)
    assert "\n" not in str(caught.value)


def test_the_subsets_are_the_rows_of_the_indices():
    task = Task(X, Y)
    for split in SPLITS:
        inputs, targets = task.subset(split)
        assert torch.equal(inputs, X[task.indices(split)])
        assert torch.equal(targets, Y[task.indices(split)])
        assert len(inputs) == task.size(split)
    assert task.size() == 40


def test_an_empty_split_is_an_empty_subset():
    inputs, targets = Task(X, Y, split=(0.8, 0.0, 0.2)).subset("validation")
    assert inputs.shape == (0, 3)
    assert targets.shape == (0,)


@pytest.mark.parametrize("method", ["indices", "size", "subset", "pairs"])
def test_an_unknown_split_is_refused_with_near_names(method):
    with pytest.raises(TaskError, match="unknown split 'valid'; did you mean validation"):
        getattr(Task(X, Y), method)("valid")


def test_nothing_can_be_set():
    task = Task(X, Y)
    for name in ("name", "classes", "inputs", "targets", "fingerprint", "new"):
        with pytest.raises(AttributeError):
            setattr(task, name, None)


def test_bytes_stay_bytes():
    assert Task(np.zeros((40, 8, 8), np.uint8), Y).inputs.dtype == torch.uint8


@pytest.mark.parametrize(
    ("task", "outputs"),
    [
        (Task(X, Y), 4),
        (Task(X, X > 0.5, kind="multilabel"), 3),
        (Task(X, X[:, 0], kind="regression"), 1),
        (Task(X, X[:, :2], kind="regression"), 2),
        (pair_task(), 0),
    ],
)
def test_the_outputs_a_head_needs(task, outputs):
    assert task.outputs == outputs


def test_pairs_of_classes_stay_in_their_split():
    task = Task(X, Y)
    for split in ("train", "test"):
        pairs = task.pairs(split, count=50)
        assert len(pairs) == 50
        rows = set(task.indices(split).tolist())
        assert set(pairs.first.tolist()) | set(pairs.second.tolist()) <= rows
        assert torch.equal(Y[pairs.first] == Y[pairs.second], pairs.same)
    assert len(task.pairs("train")) == task.size("train")


def test_given_pairs_are_those_with_both_ends_in_the_split():
    task = pair_task()
    for split in SPLITS:
        size = task.size(split)
        assert len(task.pairs(split)) == size * (size - 1) // 2


def test_some_of_the_given_pairs_are_a_seeded_choice():
    task = pair_task()
    one, again, other = (task.pairs("train", count=9, seed=seed) for seed in (1, 1, 2))
    assert len(one) == 9
    assert torch.equal(one.first, again.first)
    assert not torch.equal(one.first, other.first)


def test_regression_has_no_pairs():
    with pytest.raises(TaskError, match="kind 'regression', which has no pairs"):
        Task(X, X, kind="regression").pairs("train")


def test_pairs_of_samples_that_are_not_there_are_refused():
    pairs = Pairs(torch.tensor([0]), torch.tensor([40]), torch.tensor([True]))
    with pytest.raises(TaskError, match="names sample 40, but there are 40"):
        Task(X, kind="pairs", pairs=pairs)


def test_pairs_that_leave_nothing_to_train_on_are_refused():
    pairs = Pairs(torch.tensor([0]), torch.tensor([1]), torch.tensor([True]))
    with pytest.raises(TaskError, match="no pair has both ends in the train split"):
        Task(X, kind="pairs", pairs=pairs, split={"train": [0, 2], "validation": [], "test": [1]})


def test_a_task_survives_pickling():
    task = Task(X, Y, name="toy")
    again = pickle.loads(pickle.dumps(task))
    assert (again.fingerprint, repr(again)) == (task.fingerprint, repr(task))


IMAGES = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 2


def by_hand(task):
    """Everything the task is, joined in one piece, then hashed."""
    header = {
        "kind": task.kind,
        "classes": task.classes,
        "inputs": [str(task.inputs.dtype), *task.input_shape],
        "targets": [str(task.targets.dtype)],
        "sizes": [task.size(split) for split in SPLITS],
    }
    whole = json.dumps(header).encode()
    for split in SPLITS:
        for values in task.subset(split):
            whole += values.numpy().tobytes()
    return hashlib.sha256(whole).hexdigest()


def test_it_is_the_hash_of_everything_joined():
    assert Task(IMAGES, LABELS).fingerprint == by_hand(Task(IMAGES, LABELS))


def test_more_than_a_block_is_hashed_alike(monkeypatch):
    monkeypatch.setattr(arrays, "_BLOCK", 4 * 16)  # four rows, so splits end within a block
    assert Task(IMAGES, LABELS).fingerprint == by_hand(Task(IMAGES, LABELS))


@given(st.integers(0, 20 * 16 * 4 - 1), st.integers(0, 7))
def test_any_bit_of_the_inputs_counts(place, bit):
    base = Task(IMAGES, LABELS)
    changed = IMAGES.clone()
    changed.view(torch.uint8).view(-1)[place] ^= 1 << bit
    if not torch.isfinite(changed).all():
        return
    assert Task(changed, LABELS).fingerprint != base.fingerprint


def test_targets_classes_kind_split_and_dtype_count():
    swapped = LABELS.clone()
    swapped[[0, 1]] = LABELS[[1, 0]]
    same_split = {name: Task(IMAGES, LABELS).indices(name) for name in SPLITS}
    tasks = [
        Task(IMAGES, LABELS),
        Task(IMAGES, swapped, split=same_split),
        Task(IMAGES, LABELS, classes=["a", "b"]),
        Task(IMAGES, LABELS, seed=1),
        Task(IMAGES, LABELS, kind="regression"),
        Task(IMAGES.flatten(1), LABELS),
        Task((IMAGES * 255).to(torch.uint8), LABELS),
    ]
    assert len({task.fingerprint for task in tasks}) == len(tasks)


def test_the_name_and_the_origin_do_not_count():
    plain = Task(IMAGES, LABELS, name="a").fingerprint
    assert Task(IMAGES.numpy(), LABELS.numpy(), name="b").fingerprint == plain
    assert Task(IMAGES.double(), LABELS.to(torch.uint8)).fingerprint == plain
    assert Task(np.asfortranarray(IMAGES.numpy()), LABELS.tolist()).fingerprint == plain


def test_the_pairs_count():
    def twins(*same):
        pairs = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor(same))
        split = {"train": range(10), "validation": [], "test": range(10, 20)}
        return Task(IMAGES, kind="pairs", pairs=pairs, split=split).fingerprint

    assert twins(True, False) == twins(True, False)
    assert twins(True, False) != twins(True, True)


def test_a_task_that_shares_a_storage_is_the_task_of_its_own_rows():
    y = torch.arange(20) % 4
    shared = only_classes(Task(IMAGES, y), ["1", "3"])
    kept = (y % 2 == 1).nonzero()[:, 0]
    split = {name: torch.searchsorted(kept, shared.indices(name)) for name in SPLITS}
    alone = Task(IMAGES[kept], y[kept], classes=["1", "3"], split=split)
    assert shared.fingerprint == alone.fingerprint
