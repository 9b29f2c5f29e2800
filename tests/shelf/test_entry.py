import json
from pathlib import Path

import pytest
from torch import nn

from dovetail.core.errors import FormatError, RecipeError
from dovetail.parts import builders
from dovetail.parts.adopting import adopt
from dovetail.parts.builders import builder
from dovetail.shelf.entry import Entry, read_entry


def test_an_entry_says_what_the_part_says(shelf, tiny):
    part = tiny()
    entry = shelf.add(part, "net", tags=["b", "a"])
    assert (entry.contract, entry.origin, entry.digest) == (part.contract, part.origin, part.digest)
    assert entry.ref == str(entry) == "net@1"
    assert entry.tags == ("a", "b")
    assert entry.added.endswith("Z")
    listed = json.loads((entry.folder / "manifest.json").read_text())["files"]
    assert entry.bytes == sum(file["size"] for file in listed.values())
    assert repr(entry) == "Entry(net@1, mlp: 3 -> 2)"
    assert entry.load(verify=True).digest == part.digest


def test_damage_is_an_entry_with_a_problem(tmp_path):
    entry = read_entry("net", 1, tmp_path)
    assert "manifest.json: no such file" in entry.problem
    assert "damaged" in repr(entry)
    assert str(tmp_path) not in entry.problem


def test_loading_what_is_gone_names_the_folder(tmp_path):
    with pytest.raises(FormatError, match="no-such"):
        Entry("net", 1, tmp_path / "no-such").load()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_loading_what_is_damaged_names_the_folder(shelf, tiny, name):
    entry = shelf.add(tiny(), "net")
    (entry.folder / name).write_bytes(b"{}")
    with pytest.raises(FormatError, match="net"):
        entry.load()


def test_a_part_whose_builder_is_unknown_here_is_listed_but_not_loaded(shelf, monkeypatch):
    @builder("shelf-test-net")
    def net(*, width: int = 3) -> nn.Module:
        return nn.Linear(width, 2)

    entry = shelf.add(adopt(net(width=4)), "mine")
    monkeypatch.delitem(builders._KNOWN, "shelf-test-net")
    (again,) = type(shelf)(shelf.folder)
    assert again == entry
    assert again.what == "shelf-test-net"
    with pytest.raises(RecipeError, match=r"'mine@1'.*unknown builder 'shelf-test-net'"):
        shelf.get("mine")
    assert "unknown builder" in shelf.verify().problems[0].what


def test_a_damaged_note_costs_the_tags_only(shelf, tiny):
    entry = shelf.add(tiny(), "net", tags=["x"])
    Path(f"{entry.folder}.json").write_text("{")
    assert shelf.entry("net").tags == ()
    assert shelf.get("net").digest == entry.digest
    assert "1.json" in shelf.verify().problems[0].what
