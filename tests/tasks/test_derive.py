import itertools
import math

import pytest
import torch

from dovetail.core.errors import TaskError
from dovetail.tasks import arrays
from dovetail.tasks.arrays import as_float
from dovetail.tasks.augment import resize, turn
from dovetail.tasks.derive import (
    binary_pairs,
    blurred,
    common_classes,
    few,
    grey,
    inverted,
    noisy,
    only_classes,
    resized,
    rotated,
    rotations,
)
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.splits import SPLITS
from dovetail.tasks.task import Task

NAMES = ("ant", "bee", "cat", "dog")
LABELS = torch.arange(80) % 4


def images(dtype=torch.float32, height=6, width=6):
    bytes_ = torch.randint(
        256, (80, 1, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    inputs = bytes_ if dtype == torch.uint8 else bytes_ / 255
    return Task(inputs, LABELS, classes=NAMES, name="zoo")


def vectors():
    return Task(torch.rand(80, 3), LABELS, classes=NAMES, name="rows")


def numbers():
    return Task(torch.rand(80, 1, 4, 4), torch.rand(80), kind="regression", name="numbers")


def named(task, split):
    """The examples of a split as pairs of pixels and class names, whatever the indices."""
    inputs, targets = task.subset(split)
    classes = [task.classes[i] for i in targets]
    return [(x.flatten().tolist(), y) for x, y in zip(inputs, classes, strict=True)]


def test_only_classes_keeps_the_examples_of_those_names():
    task = images()
    some = only_classes(task, ["dog", "bee"])
    assert (some.name, some.classes) == ("zoo[dog,bee]", ("dog", "bee"))
    assert some.inputs.data_ptr() == task.inputs.data_ptr()
    for split in SPLITS:
        kept = [(x, y) for x, y in named(task, split) if y in ("dog", "bee")]
        assert named(some, split) == kept


def test_choosing_twice_is_choosing_once():
    task = images()
    twice = only_classes(only_classes(task, ["dog", "bee", "ant"]), ["ant", "dog"])
    assert twice.fingerprint == only_classes(task, ["ant", "dog"]).fingerprint


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (["ant", "bea"], "'zoo' has no class 'bea'; did you mean bee"),
        (["ant"], "needs two, and of 'zoo' only 'ant' was kept"),
        ([], "needs two, and of 'zoo' none was kept"),
        (["ant", "ant"], "'ant' is named twice"),
    ],
)
def test_choices_of_classes_that_are_refused(classes, words):
    with pytest.raises(TaskError, match=words):
        only_classes(images(), classes)


def test_binary_pairs_are_every_pair_once():
    found = [task.classes for task in binary_pairs(images())]
    assert found == list(itertools.combinations(NAMES, 2))


def test_a_limit_draws_some_of_them_with_the_seed():
    draws = [tuple(t.classes for t in binary_pairs(images(), 3, seed=s)) for s in (0, 0, 1, 2, 3)]
    assert all(len(set(draw)) == 3 for draw in draws)
    assert draws[0] == draws[1]
    assert len(set(draws)) > 1
    assert len(binary_pairs(images(), 99)) == 6
    with pytest.raises(TaskError, match="limit of pairs must be at least 1"):
        binary_pairs(images(), 0)


def test_few_takes_as_many_of_each_class_from_train_only():
    task = images()
    shot = few(task, 3, seed=1)
    assert shot.name == "zoo~3shot"
    assert torch.bincount(shot.subset("train")[1]).tolist() == [3, 3, 3, 3]
    assert set(shot.indices("train").tolist()) <= set(task.indices("train").tolist())
    for split in ("validation", "test"):
        assert torch.equal(shot.indices(split), task.indices(split))
    assert torch.equal(shot.indices("train"), few(task, 3, seed=1).indices("train"))
    assert not torch.equal(shot.indices("train"), few(task, 3, seed=2).indices("train"))


@pytest.mark.parametrize(
    ("per_class", "words"), [(0, "at least 1"), (15, "has 14 of class 'ant' in train, not 15")]
)
def test_numbers_of_shots_that_are_refused(per_class, words):
    with pytest.raises(TaskError, match=words):
        few(images(), per_class)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_four_quarter_turns_are_the_task_again(dtype):
    task = images(dtype, height=4, width=7)
    turned = task
    for _ in range(4):
        turned = rotated(turned, 90)
    assert rotated(task, 90).input_shape == (1, 7, 4)
    assert turned.name == "zoo~rot90~rot90~rot90~rot90"
    assert turned.fingerprint == task.fingerprint
    assert rotated(task, -90).fingerprint == rotated(task, 270).fingerprint


