import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dovetail.cli.main import main
from dovetail.core.errors import SettingsError, ShelfError, TaskError
from dovetail.jobs.frame import RUNS
from dovetail.jobs.train import train
from dovetail.measure.evaluate import evaluate
from dovetail.parts.joining import join
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task
from dovetail.train.pair_batches import Body
from dovetail.train.supervision import LOSSES


class PowerCut(Exception):
    """What stands for a power cut."""


@pytest.fixture
def data(tmp_path):
    """A small task in a file whose name is no name for a part."""
    y = np.arange(60) % 3
    x = np.random.default_rng(0).random((60, 1, 8, 8), np.float32)
    x[np.arange(60), 0, y, y] += 2
    np.savez(tmp_path / "my data (v1.2).npz", x=x, y=y)
    return str(tmp_path / "my data (v1.2).npz")


@pytest.fixture
def small(data, tmp_path):
    def run(**more):
        chosen = {"net": "mlp", "args": {"hidden": [8]}, "epochs": 3, "batch_size": 16, **more}
        return train(data, shelf=tmp_path / "shelf", **chosen)

    return run


def test_what_is_shelved_is_what_was_measured(small, data, tmp_path):
    outcome = small()
    part = Shelf(tmp_path / "shelf").get(outcome.data["ref"])
    measured = evaluate(part, load_task(data))
    assert outcome.data["measures"]["test accuracy"] == measured.accuracy
    assert part.origin.measured == outcome.data["measures"]
    assert (outcome.data["epochs"], outcome.data["resumed"]) == (3, False)
    training, test = outcome.records
    assert len(training.rows) == 3
    assert test == measured


def test_a_name_is_made_of_net_and_task(small, tmp_path):
    assert small().data["ref"] == "mlp-my-data-v1-2@1"
    part = build("mlp", shape=(1, 8, 8), hidden=(8,), classes=3)
    part.save_pretrained(tmp_path / "made" / "start")
    from_part = {"net": None, "args": None}
    made = str(tmp_path / "made" / "start")
    assert small(start=made, **from_part).data["ref"] == "start-my-data-v1-2@1"
    again = small(start="mlp-my-data-v1-2@1", name="again", **from_part)
    assert again.data["ref"] == "again@1"
    with pytest.raises(SettingsError, match="leave out net and args"):
        small(start=made, net="mlp")


def test_a_bad_name_is_refused_before_the_training(small, tmp_path):
    with pytest.raises(ShelfError, match="cannot name a part"):
        small(name="a/b", epochs=10**6)
    assert not (tmp_path / "shelf").exists()


def test_the_same_command_gives_the_same_part_once(small, tmp_path):
    assert small().data["ref"] == small().data["ref"]
    assert small(seed=1).data["ref"].endswith("@2")
    assert len(Shelf(tmp_path / "shelf")) == 2


@pytest.fixture
def interrupted(small, monkeypatch):
    """A run that stopped in its second epoch."""
    calls = iter(range(100))

    def failing(*args, **kwargs):
        if next(calls) == 5:
            raise PowerCut
        return F.cross_entropy(*args, **kwargs)

    failing.__name__ = "cross_entropy"
    monkeypatch.setitem(LOSSES, "classes", failing)
    with pytest.raises(PowerCut):
        small(checkpoint_seconds=0.0)
    monkeypatch.undo()


def weights(outcome, shelf):
    return Shelf(shelf).get(outcome.data["ref"]).module.state_dict()


@pytest.mark.usefixtures("interrupted")
def test_the_same_command_goes_on(small, tmp_path):
    assert len(list((tmp_path / RUNS).iterdir())) == 1
    # how often a run is saved is no part of what it is
    resumed = small(checkpoint_seconds=7.0)
    assert resumed.data["resumed"]
    assert resumed.view[0].text == "Resumed an unfinished run."
    assert list((tmp_path / RUNS).iterdir()) == []
    whole = small(name="whole")
    assert not whole.data["resumed"]
    a, b = weights(resumed, tmp_path / "shelf"), weights(whole, tmp_path / "shelf")
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"lr": 0.2}, {"name": "b"}, {"augment": "flip"}, {"args": {"hidden": [9]}}],
)
def test_another_command_never_finds_the_run(small, tmp_path, other):
    assert not small(**other).data["resumed"]
    assert len(list((tmp_path / RUNS).iterdir())) == 1


@pytest.mark.usefixtures("interrupted")
def test_without_resume_it_begins_anew(small, tmp_path):
    fresh = small(resume=False)
    assert not fresh.data["resumed"]
    assert list((tmp_path / RUNS).iterdir()) == []
    a, b = weights(fresh, tmp_path / "shelf"), weights(small(name="w"), tmp_path / "shelf")
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_other_kinds_of_task(tmp_path, kind):
    x = np.random.default_rng(0).random((60, 4), np.float32)
    y = x.sum(1) if kind == "regression" else (x[:, :3] > 0.5).astype(int)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    outcome = train(
        str(tmp_path / "data.npz"), net="mlp", shelf=tmp_path / "shelf", epochs=2, batch_size=16
    )
    measure = "test r2" if kind == "regression" else "test exact"
    assert measure in outcome.data["measures"]


@pytest.fixture
def in_modules(small):
    def run(**more):
        return small(how="modular", args={"hidden": [8, 6]}, head_epochs=20, **more)

    return run


