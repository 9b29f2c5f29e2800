"""A compatible training that was interrupted anywhere ends with the same bits."""

import pytest
from train.compatible_setting import all_bytes, assert_same_bytes, lenet, pair_of_tasks, rows_of

from dovetail.core.errors import SettingsError
from dovetail.objectives.pretexts import Jigsaw
from dovetail.train.compatible import compatible


class PowerCut(Exception):
    """What stands for a power cut."""


class Watched(Jigsaw):
    """A jigsaw, which draws at random, that stops when so many batches were asked about."""

    left, calls = None, 0

    def views(self, inputs, draw=None):
        if self.calls == self.left:
            raise PowerCut
        vars(self)["calls"] = self.calls + 1
        return super().views(inputs, draw)


def watched(left=None):
    pretext = Watched()
    vars(pretext).update(left=left, calls=0)
    return pretext


@pytest.fixture(scope="module")
def run():
    tasks = pair_of_tasks()
    nets = [lenet(1), lenet(2)]

    def train(pretext=None, **more):
        given = {"epochs": 2, "batch_size": 20, "seed": 2, "by": ("dcc", "rp"), "at": "fc1"}
        return compatible(nets, tasks, pretext=pretext or watched(), **(given | more))

    return train


@pytest.mark.parametrize(
    ("more", "step"),
    [
        ({}, 4),
        ({"scheme": "incremental"}, 4),
        ({"augment": "shift:1", "project_conflicts": True, "patience": 1}, 9),
        ({"scheme": "incremental", "optimiser": "adam", "lr": 0.01}, 9),
    ],
    ids=str,
)
def test_interrupted_inside_epochs_validation_and_stages(run, tmp_path, more, step):
    whole = watched()
    expected = run(whole, **more)
    for moment in range(1, whole.calls, step):
        file = tmp_path / f"{moment}.safetensors"
        safe = {"checkpoint": file, "checkpoint_seconds": 0, **more}
        with pytest.raises(PowerCut):
            run(watched(moment), **safe)
        rest = watched()
        resumed = run(rest, **safe)
        assert_same_bytes(all_bytes(resumed), all_bytes(expected))
        assert rows_of(resumed) == rows_of(expected)
        assert resumed.record.recombined == expected.record.recombined
        assert rest.calls <= whole.calls - moment + 1  # it went on; it did not begin again
        kept = {path.name for path in tmp_path.glob(f"{moment}.*")}
        stages = {f"{moment}.network{k}.safetensors" for k in (1, 2)}
        assert kept == (stages if "scheme" in more else {file.name})


def test_one_seed_one_outcome(run):
    once, again, other = run(), run(), run(seed=5)
    assert_same_bytes(all_bytes(once), all_bytes(again))
    assert rows_of(once) == rows_of(again)
    assert once.record.space == again.record.space != other.record.space
    assert once.fronts[0].digest != other.fronts[0].digest


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"by": ("rp",)}, "by was"),
        ({"weights": {"rp": 0.5}}, "weights was"),
        ({"project_conflicts": True}, "project_conflicts was False, is True"),
        ({"common": ["ell", "bar"]}, "common was"),
        ({"seed": 9}, "seed was"),
    ],
    ids=str,
)
def test_another_training_is_refused(run, tmp_path, more, words):
    safe = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0, "epochs": 1}
    run(**safe)
    with pytest.raises(SettingsError, match=words):
        run(**safe, **more)
