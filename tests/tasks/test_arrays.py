import numpy as np
import pytest
import torch

from dovetail.core.errors import TaskError
from dovetail.tasks.arrays import (
    as_float,
    blocks,
    class_targets,
    clean_inputs,
    multilabel_targets,
    number_targets,
    take_rows,
)


def test_every_byte_as_a_float_is_its_255th():
    every = torch.arange(256, dtype=torch.uint8)
    expected = torch.tensor([byte / 255 for byte in range(256)])
    assert torch.equal(as_float(every), expected)
    assert torch.equal(every, torch.arange(256, dtype=torch.uint8))  # and its argument is unharmed


def test_floats_are_passed_on_without_a_copy():
    x = torch.rand(3, 2)
    assert as_float(x) is x


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ((5, 7), (5, 7)),
        ((5, 8, 9), (5, 1, 8, 9)),
        ((5, 8, 9, 3), (5, 3, 8, 9)),
        ((5, 8, 9, 1), (5, 1, 8, 9)),
        ((5, 3, 8, 9), (5, 3, 8, 9)),
        ((5, 3, 8, 3), (5, 3, 8, 3)),  # ambiguous, so taken as documented: channels first
        ((5, 16, 8, 9), (5, 16, 8, 9)),
    ],
)
def test_shapes_are_read_as_documented(given, stored):
    array = np.arange(np.prod(given), dtype=np.float32).reshape(given)
    assert clean_inputs(array).shape == stored


def test_channels_last_moves_every_value_to_its_place():
    array = np.random.default_rng(0).random((2, 4, 5, 3), dtype=np.float32)
    tensor = clean_inputs(array)
    for n, y, x, c in np.ndindex(array.shape):
        assert tensor[n, c, y, x] == array[n, y, x, c]


@pytest.mark.parametrize("dtype", ["float64", "float16", ">f4", "int64", "bool"])
def test_numbers_become_float32(dtype):
    array = (np.arange(6).reshape(3, 2) % 2).astype(dtype)
    tensor = clean_inputs(array)
    assert tensor.dtype == torch.float32
    assert tensor.tolist() == [[0, 1], [0, 1], [0, 1]]


def test_bytes_and_float32_share_the_memory_given():
    for dtype in (np.uint8, np.float32):
        array = np.zeros((3, 4), dtype)
        assert clean_inputs(array).data_ptr() == array.ctypes.data


def test_a_read_only_array_is_copied():
    array = np.zeros((3, 4), np.float32)
    array.flags.writeable = False
    assert clean_inputs(array).data_ptr() != array.ctypes.data


def test_reversed_arrays_are_read_in_their_order():
    array = np.arange(6, dtype=np.float32).reshape(3, 2)[::-1]
    assert clean_inputs(array).tolist() == [[4, 5], [2, 3], [0, 1]]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((0, 3)), "no samples"),
        (np.zeros((3, 0)), "samples are empty"),
        (np.zeros(3), r"shape \[3\]; give"),
        (np.array([["a"]]), "not numbers"),
        (np.array([[object()]]), "dtype object are not numbers"),
        (np.zeros((2, 2), complex), "not real"),
        (torch.zeros(2, 2, dtype=torch.complex64), "not real"),
        (np.zeros((2, 4, 4), np.int64), "images of dtype int64 have no known scale"),
        (np.zeros((2, 4, 4), np.uint16), "images of dtype uint16"),
        ([[1.0], [1.0, 2.0]], "ragged"),
        (np.full((2, 2), 1e300), "sample 0 is NaN or infinite"),
    ],
)
def test_inputs_that_are_refused(inputs, words):
    with pytest.raises(TaskError, match=words):
        clean_inputs(inputs)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_sample_that_is_not_finite_is_named(bad):
    images = np.zeros((9, 2, 3), np.float32)
    images[5, 1, 2] = images[7, 0, 0] = bad
    with pytest.raises(TaskError, match="sample 5 is NaN or infinite"):
        clean_inputs(images)