def test_a_network_trained_in_modules_is_shelved_whole(in_modules, data, tmp_path):
    chosen = {"labels_per_class": 1, "supervision": "pairs", "pairs": 30, "checkpoint_seconds": 0.0}
    outcome = in_modules(objective="nmse", **chosen)
    part = Shelf(tmp_path / "shelf").get(outcome.data["ref"])
    assert outcome.data["measures"]["test accuracy"] == evaluate(part, load_task(data)).accuracy
    assert "validation proxy" in outcome.data["measures"]
    assert part.origin.settings["objective"] == "nmse"
    assert part.origin.settings["pairs"] == 30
    assert outcome.data["also"] == []
    assert outcome.data["epochs"] == 3 + 20
    assert list((tmp_path / RUNS).iterdir()) == []


def test_the_modules_are_shelved_when_asked(in_modules, data, tmp_path):
    outcome = in_modules(modules=True, at=["hidden1", "hidden2"], name="net")
    assert outcome.data["also"] == ["net.module1@1", "net.module2@1", "net.head@1"]
    shelf = Shelf(tmp_path / "shelf")
    joined = join(*(shelf.get(ref) for ref in outcome.data["also"]))
    assert evaluate(joined, load_task(data)).accuracy == outcome.data["measures"]["test accuracy"]
    assert any("net.head@1" in getattr(block, "text", "") for block in outcome.view)


@pytest.mark.parametrize(
    ("how", "epochs", "names"),
    [
        ("end-to-end", 3, ["epoch01", "epoch02", "epoch03"]),
        ("modular", 3, ["epoch01", "epoch02", "epoch03"]),
        ("end-to-end", 101, ["epoch050", "epoch100"]),
    ],
)
def test_earlier_epochs_are_shelved_when_asked(small, tmp_path, how, epochs, names):
    every = 50 if epochs > 50 else 1
    outcome = small(how=how, keep_epochs=every, name="net", epochs=epochs)
    assert outcome.data["also"] == [f"net.{name}@1" for name in names]
    shelf = Shelf(tmp_path / "shelf")
    digests = {shelf.get(ref).digest for ref in outcome.data["also"]}
    assert len(digests) == len(names)
    if how == "end-to-end" and epochs == 3:
        assert shelf.get("net").digest == shelf.get("net.epoch03").digest
    assert list((tmp_path / RUNS).iterdir()) == []


def test_a_killed_run_in_modules_goes_on_with_all_its_epochs(in_modules, tmp_path, monkeypatch):
    chosen = {"keep_epochs": 1, "checkpoint_seconds": 0.0, "name": "net"}
    calls = iter(range(100))
    step = Body.step

    def failing(self, batch):
        if next(calls) == 5:
            raise PowerCut
        return step(self, batch)

    monkeypatch.setattr(Body, "step", failing)
    with pytest.raises(PowerCut):
        in_modules(**chosen)
    monkeypatch.undo()
    assert sorted(path.suffix for path in (tmp_path / RUNS).iterdir()) == [
        ".epochs",
        ".safetensors",
    ]
    resumed = in_modules(**chosen)
    assert resumed.data["resumed"]
    assert [ref.partition(".")[2] for ref in resumed.data["also"]] == [
        *("epoch01@1", "epoch02@1", "epoch03@1")
    ]
    whole = in_modules(**{**chosen, "name": "whole"})
    shelf = Shelf(tmp_path / "shelf")
    for one, other in zip(
        [resumed.data["ref"], *resumed.data["also"]],
        [whole.data["ref"], *whole.data["also"]],
        strict=True,
    ):
        assert shelf.get(one).digest == shelf.get(other).digest
    assert list((tmp_path / RUNS).iterdir()) == []


@pytest.mark.parametrize(
    ("stray", "word"),
    [
        ({"objective": "al"}, "objective"),
        ({"labels_per_class": 1}, "labels_per_class"),
        ({"supervision": "pairs"}, "supervision"),
        ({"modules": True}, "modules"),
    ],
)
def test_options_of_another_way_are_refused(small, tmp_path, stray, word):
    with pytest.raises(SettingsError, match=f"{word} is an option of how='modular', not of"):
        small(**stray)
    assert not (tmp_path / "shelf").exists()


def test_names_that_would_be_too_long_are_refused_before_the_training(in_modules):
    with pytest.raises(ShelfError, match="cannot name a part"):
        in_modules(name="n" * 95, modules=True, epochs=10**6)


def test_the_command_line_takes_the_options(tmp_path, data, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--net mlp --set unit=true --how modular --objective al --at hidden2 --modules"
    more = "--labels-per-class 1 --supervision pairs --pairs 40 --epochs 2 --head-epochs 5 --json"
    assert main(["train", data, *words.split(), *more.split(), "--name", "net"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["also"] == ["net.module1@1", "net.head@1"]
    assert main(["train", data, "--net", "mlp", "--pairs", "5"]) == 2
    assert "--pairs is an option of --how modular" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["end-to-end", "modular"])
def test_pairs_alone_are_refused_with_the_way_out(tmp_path, monkeypatch, how):
    pairs = load_task("digits").pairs("train", count=20)
    task = Task(load_task("digits").inputs, kind="pairs", pairs=pairs, name="told in pairs")
    monkeypatch.setattr("dovetail.jobs.frame.load_task", lambda *_, **__: task)
    with pytest.raises(TaskError, match=r"has pair labels only.*as head_task="):
        train("pairs", shelf=tmp_path / "shelf", how=how)
