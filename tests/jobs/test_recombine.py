"""Recombining from the shelf: which halves are meant, what is said and kept."""

from __future__ import annotations

import pytest
from cli.console import call

from dovetail.core.errors import ContractError, SettingsError, ShelfError
from dovetail.core.records import load_record
from dovetail.jobs.recombine import recombine
from dovetail.measure.recombine import recombine as recombine_parts
from dovetail.parts.cutting import cut
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.train.end_to_end import end_to_end


@pytest.fixture(scope="module")
def digits():
    return load_task("digits")


@pytest.fixture(scope="module")
def halves(digits):
    nets = {
        name: end_to_end(
            build("lenet5", size=8, norm="batch", seed=i), digits, epochs=1, batch_size=128, seed=i
        ).part
        for i, name in enumerate(("one", "two"))
    }
    return {name: cut(net, at="conv2") for name, net in nets.items()}


@pytest.fixture(scope="module")
def shelf(halves, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recombined") / "shelf"
    store = Shelf(folder)
    store.add(build("lenet5", size=8), "one")  # a whole network of that name is not meant
    for (name, (front, back)), ending in zip(halves.items(), ("back", "head"), strict=True):
        store.add(front, f"{name}.front")
        store.add(back, f"{name}.{ending}")
    store.add(halves["one"][0], "lonely.front")
    return folder


@pytest.fixture(scope="module")
def expected(halves, digits):
    fronts = {name: front for name, (front, _) in halves.items()}
    heads = {name: back for name, (_, back) in halves.items()}
    return recombine_parts(fronts, heads, digits)


def test_networks_stand_for_their_halves(shelf, expected):
    outcome = recombine(["one", "two"], tasks=["digits"], shelf=shelf)
    assert outcome.records == (expected,)
    assert outcome.data["mean_off_diagonal"] == expected.mean_off_diagonal
    assert outcome.data["upper_bound"] == expected.upper_bound
    assert outcome.view[:-1] == expected.view()


def test_what_was_measured_is_kept_on_the_shelf(shelf, halves, expected):
    every = ("batch", "stored", "recalibrated")
    outcome = recombine(["one", "two"], tasks=["digits"], norms=every, shelf=shelf)
    assert outcome.view[-1].text == f"12 measurements are kept on the shelf {shelf}."
    store = Shelf(shelf)
    (norms,) = expected.norms
    digests = {name: tuple(part.digest for part in pair) for name, pair in halves.items()}
    kept = {(fit.front, fit.head): fit for fit in store.fits() if fit.norms == norms}
    for pair in expected.pairs:
        fit = kept[digests[pair.front][0], digests[pair.head][1]]
        assert (fit.accuracy, fit.n, fit.split) == (pair.accuracy[norms], pair.n, "test")
        assert (fit.task, fit.chance) == ("digits", 0.1)
    assert store.find(fits="two.front")[0].name == "two.head"


def test_a_shelf_that_cannot_be_written_to_costs_no_measurement(shelf, expected, monkeypatch):
    def full(self, fit):
        raise ShelfError("cannot write to the shelf")

    monkeypatch.setattr(Shelf, "keep_fit", full)
    outcome = recombine(["one", "two"], tasks=["digits"], shelf=shelf)
    assert outcome.records == (expected,)
    assert outcome.view[-1].text == "Not kept on the shelf: cannot write to the shelf"


def test_folders_alone_need_no_shelf(halves, tmp_path):
    folders = [
        str(part.save_pretrained(tmp_path / name))
        for part, name in zip(halves["one"], ("mine.front", "mine.back"), strict=True)
    ]
    nowhere = tmp_path / "nowhere"
    outcome = recombine(folders[:1], heads=folders[1:], tasks=["digits"], shelf=nowhere)
    assert outcome.records[0].own_heads == {"mine": "mine"}
    assert not nowhere.exists()


def test_fronts_and_heads_by_their_own_names(shelf, expected):
    named = recombine(
        ["one.front@1", "two.front"], heads=["two.head", "one.back"], tasks=["digits"], shelf=shelf
    )
    (record,) = named.records
    assert record.own_heads == {"one": "one", "two": "two"}
    assert record.accuracy == expected.accuracy
    alone = recombine(["one.front"], tasks=["digits"], shelf=shelf)
    assert [(p["front"], p["head"]) for p in alone.data["pairs"]] == [("one", "one")]


def test_names_that_would_be_one_stay_long(shelf):
    outcome = recombine(["one"], heads=["one.back", "one.back@1"], tasks=["digits"], shelf=shelf)
    assert list(outcome.records[0].accuracy["one"]) == ["one.back", "one.back@1"]


def test_a_folder_is_a_part_too(shelf, halves, expected, tmp_path):
    folder = halves["one"][0].save_pretrained(tmp_path / "mine")
    how = {"norms": expected.norms, "shelf": shelf}
    outcome = recombine([str(folder)], heads=["two"], tasks=["digits"], **how)
    assert outcome.records[0].accuracy == {"mine": {"two": expected.accuracy["one"]["two"]}}
    with pytest.raises(ShelfError, match="with heads"):
        recombine([str(folder)], tasks=["digits"], shelf=shelf)


def test_a_task_for_each_front(shelf, expected):
    outcome = recombine(["one", "two"], tasks=["digits", "digits"], shelf=shelf)
    assert outcome.records[0].accuracy == expected.accuracy
    with pytest.raises(SettingsError, match="2 tasks for 1 fronts"):
        recombine(["one"], tasks=["digits", "digits"], shelf=shelf)
    with pytest.raises(SettingsError, match="name a task"):
        recombine(["one"], tasks=[], shelf=shelf)


def test_what_is_not_there(shelf):
    with pytest.raises(ShelfError, match=r"neither lonely\.head nor lonely\.back"):
        recombine(["lonely"], tasks=["digits"], shelf=shelf)
    with pytest.raises(ShelfError, match="no part 'three'"):
        recombine(["three"], tasks=["digits"], shelf=shelf)
    with pytest.raises(ContractError, match="the front 'one' does not take the inputs of 'digits'"):
        recombine(["one.back"], heads=["one.front"], tasks=["digits"], shelf=shelf)


def test_the_command(shelf, expected, tmp_path, capsys):
    words = ["recombine", "one", "two", "--task", "digits", "--shelf", shelf]
    said = call(capsys, *words, "--json", "--record", tmp_path)
    assert (said.code, said.err) == (0, "")
    assert said.json["mean_off_diagonal"] == expected.mean_off_diagonal
    (file,) = tmp_path.glob("every-front-with-every-head-*.json")
    assert load_record(file) == expected
    said = call(capsys, *words, "--norms", "stored", "--norms", "recalibrated", "--no-correlation")
    assert "recalibrated norms" in said.out
    assert "Mean correlation" not in said.out
    said = call(capsys, *words, "--batch-size", "1")
    assert said.code == 2
    assert "--batch-size must be at least 2" in said.err
