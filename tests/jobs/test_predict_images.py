"""Images from the disk to a class name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import dovetail as dt
from dovetail.cli.main import main
from dovetail.tasks.image_files import read_images


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for colour, rgb in {"red": (220, 20, 20), "green": (20, 220, 20)}.items():
        (tmp_path / "pets" / colour).mkdir(parents=True)
        for i in range(12):
            noisy = np.clip(np.array(rgb) + rng.integers(-15, 15, (16, 16, 3)), 0, 255)
            Image.fromarray(noisy.astype(np.uint8)).save(tmp_path / "pets" / colour / f"{i}.png")
    options = ["--net", "mlp", "--set", "hidden=[8]", "--epochs", "20", "--name", "pets"]
    assert main(["train", "pets", *options]) == 0
    return tmp_path / "shelf"


def test_a_file_a_folder_and_another_size(shelf, tmp_path, capsys):
    (tmp_path / "new").mkdir()
    Image.new("RGB", (40, 24), (210, 30, 30)).save(tmp_path / "new" / "a.png")
    Image.new("RGB", (24, 24), (30, 210, 30)).save(tmp_path / "new" / "b.jpg")
    capsys.readouterr()
    assert main(["predict", "pets", "new", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["predictions"]
    assert [(row["input"], row["class"]) for row in said] == [("a.png", "red"), ("b.jpg", "green")]
    assert main(["predict", "pets", "new/b.jpg"]) == 0
    assert "b.jpg" in capsys.readouterr().out


def test_an_unreadable_image_is_named(shelf, tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"no image")
    assert main(["predict", "pets", "bad.png"]) == 2
    assert "bad.png: not a readable image" in capsys.readouterr().err


def test_geometry_is_that_of_the_folder(shelf, tmp_path):
    folder = tmp_path / "wide" / "x"
    folder.mkdir(parents=True)
    other = tmp_path / "wide" / "y"
    other.mkdir()
    pixels = np.arange(24 * 40 * 3).reshape(24, 40, 3).astype(np.uint8)
    for i in range(4):
        Image.fromarray(np.roll(pixels, i, 0)).save(folder / f"{i}.png")
        Image.fromarray(np.roll(pixels, -i, 1)).save(other / f"{i}.png")
    task = dt.load_task(tmp_path / "wide", size=(16, 16))
    mine = read_images(sorted(folder.iterdir()), channels=3, size=(16, 16))
    assert any((mine[0] == image).all() for image in task.inputs)


def test_a_table_with_other_categories_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [("Bonn", 1, "yes"), ("Ulm", 2, "no")] * 20
    for name, rename in (("a", {}), ("b", {"Bonn": "Zell"})):
        lines = [f"{rename.get(town, town)},{n},{label}" for town, n, label in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["town,n,label", *lines]))
    options = ["--net", "mlp", "--set", "hidden=[4]", "--epochs", "5", "--name", "town"]
    assert main(["train", "a.csv", *options]) == 0
    assert main(["predict", "town", "a.csv"]) == 0
    assert main(["predict", "town", "b.csv"]) == 2
    said = capsys.readouterr().err
    assert "the part takes town=Bonn, town=Ulm, n; 'b' has town=Ulm, town=Zell, n" in said
