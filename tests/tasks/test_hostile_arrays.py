"""Tricks with npz and idx files: our errors alone, and no memory for what is only promised."""

import bz2
import gzip
import io
import struct
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

from dovetail.core.errors import DovetailError
from dovetail.tasks import data_files
from dovetail.tasks.array_files import read_idx, read_npz

X, Y = np.zeros((20, 3), np.float32), np.arange(20) % 2


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def lying(descr, shape, data=b"", fortran=False, raw=None, version=1):
    header = (
        repr({"descr": descr, "fortran_order": fortran, "shape": shape}) if raw is None else raw
    )
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + data


def packed(members, how=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", how) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def with_x(data):
    return packed([("x.npy", data), ("y.npy", npy(Y))])


def with_y(data):
    return packed([("x.npy", npy(X)), ("y.npy", data)])


def changed(place, value):
    """A good archive with a field of its first directory entry overwritten."""
    data = bytearray(with_x(npy(X)))
    start = data.find(b"PK\1\2") + place
    data[start : start + len(value)] = value
    return bytes(data)


def overlapping():
    data = bytearray(with_x(npy(X)))
    first = data.find(b"PK\1\2")
    second = data.find(b"PK\1\2", first + 4)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    return bytes(data)


F4 = "<f4"
TRICKS = {
    "a huge shape": (with_x(lying(F4, (2**60,))), "0 bytes cannot be float32"),
    "more than 64 bits": (with_x(lying(F4, (2**40, 2**40))), "0 bytes cannot be float32"),
    "nothing, hugely": (with_x(lying(F4, (0, 2**60))), "there are no samples"),
    "nothing, beyond numpy": (with_x(lying(F4, (0, 2**62, 2**62))), "damaged"),
    "huge of nothing": (with_x(lying(F4, (2**60, 0))), "the samples are empty"),
    "negative": (with_x(lying(F4, (-5, 3))), "cannot be float32"),
    "negative twice": (with_x(lying(F4, (-5, -4), bytes(80))), "80 bytes cannot be float32"),
    "a shape of floats": (with_x(lying(F4, (20.0, 3.0), bytes(240))), "damaged"),
    "no tuple": (with_x(lying(F4, "ab")), "damaged"),
    "too long a number": (with_x(lying("", "", raw="{'shape': (" + "9" * 5000)), "damaged"),
    "too deep": (with_x(lying("", "", raw="(" * 900)), "damaged"),
    "code": (with_x(lying("", "", raw="__import__('os')")), "damaged"),
    "a long header": (with_x(lying(F4, (1,) * 3000, version=2)), "damaged"),
    "too many axes": (with_x(lying(F4, (20, *[1] * 64), bytes(80))), "damaged"),
    "records": (with_x(lying([("a", F4)], (20,), bytes(80))), "save numbers or texts"),
    "arrays in arrays": (with_x(lying((F4, (3,)), (20,), bytes(240))), "save numbers or texts"),
    "objects": (with_x(lying("|O", (20,), b"cos\nsystem\n")), "pickled objects"),
    "later version": (with_x(lying(F4, (20,), bytes(80), version=3)), "holds records"),
    "128 bits": (with_x(lying("<f16", (20, 3), bytes(960))), "dtype float128 are not known"),
    "dates": (with_x(lying("<M8[s]", (20, 3), bytes(480))), "are not numbers"),
    "giant texts": (with_y(lying("<U500000000", (20,))), "0 bytes cannot be <U500000000"),
    "no giant text": (with_y(lying("<U500000000", (0,))), "20 inputs but 0 targets"),
    "texts of no length": (with_y(lying("<U0", (2**60,))), "save numbers or texts"),
    "bytes": (with_y(lying("|S3", (20,), b"abc" * 20)), "name no classes"),
    "no alphabet": (with_y(lying("<U1", (20,), b"\xff" * 80)), "a letter in no alphabet"),
    "half a pair": (with_y(lying(">U1", (20,), b"\0\0\xd8\0" * 20)), "a letter in no alphabet"),
    "no list": (with_y(npy(np.array(3))), r"shape \[\]; give one label"),
    "a readme": (packed([("x.npy", npy(X)), ("readme", "")]), "'readme' is no .npy file"),
    "twice": (packed([("x.npy", npy(X))] * 2), "holds 'x.npy' 2 times"),
    "an odd name": (packed([("\x1b[2J", "")]), r"'\\x1b\[2J' is no .npy file"),
    "bz2": (packed([("x.npy", npy(X))], zipfile.ZIP_BZIP2), "not packed as np.savez does"),
    "lzma": (packed([("x.npy", npy(X))], zipfile.ZIP_LZMA), "not packed as np.savez does"),
    "secret": (changed(8, b"\1"), "not packed as np.savez does"),
    "unheard of": (changed(10, b"\x63"), "not packed as np.savez does"),
    "a lying directory": (changed(24, struct.pack("<I", 1 << 31)), "would unpack to 21474"),
    "a little lie": (changed(24, struct.pack("<I", 369)), "241 bytes cannot be float32"),
    "overlapping": (overlapping(), "damaged"),
    "no classes": (
        packed([("x.npy", npy(X)), ("y.npy", npy(Y)), ("classes.npy", npy(np.array(3)))]),
        "classes must be a list",
    ),
    "a lone value": (
        packed(
            [
                (f"{key}.npy", npy(np.array(1.0)))
                for key in ("x_train", "y_train", "x_test", "y_test")
            ]
        ),
        "train holds a single value",
    ),
    "types apart": (
        packed(
            [(f"{key}.npy", npy(X)) for key in ("x_train", "x_test")]
            + [("y_train.npy", npy(np.zeros(20, "M8[s]"))), ("y_test.npy", npy(np.zeros(20)))]
        ),
        "do not fit together",
    ),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_is_refused_in_a_line_and_in_little_memory(tmp_path, trick):
    data, words = TRICKS[trick]
    (tmp_path / "a.npz").write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(DovetailError, match=words) as caught:
            read_npz(tmp_path / "a.npz")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < 8 << 20


def test_columns_first_and_the_other_byte_order_are_read(tmp_path):
    array = np.arange(60.0).reshape(20, 3)
    (tmp_path / "a.npz").write_bytes(
        with_x(lying(">f8", (20, 3), array.T.astype(">f8").tobytes(), fortran=True))
    )
    np.testing.assert_array_equal(read_npz(tmp_path / "a.npz").inputs.numpy(), array)


def test_what_bz2_packs_is_not_even_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(bz2, "BZ2Decompressor", lambda: pytest.fail("unpacked"))
    (tmp_path / "a.npz").write_bytes(packed([("x.npy", npy(X))], zipfile.ZIP_BZIP2))
    with pytest.raises(DovetailError):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (bytes([0, 0, 8, 255]) + b"\0\0\0\1" * 255 + b"1", "255 axes, more than the 32"),
        (bytes([0, 0, 8, 4]) + bytes(4) + b"\xff" * 12, "holds no values"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 0]), "holds no values"),
    ],
)
def test_idx_shapes_that_are_refused(tmp_path, header, words):
    (tmp_path / "file").write_bytes(header)
    with pytest.raises(DovetailError, match=words):
        read_idx(tmp_path / "file")


def test_a_gzip_bomb_that_keeps_its_promise_is_refused_too(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "_LARGE", 1 << 16)
    data = bytes([0, 0, 8, 1]) + struct.pack(">I", 1 << 20) + bytes(1 << 20)
    (tmp_path / "file.gz").write_bytes(gzip.compress(data))
    with pytest.raises(DovetailError, match=r"would unpack to 1048576; .* unzip it first"):
        read_idx(tmp_path / "file.gz")
