"""`dovetail pack` and `unpack`: parts, files and shelves; one line for mistakes; nothing halved."""

from pathlib import Path

import pytest
import torch
from cli.console import call
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dovetail.pack.writing import write
from dovetail.parts.part import build, from_pretrained
from dovetail.shelf.store import Shelf

TASK = "digits[0,1,2]"


@pytest.fixture
def shelved(tmp_path, monkeypatch, capsys):
    """A folder with a shelf of one network, a folder of it and a file of its tensors."""
    part = build("mlp", shape=(1, 8, 8), hidden=(32,), classes=3)
    Shelf(tmp_path / "shelf").add(part, "net")
    part.save_pretrained(tmp_path / "folder")
    save_file(part.module.state_dict(), tmp_path / "weights.safetensors")
    monkeypatch.chdir(tmp_path)
    return lambda *words: call(capsys, *words)


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_part_of_the_shelf_and_back(shelved, tmp_path):
    said = shelved("pack", "net", "--task", TASK, "--record", "records")
    assert (said.code, said.err) == (0, "")
    assert "net-packed@1 is packed" in said.out
    assert "hidden1.linear.weight" in said.out
    assert len(list((tmp_path / "records").iterdir())) == 1
    shelf = Shelf(tmp_path / "shelf")
    small = shelf.get("net-packed", verify=True)
    assert small.origin.measured["test accuracy"] >= 0
    assert shelf.entry("net-packed").bytes < shelf.entry("net").bytes
    assert shelf.verify().ok
    assert shelved("predict", "net-packed", TASK, "--most", "2", "--json").code == 0
    said = shelved("unpack", "net-packed", "--json")
    assert said.json["to"] == "net-packed-unpacked@1"
    assert said.json["digest"] == small.digest
    assert (tmp_path / "shelf" / "net-packed-unpacked" / "1" / "model.safetensors").exists()


def test_a_folder_and_back(shelved, tmp_path):
    assert shelved("pack", "folder").code == 0
    small = from_pretrained(tmp_path / "folder-packed", verify=True)
    assert small.packed is not None
    assert shelved("unpack", "folder-packed", "--to", "plain").code == 0
    assert from_pretrained(tmp_path / "plain", verify=True).digest == small.digest


def test_a_file_and_back(shelved, tmp_path):
    said = shelved("pack", "weights.safetensors", "--bits", "8", "--json")
    assert said.json["to"] == "weights.dovepack"
    assert said.json["bytes"] < said.json["bytes_before"]
    assert shelved("unpack", "weights.dovepack", "--to", "again.safetensors").code == 0
    first, again = load_file("weights.safetensors"), load_file("again.safetensors")
    assert first.keys() == again.keys()
    for name in first:
        torch.testing.assert_close(again[name], first[name], atol=2e-3, rtol=0)


