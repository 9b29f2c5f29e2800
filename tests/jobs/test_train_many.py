"""Training parts that fit from the command line's side: what is shelved, kept, refused, resumed."""

from __future__ import annotations

import numpy as np
import pytest
from cli.console import call

from dovetail.core.errors import SettingsError, ShelfError, TaskError
from dovetail.jobs.frame import RUNS, names_for, net_for
from dovetail.jobs.train import train
from dovetail.measure.evaluate import evaluate
from dovetail.measure.recombine import recombine
from dovetail.parts.joining import join
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.train.compatible import compatible
from dovetail.train.group import Group
from dovetail.train.self_supervised import self_supervised

CHOSEN = {"net": "mlp", "args": {"hidden": [8, 6]}, "epochs": 2, "batch_size": 16, "lr": 0.02}


class PowerCut(Exception):
    """What stands for a power cut."""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a small task in a file, and its negative by name."""
    folder = tmp_path_factory.mktemp("many")
    y = np.arange(90) % 3
    x = np.random.default_rng(0).random((90, 1, 8, 8), np.float32) / 4
    x[np.arange(90), 0, y, y] += 0.7
    np.savez(folder / "dots.npz", x=x, y=y)
    return folder


@pytest.fixture(scope="module")
def sources(here):
    return [str(here / "dots.npz"), str(here / "dots.npz~inverted")]


def many(sources, shelf, **more):
    return train(sources, how="compatible", at=["hidden1"], shelf=shelf, **{**CHOSEN, **more})


@pytest.fixture(scope="module")
def made(here, sources):
    return many(sources, here / "shelf", name="pair"), Shelf(here / "shelf")


@pytest.fixture(scope="module")
def expected(sources):
    """The same by hand."""
    tasks = [load_task(source) for source in sources]
    nets = [net_for(task, "mlp", {"hidden": [8, 6]}) for task in tasks]
    options = {name: CHOSEN[name] for name in ("epochs", "batch_size", "lr")}
    return tasks, compatible(nets, tasks, at="hidden1", **options)


def test_networks_halves_and_shared_heads_are_on_the_shelf(made, expected):
    outcome, shelf = made
    _, fit = expected
    assert sorted(entry.ref for entry in shelf.entries()) == [
        *("pair.dcc@1", "pair.dots-inverted.front@1", "pair.dots-inverted.head@1"),
        *("pair.dots-inverted@1", "pair.dots.front@1", "pair.dots.head@1", "pair.dots@1"),
        "pair.rp@1",
    ]
    assert outcome.data["refs"] == ["pair.dots@1", "pair.dots-inverted@1"]
    assert outcome.data["auxiliaries"] == {"dcc": "pair.dcc@1", "rp": "pair.rp@1"}
    for name, place in (("dots", 0), ("dots-inverted", 1)):
        assert shelf.get(f"pair.{name}").digest == fit.networks[place].digest
        assert shelf.get(f"pair.{name}.front").digest == fit.fronts[place].digest
        assert shelf.get(f"pair.{name}.head").digest == fit.heads[place].digest
    for name, part in fit.auxiliaries.items():
        assert shelf.get(f"pair.{name}").digest == part.digest


def test_the_matrix_is_of_the_test_images_and_its_measures_are_kept(made, expected):
    outcome, shelf = made
    tasks, fit = expected
    names = ("dots", "dots-inverted")
    found = recombine(
        *(dict(zip(names, parts, strict=True)) for parts in (fit.fronts, fit.heads, tasks))
    )
    assert outcome.records[1] == found
    assert outcome.data["recombination"] == found.mean_off_diagonal
    kept = {(fit.front, fit.head): fit for fit in shelf.fits()}
    assert len(kept) == 4
    for pair in found.pairs:
        one = kept[
            shelf.get(f"pair.{pair.front}.front").digest,
            shelf.get(f"pair.{pair.head}.head").digest,
        ]
        assert (one.accuracy, one.n, one.split, one.norms) == (
            *(pair.accuracy[found.norms[0]], pair.n),
            *("test", found.norms[0]),
        )


def test_what_each_reached_is_in_its_origin(made, expected):
    outcome, shelf = made
    tasks, fit = expected
    for name, whole, task in zip(("dots", "dots-inverted"), fit.networks, tasks, strict=True):
        measured = shelf.get(f"pair.{name}.front").origin.measured
        assert measured["test accuracy"] == evaluate(whole, task).accuracy
        assert measured["test recombination"] == pytest.approx(outcome.data["recombination"])
        assert outcome.data["networks"][name]["measures"] == measured


def test_halves_join_crosswise_without_force(made, sources):
    _, shelf = made
    joined = join(shelf.get("pair.dots.front"), shelf.get("pair.dots-inverted.head"))
    assert 0 <= evaluate(joined, load_task(sources[0])).accuracy <= 1


def test_a_later_network_joins_by_the_frozen_heads(made, here, sources):
    outcome, shelf = made
    before = shelf.get("pair.rp").digest
    later = many(
        sources[1:],
        here / "shelf",
        name="later",
        scheme="incremental",
        auxiliaries=["pair.dcc", "rp=pair.rp@1"],
        seed=3,
    )
    assert later.data["space"] == outcome.data["space"]
    assert later.data["auxiliaries"] == {}
    assert "later.rp" not in shelf
    assert shelf.get("pair.rp").digest == before
    join(shelf.get("later.dots-inverted.front"), shelf.get("pair.dots.head"))
    assert later.data["recombination"] is None  # one network has nobody to be recombined with


@pytest.mark.parametrize("by", [("rp",), ("rp", "iiw")])
def test_networks_begin_alike_only_when_asked_to(tmp_path, sources, by):
    many(sources, tmp_path / "shelf", by=by, name="n", epochs=1)
    shelf = Shelf(tmp_path / "shelf")
    starts = {shelf.get(f"n.{name}").origin.parents[0] for name in ("dots", "dots-inverted")}
    assert len(starts) == (1 if "iiw" in by else 2)
    settings = shelf.get("n.dots").origin.settings
    assert settings["identical_starts"] is ("iiw" in by)


def test_from_shelved_parts(made, here, sources, tmp_path):
    _, shelf = made
    from_parts = {"net": None, "args": None, "by": ("dcc",), "epochs": 1}
    starts = ["pair.dots", "pair.dots-inverted"]
    many(sources, here / "shelf", start=starts, name="on", **from_parts)
    for name in ("dots", "dots-inverted"):
        parent = shelf.get(f"on.{name}").origin.parents[0]
        assert parent == shelf.get(f"pair.{name}").digest
    with pytest.raises(SettingsError, match="start names 2 parts for 1 tasks"):
        many(sources[:1], here / "shelf", start=starts, **from_parts)


def test_a_killed_run_goes_on_to_the_same_bytes(made, sources, tmp_path, monkeypatch):
    _, whole = made
    step, calls = Group.step, iter(range(100))

    def failing(self, turn):
        if next(calls) == 10:
            raise PowerCut
        return step(self, turn)

    monkeypatch.setattr(Group, "step", failing)
    with pytest.raises(PowerCut):
        many(sources, tmp_path / "shelf", name="pair", checkpoint_seconds=0.0)
    monkeypatch.undo()
    assert len(Shelf(tmp_path / "shelf")) == 0
    assert len(list((tmp_path / RUNS).iterdir())) == 1
    assert not many(sources, tmp_path / "shelf", name="pair", seed=1).data["resumed"]
    resumed = many(sources, tmp_path / "shelf", name="pair")
    assert resumed.data["resumed"]
    assert list((tmp_path / RUNS).iterdir()) == []
    for entry in whole.find("pair.*"):
        assert Shelf(tmp_path / "shelf").entry(f"{entry.name}@2").digest == entry.digest


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"how": "end-to-end"}, SettingsError, "several tasks are for how='compatible'"),
        ({"how": "self-supervised"}, SettingsError, "several tasks are for how='compatible'"),
        ({"how": "modular", "by": ("rp",)}, SettingsError, "by is an option of how="),
        ({"objective": "al"}, SettingsError, "objective is an option of how='modular'"),
        ({"keep_epochs": 1}, SettingsError, "keep_epochs is an option of"),
        ({"by": ("dc",)}, SettingsError, "unknown way to compatibility 'dc'; did you mean dcc"),
        ({"scheme": "jointly"}, SettingsError, "unknown scheme"),
        ({"auxiliaries": ["pair"]}, SettingsError, "say what the head is for, as in dcc=pair or"),
        ({"auxiliaries": ["rp=nobody"]}, ShelfError, "no part 'nobody'|no shelf"),
        ({"at": ["hidden1"] * 3}, SettingsError, "3 points for 2 networks"),
        ({"name": "a/b"}, ShelfError, "cannot name a part"),
        ({"name": "n" * 97}, ShelfError, "cannot name a part"),
        ({"how": "compatibly"}, SettingsError, "did you mean compatible"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(sources, tmp_path, options, error, told):
    chosen = {"how": "compatible", "epochs": 10**6, **options}
    with pytest.raises(error, match=told):
        train(sources, shelf=tmp_path / "shelf", net="mlp", **chosen)
    assert not list(tmp_path.glob("shelf/[!.]*"))


def test_a_task_without_test_images_is_refused(here, tmp_path):
    with np.load(here / "dots.npz") as file:
        x, y = file["x"], file["y"]
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
    with pytest.raises(TaskError, match="no test examples"):
        many([str(tmp_path / "t.npz")], tmp_path / "shelf")


def test_names_never_meet():
    assert names_for(["a b", "a~b", "a[b]"]) == ["a-b", "a-b-2", "a-b-3"]
    assert names_for(["dcc"], taken=("dcc", "rp")) == ["dcc-2"]
    assert all(len(name) <= 42 for name in names_for(["x" * 90, "x" * 90]))


def test_without_labels(here, sources):
    options = {"by": "rotation", "at": ["hidden1"], "name": "warm"}
    outcome = train(sources[0], how="self-supervised", shelf=here / "blind", **CHOSEN, **options)
    task = load_task(sources[0])
    net = net_for(task, "mlp", {"hidden": [8, 6]})
    fit = self_supervised(net, task, at="hidden1", epochs=2, batch_size=16, lr=0.02)
    shelf = Shelf(here / "blind")
    assert outcome.data["ref"] == "warm@1"
    assert outcome.data["also"] == ["warm.front@1", "warm.pretext@1"]
    assert shelf.get("warm").digest == fit.part.digest
    assert [shelf.get(ref).digest for ref in outcome.data["also"]] == [p.digest for p in fit.parts]
    assert outcome.data["measures"] == fit.part.origin.measured
    join(shelf.get("warm.front"), shelf.get("warm.pretext"))
    on = train(sources[0], start="warm", shelf=here / "blind", epochs=1, name="on")
    assert shelf.get(on.data["ref"]).origin.parents == (shelf.get("warm").digest,)
    with pytest.raises(SettingsError, match="ends at one point"):
        train(sources[0], how="self-supervised", net="mlp", at=["a", "b"], shelf=here / "blind")
    with pytest.raises(SettingsError, match="jigsaw"):
        train(sources[0], how="self-supervised", net="mlp", by="jigsw", shelf=here / "blind")


def test_the_command(sources, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--how compatible --by dcc,iiw --scheme incremental --at hidden1 --net mlp --epochs 1"
    more = ["--set", "hidden=[8,6]", "--batch-size", 16, "--name", "two", "--record", "records"]
    said = call(capsys, "train", *sources, *words.split(), *more, "--json")
    assert (said.code, said.err) == (0, "")
    assert said.json["auxiliaries"] == {"dcc": "two.dcc@1"}
    assert len(list((tmp_path / "records").iterdir())) == 2
    said = call(capsys, "train", *sources, "--net", "mlp")
    assert said.code == 2
    assert said.err.count("\n") == 1
