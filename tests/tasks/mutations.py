"""Good data files of every sort, and ways to damage them that are the same in every run."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from dovetail.tasks.array_files import read_idx, read_npz
from dovetail.tasks.image_files import read_images
from dovetail.tasks.new_rows import read_new_rows
from dovetail.tasks.pairs import read_pairs
from dovetail.tasks.tables import read_table

TELLING = (0, 1, 0x7F, 0x80, 0xFF, *b'",;\n\r\0\x1b')


class Sort(NamedTuple):
    """A sort of file: the ending that it needs, a good one, and who reads it."""

    ending: str
    good: bytes
    read: Callable[[Path], Any]


def mutations(good: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Damaged copies: bytes changed, cut off, left out, repeated or brought from elsewhere."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            place, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
            piece = bytes(data[other : other + rng.choice((1, 2, 4, 8, 64))])
            way = rng.randrange(6)
            if way == 0 and place < len(data):
                data[place] ^= 1 << rng.randrange(8)
            elif way == 1 and place < len(data):
                data[place] = rng.choice(TELLING)
            elif way == 2:
                del data[place:]
            elif way == 3:
                del data[place : place + len(piece)]
            elif way == 4:
                data[place:place] = piece * rng.choice((1, 1, 1000))
            else:
                data[place : place + len(piece)] = piece
        yield bytes(data)


def sorts() -> dict[str, Sort]:
    """Every sort of data file; those that need pyarrow only where it is installed."""
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    text = "a,town,y\n" + "".join(
        f"{i},{'Bonn' if i % 3 else 'Ulm'},{'pq'[i % 2]}\n" for i in range(20)
    )
    names = [f"{i}.png" for i in range(6)]
    pairs = "first,second,same\n" + "".join(f"{i}.png,{i + 1}.png,{i % 2}\n" for i in range(5))
    idx = bytes([0, 0, 8, 2, 0, 0, 0, 10, 0, 0, 0, 4]) + bytes(range(40))
    found = {
        "npz": Sort(".npz", _npz(np.savez, x=x, y=["p", "q"] * 10), read_npz),
        "packed npz": Sort(".npz", _npz(np.savez_compressed, x=x, y=["p", "q"] * 10), read_npz),
        "split npz": Sort(
            ".npz",
            _npz(
                np.savez,
                x_train=x,
                y_train=np.arange(20) % 2,
                x_test=x,
                y_test=np.arange(20) % 2,
                classes=["cat", "dog"],
            ),
            read_npz,
        ),
        "csv": Sort(".csv", text.encode(), read_table),
        "new rows": Sort(
            ".csv",
            text.replace(",y\n", ",z\n").encode(),
            lambda path: read_new_rows(path, ("a", "town=Bonn", "town=Ulm")),
        ),
        "pairs": Sort(".csv", pairs.encode(), lambda path: read_pairs(path, names)),
        "idx": Sort("", idx, read_idx),
        "packed idx": Sort(".gz", gzip.compress(idx, mtime=0), read_idx),
    }
    for form in ("PNG", "JPEG", "WEBP", "BMP"):
        found[form] = Sort(f".{form.lower()}", _image(form), _read_image)
    return found | _parquets(x)


def _npz(save: Callable[..., None], **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def _image(form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, form)
    return file.getvalue()


def _read_image(path: Path) -> Any:
    return read_images([path], channels=3, size=(4, 4))


def _parquets(x: np.ndarray) -> dict[str, Sort]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return {}
    columns = {"a": x[:, 0], "b": x[:, 1].astype(int), "town": ["Bonn", "Ulm", None, "Ulm"] * 5}
    table = pyarrow.table(columns | {"y": ["p", "q"] * 10})
    found = {}
    for name, options in {
        "parquet": {"compression": "zstd"},
        "plain parquet": {"compression": "none", "use_dictionary": False},
        "delta parquet": {"use_dictionary": False, "column_encoding": {"town": "DELTA_BYTE_ARRAY"}},
    }.items():
        file = io.BytesIO()
        parquet.write_table(table, file, **options)
        found[name] = Sort(
            ".parquet", file.getvalue(), lambda path: read_table(path, missing="mean")
        )
    return found
