import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dovetail.core.errors import TaskError
from dovetail.tasks import data_files, image_folder
from dovetail.tasks.image_folder import read_image_folder
from dovetail.tasks.load import load_task
from dovetail.tasks.splits import SPLITS

RNG = np.random.default_rng(0)


def picture(path: Path, size=(6, 8), colour=True, **options) -> np.ndarray:
    shape = (*size, 3) if colour else size
    values = RNG.integers(256, size=shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)
    return values


def pets(folder: Path, count=10, **options) -> dict[str, np.ndarray]:
    return {
        f"{label}/{i:02d}.png": picture(folder / label / f"{i:02d}.png", **options)
        for label in ("cat", "dog")
        for i in range(count)
    }


def test_every_pixel_is_there_in_sorted_order(tmp_path):
    written = pets(tmp_path / "pets")
    task = load_task(tmp_path / "pets")
    assert (task.name, task.classes, task.inputs.dtype) == ("pets", ("cat", "dog"), torch.uint8)
    assert task.inputs.is_contiguous()
    for row, name in enumerate(sorted(written)):
        np.testing.assert_array_equal(task.inputs[row].numpy().transpose(1, 2, 0), written[name])
        assert task.classes[task.targets[row]] == name.split("/")[0]
    assert [task.size(split) for split in SPLITS] == [14, 2, 4]
    assert task.notes == ()


def test_grey_only_if_all_are(tmp_path):
    pets(tmp_path, colour=False)
    assert load_task(tmp_path).input_shape == (1, 6, 8)
    rgb = picture(tmp_path / "dog" / "99.png")
    task = load_task(tmp_path)
    assert task.input_shape == (3, 6, 8)
    np.testing.assert_array_equal(task.inputs[-1].numpy().transpose(1, 2, 0), rgb)
    assert torch.equal(task.inputs[0, 0], task.inputs[0, 2])


@pytest.mark.parametrize("late", [False, True])
def test_a_stranger_anywhere_changes_the_plan(tmp_path, late, monkeypatch):
    """Only a few headers are looked at first; the result must not depend on which."""
    monkeypatch.setattr(image_folder, "_FEW", 2)
    pets(tmp_path, colour=False)
    stranger = tmp_path / "cat" / ("05b.png" if late else "00a.png")
    picture(stranger, size=(12, 16))
    task = load_task(tmp_path)
    assert task.input_shape == (3, 6, 8)
    assert task.notes == ("1 of 21 images were resized and cropped to 6×8",)


@settings(max_examples=12)
@given(st.lists(st.sampled_from([(4, 4), (4, 6), (6, 4)]), min_size=6, max_size=12))
def test_the_most_common_size_wins(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("sizes")
    for i, size in enumerate(sizes):
        picture(folder / f"class{i % 2}" / f"{i:02d}.png", size=size, colour=False)
    counts = Counter(sizes)
    most = max(counts.values())
    task = load_task(folder)
    assert task.input_shape[1:] == max(size for size in counts if counts[size] == most)
    other = len(sizes) - most
    assert bool(task.notes) == (other > 0)
    assert all(note.startswith(f"{other} of ") for note in task.notes)


@pytest.mark.parametrize(("size", "shape"), [(5, (5, 5)), ((4, 9), (4, 9)), ([4, 9], (4, 9))])
def test_the_size_asked_for(tmp_path, size, shape):
    pets(tmp_path)
    assert load_task(tmp_path, size=size).input_shape == (3, *shape)


@pytest.mark.parametrize("size", [0, (4,), (4, -1), (4, 5, 6), "big"])
def test_sizes_that_are_refused(tmp_path, size):
    pets(tmp_path)
    with pytest.raises(TaskError, match="size must be a side or"):
        load_task(tmp_path, size=size)


def test_formats_are_mixed_freely(tmp_path):
    for i, ending in enumerate(("png", "jpg", "JPEG", "webp", "bmp", "PNG") * 2):
        picture(tmp_path / f"class{i % 2}" / f"{i}.{ending}")
    assert load_task(tmp_path).size() == 12


def test_hidden_files_are_passed_over_and_others_counted(tmp_path):
    pets(tmp_path)
    picture(tmp_path / "cat" / ".hidden.png")
    picture(tmp_path / ".cache" / "x.png")
    (tmp_path / "cat" / "notes.txt").write_text("fluffy")
    picture(tmp_path / "loose.png")
    task = load_task(tmp_path)
    assert task.size() == 20
    assert task.notes == ("2 files are no image or in no class folder, ignored",)


def test_folders_below_a_class_belong_to_it(tmp_path):
    pets(tmp_path)
    picture(tmp_path / "cat" / "indoors" / "sofa" / "1.png")
    assert int((load_task(tmp_path).targets == 0).sum()) == 11


def test_links_are_followed_but_not_in_circles(tmp_path):
    pets(tmp_path / "real")
    (tmp_path / "linked").mkdir()
    for label in ("cat", "dog"):
        (tmp_path / "linked" / label).symlink_to(tmp_path / "real" / label)
    (tmp_path / "real" / "cat" / "again").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "cat" / "self").symlink_to(tmp_path / "real" / "cat")
    task = load_task(tmp_path / "linked")
    # "again" leads to the dogs, now below cat, and to cat itself, which is not entered twice
    assert Counter(task.targets.tolist()) == {0: 10 + 10, 1: 10}


