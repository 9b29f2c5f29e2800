"""Packed parts on a shelf: they stay packed, are found, listed, verified and told apart."""

import pytest

from dovetail.core.errors import FormatError
from dovetail.jobs.shelf import add
from dovetail.pack.compressing import compress
from dovetail.parts.packed import with_packed
from dovetail.shelf.store import Shelf


@pytest.fixture
def whole(tiny):
    return tiny(hidden=(64, 64))


@pytest.fixture
def small(whole):
    return with_packed(whole, compress(whole.module.state_dict(), bits=4))


def test_a_packed_part_stays_packed_from_shelf_to_shelf(shelf, small, tmp_path):
    first = shelf.add(small, "net")
    got = shelf.get("net", verify=True)
    assert got.packed == small.packed
    other = Shelf(tmp_path / "other").add(got, "net")
    assert (other.folder / "model.dovepack").read_bytes() == small.packed
    assert not (first.folder / "model.safetensors").exists()
    again = add(str(first.folder), name="third", shelf=shelf.folder)
    assert shelf.get(again.data["ref"]).packed == small.packed


def test_its_size_is_listed_and_its_parent_is_known(shelf, whole, small):
    shelf.add(whole, "net")
    shelf.add(small, "net-packed")
    sizes = {row.ref: row.bytes for row in shelf.ls().rows}
    assert sizes["net-packed@1"] < sizes["net@1"] / 2
    assert shelf.lineage("net-packed").tree.parents[0].refs == ("net@1",)


def test_added_again_it_is_the_same_version(shelf, small):
    assert shelf.add(small, "net").ref == shelf.add(small, "net").ref == "net@1"


def test_a_damaged_container_is_told(shelf, small):
    entry = shelf.add(small, "net")
    assert shelf.verify().ok
    file = entry.folder / "model.dovepack"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert "model.dovepack: sha256 differs" in shelf.verify().problems[0].what
    with pytest.raises(FormatError, match="sha256 differs"):
        shelf.get("net")