def test_another_angle_is_that_turn_of_every_image():
    task = rotated(images(), 30)
    assert task.name == "zoo~rot30"
    torch.testing.assert_close(task.inputs, turn(images().inputs, 30.0))


@pytest.mark.parametrize("change", [lambda t: rotated(t, 30), lambda t: resized(t, 4)])
def test_bytes_are_rounded_once(change):
    exact, stored = change(images()), change(images(torch.uint8))
    assert stored.inputs.dtype == torch.uint8
    assert (as_float(stored.inputs) - exact.inputs).abs().max() <= 0.5 / 255 + 1e-6


def test_rotations_are_four_copies_that_stay_in_their_split():
    task = images(torch.uint8)
    turned = rotations(task)
    assert turned.classes == ("0°", "90°", "180°", "270°")
    assert turned.inputs.dtype == torch.uint8
    for split in SPLITS:
        expected = [
            (torch.rot90(x, quarter, (1, 2)).flatten().tolist(), f"{90 * quarter}°")
            for quarter in range(4)
            for x in task.subset(split)[0]
        ]
        assert named(turned, split) == expected


def test_rotations_of_a_part_of_the_data_are_of_that_part():
    turned = rotations(only_classes(images(), ["ant", "bee"]))
    assert len(turned.inputs) == turned.size() == 160


def test_rotations_need_no_labels():
    assert rotations(numbers()).kind == "classes"


def test_noise_has_the_spread_asked_for_and_the_seed():
    task = Task(torch.zeros(80, 1, 20, 20), LABELS, name="black")
    noise = noisy(task, 0.25, seed=1)
    assert noise.name == "black~noise0.25"
    assert abs(float(noise.inputs.std()) - 0.25) < 0.005
    assert abs(float(noise.inputs.mean())) < 0.005
    assert noise.fingerprint == noisy(task, 0.25, seed=1).fingerprint
    assert noise.fingerprint != noisy(task, 0.25, seed=2).fingerprint


def test_noise_on_bytes_is_clipped_and_does_not_wrap():
    for value in (0, 255):
        task = Task(torch.full((80, 1, 8, 8), value, dtype=torch.uint8), LABELS)
        change = noisy(task, 0.05).inputs.int() - value
        assert change.abs().max() < 90
        assert change.abs().max() > 0


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_spreads_that_are_refused(std):
    with pytest.raises(TaskError, match="std must be positive"):
        noisy(images(), std)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_inverting_adds_up_to_white_and_twice_is_nothing(dtype):
    task = images(dtype)
    once = inverted(task)
    assert once.name == "zoo~inverted"
    torch.testing.assert_close(
        as_float(once.inputs) + as_float(task.inputs), torch.ones(80, 1, 6, 6)
    )
    torch.testing.assert_close(inverted(once).inputs, task.inputs)


@pytest.mark.parametrize(("size", "shape"), [(3, (1, 3, 3)), ((9, 2), (1, 9, 2))])
def test_resizing_is_of_every_image(size, shape):
    task = resized(images(), size)
    assert (task.input_shape, task.name) == (shape, f"zoo~{shape[1]}x{shape[2]}")
    torch.testing.assert_close(task.inputs, resize(images().inputs, *shape[1:]))


def test_a_size_of_nothing_is_refused():
    with pytest.raises(TaskError, match="size must be at least 1"):
        resized(images(), 0)


def test_pixels_are_changed_for_the_rows_in_use_only():
    task = only_classes(images(), ["bee", "dog"])
    negative = inverted(task)
    assert len(negative.inputs) == negative.size() == 40
    for split in SPLITS:
        before, after = task.subset(split), negative.subset(split)
        assert torch.equal(after[0], 1 - before[0])
        assert torch.equal(after[1], before[1])


def test_large_data_is_changed_block_by_block_alike(monkeypatch):
    task = images()
    whole = resized(task, 4).inputs
    monkeypatch.setattr(arrays, "_BLOCK", 3 * 6 * 6)  # three images, so a rest of two
    torch.testing.assert_close(resized(task, 4).inputs, whole)


