"""`dovetail pack` and `unpack`: parts, files and shelves; one line for mistakes; nothing halved."""

from pathlib import Path

import pytest
import torch
from cli.console import call
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dovetail.pack.compressing import write
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
    assert [row["failed"] for row in said.json["parts"]] == [True, False]
    assert said.code == 1


def test_a_whole_shelf_and_back(shelved, tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(build("mlp", shape=(4,), hidden=(64,), classes=3), "other")
    assert shelved("pack", "--all", "--record", "records").code == 0
    assert len(list((tmp_path / "records").iterdir())) == 2
    said = shelved("unpack", "--all", "--json")
    assert (said.code, said.err) == (0, "")
    found = {row["part"]: row for row in said.json["parts"]}
    assert {name: row["to"] for name, row in found.items()} == {
        "net@1": None,
        "net-packed@1": "net-packed-unpacked@1",
        "other@1": None,
        "other-packed@1": "other-packed-unpacked@1",
    }
    assert found["net@1"]["why_not"] == "not packed"
    assert found["net-packed@1"]["bytes"] > found["net-packed@1"]["bytes_before"]
    for name in ("net", "other"):
        plain = shelf.get(f"{name}-packed-unpacked", verify=True)
        assert plain.packed is None
        assert plain.digest == shelf.get(f"{name}-packed").digest
    before = tree(tmp_path / "shelf")
    said = shelved("unpack", "--all")
    assert (said.code, tree(tmp_path / "shelf")) == (0, before)
    assert "2 unpacked: " in said.out
    assert shelved("unpack", "--all", "--to", "plain").code == 0
    assert {entry.name for entry in Shelf(tmp_path / "plain")} == {"net-packed", "other-packed"}


def test_a_damaged_part_does_not_keep_the_others_from_being_unpacked(shelved, tmp_path):
    assert shelved("pack", "net", "--name", "a").code == 0
    assert shelved("pack", "net", "--name", "b", "--bits", "4").code == 0
    file = tmp_path / "shelf" / "a" / "1" / "model.dovepack"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    said = shelved("unpack", "--all", "--json")
    assert (said.code, said.err) == (1, "")
    found = {row["part"]: (row["to"], row["failed"]) for row in said.json["parts"]}
    assert found == {
        "a@1": (None, True),
        "b@1": ("b-unpacked@1", False),
        "net@1": (None, False),
    }
    assert "1 could not be unpacked: a@1." in shelved("unpack", "--all").out


def test_a_shelf_without_parts_is_told(shelved, tmp_path):
    (tmp_path / "bare").mkdir()
    for verb in ("pack", "unpack"):
        said = shelved(verb, "--all", "--shelf", "bare")
        assert (said.code, "The shelf bare is empty" in said.out) == (0, True)


def test_an_interrupt_keeps_the_parts_that_are_done(shelved, tmp_path, monkeypatch):
    Shelf(tmp_path / "shelf").add(build("mlp", shape=(4,), hidden=(64,), classes=3), "other")
    from dovetail.reuse.packing import pack_part

    def interrupted(part, **how):
        if how["name"] == "other":
            raise KeyboardInterrupt
        return pack_part(part, **how)

    monkeypatch.setattr("dovetail.jobs.pack.pack_part", interrupted)
    said = shelved("pack", "--all")
    assert said.code == 130
    assert "1 packed of 2, and these stay" in said.err
    assert {entry.name for entry in Shelf(tmp_path / "shelf")} == {"net", "net-packed", "other"}


def test_what_is_packed_already_is_told(shelved, tmp_path):
    assert shelved("pack", "weights.safetensors").code == 0
    (tmp_path / "weights.dovepack").rename(tmp_path / "renamed")
    (tmp_path / "empty.dovepack").touch()
    before = tree(tmp_path)
    for words in (["renamed"], ["renamed", "--to", "x"], ["empty.dovepack", "--task", TASK]):
        said = shelved("pack", *words)
        assert said.code == 2
        assert f"{words[0]} is packed already" in said.err
        assert f"'dovetail unpack {words[0]}'" in said.err
    assert tree(tmp_path) == before
    assert shelved("pack", "net").code == 0
    said = shelved("pack", "net-packed").out
    assert "rounded a second time" in said
    assert "than it was packed before" in said


def test_a_shelf_that_holds_the_same_part_in_the_other_form_says_so(shelved, tmp_path):
    assert shelved("pack", "net").code == 0
    said = shelved("unpack", "net-packed", "--name", "net-packed")
    assert (said.code, "net-packed@1 holds the same part packed" in said.err) == (2, True)
    assert shelved("unpack", "net-packed", "--name", "plain").code == 0
    said = shelved("pack", "net", "--name", "plain")
    assert (said.code, "plain@1 holds the same part as plain" in said.err) == (2, True)
    assert shelved("unpack", "--all", "--to", "shelf").code == 1


@pytest.mark.parametrize("words", [["net", "--to", "new/part"], ["folder", "--name", "x"]])
def test_a_place_that_cannot_be_written_is_told_before_the_work(shelved, monkeypatch, words):
    monkeypatch.setattr("dovetail.jobs.pack_places.os.access", lambda *_: False)
    monkeypatch.setattr("dovetail.jobs.pack.pack_part", None)
    where = [] if words[0] == "net" else ["--shelf", "new"]
    said = shelved("pack", *words, *where)
    assert (said.code, "is closed to you" in said.err) == (2, True)


@pytest.mark.parametrize("budget", [("--loss-budget", "0.05"), ("--points", "40")])
def test_the_smallest_within_a_budget(shelved, tmp_path, budget):
    said = shelved("pack", "net", "--task", TASK, *budget, "--json")
    assert said.code == 0, said.err
    assert said.json["settings"]["budget"] == float(budget[1])
    assert said.json["ratio"] > 4
    loss = {"--loss-budget": "cross-entropy in nats", "--points": "points of accuracy"}
    assert said.json["settings"]["loss"] == loss[budget[0]]
    assert said.json["search"]["most"] <= float(budget[1])
    assert (said.json["search"]["counted"] is None) == (budget[0] == "--loss-budget")


def test_a_budget_that_cannot_be_proved_is_told(shelved):
    said = shelved("pack", "net", "--task", TASK, "--points", "0.1")
    assert "0.1 points cannot be counted on" in " ".join(said.out.split())
    said = shelved("pack", "net", "--task", TASK, "--points", "0")
    assert "cannot tell a rise as" in said.out


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
        (["pack", "--all", "--task", TASK], "--task cannot be used with --all"),
        (["pack", "--all", "--bits", "99"], "bits must be"),
        (["pack", "nett"], "no part 'nett'"),
        (["pack", ""], "an empty name"),
        (["pack", "nowhere.safetensors"], "nowhere.safetensors: no such file"),
        (["pack", "nowhere.dovepack"], "nowhere.dovepack: no such file"),
        (["pack", "./nowhere"], "./nowhere: no such file or folder"),
        (["pack", "/dev/null"], "neither a part's folder nor a file"),
        (["pack", "foreign"], "named in full, as in foreign/w.safetensors"),
        (["pack", "shelf"], "say --all --shelf shelf"),
        (["pack", "net", "--shelf", "shelv"], "there is no shelf shelv"),
        (["pack", "none.safetensors"], "there is nothing to pack"),
        (["pack", "net", "--margin", "1"], "with --loss-budget or --points"),
        (["pack", "weights.safetensors", "--margin", "0"], "with --loss-budget or --points"),
        (["pack", "--all", "--margin", "1"], "with --loss-budget or --points"),
        (["pack", "net", "--data", "d", "--size", "8"], "--size and --data can only be used with"),
        (["pack", "net", "--task-set", "a=1"], "--task-set can only be used with --task"),
        (["pack", "net", "--bits", "4", "--extra-bits", "0"], "--extra-bits cannot be used with"),
        (["pack", "net", "--points", "1", "--seed", "0"], "--seed cannot be used with --points"),
        (["pack", "net", "--replace"], "--replace is for --to"),
        (["pack", "weights.safetensors", "--shelf", "shelf"], "it goes where --to says"),
        (["pack", "folder", "--shelf", "shelf"], "to put it on the shelf, say --name"),
        (["pack", "net", "--task", TASK, "--points", "-1"], "--points must be at least 0"),
        (["pack", "net", "--task", TASK, "--loss-budget", "nan"], "--loss-budget must be a number"),
        (["pack", "net", "--to", "shelf/net/1", "--replace"], "is what is read"),
        (["pack", "net", "--to", "foreign", "--replace"], "holds other files"),
        (["pack", "net", "--to", "weights.safetensors/x"], "weights.safetensors is a file"),
        (["pack", "weights.safetensors", "--to", "foreign"], "name a file with --to"),
        (["pack", "folder/README.md"], "not a safetensors file"),
        (["pack", "x.pth"], "x.pth: only parts and .safetensors files can be packed"),
        (["pack", "x.pth", "--task", TASK], "x.pth: only parts and .safetensors files can be"),
        (["pack", "weights.safetensors", "--task", TASK], "no part"),
        (["pack", "weights.safetensors", "--loss-budget", "1"], "no part"),
        (["pack", "net", "--bits", "99"], "bits must be"),
        (["pack", "net", "--bits", "4", "--rule", "entropy"], "both decide the bits"),
        (["pack", "net", "--rule", "gradient"], "say --task"),
        (["pack", "net", "--loss-budget", "0.1"], "say --task"),
        (["pack", "net", "--loss-budget", "0.1", "--points", "1"], "not allowed with"),
        (["pack", "net", "--task", "digitz"], "unknown task 'digitz'"),
        (["pack", "net", "--task", "digits"], "needs 10 numbers an example"),
        (["pack", "net", "--name", "no/name"], "name"),
        (["pack", "net", "--to", "folder"], "is there already"),
        (["pack", "net", "--to", "weights.safetensors", "--replace"], "is a file"),
        (["unpack"], "name what to unpack, or say --all"),
        (["unpack", "net", "--all"], "name none, or leave out --all"),
        (["unpack", "--all", "--name", "x"], "--name cannot be used with --all"),
        (["unpack", "--all", "--replace"], "--replace cannot be used with --all"),
        (["unpack", "--all", "--most-gigabytes", "1"], "cannot be used with --all"),
        (["unpack", "--all", "--shelf", "shelv"], "there is no shelf shelv"),
        (["unpack", "net"], "'net' is not packed; there is nothing to unpack"),
        (["unpack", "net", "--replace"], "--replace is for --to"),
        (["unpack", "weights.safetensors"], "is not packed; there is nothing to unpack"),
        (["unpack", "folder", "--shelf", "shelf"], "to put it on the shelf, say --name"),
        (["unpack", "foreign"], "is a folder, but not a part's"),
        (["unpack", "nowhere.dovepack"], "no such file"),
        (["unpack", "net", "--most-gigabytes", "1"], "--most-gigabytes is for files"),
    ],
)
def test_a_mistake_is_one_line(shelved, tmp_path, words, told):
    (tmp_path / "foreign").mkdir()
    for name in ("foreign/w.safetensors", "foreign/notes.txt"):
        (tmp_path / name).write_bytes((tmp_path / "weights.safetensors").read_bytes())
    save_file({}, tmp_path / "none.safetensors")
    torch.save({"w": torch.zeros(3)}, tmp_path / "x.pth")
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
    assert said.err.rstrip().endswith("keep it exactly with --lossless w")
    assert shelved("pack", "nan.safetensors", "--lossless", "w").code == 0
    monkeypatch.setattr("dovetail.pack.decompressing._ALWAYS_ALLOWED", 1 << 16)
    save_file({"w": torch.zeros(500, 500)}, tmp_path / "zeros.safetensors")
    assert shelved("pack", "zeros.safetensors").code == 0
    said = shelved("unpack", "zeros.dovepack", "--to", "back.safetensors")
    assert said.code == 2
    assert "pass --most-gigabytes; in bytes it is 1000000" in said.err
    words = ("--to", "back.safetensors", "--most-gigabytes", "0.001")
    assert shelved("unpack", "zeros.dovepack", *words).code == 0


def test_what_is_shown_of_a_file_with_an_outlier(shelved):
    state = {"w": torch.randn(60, 60), "a": torch.ones(3), "b": torch.ones(4)}
    state["w"][0, 0] = 1e4
    save_file(state, "flat.safetensors")
    said = shelved("pack", "flat.safetensors")
    assert "Nearly all weights of 'w' went to one level" in said.out
    assert "2 small tensors, kept exactly" in said.out
    said = shelved("pack", "flat.safetensors", "--to", "b.dovepack", "--json")
    found = [(tensor["name"], tensor["crowded"]) for tensor in said.json["tensors"]]
    assert sorted(found) == [("a", False), ("b", False), ("w", True)]


def test_an_interrupt_leaves_nothing(shelved, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    before = tree(tmp_path)
    monkeypatch.setattr("dovetail.reuse.packing.describe", interrupted)
    for words in (["net"], ["folder"]):
        assert shelved("pack", *words).code == 130
    monkeypatch.setattr("dovetail.jobs.pack._tensors", interrupted)
    assert shelved("pack", "weights.safetensors").code == 130
    assert tree(tmp_path) == before
