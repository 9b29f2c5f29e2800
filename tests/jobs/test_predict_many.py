"""Many files at once: bad ones, a CSV file, constant memory, inputs unlike the training data."""

from __future__ import annotations

import csv
import json
import weakref

import numpy as np
import pytest
import torch
from PIL import Image

import dovetail as dt
from dovetail.cli.main import main
from dovetail.core.errors import TaskError
from dovetail.jobs.predict import predict
from dovetail.measure import new_inputs
from dovetail.measure.familiar import familiar_with
from dovetail.measure.forward import outputs_of
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf
from dovetail.tasks.task import Task

CLASSES = ("dark", "light")


def picture(path, level, seed=0):
    noise = np.random.default_rng(seed).integers(-20, 20, (8, 8))
    Image.fromarray(np.clip(level + noise, 0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a shelf: a network that tells dark from light, and knows its features."""
    folder = tmp_path_factory.mktemp("many")
    draw = torch.Generator().manual_seed(0)
    levels = torch.tensor([60, 190]).repeat(100)
    noise = torch.randint(-20, 20, (200, 1, 8, 8), generator=draw)
    x = (levels[:, None, None, None] + noise).to(torch.uint8)
    task = Task(x, [CLASSES[i % 2] for i in range(200)], name="levels")
    part = dt.train.end_to_end(
        build("mlp", shape=(1, 8, 8), hidden=(8,), classes=2), task, epochs=10
    ).part
    Shelf(folder / "shelf").add(part.changed(familiar=familiar_with(part, task)), "net")
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelf").symlink_to(made / "shelf")
    (tmp_path / "more").mkdir()
    picture(tmp_path / "a.png", 60)
    picture(tmp_path / "b.png", 190, 1)
    picture(tmp_path / "more" / "c.png", 60, 2)
    return tmp_path


def said(*arguments, **options):
    return predict("net", list(arguments), shelf="shelf", **options).data


def test_files_and_folders_in_the_order_they_are_given(place):
    rows = said("b.png", "more", "a.png")["predictions"]
    assert [(row["input"], row["class"]) for row in rows] == [
        ("b.png", "light"),
        ("more/c.png", "dark"),
        ("a.png", "dark"),
    ]
    assert set(rows[0]["probabilities"]) == set(CLASSES)


def test_a_folder_of_class_folders_is_every_image_in_it_by_its_name(place, capsys):
    for name in ("photos/dark", "photos/light", "photos/else/deep", "photos/.hidden"):
        (place / name).mkdir(parents=True)
        picture(place / name / "1.png", 190 if "light" in name else 60)
    picture(place / "photos" / "0.png", 60)
    rows = said("photos")["predictions"]
    assert [(row["input"], row["class"], row["true class"]) for row in rows] == [
        ("0.png", "dark", None),
        ("dark/1.png", "dark", "dark"),
        ("else/deep/1.png", "dark", None),
        ("light/1.png", "light", "light"),
    ]
    assert [row["input"] for row in said("photos", "a.png")["predictions"]][-2:] == [
        "photos/light/1.png",
        "a.png",
    ]
    said("photos", output="out.csv")
    assert [row["true class"] for row in rows_of("out.csv")] == ["", "dark", "", "light"]
    (place / "photos" / "dark" / "bad.png").write_bytes(b"no image")
    assert main(["predict", "net", "photos"]) == 2
    assert "photos/dark/bad.png: not a readable image" in capsys.readouterr().err
    assert main(["predict", "net", "photos", "--skip-bad"]) == 0
    assert "photos/dark/bad.png" in " ".join(capsys.readouterr().out.split())


def test_of_a_folder_that_is_meant_as_a_task_bad_files_are_left_out_too(place):
    for name in ("dark", "light"):
        (place / "task" / name).mkdir(parents=True)
        for i in range(10):
            picture(place / "task" / name / f"{i}.png", 60 if name == "dark" else 190, i)
    (place / "task" / "dark" / "bad.png").write_bytes(b"no image")
    options = {"task_options": {"size": 8}, "skip_bad": True}
    rows = said("task", **options)["predictions"]
    assert {row["true class"] for row in rows} == set(CLASSES)


def test_images_and_arrays_together(place):
    np.save("x.npy", np.full((2, 1, 8, 8), 190, np.uint8))
    rows = said("a.png", "x.npy")["predictions"]
    assert [row["input"] for row in rows] == ["a.png", "x.npy 0", "x.npy 1"]
    assert [row["class"] for row in rows] == ["dark", "light", "light"]


def test_one_array_without_its_batch_axis_is_one_input(place):
    np.save("x.npy", np.full((8, 8), 190, np.uint8))
    (row,) = said("x.npy")["predictions"]
    assert row["class"] == "light"


def test_bad_files_are_all_counted_and_the_flag_is_named(place, capsys):
    for name in ("bad.png", "more/worse.png"):
        (place / name).write_bytes(b"no image")
    assert main(["predict", "net", "a.png", "bad.png", "more", "-o", "out.csv"]) == 2
    told = capsys.readouterr().err
    assert "bad.png: not a readable image" in told
    assert "so is 1 more; leave such files out with --skip-bad" in told
    assert not (place / "out.csv").exists()
    assert sorted(path.name for path in place.iterdir() if path.suffix == ".csv") == []


def test_bad_files_are_left_out_and_named(place, capsys):
    (place / "bad.png").write_bytes(b"no image")
    (place / "notes.txt").write_text("no input")
    arguments = ["predict", "net", "bad.png", "notes.txt", "a.png", "--skip-bad"]
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["input"] for row in data["predictions"]] == ["a.png"]
    assert set(data["skipped"]) == {"notes.txt", "bad.png"}
    assert main(arguments) == 0
    assert "2 files left out: notes.txt" in " ".join(capsys.readouterr().out.split())


def test_nothing_but_bad_files_is_an_error(place, capsys):
    (place / "bad.png").write_bytes(b"no image")
    assert main(["predict", "net", "bad.png", "bad.png", "--skip-bad"]) == 2
    assert "bad.png: not a readable image" in capsys.readouterr().err


def rows_of(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_csv_file_has_every_probability(place):
    data = said("a.png", "b.png", output="out.csv")
    assert data["predictions"] is None
    assert data["inputs"] == 2
    assert data["of each class"] == {"dark": 1, "light": 1}
    rows = rows_of("out.csv")
    assert list(rows[0]) == [
        *("input", "class", "confidence", "unlike", "unlike score", "p(dark)", "p(light)")
    ]
    found = said("a.png", "b.png")["predictions"]
    for row, expected in zip(rows, found, strict=True):
        assert row["class"] == expected["class"]
        assert float(row["confidence"]) == expected["confidence"]
        assert float(row["p(light)"]) == expected["probabilities"]["light"]


def test_the_likeliest_classes_alone(place):
    (row,) = said("a.png", top=1)["predictions"]
    assert row["top"] == [{"class": "dark", "probability": row["confidence"]}]
    said("a.png", top=5, output="out.csv")
    (row,) = rows_of("out.csv")
    assert (row["class 1"], row["class 2"]) == CLASSES
    assert "p(dark)" not in row


def test_truths_stand_beside_and_are_empty_where_unknown(place):
    np.savez("task.npz", x=np.full((40, 1, 8, 8), 60, np.uint8), y=np.arange(40) % 2)
    options = {"task_options": {"kind": "classes"}}
    data = said("task.npz", output="out.csv", **options)
    assert {row["true class"] for row in rows_of("out.csv")} == {"0", "1"}
    assert data["inputs"] == 8


def test_what_looks_unlike_is_told(place, capsys):
    checks = np.indices((8, 8)).sum(0) % 2 * 255
    Image.fromarray(checks.astype(np.uint8)).save("odd.png")
    rows = said("a.png", "odd.png")["predictions"]
    assert [row["unlike"] for row in rows] == [False, True]
    assert rows[1]["unlike score"] > 1
    assert main(["predict", "net", "a.png", "odd.png"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 inputs looks unlike the training data" in out
    assert "of inputs like 'levels', 5% would" in out


def test_a_part_that_cannot_tell_says_nothing_of_it(place, capsys):
    shelf = Shelf("shelf")
    blind = shelf.get("net").changed(familiar=None)
    assert dt.predict(blind, "a.png").unlike is None
    folder = blind.save_pretrained(place / "folder")
    data = predict(str(folder), "a.png", shelf="shelf").data
    assert data["unlike"] is None
    assert "unlike" not in data["predictions"][0]


def test_at_most_so_many_rows_are_shown_and_all_are_counted(place, capsys):
    np.save("x.npy", np.full((50, 1, 8, 8), 190, np.uint8))
    assert main(["predict", "net", "x.npy", "--rows", "3"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "47 more inputs not shown" in out
    assert "light 50 100.0%" in out


def test_pixels_are_held_a_batch_at_a_time(place, monkeypatch):
    for i in range(40):
        picture(place / "more" / f"{i}.png", 60, i)
    monkeypatch.setattr(new_inputs, "_MOST_INPUTS", 8)
    held, peak, read = 0, 0, new_inputs.read_images

    def release(count):
        nonlocal held
        held -= count

    def counting(paths, **options):
        nonlocal held, peak
        pixels = read(paths, **options)
        held += len(pixels)
        peak = max(peak, held)
        weakref.finalize(pixels, release, len(pixels))
        return pixels

    monkeypatch.setattr(new_inputs, "read_images", counting)
    assert said("more", output="out.csv")["inputs"] == 41
    assert len(rows_of("out.csv")) == 41
    assert peak <= 2 * 8


def test_an_interrupted_run_leaves_no_file(place, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("dovetail.jobs.predict.predictions_of", interrupted)
    before = sorted(place.iterdir())
    with pytest.raises(KeyboardInterrupt):
        said("a.png", output="out.csv")
    assert sorted(place.iterdir()) == before


def test_files_in_python(place):
    part = Shelf("shelf").get("net")
    one = dt.predict(part, "a.png")
    assert one.labels == ("dark",)
    assert one.names == ("a.png",)
    several = dt.predict(part, [place / "b.png", "a.png", "more"])
    assert several.labels == ("light", "dark", "dark")
    assert several.unlike.shape == (3,)
    torch.testing.assert_close(several.probabilities[1:2], one.probabilities)
    assert several.top(1)[0][0][0] == "light"
    (place / "bad.png").write_bytes(b"no image")
    with pytest.raises(TaskError, match=r"bad.png: not a readable image .* skip_bad=True"):
        dt.predict(part, ["bad.png", "a.png"])
    assert dt.predict(part, ["bad.png", "a.png"], skip_bad=True).names == ("a.png",)
    with pytest.raises(TaskError, match="no such file"):
        dt.predict(part, "c.png")


def test_scores_are_those_of_the_features(place):
    part = Shelf("shelf").get("net")
    x = torch.randint(0, 255, (600, 1, 8, 8), dtype=torch.uint8)
    front, _ = dt.cut(part, at="hidden1")
    rows = outputs_of(front, x)
    found = dt.predict(part, x)
    torch.testing.assert_close(found.unlike, part.familiar.scores(rows), rtol=1e-4, atol=1e-4)


def test_several_labels_and_numbers_work_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    shelf = Shelf("shelf")
    for name, targets, kind in (
        ("labels", (x[:, :2] > 0.5).float(), "multilabel"),
        ("numbers", x[:, :1] * 3, "regression"),
    ):
        more = {"classes": ["big, or large", "b"]} if kind == "multilabel" else {}
        task = Task(x, targets, kind=kind, **more)
        net = build("mlp", shape=(3,), hidden=(8,), classes=task.outputs)
        part = dt.train.end_to_end(net, task, epochs=10).part
        shelf.add(part.changed(familiar=familiar_with(part, task)), name)
    np.save("x.npy", x[:30].numpy())
    data = predict("labels", "x.npy", shelf="shelf", output="labels.csv").data
    assert set(data["of each class"]) <= {"big, or large", "b"}
    assert {"p(b)", "unlike"} <= set(rows_of("labels.csv")[0])
    data = predict("numbers", ["x.npy", "x.npy"], shelf="shelf").data
    assert data["inputs"] == 60
    assert {"number", "unlike", "unlike score"} <= set(data["predictions"][0])
