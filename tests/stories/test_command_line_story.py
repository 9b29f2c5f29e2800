"""The same story at the command line, some of its commands in a process of their own."""

import json

import numpy as np
import pytest
from cli.console import call, spawn

from dovetail.parts.part import from_pretrained
from dovetail.tasks.load import load_task


def test_from_training_to_the_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words, own_process=False):
        if own_process:
            said = spawn(*words, "--json", folder=tmp_path)
        else:
            said = call(capsys, *words, "--json")
        assert (said.code, said.err) == (0, ""), said
        return said.json

    trained = run(
        "train", "digits", "--net", "mlp", "--set", "hidden=[16]", "--epochs", 3, "--name", "net",
        "--record", "records", own_process=True,
    )  # fmt: skip
    assert trained["ref"] == "net@1"
    accuracy = trained["measures"]["test accuracy"]
    assert accuracy > 0.8

    points = [point["at"] for point in run("cut", "net")["points"]]
    assert "hidden1" in points
    halves = run("cut", "net", "--at", "hidden1")
    assert (halves["front"], halves["back"]) == ("net.front@1", "net.back@1")

    joined = run(
        "join", "net.front", "net.back", "--task", "digits", "--name", "again",
        "--record", "records",
    )  # fmt: skip
    assert joined["ref"] == "again@1"
    assert joined["why_not"] == []
    assert joined["measures"]["accuracy"] == accuracy

    images, targets = load_task("digits").subset("test")
    np.save("images.npy", images[:20].numpy())
    said = run("predict", "again", "images.npy")["predictions"]
    right = [int(row["class"]) == int(y) for row, y in zip(said, targets, strict=False)]
    assert len(said) == 20
    assert sum(right) >= 14
    whole = run("predict", "net", "images.npy")["predictions"]
    assert [{**row, "unlike": None, "unlike score": None} for row in whole] == [
        {**row, "unlike": None, "unlike score": None} for row in said
    ]

    listed = run("shelf", "ls")
    assert all(name in json.dumps(listed) for name in ("net@1", "net.front@1", "again@1"))
    shown = json.dumps(run("shelf", "show", "again"))
    assert "digits" in shown or "join" in shown
    run("shelf", "verify")
    assert run("shelf", "rm", "again@1")["removed"] == ["again@1"]
    assert "again@1" not in json.dumps(run("shelf", "ls"))

    report = run("report", "records", "--shelf", "shelf", "-o", "page.html")
    assert len(report["records"]) == 4
    page = (tmp_path / "page.html").read_text()
    assert "<html" in page
    assert "Training mlp on digits" in page
    assert not list(tmp_path.rglob(".dovetail-????????????????????????????????"))


def test_for_people_every_command_says_something(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (
        ["train", "digits", "--net", "mlp", "--set", "hidden=[8]", "--epochs", "1", "--name", "n"],
        ["cut", "n"],
        ["cut", "n", "--at", "hidden1"],
        ["join", "n.front", "n.back", "--task", "digits"],
        ["predict", "n", "digits", "--most", "3"],
        ["shelf", "ls"],
        ["shelf", "show", "n"],
        ["shelf", "verify"],
        ["report", "--shelf", "shelf"],
        ["shelf", "rm", "n", "--all"],
    ):
        said = call(capsys, *words)
        assert (said.code, said.err) == (0, ""), (words, said)
        assert said.out.strip()
        assert "\x1b" not in said.out  # a pipe gets no colours


def test_the_demo(toured):
    folder, said = toured
    assert (said.code, said.err) == (0, "")
    data = said.json
    assert (folder / "tour" / "report.html").is_file()
    assert data["report"] == "tour/report.html"
    assert len(data["joined"]["pairs"]) == 16
    fits = [pair for pair in data["joined"]["pairs"] if not pair["why_not"]]
    assert {(pair["front"], pair["head"]) for pair in fits} == {
        (name, name) for name in ("low", "low-twin", "high", "inverted")
    }
    for pair in fits:
        assert pair["accuracy"]["stored"] == data["accuracy"][pair["front"]]
    assert data["fitted"]["networks"] == ["low", "inverted"]
    known = {(pair["front"], pair["head"]): pair for pair in data["joined"]["pairs"]}
    assert data["fitted"]["apart"][0][1] == known["low", "inverted"]["accuracy"]["batch"]
    assert data["packed"]["before"]["accuracy"] == data["accuracy"]["low"]
    assert data["packed"]["size"] < data["packed"]["full"] / 2
    model = from_pretrained(folder / "tour" / "model", verify=True)
    assert model.contract.classes == tuple(said.json["model"]["classes"])
    assert model.origin.measured["test accuracy"] == said.json["model"]["value"]


@pytest.mark.slow
def test_the_demo_a_second_time(toured, capsys, monkeypatch):
    folder, first = toured
    monkeypatch.chdir(folder)
    again = call(capsys, "demo", "--epochs", 1, "--folder", "tour")
    assert (again.code, again.err) == (0, "")
    assert "What to take home" in again.out
    listed = call(capsys, "shelf", "ls", "--shelf", "tour/shelf", "--json")
    assert "@2" not in listed.out  # the same parts, not new versions of them
    assert first.code == 0
