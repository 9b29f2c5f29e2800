"""Fitting rows that are never held together equals fitting them at once."""

from __future__ import annotations

import re
import weakref

import numpy as np
import pytest
import torch
from forked import meet
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from dovetail.closed_form import Block, PlatonicClassifier, PlatonicRegressor
from dovetail.closed_form.batches import reblocked
from dovetail.core.errors import SettingsError, TaskError

ROWS = 5000  # more than one block


@pytest.fixture(scope="module")
def rows():
    """Eighteen inputs, three classes that no line tells apart, and a number."""
    draw = np.random.default_rng(0)
    x = 3 + draw.normal(size=(ROWS, 18))
    curved = ((x[:, :3] - 3) ** 2).sum(1)
    return x, np.array(["ant", "bee", "cat"])[np.digitize(curved, [1.5, 3.5])], curved


def batches_of(*arrays, size=700):
    return [tuple(each[i : i + size] for each in arrays) for i in range(0, len(arrays[0]), size)]


@pytest.mark.parametrize("solver", ["cholesky", "eigen"])
@pytest.mark.parametrize("projection", ["auto", "random", ("sorted-pca", "pca")])
def test_batches_give_what_all_rows_give(rows, solver, projection):
    x, y, _ = rows
    asked = PlatonicClassifier((24, 16), "relu", projection, ridge=1e-2, solver=solver, ema=0.5)
    whole = asked.fit(x, y).decision_function(x)
    found = asked.fit_batches(batches_of(x, y)).decision_function(x)
    assert abs(found - whole).max() < 1e-8 * abs(whole).max()
    assert asked.classes_.tolist() == ["ant", "bee", "cat"]


@pytest.mark.parametrize("scale", ["each", "together"])
def test_batches_are_scaled_as_all_rows_are(rows, scale):
    x, y, _ = (each[:900] for each in rows)
    table = x * np.logspace(-3, 3, 18)
    table[:, 4] = 7.0
    asked = PlatonicClassifier((24,), ridge=1e-2, solver="cholesky", scale_inputs=scale)
    whole = asked.fit(table, y).decision_function(table)
    found = asked.fit_batches(batches_of(table, y, size=250)).decision_function(table)
    np.testing.assert_allclose(found, whole, atol=1e-8)
    assert asked.coefs_[0].shape == (18, 24)
    assert not asked.coefs_[0][4].any()


def test_numbers_in_batches(rows):
    x, _, y = rows
    several = np.stack([y, 100 - 7 * y], 1)
    net = PlatonicRegressor((24,), ridge=1e-2, solver="cholesky")
    whole = net.fit(x, several).predict(x)
    found = net.fit_batches(batches_of(x, several)).predict(x)
    np.testing.assert_allclose(found, whole, rtol=1e-8, atol=1e-8)
    assert net.fit_batches(batches_of(x, y)).predict(x).shape == (ROWS,)


@pytest.mark.parametrize("size", [1, ROWS])
def test_the_size_of_the_batches_does_not_matter_at_all(rows, size):
    x, y, _ = (each[:ROWS] if size > 1 else each[:90] for each in rows)
    net = PlatonicClassifier((8,), "tanh", ridge=1e-3)
    one = net.fit_batches(batches_of(x, y, size=size)).decision_function(x)
    other = net.fit_batches(batches_of(x, y, size=137)).decision_function(x)
    assert np.array_equal(one, other)


def test_weights_come_with_the_batches(rows):
    x, y, _ = (each[:900] for each in rows)
    weights = np.random.default_rng(1).integers(0, 3, 900)
    net = PlatonicClassifier((8,), "tanh", "random", ridge=1e-2, solver="cholesky")
    copied = net.fit(np.repeat(x, weights, 0), np.repeat(y, weights)).decision_function(x)
    found = net.fit_batches(batches_of(x, y, weights, size=100)).decision_function(x)
    np.testing.assert_allclose(found, copied, atol=1e-8)
    half = [(x[:450], y[:450]), (x[450:], y[450:], np.full(450, 2.0))]  # some without any
    mixed = net.fit_batches(half).decision_function(x)
    whole = net.fit(x, y, np.repeat([1.0, 2.0], 450)).decision_function(x)
    np.testing.assert_allclose(mixed, whole, atol=1e-8)


