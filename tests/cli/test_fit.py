"""``dovetail fit``: one command from a folder or a table to a model, and one line for bad luck."""

from __future__ import annotations

import numpy as np
import pytest
from cli.test_mistakes import assert_told
from PIL import Image
from stories.test_full_disk import until_it_works

import dovetail as dt
from dovetail.jobs.fit import fit as fit_job
from dovetail.reuse import fitting_attempts, fitting_search

QUICK = ("--no-released", "--minutes", "5")


@pytest.fixture(autouse=True)
def _short(monkeypatch, tmp_path):
    for name, value in {"FOLDS": 2, "EPOCHS": 2, "STEPS": 2}.items():
        monkeypatch.setattr(fitting_attempts, name, value)
    monkeypatch.chdir(tmp_path)


def photos(folder, classes=("dark", "light"), each=40, size=12):
    draw = np.random.default_rng(0)
    for i, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 128, (size, size, 3)) + 127 * i
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def test_a_folder_with_broken_files_becomes_a_model_that_predicts(run, tmp_path):
    folder = photos(tmp_path / "photos")
    for number in range(3):
        (folder / "dark" / f"broken{number}.png").write_bytes(b"no image")
    said = run("fit", folder, "-o", "model", *QUICK)
    assert said.code == 0, said.err
    assert "broken0.png" in said.out
    assert "Next: dovetail predict model" in said.out
    part = dt.from_pretrained(tmp_path / "model", verify=True)
    assert part.contract.classes == ("dark", "light")
    page = (tmp_path / "report.html").read_text()
    assert "A model for photos" in page
    assert not (tmp_path / ".dovetail-runs").exists()
    answer = run("predict", "model", folder / "light" / "1.png", "--json")
    assert answer.json["predictions"][0]["class"] == "light"


def test_a_table_is_told_beside_gradient_boosting(run, tmp_path):
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(120, 2))
    lines = [f"{a:.3f},{b:.3f},{'high' if a > b else 'low'}" for a, b in rows]
    (tmp_path / "sheet.csv").write_text("a,b,level\n" + "\n".join(lines))
    said = run("fit", "sheet.csv", "--target", "level", "--json", *QUICK)
    assert said.code == 0, said.err
    assert said.json["peer"] is not None
    assert said.json["value"] > 0.7
    assert dt.from_pretrained(tmp_path / "model").contract.inputs == ("a", "b")


