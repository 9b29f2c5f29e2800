import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

from dovetail.core.errors import ContractError, FormatError, ShelfError
from dovetail.shelf.entry import read_note
from dovetail.shelf.store import Shelf


def test_versions_count_up_and_the_latest_is_meant(shelf, tiny):
    refs = [shelf.add(tiny(seed), name="net").ref for seed in range(11)]
    assert refs == [f"net@{i}" for i in range(1, 12)]
    assert shelf.get("net").digest == tiny(10).digest  # 11 comes after 9
    assert shelf.get("net@2").digest == tiny(1).digest
    assert shelf.get(shelf.entry("net@3")).digest == tiny(2).digest
    x = torch.rand(5, 3)
    torch.testing.assert_close(shelf.get("net@4")(x), tiny(3)(x), rtol=0, atol=0)


def test_the_part_folder_is_as_the_part_writes_it(shelf, tiny, tmp_path):
    tiny().save_pretrained(tmp_path / "plain")
    folder = shelf.add(tiny(), "net", tags=["x"]).folder
    for path in (tmp_path / "plain").iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert len(list(folder.iterdir())) == len(list((tmp_path / "plain").iterdir()))


def test_the_same_part_is_there_once(shelf, tiny):
    first = shelf.add(tiny(), "net", tags=["a"])
    shelf.add(tiny(1), "net")
    assert shelf.add(tiny(), "net").ref == "net@1"
    assert shelf.add(shelf.get("net@1"), "net", tags=["b"]).tags == ("a", "b")
    assert shelf.entry("net@1").added == first.added
    assert len(shelf) == 2
    assert shelf.add(tiny(), "other").ref == "other@1"


def test_a_part_that_differs_in_anything_is_another_version(shelf, tiny):
    part = tiny()
    shelf.add(part, "net")
    named = part.changed(contract=replace(part.contract, classes=("a", "b")))
    measured = part.changed(origin=replace(part.origin, measured={"test accuracy": 0.5}))
    assert [shelf.add(each, "net").ref for each in (named, measured, named)] == [
        "net@2",
        "net@3",
        "net@2",
    ]


def test_a_part_trained_in_place_is_another_version(shelf, tiny):
    part = tiny()
    assert part.digest == shelf.add(part, "net").digest
    with torch.no_grad():
        next(part.module.parameters()).add_(1)
    assert shelf.add(part, "net").ref == "net@2"
    assert shelf.verify().ok


