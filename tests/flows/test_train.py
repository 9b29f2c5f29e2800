import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dovetail.core.errors import SettingsError, ShelfError
from dovetail.flows.train import RUNS, train
from dovetail.parts.part import build
from dovetail.running.evaluate import evaluate
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task


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
    with pytest.raises(SettingsError, match="leave out --net and --set"):
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
    from sys import modules

    losses = modules["dovetail.train.end_to_end"]._LOSSES
    monkeypatch.setitem(losses, "classes", failing)
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