def test_a_pipe_is_not_waited_for_and_a_broken_link_is_named(tmp_path):
    pets(tmp_path)
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    assert load_task(tmp_path).size() == 20
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(TaskError, match=r"gone.png: not a readable image \(no such file\)"):
        load_task(tmp_path)


@pytest.mark.parametrize("val", ["val", "validation", "valid"])
def test_the_split_is_that_of_the_folders(tmp_path, val):
    for part, count in (("train", 6), (val, 2), ("test", 3)):
        pets(tmp_path / part, count)
    task = load_task(tmp_path)
    assert [task.size(split) for split in SPLITS] == [12, 4, 6]
    first = np.asarray(Image.open(tmp_path / "test" / "cat" / "00.png")).transpose(2, 0, 1)
    np.testing.assert_array_equal(task.subset("test")[0][0].numpy(), first)


def test_without_a_test_folder_val_tests(tmp_path):
    pets(tmp_path / "train", 10)
    pets(tmp_path / "val", 3)
    task = load_task(tmp_path)
    assert [task.size(split) for split in SPLITS] == [18, 2, 6]
    assert task.notes == ("there is no test folder: val is the test split",)


def test_vehicles_may_be_called_train(tmp_path):
    for label in ("train", "car"):
        for i in range(5):
            picture(tmp_path / label / f"{i}.png")
    assert load_task(tmp_path).classes == ("car", "train")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["train/cat/1.png", "train/dog/1.png", "test/emu/1.png"], "'emu' is in test but not in"),
        (["train/cat/1.png", "train/dog/1.png"], "has train/ but no test/"),
        (["train/cat/1.png", "val/cat/1.png", "valid/cat/1.png"], "both val/ and valid/ name"),
        (["1.png", "2.png"], "holds 2 images and no class folders"),
        (["cat/1.png", "cat/2.png"], "there is one class, 'cat'"),
        (["cat/1.png", "cat/2.png", "dog/1.png"], "class 'dog' has one image"),
        (["cat/1.png", "cat/2.png", "dog/readme.txt"], "dog: a class folder without PNG, JPEG"),
    ],
)
def test_folders_that_are_refused(tmp_path, files, words):
    for file in files:
        if file.endswith(".png"):
            picture(tmp_path / file)
        else:
            (tmp_path / file).parent.mkdir(parents=True)
            (tmp_path / file).write_text("no picture")
    with pytest.raises(TaskError, match=words):
        load_task(tmp_path)