def test_pairs_follow_their_rows():
    pairs = Pairs(torch.tensor([2, 9]), torch.tensor([4, 2]), torch.tensor([True, False]))
    split = {"train": [2, 4, 9], "validation": [], "test": [1]}
    task = Task(images().inputs, kind="pairs", pairs=pairs, split=split)
    negative = inverted(task)
    found = negative.pairs("train")
    assert len(negative.inputs) == 4
    assert torch.equal(negative.inputs[found.first], 1 - task.inputs[[2, 9]])
    assert torch.equal(negative.inputs[found.second], 1 - task.inputs[[4, 2]])


def test_common_classes_have_the_same_names_in_the_same_order():
    a = images()
    b = Task(a.inputs, [("dog", "emu", "bee", "fox")[i] for i in LABELS], name="farm")
    left, right = common_classes(a, b)
    assert left.classes == right.classes == ("bee", "dog")
    assert (left.name, right.name) == ("zoo[bee,dog]", "farm[bee,dog]")
    assert {y for _, y in named(right, "test")} == {"bee", "dog"}


@pytest.mark.parametrize(
    ("names", "words"), [("dxyz", "only class 'd'"), ("wxyz", "no class in common")]
)
def test_too_few_common_classes_are_refused(names, words):
    a = Task(torch.rand(80, 2), LABELS, classes="abcd", name="a")
    b = Task(torch.rand(80, 2), LABELS, classes=names, name="b")
    with pytest.raises(TaskError, match=words):
        common_classes(a, b)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: rotated(t, 90),
        rotations,
        inverted,
        lambda t: resized(t, 4),
    ],
)
def test_what_needs_images_says_so(change):
    with pytest.raises(TaskError, match=r"'rows' has inputs \[3\]; this needs images"):
        change(vectors())


@pytest.mark.parametrize(
    "change",
    [
        lambda t: only_classes(t, ["a", "b"]),
        binary_pairs,
        lambda t: few(t, 1),
        lambda t: common_classes(images(), t),
    ],
)
def test_what_needs_classes_says_so(change):
    with pytest.raises(TaskError, match="'numbers' is of kind 'regression'; this needs classes"):
        change(numbers())


def test_turning_an_oblong_by_its_content_needs_a_square():
    with pytest.raises(TaskError, match="4×7; turning needs square ones"):
        rotations(images(height=4, width=7))


@pytest.mark.parametrize(
    "change",
    [lambda t: rotated(t, 30), inverted, lambda t: noisy(t, 1.0), lambda t: few(t, 1), rotations],
)
def test_the_task_given_is_left_alone(change):
    task = images(torch.uint8)
    before = task.inputs.clone(), task.targets.clone(), repr(task)
    change(task)
    assert torch.equal(task.inputs, before[0])
    assert torch.equal(task.targets, before[1])
    assert repr(task) == before[2]


def test_blurred_is_a_weighted_mean_of_neighbours():
    task = images()
    found = blurred(task, 0.7).inputs
    reach, sigma = 3, 0.7
    weight = [math.exp(-(k**2) / (2 * sigma**2)) for k in range(-reach, reach + 1)]
    total = sum(weight)
    image = as_float(task.inputs)[0, 0]
    height, width = image.shape

    def at(row, column):
        return float(image[min(max(row, 0), height - 1), min(max(column, 0), width - 1)])

    for row, column in ((0, 0), (height // 2, width - 1)):
        slow = sum(
            weight[i] * weight[j] / total**2 * at(row + i - reach, column + j - reach)
            for i in range(2 * reach + 1)
            for j in range(2 * reach + 1)
        )
        assert float(as_float(found)[0, 0, row, column]) == pytest.approx(slow, abs=1 / 255)
    with pytest.raises(TaskError, match="positive number of pixels"):
        blurred(task, 0.0)


def test_grey_keeps_the_channels_and_drops_the_colours():
    colours = Task(torch.rand(8, 3, 4, 4), [0, 1] * 4)
    found = grey(colours)
    assert found.input_shape == colours.input_shape
    assert torch.allclose(found.inputs, colours.inputs.mean(1, keepdim=True).expand(-1, 3, -1, -1))