def test_a_sample_far_behind_is_named_too():
    rows = torch.zeros(5, 1 << 21)  # two rows a block
    rows[4, 9] = float("nan")
    with pytest.raises(TaskError, match="sample 4 is"):
        clean_inputs(rows)


@pytest.mark.parametrize("count", [0, 1, 5, None])
def test_blocks_cover_every_row_once(count):
    values = torch.empty(7, 1 << 20)
    rows = [i for part in blocks(values, count) for i in range(part.start, part.stop)]
    assert rows == list(range(7 if count is None else count))


@pytest.mark.parametrize("index", [[], [2], [1, 2, 3], [0, 2, 5]])
def test_take_rows_is_indexing(index):
    values = torch.rand(6, 2)
    assert torch.equal(take_rows(values, torch.tensor(index).long()), values[index])


def test_consecutive_rows_are_a_view():
    values = torch.rand(6, 2)
    assert take_rows(values, torch.arange(2, 5)).data_ptr() == values[2].data_ptr()


@pytest.mark.parametrize(
    ("targets", "classes", "codes", "names"),
    [
        ([10, 2, 10], None, [1, 0, 1], ("2", "10")),  # numerically, not "10" < "2"
        (["b", "a", "b"], None, [1, 0, 1], ("a", "b")),
        (np.array(["b", "a"], object), None, [1, 0], ("a", "b")),
        ([False, True], None, [0, 1], ("False", "True")),
        ([1.0, 0.0], None, [1, 0], ("0", "1")),
        ([[3], [1]], None, [1, 0], ("1", "3")),
        (["a", "b"], ["b", "a"], [1, 0], ("b", "a")),
        ([0, 1], ["b", "a"], [0, 1], ("b", "a")),
        ([7, 3], ["3", "7"], [1, 0], ("3", "7")),
        ([7, 3], [3, 7], [1, 0], ("3", "7")),
        (torch.tensor([2, 0]), None, [1, 0], ("0", "2")),
    ],
)
def test_labels_become_indices(targets, classes, codes, names):
    found, given = class_targets(targets, classes)
    assert (found.tolist(), found.dtype, given) == (codes, torch.int64, names)


@pytest.mark.parametrize(
    ("targets", "classes", "words"),
    [
        (["cat", "dgo"], ["cat", "dog"], "unknown class 'dgo'; did you mean dog"),
        ([0, 2], ["cat", "dog"], "target 2 is neither"),
        ([-1, 0], ["cat", "dog"], "target -1 is neither"),
        ([0, 1], ["cat", "cat"], "'cat' is named twice"),
        ([0.5, 1], None, 'say kind="regression"'),
        ([float("nan"), 1], None, "not whole numbers"),
        ([[1, 0], [0, 1]], None, "argmax"),
        (np.array([1, None]), None, "dtype object name no classes"),
        ([1j, 0], None, "complex128 name no classes"),
    ],
)
def test_labels_that_are_refused(targets, classes, words):
    with pytest.raises(TaskError, match=words):
        class_targets(targets, classes)


@pytest.mark.parametrize("targets", [[[0, 2]], [0, 1], [[0.5, 1]], [[float("nan"), 1]]])
def test_multilabel_takes_zeros_and_ones_only(targets):
    with pytest.raises(TaskError, match="zeros and ones"):
        multilabel_targets(targets, None)


def test_multilabel_names_must_be_as_many_as_columns():
    with pytest.raises(TaskError, match="2 columns of targets but 3 names"):
        multilabel_targets([[0, 1]], ["a", "b", "c"])


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ([0.0, float("nan")], "target of sample 1 is NaN"),
        ([[0.0, 1.0], [float("inf"), 1.0]], "target of sample 1 is NaN"),
        (np.zeros((2, 2, 2)), r"shape \[2, 2, 2\]"),
        (["a"], "targets of dtype"),
    ],
)
def test_regression_targets_that_are_refused(targets, words):
    with pytest.raises(TaskError, match=words):
        number_targets(targets)