DAMAGE = {
    "empty": lambda data: b"",
    "text": lambda data: b"hello",
    "cut": lambda data: data[: len(data) // 2],
    "header": lambda data: data[:40],
    "bits": lambda data: data[:60] + bytes(30) + data[90:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_image_is_named_or_skipped(tmp_path, damage):
    written = pets(tmp_path)
    bad = tmp_path / "cat" / "04.png"
    bad.write_bytes(DAMAGE[damage](bad.read_bytes()))
    with pytest.raises(TaskError, match=r"cat/04.png: not a readable image.*unreadable='skip'"):
        load_task(tmp_path)
    task = load_task(tmp_path, unreadable="skip")
    assert task.notes == ("1 file is unreadable, skipped: cat/04.png",)
    del written["cat/04.png"]
    rows = np.stack([written[name].transpose(2, 0, 1) for name in sorted(written)])
    np.testing.assert_array_equal(task.inputs.numpy(), rows)
    assert Counter(task.targets.tolist()) == {0: 9, 1: 10}


def test_skipping_keeps_the_split(tmp_path):
    for part, count in (("train", 4), ("val", 3), ("test", 3)):
        pets(tmp_path / part, count)
    for bad in ("train/cat/00", "val/dog/02", "test/cat/00"):
        (tmp_path / f"{bad}.png").write_bytes(b"")
    task = load_task(tmp_path, unreadable="skip")
    assert [task.size(split) for split in SPLITS] == [7, 5, 5]
    for part, split in (("train", "train"), ("val", "validation"), ("test", "test")):
        good = [f for f in sorted((tmp_path / part).rglob("*.png")) if f.stat().st_size]
        rows = np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in good])
        np.testing.assert_array_equal(task.subset(split)[0].numpy(), rows)


def test_nothing_readable_at_all(tmp_path):
    for i in range(4):
        file = tmp_path / f"class{i % 2}" / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
    with pytest.raises(TaskError, match="none of its 4 images can be read"):
        load_task(tmp_path, unreadable="skip")
    with pytest.raises(TaskError, match='must be "refuse" or "skip"'):
        load_task(tmp_path, unreadable="ignore")


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    pets(tmp_path)
    Image.new("1", (200, 200)).save(tmp_path / "cat" / "bomb.png")
    for limit in (30_000, 100):  # Pillow only warns at the first, and raises at the second
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(TaskError, match=r"bomb.png: not a readable image \(Image size"):
            load_task(tmp_path)


def test_too_much_for_memory_says_what_would_fit(tmp_path, monkeypatch):
    pets(tmp_path, size=(60, 80))
    for module in (data_files, image_folder):
        monkeypatch.setattr(module, "MOST_BYTES", 20 * 3 * 30 * 40 + 5)
    with pytest.raises(TaskError, match=r"size=\(30, 40\) would fit"):
        load_task(tmp_path)
    assert load_task(tmp_path, size=(30, 40)).input_shape == (3, 30, 40)


def test_the_fingerprint_depends_on_pixels_and_labels_only(tmp_path):
    pets(tmp_path / "a")
    for file in sorted((tmp_path / "a").rglob("*.png")):
        copy = tmp_path / "b" / file.relative_to(tmp_path / "a")
        copy.parent.mkdir(parents=True, exist_ok=True)
        Image.open(file).save(copy.with_suffix(".bmp"))
    a, b = load_task(tmp_path / "a"), load_task(tmp_path / "b")
    assert a.fingerprint == b.fingerprint
    picture(tmp_path / "b" / "cat" / "00.bmp")
    assert load_task(tmp_path / "b").fingerprint != a.fingerprint


def test_pairs_of_a_flat_folder(tmp_path):
    names = [f"{i:02d}.png" for i in range(12)]
    for name in names:
        picture(tmp_path / "faces" / name)
    lines = [
        f"{a},{b},{'same' if i % 2 else 'different'}"
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    ]
    (tmp_path / "faces" / "pairs.csv").write_text("\n".join(lines))
    task = load_task(tmp_path / "faces", pairs="pairs.csv")
    assert (task.kind, task.given_pairs and len(task.given_pairs)) == ("pairs", 66)
    with pytest.raises(TaskError, match=r"gone\.csv: no such file"):
        read_image_folder(tmp_path / "faces", pairs="gone.csv")


def test_a_class_called_by_a_number_keeps_its_images(tmp_path):
    """Sorted as texts 10 comes before 2, so an index must not be taken for a name."""
    for label in ("2", "10", "1"):
        for i in range(4):
            file = tmp_path / label / f"{i}.png"
            file.parent.mkdir(exist_ok=True)
            Image.new("L", (4, 4), int(label)).save(file)
    task = load_task(tmp_path)
    assert task.classes == ("1", "10", "2")
    shades = [int(image.max()) for image in task.inputs]
    assert [int(task.classes[t]) for t in task.targets] == shades
