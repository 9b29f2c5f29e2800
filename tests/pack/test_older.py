"""Containers of format 2, written before zero was a level, are read to the same bits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pack.lying import opened, sealed

from dovetail.core.errors import FormatError
from dovetail.pack import decompress, describe, read
from dovetail.pack.tensors import raw_bytes

FOLDER = Path(__file__).with_name("format2")
DECODED = json.loads((FOLDER / "decoded.json").read_text())
"""The sha256 of each tensor, as the code that wrote the containers decoded it."""


@pytest.mark.parametrize("name", DECODED)
def test_the_same_bits_come_back(name):
    found = {
        key: hashlib.sha256(bytes(raw_bytes(tensor))).hexdigest()
        for key, tensor in read(FOLDER / f"{name}.dovepack").items()
    }
    assert found == DECODED[name]
    assert len(found) == 11


def test_what_is_told_about_them():
    told = {t.name: t for t in describe(FOLDER / "few.dovepack").tensors}
    assert (told["fine"].bits, told["fine"].levels) == (3, 8)
    assert told["double"].levels is None
    assert 0 < told["fine"].error < 0.4


def test_an_index_must_be_of_the_format_that_its_end_says():
    payload, index = opened((FOLDER / "few.dovepack").read_bytes())
    decompress(sealed(payload, index, number=2))
    with pytest.raises(FormatError, match="not the fields"):
        decompress(sealed(payload, index, number=3))