def test_a_model_that_is_there_is_not_lost(run, tmp_path):
    folder = photos(tmp_path / "photos")
    assert run("fit", folder, *QUICK).code == 0
    before = (tmp_path / "model" / "manifest.json").read_bytes()
    assert_told(run("fit", folder, *QUICK), "model holds a model already", "--overwrite")
    assert (tmp_path / "model" / "manifest.json").read_bytes() == before
    assert run("fit", folder, "--overwrite", "--seed", "1", *QUICK).code == 0


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C after so many attempts; None lets all be made.  Says how many were made."""
    made = []

    def after(count):
        made.clear()

        def counting(*args, **settings):
            if count is not None and len(made) >= count:
                raise KeyboardInterrupt
            made.append(1)
            return fitting_attempts.attempt(*args, **settings)

        monkeypatch.setattr(fitting_search, "attempt", counting)
        return made

    return after


def test_interrupted_the_same_command_goes_on_and_replaces_what_it_had(run, tmp_path, interrupted):
    folder = photos(tmp_path / "photos")
    whole = run("fit", folder, "-o", "whole", "--json", *QUICK)
    interrupted(1)
    said = run("fit", folder, *QUICK)
    assert said.code == 0, said.err
    assert "The same command goes on" in said.out
    assert "no time" not in said.out
    before = (tmp_path / "model" / "manifest.json").read_bytes()
    rest = interrupted(None)
    assert_told(run("fit", folder, *QUICK, "--seed", "1"), "interrupted run with other seed")
    said = run("fit", folder, *QUICK, "--json")
    assert said.code == 0, said.err
    assert len(rest) == len(whole.json["tried"]) - 1
    assert said.json["value"] == whole.json["value"]
    again = dt.from_pretrained(tmp_path / "model").digest
    assert again == dt.from_pretrained(tmp_path / "whole").digest
    assert (tmp_path / "model" / "manifest.json").read_bytes() != before
    assert not (tmp_path / ".dovetail-runs").exists()
    assert_told(run("fit", folder, *QUICK), "model holds a model already")


def test_a_run_of_other_data_begins_anew_says_so_and_leaves_nothing(run, tmp_path, interrupted):
    folder = photos(tmp_path / "photos")
    interrupted(0)
    assert run("fit", folder, *QUICK).code == 130
    assert len(list((tmp_path / ".dovetail-runs").iterdir())) == 1
    (folder / "dark" / "0.png").unlink()
    interrupted(None)
    said = run("fit", folder, *QUICK)
    assert said.code == 0, said.err
    assert "Begun anew: an earlier run had other data." in said.out
    assert not (tmp_path / ".dovetail-runs").exists()


def test_bad_luck_is_one_line(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_told(run("fit", "empty", *QUICK), "empty")
    one = photos(tmp_path / "one", classes=("only",))
    assert_told(run("fit", one, *QUICK), "class")
    lone = photos(tmp_path / "lone", each=1)
    assert_told(run("fit", lone, *QUICK), "image")
    broken = photos(tmp_path / "broken", each=4)
    for file in broken.rglob("*.png"):
        file.write_bytes(b"no image")
    assert_told(run("fit", broken, *QUICK), "broken")
    assert_told(run("fit", "digits", "--minutes", "0"), "minutes must be above 0")
    assert_told(run("fit", "digits", "--report", "page.pdf", *QUICK), ".html or .md")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    assert_told(run("fit", "digits", "-o", "mine", *QUICK), "mine is there and no model")
    assert not (tmp_path / "model").exists()


def test_a_full_disk_is_one_line_and_what_was_fitted_is_not_fitted_again(tmp_path, interrupted):
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    np.savez(tmp_path / "sheet.npz", x=x, y=y)
    made, lost = interrupted(None), []

    def fit():
        fit_job("sheet.npz", released=False, minutes=5)

    def check():
        assert not (tmp_path / "model").exists()
        page = tmp_path / "report.html"
        assert not page.exists() or page.read_text().rstrip().endswith("</html>")
        whole = {"sheet.npz", "report.html", ".dovetail-runs"}
        assert {path.name for path in tmp_path.iterdir()} <= whole
        lost.append(len(made))

    assert until_it_works(fit, check) > 3
    assert dt.from_pretrained(tmp_path / "model", verify=True).contract.kind == "classes"
    assert not (tmp_path / ".dovetail-runs").exists()
    assert len(made) == lost[-1]  # the last call made none anew
    (tmp_path / "model").rename(tmp_path / "first")
    fit()
    assert (
        dt.from_pretrained(tmp_path / "model").digest
        == dt.from_pretrained(tmp_path / "first").digest
    )


def test_tiny_and_oblong_images_are_no_reason_to_fail(run, tmp_path):
    for name, (height, width) in {"tiny": (4, 4), "oblong": (6, 40)}.items():
        draw = np.random.default_rng(0)
        x = draw.integers(0, 128, (120, height, width), np.uint8)
        y = np.arange(120) % 2
        np.savez(tmp_path / f"{name}.npz", x=x + 127 * y[:, None, None].astype(np.uint8), y=y)
        said = run("fit", f"{name}.npz", "-o", name, "--json", *QUICK)
        assert said.code == 0, said.err
        assert said.json["value"] > 0.8
        ways = {row["how"]: row["why_not"] for row in said.json["tried"]}
        assert ways == {"closed form": "", "from scratch": ""}


def test_two_images_a_class_and_no_time_still_give_a_model(run, tmp_path):
    few = photos(tmp_path / "few", each=2)
    said = run("fit", few, "--no-released", "--minutes", "0.001", "--json")
    assert said.code == 0, said.err
    assert said.json["n"] >= 1