def test_anything_that_can_be_read_again_will_do(rows):
    x, y, _ = (each[:300] for each in rows)
    codes = (y == "ant").astype(int)
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(codes))
    net = PlatonicClassifier((8,), ridge=1e-2)
    expected = net.fit_batches(batches_of(x, codes)).decision_function(x)
    empty = (x[:0], codes[:0])

    def generator():
        yield from [empty, *batches_of(x.tolist(), codes.tolist(), size=77), empty]

    for source in (DataLoader(data, batch_size=64), generator, [[x, codes]]):
        found = net.fit_batches(source).decision_function(x)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("projection", "ema", "passes"),
    [("random", None, 5), ("sorted-pca", None, 9), (("sorted-pca", "pca"), None, 7)],
)
def test_passes_are_counted(rows, projection, ema, passes):
    x, y, _ = (each[:300] for each in rows)
    asked = []

    def source():
        asked.append(1)
        return batches_of(x, y)

    net = PlatonicClassifier((8, 4), projection=projection, ema=ema).fit_batches(source)
    assert len(asked) == net.record_.passes == passes
    assert net.record_.n == 300


def test_a_batch_is_forgotten_before_the_next_but_one_is_asked_for(rows):
    x, y, _ = (each[:600] for each in rows)
    given = []

    def source():
        for start in range(0, 600, 100):
            assert sum(batch() is not None for batch in given) <= 1
            part = x[start : start + 100].copy()
            given.append(weakref.ref(part))
            yield part, y[start : start + 100]
            del part

    PlatonicClassifier((8,)).fit_batches(source)
    assert len(given) == 6 * 6


def test_given_classes_need_not_all_be_there(rows):
    x, y, _ = (each[:300] for each in rows)
    net = PlatonicClassifier((8,)).fit_batches(
        batches_of(x, y), classes=["cat", "ant", "bee", "yak"]
    )
    assert net.classes_.tolist() == ["ant", "bee", "cat", "yak"]
    assert net.decision_function(x).shape == (300, 4)
    assert "yak" not in net.predict(x)
    with pytest.raises(TaskError, match="'cat' is not among the classes"):
        PlatonicClassifier((8,)).fit_batches(batches_of(x, y), classes=["ant", "bee"])
    with pytest.raises(TaskError, match="one class"):
        PlatonicClassifier((8,)).fit_batches(batches_of(x, y), classes=["ant"])


def once():
    yield [[1.0], [2.0]], [0, 1]


GIVEN = once()
LONGER = [[(np.eye(4), [0, 1, 0, 1])], [(np.eye(4)[:3], [0, 1, 0])]]


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (once(), "the function that makes the generator"),
        (iter([([[1.0]], [0])]), "the function that makes the generator"),
        (lambda: GIVEN, "first pass over the batches gave 2 rows, this one 0"),
        (lambda: LONGER.pop(0), "gave 4 rows, this one 3"),
        (7, "not int"),
        ([], "no rows"),
        (lambda: [], "no rows"),
        ([np.eye(3)], "a batch is .X, y."),
        ([(np.eye(3),)], "not 1 things"),
        ([(np.eye(3), [0, 1])], "3 inputs but 2 targets"),
        ([(np.eye(3), [0, 1, 1]), (np.eye(4), [0, 1, 1, 0])], "4 features"),
        ([(np.eye(2), [0, 1]), (np.full((2, 2), np.nan), [0, 1])], "NaN"),
        ([(np.eye(2), [0, 1]), (np.eye(2), ["a", "b"])], "text in some batches"),
        ([(np.eye(2), [1, 1]), (np.eye(2), [1, 1])], "one class, 1"),
    ],
)
def test_batches_that_make_no_sense_are_refused(batches, said):
    net = PlatonicClassifier((2,))
    with pytest.raises(TaskError, match=said):
        net.fit_batches(batches)
    assert vars(net) == vars(PlatonicClassifier((2,)))


def test_targets_of_several_shapes_are_refused():
    with pytest.raises(TaskError, match=r"follow others of \[n\]"):
        PlatonicRegressor().fit_batches([(np.eye(2), [0, 1]), (np.eye(2), [[0, 1], [1, 0]])])