def test_what_cannot_be_saved_leaves_nothing(shelf):
    with pytest.raises(FormatError, match=r"@dt\.builder"):
        shelf.add(nn.Linear(2, 2), "net")
    with pytest.raises(ContractError, match="expected a Part"):
        shelf.add("net", "net")
    assert list(shelf.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", ".net", "a/b", "/net", "a..b", "a@1", "a b", "-x"])
def test_names_that_would_leave_the_shelf_are_refused(shelf, tiny, name):
    with pytest.raises(ShelfError, match="letters"):
        shelf.add(tiny(), name)
    assert list(shelf.folder.iterdir()) == []


def test_names_that_differ_by_case_only_are_refused(shelf, tiny):
    shelf.add(tiny(), "LeNet")
    with pytest.raises(ShelfError, match="'lenet' differs from 'LeNet' by its case only"):
        shelf.add(tiny(), "lenet")


def test_an_unknown_name_is_answered_with_near_ones(shelf, tiny):
    with pytest.raises(ShelfError, match="which is empty"):
        shelf.get("lenet")
    for name in ("lenet-digits", "resnet"):
        shelf.add(tiny(), name)
    with pytest.raises(ShelfError, match="did you mean lenet-digits"):
        shelf.get("lenet-digit")
    with pytest.raises(ShelfError, match="there is lenet-digits, resnet"):
        shelf.get("x")


def test_an_unknown_version_is_answered_with_those_there_are(shelf, tiny):
    for seed in range(3):
        shelf.add(tiny(seed), "net")
    shelf.rm("net@2")
    with pytest.raises(ShelfError, match="'net' has no version 2; there is 1, 3"):
        shelf.get("net@2")


def test_rm_removes_one_version_and_its_number_stays_taken(shelf, tiny):
    for seed in range(2):
        shelf.add(tiny(seed), "net", tags=["x"])
    assert shelf.rm("net@2") == ("net@2",)
    assert [entry.ref for entry in shelf] == ["net@1"]
    note = read_note(shelf.folder / "net" / "2")
    assert (note.tags, note.removed is not None) == (("x",), True)
    assert shelf.add(tiny(1), "net").ref == "net@3"
    assert shelf.rm(shelf.entry("net")) == ("net@3",)
    assert shelf.rm("net@1") == ("net@1",)
    assert (len(shelf), "net" in shelf) == (0, False)
    with pytest.raises(ShelfError, match="no part 'net'"):
        shelf.rm("net@1")
    assert shelf.verify().ok
    assert shelf.verify().foreign == ()


def test_rm_of_a_whole_name_must_be_meant(shelf, tiny):
    for seed in range(2):
        shelf.add(tiny(seed), "net")
    with pytest.raises(ShelfError, match=r"as in net@2\), or all of them with all_versions=True"):
        shelf.rm("net")
    with pytest.raises(ShelfError, match="write 'net'"):
        shelf.rm("net@1", all_versions=True)
    assert shelf.rm("net", all_versions=True) == ("net@1", "net@2")
    assert shelf.entries() == []
    with pytest.raises(ShelfError, match="no part"):
        shelf.rm("net", all_versions=True)


def test_a_damaged_part_can_be_listed_found_out_and_removed(shelf, tiny):
    shelf.add(tiny(), "net")
    bad = shelf.add(tiny(1), "net")
    shutil.rmtree(bad.folder)
    bad.folder.mkdir()
    assert [entry.problem is None for entry in shelf] == [True, False]
    with pytest.raises(FormatError, match="net/2"):
        shelf.get("net")
    assert not shelf.verify().ok
    assert shelf.rm("net@2") == ("net@2",)
    assert shelf.verify().ok


def test_a_folder_copied_in_by_hand_is_a_part(shelf, tiny):
    (shelf.folder / "mine").mkdir()
    tiny().save_pretrained(shelf.folder / "mine" / "4")
    assert [entry.ref for entry in shelf] == ["mine@4"]
    assert shelf.entry("mine").added is None
    assert shelf.verify().ok
    assert shelf.add(tiny(1), "mine").ref == "mine@5"
    shelf.rm("mine@4")
    assert shelf.add(tiny(2), "mine").ref == "mine@6"


def test_a_shelf_is_a_container(shelf, tiny):
    assert repr(shelf) == f"Shelf({str(shelf.folder)!r}, 0 parts)"
    entry = shelf.add(tiny(), "net")
    assert repr(shelf).endswith("1 part)")
    assert list(shelf) == [entry]
    assert len(shelf) == 1
    for ref in ("net", "net@1", entry):
        assert ref in shelf
    for ref in ("other", "net@2", "no such name", 3, None):
        assert ref not in shelf


def test_a_missing_shelf_is_made_or_told(tmp_path):
    with pytest.raises(ShelfError, match="`dovetail shelf add` creates one"):
        Shelf(tmp_path / "shelf", create=False)
    assert not (tmp_path / "shelf").exists()
    assert len(Shelf(tmp_path / "deep" / "shelf")) == 0
    assert len(Shelf(str(tmp_path / "deep" / "shelf"), create=False)) == 0


@pytest.mark.parametrize("create", [True, False])
def test_a_file_is_no_shelf(tmp_path, create):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "shelf"):
        with pytest.raises(ShelfError, match=r"not a folder|no shelf"):
            Shelf(path, create=create)


def test_a_shelf_that_must_not_be_made_is_told(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(ShelfError, match=r"cannot make the shelf .*Permission denied"):
        Shelf(tmp_path / "shelf")


def test_a_shelf_that_must_not_be_read_is_told(shelf, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(ShelfError, match=r"cannot read the shelf .*Permission denied"):
        shelf.entries()


def test_a_folder_of_the_highest_number_is_told_and_leaves_other_names_alone(shelf, tiny):
    (shelf.folder / "net" / "999999999").mkdir(parents=True)
    with pytest.raises(ShelfError, match="no version after 999999999"):
        shelf.add(tiny(), "net")
    assert [path.name for path in (shelf.folder / "net").iterdir()] == ["999999999"]
    assert list((shelf.folder / ".work").iterdir()) == []
    assert shelf.add(tiny(), "other").ref == "other@1"
