import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.core.files import sha256_of
from dovetail.core.plain import dumps
from dovetail.core.records import load_record
from dovetail.shelf.index import slots
from dovetail.shelf.verify import check_part

FILES = ("config.json", "model.safetensors", "probe.safetensors", "README.md", "manifest.json")


@pytest.fixture
def net(shelf, tiny):
    return shelf.add(tiny(), "net", tags=["x"])


def changed_at(whole, i, mask):
    return whole[:i] + bytes([whole[i] ^ mask]) + whole[i + 1 :]


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80], ids=hex)
@pytest.mark.parametrize("name", FILES)
def test_every_changed_byte_is_noticed(shelf, net, name, mask):
    (slot,) = slots(shelf.folder)
    path = net.folder / name
    whole = path.read_bytes()
    rng = random.Random(f"{name}{mask}")
    every = range(len(whole))
    for i in every if (name, mask) == ("manifest.json", 1) else rng.sample(every, 60):
        path.write_bytes(changed_at(whole, i, mask))
        assert check_part(slot), (name, i)
    path.write_bytes(whole)
    assert not check_part(slot)


@pytest.mark.parametrize("name", [*FILES, "../1.json"])
def test_a_shorter_longer_or_empty_file_is_noticed(shelf, net, name):
    path = net.folder / name
    whole = path.read_bytes()
    for data in (b"", whole[:-1], whole + b" ", whole + b"\n"):
        path.write_bytes(data)
        assert not shelf.verify().ok
    path.write_bytes(whole)
    assert shelf.verify().ok


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(shelf, net, name):
    (net.folder / name).unlink()
    assert not shelf.verify("net").ok


def test_white_space_in_the_manifest_is_noticed(shelf, net):
    path = net.folder / "manifest.json"
    path.write_text(path.read_text().replace("  ", " \t", 1))
    assert "changed after it was written" in shelf.verify().problems[0].what


def reseal(folder):
    """Make the manifest agree with files that were changed on purpose."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, file in manifest["files"].items():
        file["sha256"] = sha256_of(folder / name)
        file["size"] = (folder / name).stat().st_size
    (folder / "manifest.json").write_text(dumps(manifest))


def test_other_weights_under_right_hashes_are_noticed(shelf, net):
    path = net.folder / "model.safetensors"
    save_file({name: t + 1 for name, t in load_file(path).items()}, path)
    reseal(net.folder)
    assert "digest" in shelf.verify().problems[0].what


def test_a_part_that_gives_another_output_is_noticed(shelf, net):
    path = net.folder / "probe.safetensors"
    stored = load_file(path)
    save_file({**stored, "output.0": stored["output.0"] + 1}, path)
    reseal(net.folder)
    assert shelf.get("net") is not None
    assert "no longer gives the output" in shelf.verify().problems[0].what


def test_a_probe_that_does_not_go_through_is_a_problem_not_a_crash(shelf, net):
    path = net.folder / "probe.safetensors"
    save_file({**load_file(path), "input.0": torch.zeros(2, 7)}, path)
    reseal(net.folder)
    assert not shelf.verify().ok


def test_whatever_a_builder_does_is_a_problem_not_a_crash(shelf, net, monkeypatch):
    def explode(*_):
        raise ZeroDivisionError("by whom?")

    monkeypatch.setattr("dovetail.parts.disk.read_module", explode)
    assert shelf.verify().problems[0].what == "ZeroDivisionError: by whom?"


def test_every_damaged_part_is_told_and_the_rest_checked(shelf, net, tiny, tmp_path):
    for seed in range(1, 4):
        shelf.add(tiny(seed), "net")
    for version in (2, 4):
        (shelf.folder / "net" / str(version) / "README.md").write_text("")
    found = shelf.verify()
    assert found.checked == 4
    assert [problem.ref for problem in found.problems] == ["net@2", "net@4"]
    assert str(shelf.folder) not in str(found.problems[0])
    assert shelf.verify("net@3").ok
    assert not shelf.verify("net@4").ok
    assert load_record(found.save(tmp_path / "check.json")) == found
    assert "2 damaged" in found.view()[0].text


def test_leftovers_and_foreign_files_are_named(shelf, net):
    (shelf.folder / ".dovetail-1f").mkdir()
    (shelf.folder / "net" / ".dovetail-2f").write_text("")
    (shelf.folder / "notes.txt").write_text("")
    (shelf.folder / "net" / "todo").write_text("")
    (shelf.folder / "net" / "7").write_text("")
    (shelf.folder / "net" / "8.json").mkdir()
    (shelf.folder / "bad name").mkdir()
    (shelf.folder / "link").symlink_to(net.folder.parent)
    (shelf.folder / "net" / "9").symlink_to(net.folder)
    (net.folder / "extra.bin").write_text("")
    found = shelf.verify()
    assert found.ok
    assert found.leftovers == (".dovetail-1f", "net/.dovetail-2f")
    assert sorted(found.foreign) == [
        *("bad name", "link", "net/1/extra.bin", "net/7", "net/8.json", "net/9"),
        *("net/todo", "notes.txt"),
    ]
    assert len(shelf) == 1
    assert "notes.txt" in found.view()[-1].text