@pytest.mark.parametrize("solver", ["pinv", "lstsq"])
def test_solvers_of_held_rows_are_refused_before_anything_is_read(solver):
    def source():
        raise AssertionError("nothing should be read")

    with pytest.raises(SettingsError, match="'cholesky', 'eigen' or 'auto'"):
        PlatonicClassifier(solver=solver).fit_batches(source)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=8), st.integers(1, 6), st.integers(0, 255))
def test_blocks_keep_every_row_in_order(counts, size, with_weights):
    total = sum(counts)
    z = torch.arange(total).double()[:, None]
    blocks, start = [], 0
    for i, count in enumerate(counts):
        part = z[start : start + count]
        blocks.append(Block(part, -part, part[:, 0] + 1 if with_weights >> i & 1 else None))
        start += count
    found = list(reblocked(blocks, size))
    assert [len(block.z) for block in found] == [size] * (total // size) + [total % size] * bool(
        total % size
    )
    if total:
        assert torch.equal(torch.cat([block.z for block in found]), z)
        assert torch.equal(torch.cat([block.y for block in found]), -z)
    for block in (block for block in found if block.weights is not None):
        own = block.z[:, 0] + 1
        assert bool(((block.weights == own) | (block.weights == 1)).all())


PROCESS = """
import sys
import numpy as np
import torch
from dovetail.closed_form import PlatonicClassifier, PlatonicRegressor
from dovetail.core.errors import TaskError

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
)
data = np.load(f"{folder}/data.npz")
x, y, numbers = data["x"], data["y"], data["numbers"]
share = slice(None, 200) if rank == 0 else slice(200, None)
net = PlatonicClassifier((12, 6), ridge=1e-2, solver="cholesky")
net.random_state = np.random.default_rng(rank) if rank else 0  # the first process decides
net.fit_batches([(x[share], y[share])], distributed=True)
line = PlatonicRegressor((12,), ridge=1e-2, solver="cholesky")
line.fit_batches([(x[share], numbers[share])], distributed=True)
wrong = ""
try:
    line.fit_batches([(x[share] * (np.nan if rank else 1), numbers[share])], distributed=True)
except TaskError as error:
    wrong = str(error)
np.savez(
    f"{folder}/found{rank}.npz",
    scores=net.decision_function(x),
    classes=net.classes_,
    numbers=line.predict(x),
    n=net.record_.n,
    wrong=wrong,
)
torch.distributed.destroy_process_group()
"""


def test_two_processes_are_one(rows, tmp_path):
    x, y, numbers = (each[:600] for each in rows)
    order = np.argsort(y != "ant", kind="stable")  # neither process sees all classes
    x, y, numbers = x[order], y[order], numbers[order]
    np.savez(tmp_path / "data.npz", x=x, y=y, numbers=numbers)
    meet(PROCESS, tmp_path)
    one, two = (np.load(tmp_path / f"found{rank}.npz") for rank in (0, 1))
    assert set(y[:200]) != set(y[200:])
    for name in ("scores", "classes", "numbers", "n"):
        assert np.array_equal(one[name], two[name])
    assert (one["classes"].tolist(), int(one["n"])) == (["ant", "bee", "cat"], 600)
    asked = {"ridge": 1e-2, "solver": "cholesky"}
    alone = PlatonicClassifier((12, 6), **asked).fit_batches([(x, y)]).decision_function(x)
    np.testing.assert_allclose(one["scores"], alone, atol=1e-8)
    line = PlatonicRegressor((12,), **asked).fit_batches([(x, numbers)]).predict(x)
    np.testing.assert_allclose(one["numbers"], line, atol=1e-8)
    assert "process 1: Input X contains NaN" in str(one["wrong"])  # told to both, none waits
    assert str(one["wrong"]) == str(two["wrong"])


def test_images_of_another_shape_than_those_before_are_refused():
    images = np.random.default_rng(0).random((20, 1, 4, 4))
    y = np.arange(20) % 2
    for shape in ((4, 2, 2), (1, 2, 8), (16,)):
        other = images.reshape(20, *shape)
        said = f"inputs have shape {list(shape)}, those that were fitted [1, 4, 4]"
        with pytest.raises(TaskError, match=re.escape(said)):
            PlatonicClassifier((4,)).fit_batches([(images, y), (other, y)])
