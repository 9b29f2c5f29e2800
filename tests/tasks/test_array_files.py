import gzip
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.errors import DovetailError, FormatError, TaskError
from dovetail.tasks.array_files import read_idx, read_idx_folder, read_npz
from dovetail.tasks.splits import SPLITS

CODES = {"u1": 8, "i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}


def idx_bytes(array, code=None):
    code = CODES["u1"] if code is None else code
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def mnist_folder(folder, train=30, test=10, ending=""):
    rng = np.random.default_rng(0)
    opener = gzip.open if ending.endswith(".gz") else open
    data = {}
    for part, count in (("train", train), ("t10k", test)):
        data[part] = rng.integers(256, size=(count, 5, 4), dtype=np.uint8)
        for what, array in (
            ("images-idx3", data[part]),
            ("labels-idx1", (np.arange(count) % 3).astype(np.uint8)),
        ):
            with opener(folder / f"{part}-{what}-ubyte{ending}", "wb") as file:
                file.write(idx_bytes(array))
    return data


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("idx") / "file"


typed_arrays = st.sampled_from(sorted(CODES)).flatmap(
    lambda dtype: st.tuples(
        st.just(dtype), hnp.arrays(np.dtype(dtype), hnp.array_shapes(max_dims=4, max_side=5))
    )
)


@given(typed_arrays, st.booleans())
def test_what_is_written_as_idx_is_read_back(scratch, typed, zipped):
    dtype, array = typed
    data = idx_bytes(array, CODES[dtype])
    path = scratch.with_suffix(".gz") if zipped else scratch
    path.write_bytes(gzip.compress(data) if zipped else data)
    found = read_idx(path)
    np.testing.assert_array_equal(found, array)
    assert found.dtype.isnative
    assert found.flags.writeable


GOOD = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an idx file"),
        (GOOD[:3], "not an idx file"),
        (b"\x89PNG" + GOOD, "not an idx file"),
        (b"\0\0\x07\x01" + GOOD[4:], "not an idx file"),
        (b"\0\0\x08\x00", "not an idx file"),
        (GOOD[:9], "truncated in its header"),
        (GOOD[:-1], "truncated"),
        (GOOD + b"\0", "longer than its header says"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "truncated: its header promises"),
    ],
)
def test_idx_files_that_are_refused(tmp_path, data, words, zipped):
    path = tmp_path / ("file.gz" if zipped else "file")
    path.write_bytes(gzip.compress(data) if zipped else data)
    with pytest.raises(FormatError, match=words) as caught:
        read_idx(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("keep", [0, 5, 25, -9, -1])
def test_a_damaged_gzip_is_refused(tmp_path, keep):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(GOOD)[:keep])
    with pytest.raises(FormatError, match=r"file.gz: (damaged gzip|not an idx)"):
        read_idx(path)


def test_a_file_that_only_says_it_is_gzip_is_refused(tmp_path):
    (tmp_path / "file.gz").write_bytes(GOOD)
    with pytest.raises(FormatError, match="damaged gzip"):
        read_idx(tmp_path / "file.gz")


def test_no_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(TaskError, match="no such file"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(FormatError, match="not a plain file"):
        read_idx(tmp_path)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_folder_in_the_layout_of_mnist(tmp_path, ending):
    data = mnist_folder(tmp_path, ending=ending)
    task = read_idx_folder(tmp_path)
    assert [task.size(split) for split in SPLITS] == [27, 3, 10]
    assert (task.name, task.inputs.dtype) == (tmp_path.name, torch.uint8)
    np.testing.assert_array_equal(task.subset("test")[0][:, 0].numpy(), data["t10k"])
    used = torch.cat([task.indices("train"), task.indices("validation")]).sort().values
    np.testing.assert_array_equal(task.inputs[used][:, 0].numpy(), data["train"])


def test_the_other_spelling_of_the_names(tmp_path):
    mnist_folder(tmp_path)
    for file in list(tmp_path.iterdir()):
        file.rename(file.with_name(file.name.replace("-idx", ".idx")))
    assert read_idx_folder(tmp_path).size() == 40


def test_a_missing_file_is_named(tmp_path):
    mnist_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(TaskError, match="t10k-labels-idx1-ubyte not found"):
        read_idx_folder(tmp_path)


def test_images_and_labels_must_belong_together(tmp_path):
    mnist_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(9, np.uint8)))
    with pytest.raises(FormatError, match=r"test images \[10, 5, 4\] and labels \[9\]"):
        read_idx_folder(tmp_path)


def test_train_and_test_images_must_be_of_one_size(tmp_path):
    mnist_folder(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((10, 5, 5), np.uint8)))
    with pytest.raises(FormatError, match=r"train images \(5, 4\) but test images \(5, 5\)"):
        read_idx_folder(tmp_path)


