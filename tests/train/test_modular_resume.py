"""A training in modules that was interrupted anywhere ends with the same bits."""

import pytest
import torch
import torch.nn.functional as F

from dovetail.core.errors import SettingsError
from dovetail.objectives.pairwise import Pairwise
from dovetail.parts.part import build
from dovetail.train import Snapshots, modular


class PowerCut(Exception):
    """What stands for a power cut."""


class Fuse:
    """Lets so many calls through."""

    def __init__(self, calls=None):
        self.left, self.calls = calls, 0

    def burn(self):
        if self.calls == self.left:
            raise PowerCut
        self.calls += 1


class Watched(Pairwise):
    """AL that stops when the fuse has blown; its words are those of AL."""

    def __init__(self, fuse):
        super().__init__("al", "relu")
        vars(self)["fuse"] = fuse

    def __deepcopy__(self, memo):
        return self

    def forward(self, *given, **named):
        self.fuse.burn()
        return super().forward(*given, **named)


@pytest.fixture(scope="module")
def run(task):
    net = build("mlp", shape=(1, 4, 4), hidden=(8, 6), norm="batch", classes=3, seed=1)

    def train(fuse=None, **more):
        fuse = fuse or Fuse()

        def loss(outputs, targets):
            fuse.burn()
            return F.cross_entropy(outputs, targets)

        given = {"epochs": 2, "batch_size": 21, "head_epochs": 2, "seed": 2, "lr": 0.05} | more
        return modular(
            net,
            task,
            objective=Watched(fuse),
            loss=loss,
            at=["hidden1", "hidden2"],
            **given,
        )

    return train


def outcome(fit):
    state = {name: tensor.clone() for name, tensor in fit.part.module.state_dict().items()}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in fit.record.rows]
    return state, rows


def assert_same(fit, expected):
    state, rows = outcome(fit)
    assert rows == expected[1]
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[0][name]), name


@pytest.mark.parametrize("more", [{}, {"augment": "shift:1"}, {"supervision": "pairs"}], ids=str)
def test_interrupted_at_every_call(run, tmp_path, more):
    whole = Fuse()
    expected = outcome(run(whole, **more))
    for moment in range(0, whole.calls, 2 if not more else 7):
        file = tmp_path / f"{moment}.safetensors"
        safe = {"checkpoint": file, "checkpoint_seconds": 0, **more}
        with pytest.raises(PowerCut):
            run(Fuse(moment), **safe)
        rest = Fuse()
        assert_same(run(rest, **safe), expected)
        assert rest.calls <= whole.calls - moment  # it went on; it did not begin again
        names = {path.name for path in tmp_path.glob(f"{moment}.*")}
        assert names == {f"{moment}.{s}.safetensors" for s in ("module1", "module2", "head")}


def test_another_training_is_refused(run, tmp_path):
    safe = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0}
    run(**safe)
    with pytest.raises(SettingsError, match="labels_per_class was None, is 1"):
        run(labels_per_class=1, **safe)
    run(labels_per_class=1, resume=False, **safe)


def test_snapshots_survive_an_interruption(run, tmp_path):
    kept = Snapshots()
    fit = run(callbacks=(kept,))
    expected = kept.parts(fit.part)
    assert list(expected) == ["epoch 1", "epoch 2", "epoch 3", "epoch 4"]  # two modules, no head
    safe = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0}
    for calls in (9, 6):
        with pytest.raises(PowerCut):
            run(Fuse(calls), callbacks=(Snapshots(folder=tmp_path / "epochs"),), **safe)
    again = Snapshots(folder=tmp_path / "epochs")
    parts = again.parts(run(callbacks=(again,), **safe).part)
    assert list(parts) == list(expected)
    assert {name: part.digest for name, part in parts.items()} == {
        name: part.digest for name, part in expected.items()
    }
