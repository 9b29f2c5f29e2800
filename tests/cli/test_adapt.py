"""`dovetail adapt`: a table for people, an object for machines, one line for mistakes."""

import pytest
from cli.console import call

from dovetail.parts.part import build
from dovetail.shelf.store import Shelf

TASK = "digits[0,1,2]"


@pytest.fixture
def shelved(tmp_path, monkeypatch, capsys):
    """A folder with a shelf of one small network, and how to adapt it."""
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(build("mlp", shape=(1, 8, 8), hidden=(8,), classes=4), "net")
    monkeypatch.chdir(tmp_path)
    return lambda *words: call(capsys, "adapt", "net", *words)


def test_for_people_and_for_machines(shelved, tmp_path):
    said = shelved(TASK, "--labels-per-class", "2,4", "--how", "linearized,probe", "--record", "r")
    assert (said.code, said.err) == (0, "")
    assert "fit, s" in said.out
    assert "net-digits-0-1-2@1 is on the shelf" in said.out
    assert len(list((tmp_path / "r").iterdir())) == 1
    said = shelved(TASK, "--labels", "2", "--how", "probe", "--name", "other", "--json")
    assert said.json["ref"] == "other@1"
    assert said.json["kept"] == "probe"
    assert said.json["trials"][0]["measures"]["accuracy"] > 0.5


def test_the_plan_is_told(shelved):
    said = shelved(TASK, "--labels", "100", "--plan")
    assert said.code == 0
    assert "300 inputs" in said.out
    assert "taken" in said.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["digitz"], "unknown task 'digitz'"),
        ([TASK, "--how", "linearised"], "did you mean linearized"),
        ([TASK, "--labels", "0"], "--labels-per-class must be at least 1"),
        ([TASK, "--labels", "many"], "expected whole numbers such as 1,10"),
        ([TASK, "--labels", "5000"], "not 5000"),
        ([TASK, "--seeds", "0"], "--seeds must be at least 1"),
        ([TASK, "--how", "probe", "--prior", "layers"], "--prior is for --how linearized"),
        ([TASK, "--keep", "nothing"], "--keep is one of"),
        ([TASK, "--method", "magic"], "unknown --method 'magic'"),
        ([TASK, "--params", "nowhere.*", "--how", "finetune"], "nowhere"),
        ([TASK, "--at", "nowhere"], "nowhere"),
        (["mnist-not-there.npz"], "no such file"),
    ],
)
def test_a_mistake_is_one_line(shelved, tmp_path, words, told):
    said = shelved(*words)
    assert (said.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert line.startswith("dovetail: ")
    assert told in line
    assert len(list((tmp_path / "shelf").glob("net*"))) == 1


def test_an_interrupt_before_anything_is_done_leaves_nothing(shelved, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dovetail.adapt.ways.Probe.predict_proba", interrupted)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    said = shelved(TASK, "--labels", "2", "--how", "probe", "--record", "r")
    assert said.code == 130
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    said = shelved(TASK, "--labels", "2", "--how", "linearized,probe")
    assert said.code == 130
    assert "is on the shelf: linearized" in said.out
    assert "probe with 2 labels was stopped" in said.err


def test_all_labels(shelved):
    said = shelved(TASK, "--labels-per-class", "1,all", "--how", "probe", "--json")
    one, every = said.json["trials"]
    assert one["n"] == 3
    assert every["n"] > 100


def test_records_that_cannot_be_kept_are_refused_before_the_work(shelved, tmp_path):
    file = tmp_path / "taken"
    file.write_text("mine")
    for record in (file, file / "inside"):
        said = shelved(TASK, "--record", str(record))
        assert said.code == 2
        assert "is a file; name a folder" in said.err
    assert file.read_text() == "mine"
    assert [entry.ref for entry in Shelf(tmp_path / "shelf").entries()] == ["net@1"]