def test_metadata_and_all_dtypes_come_back(shelved):
    state = {
        "a": torch.tensor([True, False, True]),
        "b": torch.arange(3, dtype=torch.float64),
        "c": torch.ones(3, dtype=torch.bfloat16),
        "d": torch.zeros(0, 2),
        "e": torch.tensor(1 + 2j),
    }
    save_file(state, "mixed.safetensors", {"format": "pt", "made by": "hand"})
    assert shelved("pack", "mixed.safetensors").code == 0
    assert shelved("unpack", "mixed.dovepack", "--to", "again.safetensors").code == 0
    again = load_file("again.safetensors")
    assert all(torch.equal(again[name], state[name]) for name in state)
    assert all(again[name].dtype == state[name].dtype for name in state)
    with safe_open("again.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "made by": "hand"}
    write("bare.dovepack", {"w": torch.ones(2)})
    assert shelved("unpack", "bare.dovepack").code == 0
    with safe_open("bare.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_what_safetensors_cannot_hold_is_refused_by_name(shelved, tmp_path):
    write("wide.dovepack", {"w": torch.ones(2), "z": torch.ones(2, dtype=torch.complex128)})
    said = shelved("unpack", "wide.dovepack")
    assert said.code == 2
    assert "'z'" in said.err and "complex128" in said.err  # noqa: PT018
    assert not (tmp_path / "wide.safetensors").exists()


def test_a_folder_that_is_called_a_file(shelved):
    Path("x.safetensors").mkdir()
    said = shelved("pack", "x.safetensors")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert "x.safetensors" in said.err


def test_nothing_large_enough_is_told(shelved, tmp_path):
    part = build("mlp", shape=(1, 8, 8), hidden=(), classes=3)
    Shelf(tmp_path / "shelf").add(part, "tiny")
    said = shelved("pack", "tiny", "--task", TASK, "--points", "1")
    assert "no tensor is large enough" in said.out
    assert "from chance" not in said.out


def test_a_whole_shelf_twice(shelved, tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(build("mlp", shape=(4,), hidden=(64,), classes=3), "other")
    said = shelved("pack", "--all", "--json")
    assert [row["to"] for row in said.json["parts"]] == ["net-packed@1", "other-packed@1"]
    before = tree(tmp_path / "shelf")
    again = shelved("pack", "--all", "--json")
    why = {row["part"]: row["why_not"] for row in again.json["parts"]}
    assert why["net-packed@1"] == "packed already"
    assert tree(tmp_path / "shelf") == before
    assert shelved("pack", "--all", "--to", "small").code == 0
    assert {entry.name for entry in Shelf(tmp_path / "small")} == {"net", "other"}


def test_a_damaged_part_does_not_keep_the_others_from_being_packed(shelved, tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    folder = shelf.add(build("mlp", shape=(4,), classes=3), "bad").folder
    (folder / "config.json").write_text("{")
    said = shelved("pack", "--all", "--json")
    assert [row["to"] for row in said.json["parts"]] == [None, "net-packed@1"]


@pytest.mark.parametrize("budget", [("--loss-budget", "0.05"), ("--points", "40")])
def test_the_smallest_within_a_budget(shelved, tmp_path, budget):
    said = shelved("pack", "net", "--task", TASK, *budget, "--json")
    assert said.code == 0, said.err
    assert said.json["settings"]["budget"] == float(budget[1])
    assert said.json["ratio"] > 4


def test_a_budget_that_cannot_be_proved_is_told(shelved):
    said = shelved("pack", "net", "--task", TASK, "--points", "0.001")
    assert "cannot tell a rise as" in said.out
    said = shelved("pack", "net", "--task", TASK, "--points", "0.001", "--margin", "0", "--json")
    assert said.json["ratio"] > 1.3


def test_the_gradient_rule(shelved, tmp_path):
    said = shelved("pack", "net", "--task", TASK, "--rule", "gradient", "--json")
    assert said.json["settings"]["rule"] == "gradient"


def test_what_is_there_is_kept_unless_replaced(shelved, tmp_path):
    for words in (["folder"], ["weights.safetensors"]):
        assert shelved("pack", *words).code == 0
        said = shelved("pack", *words, "--bits", "3")
        assert (said.code, said.out) == (2, "")
        assert "say --replace" in said.err
    before = (tmp_path / "weights.dovepack").read_bytes()
    assert shelved("pack", "weights.safetensors", "--bits", "3", "--replace").code == 0
    assert (tmp_path / "weights.dovepack").read_bytes() != before
    digest = from_pretrained(tmp_path / "folder-packed").digest
    assert shelved("pack", "folder", "--bits", "3", "--replace").code == 0
    assert from_pretrained(tmp_path / "folder-packed").digest != digest


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pack"], "name what to pack, or say --all"),
        (["pack", "net", "--all"], "name none, or leave out --all"),
        (["pack", "--all", "--task", TASK], "--all packs by entropy or --bits"),
        (["pack", "nett"], "no part 'nett'"),
        (["pack", "nowhere.safetensors"], "nowhere.safetensors"),
        (["pack", "folder/README.md"], "not a safetensors file"),
        (["pack", "weights.safetensors", "--task", TASK], "no part"),
        (["pack", "weights.safetensors", "--loss-budget", "1"], "no part"),
        (["pack", "net", "--bits", "99"], "bits must be"),
        (["pack", "net", "--bits", "4", "--rule", "entropy"], "both decide the bits"),
        (["pack", "net", "--rule", "gradient"], "needs a task"),
        (["pack", "net", "--loss-budget", "0.1"], "needs a task"),
        (["pack", "net", "--loss-budget", "0.1", "--points", "1"], "not allowed with"),
        (["pack", "net", "--task", "digitz"], "unknown task 'digitz'"),
        (["pack", "net", "--task", "digits"], "needs 10 numbers an example"),
        (["pack", "net", "--name", "no/name"], "name"),
        (["pack", "net", "--to", "folder"], "is there already"),
        (["pack", "net", "--to", "weights.safetensors", "--replace"], "is a file"),
        (["unpack", "net"], "nothing to unpack"),
        (["unpack", "weights.safetensors"], "weights.safetensors"),
        (["unpack", "weights.dovepack"], "is there already"),
        (["unpack", "nowhere.dovepack"], "no such file"),
        (["unpack", "net", "--most-gigabytes", "1"], "--most-gigabytes is for files"),
    ],
)
def test_a_mistake_is_one_line(shelved, tmp_path, words, told):
    before = tree(tmp_path)
    said = shelved(*words)
    assert (said.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert line.startswith("dovetail: ")
    assert told in line
    assert tree(tmp_path) == before


def test_errors_are_in_the_words_of_the_command(shelved, tmp_path, monkeypatch):
    save_file({"w": torch.full((20, 20), torch.nan)}, tmp_path / "nan.safetensors")
    said = shelved("pack", "nan.safetensors")
    assert said.code == 2
    assert "--lossless ('w',)" in said.err
    monkeypatch.setattr("dovetail.pack.decompressing._ALWAYS_ALLOWED", 1 << 16)
    save_file({"w": torch.zeros(500, 500)}, tmp_path / "zeros.safetensors")
    assert shelved("pack", "zeros.safetensors").code == 0
    said = shelved("unpack", "zeros.dovepack", "--to", "back.safetensors")
    assert said.code == 2
    assert "say --most-gigabytes; in bytes it is 1000000" in said.err
    words = ("--to", "back.safetensors", "--most-gigabytes", "0.001")
    assert shelved("unpack", "zeros.dovepack", *words).code == 0


def test_an_interrupt_leaves_nothing(shelved, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    before = tree(tmp_path)
    monkeypatch.setattr("dovetail.flows.packing.describe", interrupted)
    for words in (["net"], ["folder"]):
        assert shelved("pack", *words).code == 130
    monkeypatch.setattr("dovetail.flows.pack._tensors", interrupted)
    assert shelved("pack", "weights.safetensors").code == 130
    assert tree(tmp_path) == before
