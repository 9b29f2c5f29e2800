import hashlib
import json

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.tasks import arrays
from dovetail.tasks.derive import only_classes
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.task import SPLITS, Task

X = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 2


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
    assert Task(X, Y).fingerprint == by_hand(Task(X, Y))


def test_more_than_a_block_is_hashed_alike(monkeypatch):
    monkeypatch.setattr(arrays, "_BLOCK", 4 * 16)  # four rows, so splits end within a block
    assert Task(X, Y).fingerprint == by_hand(Task(X, Y))


@given(st.integers(0, 20 * 16 * 4 - 1), st.integers(0, 7))
def test_any_bit_of_the_inputs_counts(place, bit):
    base = Task(X, Y)
    changed = X.clone()
    changed.view(torch.uint8).view(-1)[place] ^= 1 << bit
    if not torch.isfinite(changed).all():
        return
    assert Task(changed, Y).fingerprint != base.fingerprint


def test_targets_classes_kind_split_and_dtype_count():
    swapped = Y.clone()
    swapped[[0, 1]] = Y[[1, 0]]
    same_split = {name: Task(X, Y).indices(name) for name in SPLITS}
    tasks = [
        Task(X, Y),
        Task(X, swapped, split=same_split),
        Task(X, Y, classes=["a", "b"]),
        Task(X, Y, seed=1),
        Task(X, Y, kind="regression"),
        Task(X.flatten(1), Y),
        Task((X * 255).to(torch.uint8), Y),
    ]
    assert len({task.fingerprint for task in tasks}) == len(tasks)


def test_the_name_and_the_origin_do_not_count():
    plain = Task(X, Y, name="a").fingerprint
    assert Task(X.numpy(), Y.numpy(), name="b").fingerprint == plain
    assert Task(X.double(), Y.to(torch.uint8)).fingerprint == plain
    assert Task(np.asfortranarray(X.numpy()), Y.tolist()).fingerprint == plain


def test_the_pairs_count():
    def twins(*same):
        pairs = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor(same))
        split = {"train": range(10), "validation": [], "test": range(10, 20)}
        return Task(X, kind="pairs", pairs=pairs, split=split).fingerprint

    assert twins(True, False) == twins(True, False)
    assert twins(True, False) != twins(True, True)


def test_a_task_that_shares_a_storage_is_the_task_of_its_own_rows():
    y = torch.arange(20) % 4
    shared = only_classes(Task(X, y), ["1", "3"])
    kept = (y % 2 == 1).nonzero()[:, 0]
    split = {name: torch.searchsorted(kept, shared.indices(name)) for name in SPLITS}
    alone = Task(X[kept], y[kept], classes=["1", "3"], split=split)
    assert shared.fingerprint == alone.fingerprint