X, Y = np.random.default_rng(0).random((30, 3), np.float32), np.arange(30) % 3


@pytest.mark.parametrize("keys", [("x", "y"), ("X", "y"), ("inputs", "targets")])
def test_whole_arrays_under_any_of_the_names(tmp_path, keys):
    np.savez(tmp_path / "toy.npz", **dict(zip(keys, (X, Y), strict=True)))
    task = read_npz(tmp_path / "toy.npz")
    assert (task.name, task.classes) == ("toy", ("0", "1", "2"))
    np.testing.assert_array_equal(task.inputs.numpy(), X)
    np.testing.assert_array_equal(task.targets.numpy(), Y)


@pytest.mark.parametrize("names", ["xy", "images"])
@pytest.mark.parametrize("validation", [True, False])
def test_split_arrays_keep_their_split(tmp_path, names, validation):
    parts = {"train": slice(0, 20), "val": slice(20, 24), "test": slice(24, 30)}
    if not validation:
        del parts["val"]
    keys = {
        part: (f"x_{part}", f"y_{part}") if names == "xy" else (f"{part}_images", f"{part}_labels")
        for part in parts
    }
    arrays = {}
    for part, (x, y) in keys.items():
        arrays[x], arrays[y] = X[parts[part]], Y[parts[part]]
    np.savez_compressed(tmp_path / "toy.npz", **arrays)
    task = read_npz(tmp_path / "toy.npz")
    np.testing.assert_array_equal(task.subset("test")[0].numpy(), X[24:])
    np.testing.assert_array_equal(task.subset("test")[1].numpy(), Y[24:])
    if validation:
        np.testing.assert_array_equal(task.subset("validation")[0].numpy(), X[20:24])
    else:
        assert (task.size("train"), task.size("validation")) == (17, 3)


def test_the_names_of_the_classes_are_read(tmp_path):
    np.savez(tmp_path / "toy.npz", x=X, y=Y, classes=["ant", "bee", "cat"])
    assert read_npz(tmp_path / "toy.npz").classes == ("ant", "bee", "cat")


@pytest.mark.parametrize(
    ("targets", "kind"),
    [
        (X[:, 0], "regression"),
        ((X > 0.5).astype(int), "multilabel"),
        (Y[:, None], "classes"),
        (np.array(["a", "b", "c"])[Y], "classes"),
    ],
)
def test_the_kind_is_told_by_the_targets(tmp_path, targets, kind):
    np.savez(tmp_path / "toy.npz", x=X, y=targets)
    assert read_npz(tmp_path / "toy.npz").kind == kind


def test_the_kind_asked_for_is_the_kind(tmp_path):
    np.savez(tmp_path / "toy.npz", x=X, y=Y)
    assert read_npz(tmp_path / "toy.npz", kind="regression").kind == "regression"


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz_that_promises(count):
    """An npz whose array claims to be long, with nothing behind the header."""
    file, header = io.BytesIO(), io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    return file.getvalue()


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "damaged or truncated"),
        (b"hello", "pickled objects or no arrays"),
        (pickle.dumps(Bomb()), "pickled objects"),
        (npz(x=X, y=np.array([Bomb()] * 30)), "pickled objects"),
        (npz(x=X, y=Y)[:-40], "damaged or truncated"),
        (npz(x=X, y=Y)[:200], "damaged or truncated"),
        (npz(x=X, y=Y).replace(X.tobytes(), bytes(X.nbytes)), "damaged or truncated"),
        (npz_that_promises(9), "damaged or truncated"),
        (npz_that_promises(1 << 45), r"damaged or truncated: 0 bytes cannot be float32 \(35184"),
        (npy(X), "a single array, not an npz file"),
        (npz(a=X, b=Y), "holds a, b; expected inputs and targets"),
        (npz(), "holds nothing"),
        (npz(x=X, y=Y[:-1]), "30 inputs but 29 targets"),
        (npz(x_train=X, y_train=Y[:-1], x_test=X, y_test=Y), "30 inputs but 29 targets in train"),
        (
            npz(x_train=X, y_train=Y, x_test=X[:, :2], y_test=Y),
            r"do not fit together: train \[30, 3\], test \[30, 2\]",
        ),
    ],
)
def test_npz_files_that_are_refused(tmp_path, data, words):
    (tmp_path / "toy.npz").write_bytes(data)
    with pytest.raises(DovetailError, match=words) as caught:
        read_npz(tmp_path / "toy.npz")
    assert "\n" not in str(caught.value)


def test_no_npz_at_all(tmp_path):
    with pytest.raises(TaskError, match="no such file"):
        read_npz(tmp_path / "toy.npz")
