"""A training that was interrupted, anywhere and as often as you like, ends with the same bits."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import lr_scheduler

from dovetail.core.errors import DovetailError, FormatError, SettingsError, TrainingError
from dovetail.parts.part import Part, build
from dovetail.train import end_to_end
from dovetail.train.checkpoint import MOST_HEADER_BYTES, Checkpoint, load_checkpoint
from dovetail.train.loop import run_loop
from dovetail.train.options import Options, Schedule
from dovetail.train.supervision import Batches

CALLS = 15  # of the loss: 3 epochs of 4 steps and a validation


class PowerCut(Exception):
    """What stands for a power cut."""


class Loss:
    """Cross-entropy that fails at one of its calls; validation calls it too."""

    __name__ = "cross_entropy"

    def __init__(self, fails_at=None):
        self.fails_at, self.calls = fails_at, 0

    def __call__(self, outputs, targets):
        if self.calls == self.fails_at:
            raise PowerCut
        self.calls += 1
        return F.cross_entropy(outputs, targets)


def mlp(*inner):
    return Part(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), *inner, nn.Linear(8, 3)))


def chained(optimiser):
    first = lr_scheduler.MultiStepLR(optimiser, [1])
    return first, lr_scheduler.ExponentialLR(optimiser, 0.5)


class InTurn(lr_scheduler.SequentialLR):
    """Two schedulers one after the other, as a class of one argument."""

    def __init__(self, optimiser):
        super().__init__(optimiser, list(chained(optimiser)), milestones=[2])


TRAININGS = {
    "momentum": (mlp(nn.ReLU()), {"lr": 0.05}),
    "adamw": (mlp(nn.ReLU()), {"optimiser": "adamw", "lr": 0.01}),
    "adam instance": (
        mlp(nn.ReLU()),
        {"optimiser": torch.optim.Adam([nn.Parameter(torch.zeros(1))], betas=(0.8, 0.9))},
    ),
    "plain sgd": (mlp(nn.Tanh()), {"lr": 0.1, "momentum": 0.0, "schedule": "cosine"}),
    "step scheduler": (
        mlp(nn.ReLU()),
        {"lr": 0.1, "schedule": partial(lr_scheduler.StepLR, step_size=1, gamma=0.5)},
    ),
    "milestones": (
        mlp(nn.ReLU()),
        {"lr": 0.1, "schedule": partial(lr_scheduler.MultiStepLR, milestones=[1, 2])},
    ),
    "plateau": (
        mlp(nn.ReLU()),
        {
            "lr": 2.0,
            "momentum": 0.0,
            "schedule": partial(lr_scheduler.ReduceLROnPlateau, patience=0),
        },
    ),
    "schedulers in turn": (mlp(nn.ReLU()), {"lr": 0.1, "schedule": InTurn}),
    "dropout": (mlp(nn.ReLU(), nn.Dropout(0.4)), {"lr": 0.05}),
    "batch norm": (mlp(nn.BatchNorm1d(8), nn.ReLU()), {"lr": 0.05}),
    "patience": (mlp(nn.ReLU()), {"lr": 1.5, "schedule": "constant", "patience": 1}),
    "augmentation": (mlp(nn.ReLU()), {"lr": 0.05, "augment": "shift:1,flip"}),
}


@pytest.fixture(params=list(TRAININGS))
def training(request, task):
    model, chosen = TRAININGS[request.param]

    def run(**more):
        given = {"epochs": 3, "batch_size": 16, "seed": 2, "loss": Loss(), **chosen, **more}
        return end_to_end(model, task, **given)

    return run


def outcome(fit):
    state = {name: tensor.clone() for name, tensor in fit.part.module.state_dict().items()}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in fit.record.rows]
    return state, rows, fit.record.final["epoch"]


def assert_same(fit, expected):
    state, rows, kept = outcome(fit)
    assert rows == expected[1]
    assert kept == expected[2]
    assert list(state) == list(expected[0])
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[0][name]), name


def test_interrupted_at_any_call(training, tmp_path):
    whole = Loss()
    expected = outcome(training(loss=whole))
    assert len(expected[1]) == 3 or whole.calls < CALLS  # patience may stop early
    for moment in range(0, whole.calls, 4):  # another place of the epoch each time
        file = tmp_path / f"{moment}.safetensors"
        safe = {"checkpoint": file, "checkpoint_seconds": 0}
        with pytest.raises(PowerCut):
            training(loss=Loss(moment), **safe)
        rest = Loss()
        assert_same(training(loss=rest, **safe), expected)
        assert rest.calls <= whole.calls - moment  # it went on; it did not begin again


def test_interrupted_again_and_again(training, tmp_path):
    expected = outcome(training())
    safe = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0}
    for _attempt in range(CALLS + 5):
        try:
            fit = training(loss=Loss(1), **safe)
        except PowerCut:
            continue
        break
    else:
        pytest.fail("the training never came to its end")
    assert_same(fit, expected)
    assert _attempt >= 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_interrupted_around_every_save(task, tmp_path, monkeypatch, when):
    model = mlp(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
    chosen = {"epochs": 3, "batch_size": 16, "optimiser": "adamw", "lr": 0.01, "patience": 2}
    expected = outcome(end_to_end(model, task, **chosen))
    save = Checkpoint.save
    for moment in range(CALLS):
        saves = iter(range(CALLS))

        def failing(self, path, saves=saves, moment=moment):
            last = next(saves) == moment
            if not (last and when == "before"):
                save(self, path)
            if last:
                raise PowerCut

        monkeypatch.setattr(Checkpoint, "save", failing)
        safe = {"checkpoint": tmp_path / f"{moment}.safetensors", "checkpoint_seconds": 0}
        with pytest.raises(PowerCut):
            end_to_end(model, task, **chosen, **safe)
        monkeypatch.setattr(Checkpoint, "save", save)
        assert_same(end_to_end(model, task, **chosen, **safe), expected)


def test_interrupted_by_a_callback(training, tmp_path):
    expected = outcome(training())
    for epoch in range(1, len(expected[1]) + 1):
        safe = {"checkpoint": tmp_path / f"{epoch}.safetensors", "checkpoint_seconds": 0}

        def fail(moment, epoch=epoch):
            if moment.epoch == epoch:
                raise PowerCut

        with pytest.raises(PowerCut):
            training(callbacks=(fail,), **safe)
        assert_same(training(**safe), expected)


def test_a_finished_training_is_not_run_again(training, tmp_path):
    safe = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0}
    expected = outcome(training(**safe))
    again = Loss()
    assert_same(training(loss=again, **safe), expected)
    assert again.calls == 0


def test_a_training_that_a_callback_stopped_stays_stopped(training, tmp_path):
    safe = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0}
    expected = outcome(training(callbacks=(lambda moment: moment.epoch == 2,), **safe))
    assert len(expected[1]) == 2
    assert_same(training(**safe), expected)


def test_resuming_leaves_the_global_generator_alone(training, tmp_path):
    safe = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0}
    with pytest.raises(PowerCut):
        training(loss=Loss(6), **safe)
    state = torch.get_rng_state()
    training(**safe)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture
def net():
    return build("mlp", shape=(1, 4, 4), hidden=(8,), classes=3)


@pytest.fixture
def unfinished(net, task, tmp_path):
    """The file of a training that was interrupted in its second epoch."""
    file = tmp_path / "run.safetensors"
    with pytest.raises(PowerCut):
        run(net, task, file, loss=Loss(7))
    return file


def run(net, task, file, **chosen):
    given = {"epochs": 3, "batch_size": 16, "checkpoint_seconds": 0, "loss": Loss(), **chosen}
    return end_to_end(net, task, checkpoint=file, **given)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lr": 0.2}, "lr was 0.1, is 0.2"),
        ({"epochs": 4}, "epochs was 3, is 4"),
        ({"batch_size": 8}, "batch_size was 16, is 8"),
        ({"optimiser": "adam"}, "optimiser was sgd, is adam"),
        ({"schedule": "cosine"}, "schedule was one-cycle, is cosine"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"patience": 3}, "patience was None, is 3"),
        ({"augment": "flip"}, "augment was None, is flip"),
        ({"loss": F.multi_margin_loss}, "loss was .*, is multi_margin_loss"),
        ({"weight_decay": 0.0, "momentum": 0.5}, "momentum was 0.9, is 0.5; weight_decay was"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(net, task, unfinished, changed, words):
    before = unfinished.read_bytes()
    with pytest.raises(SettingsError, match=words):
        run(net, task, unfinished, **changed)
    assert unfinished.read_bytes() == before
    run(net, task, unfinished, resume=False, **changed)  # the way out that the message names


def test_a_checkpoint_of_another_network_or_task_is_refused(net, task, unfinished):
    from dovetail.tasks.task import Task

    other = build("mlp", shape=(1, 4, 4), hidden=(8,), classes=3, seed=9)
    with pytest.raises(SettingsError, match="start_digest was"):
        run(other, task, unfinished)
    with pytest.raises(SettingsError, match="task_fingerprint was"):
        run(net, Task(task.inputs + 0.1, task.targets), unfinished)


def test_without_resume_a_training_begins_anew(net, task, unfinished):
    expected = outcome(end_to_end(net, task, epochs=3, batch_size=16))
    fresh = Loss()
    assert_same(run(net, task, unfinished, resume=False, loss=fresh), expected)
    assert fresh.calls == CALLS


def damages(whole):
    yield "empty", b""
    yield "half", whole[: len(whole) // 2]
    yield "header only", whole[:8]
    yield "pickle", b"\x80\x04\x95\x00\x00"
    yield "huge header", b"\xff" * 8 + whole[8:]
    yield "another byte", whole[:9] + b"\x00" + whole[10:]


def test_a_damaged_checkpoint_is_refused(net, task, unfinished):
    whole = unfinished.read_bytes()
    for what, data in damages(whole):
        unfinished.write_bytes(data)
        with pytest.raises(FormatError, match="delete it to start anew"):
            run(net, task, unfinished)
        assert unfinished.read_bytes() == data, what


def rewritten(file, change):
    with safe_open(file, framework="pt") as opened:
        header = json.loads(opened.metadata()["dovetail"])
    tensors = load_file(file)
    change(header, tensors)
    save_file(tensors, file, metadata={"dovetail": json.dumps(header)})


@pytest.mark.parametrize(
    "change",
    [
        lambda header, tensors: header.update(format=2),
        lambda header, tensors: header["facts"].pop("epoch"),
        lambda header, tensors: header.pop("facts"),
        lambda header, tensors: header.pop("identity"),
        lambda header, tensors: header.update(identity=[]),
        lambda header, tensors: tensors.pop("losses"),
        lambda header, tensors: tensors.pop("module/head.weight"),
        lambda header, tensors: tensors.update({"module/head.bias": torch.zeros(9)}),
        lambda header, tensors: tensors.update({"random/cpu": torch.zeros(3)}),
        lambda header, tensors: header["facts"].update(optimiser={"groups": [], "state": {}}),
        lambda header, tensors: header["facts"].update(epoch="one"),
        lambda header, tensors: header["facts"].update(batch=-3),
        lambda header, tensors: header["facts"].update(epoch=True),
        lambda header, tensors: header["facts"].update(rows={}),
        lambda header, tensors: header["facts"].update(rows=[[]]),
        lambda header, tensors: header["facts"].update(rows=[{}], epoch=1),
        lambda header, tensors: header["facts"].update(stopped="no"),
        lambda header, tensors: header["facts"].update(schedule=[]),
        lambda header, tensors: header["facts"]["optimiser"].update(groups={"lr": 1}),
        lambda header, tensors: header["facts"]["optimiser"]["groups"][0].update(lr="1"),
        lambda header, tensors: header["facts"]["optimiser"]["groups"][0].update(lr=None),
        lambda header, tensors: header["facts"]["optimiser"]["groups"][0].update(params=[0, 0]),
        lambda header, tensors: header["facts"]["optimiser"]["groups"][0].pop("lr"),
        lambda header, tensors: header["facts"]["optimiser"].update(state={"x": {}}),
        lambda header, tensors: header["facts"]["optimiser"].update(state={"0": {"step": "1"}}),
        lambda header, tensors: tensors.update({"optimiser/x/y": torch.zeros(1)}),
        lambda header, tensors: tensors.update({"losses": torch.zeros(99)}),
        lambda header, tensors: tensors.update({"best/nothing": torch.zeros(1)}),
    ],
)
def test_a_checkpoint_that_lies_is_refused(net, task, unfinished, change):
    rewritten(unfinished, change)
    with pytest.raises(FormatError, match="start anew"):
        run(net, task, unfinished)


def test_a_safetensors_file_of_someone_else_is_refused(net, task, tmp_path):
    file = tmp_path / "weights.safetensors"
    save_file({"w": torch.zeros(3)}, file)
    with pytest.raises(FormatError, match="no checkpoint of this dovetail"):
        run(net, task, file)
    save_file({"w": torch.zeros(3)}, file, metadata={"dovetail": "[1, 2]"})
    with pytest.raises(FormatError, match="no checkpoint of this dovetail"):
        run(net, task, file)


def test_a_folder_is_no_checkpoint(net, task, tmp_path):
    with pytest.raises(FormatError, match="not a plain file"):
        run(net, task, tmp_path)


def test_nothing_in_a_checkpoint_is_pickled(unfinished):
    data = unfinished.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])  # a safetensors file: JSON, then numbers
    facts = json.loads(header["__metadata__"]["dovetail"])
    assert facts["format"] == 1
    assert facts["facts"]["epoch"] == 1
    assert facts["facts"]["batch"] == 2
    assert len(facts["facts"]["rows"]) == 1
    assert "module/head.weight" in header
    assert "optimiser/0/momentum_buffer" in header


def test_a_failure_while_writing_keeps_the_old_checkpoint(net, task, unfinished, monkeypatch):
    expected = outcome(end_to_end(net, task, epochs=3, batch_size=16))
    before = unfinished.read_bytes()

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dovetail.core.files.os.fsync", full)
    with pytest.raises(FormatError, match="No space left on device"):
        run(net, task, unfinished)
    monkeypatch.undo()
    assert unfinished.read_bytes() == before
    assert [path.name for path in unfinished.parent.iterdir()] == [unfinished.name]
    assert_same(run(net, task, unfinished), expected)


def test_checkpoints_are_written_no_more_often_than_asked(net, task, tmp_path):
    file = tmp_path / "run.safetensors"
    run(net, task, file, checkpoint_seconds=3600.0)
    assert not file.exists()


def test_a_state_that_json_cannot_hold_is_an_error(net, task, tmp_path):
    def strange(parameters):
        optimiser = torch.optim.SGD(parameters, lr=0.1)
        optimiser.param_groups[0]["note"] = {1, 2}
        return optimiser

    with pytest.raises(SettingsError, match="cannot be checkpointed: cannot write set"):
        run(net, task, tmp_path / "run.safetensors", optimiser=strange)


@pytest.mark.parametrize(
    "state",
    [{"step": 3}, {"last_epoch": "1"}, {"gamma": None}, {"base_lrs": 0.1}, {"base_lrs": [0.1] * 9}],
    ids=str,
)
def test_a_state_of_another_schedule_is_refused(state):
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    schedule = Schedule(partial(lr_scheduler.StepLR, step_size=1), optimiser, steps=1)
    kept = schedule.state()
    schedule.restore(kept)
    with pytest.raises(DovetailError, match="another schedule"):
        schedule.restore({**kept, **state})


def test_a_header_of_megabytes_is_not_read(tmp_path):
    file = tmp_path / "c.safetensors"
    with open(file, "wb") as opened:
        opened.write((MOST_HEADER_BYTES + 1).to_bytes(8, "little"))
        opened.truncate(1 << 26)
    with pytest.raises(FormatError, match="a header of 16777217 bytes"):
        load_checkpoint(file, {})


def test_an_optimiser_that_cannot_go_on_says_so(tmp_path):
    net, x = nn.Linear(1, 1), torch.ones(4, 1)
    file = tmp_path / "c.safetensors"

    def step(batch):
        return net(batch[0]).square().mean()

    options = {"optimiser": "adam", "checkpoint": file, "checkpoint_seconds": 0}
    run_loop(net, Batches(x, x, 2), step, Options(epochs=2, **options))
    with safe_open(file, framework="pt") as opened:
        header = json.loads(opened.metadata()["dovetail"])
    tensors = load_file(file)
    header["facts"] |= {"epoch": 1, "rows": header["facts"]["rows"][:1]}
    del tensors["optimiser/0/exp_avg"]
    save_file(tensors, file, metadata={"dovetail": json.dumps(header)})
    with pytest.raises(TrainingError, match=r"cannot go on .*exp_avg.*delete the checkpoint"):
        run_loop(net, Batches(x, x, 2), step, Options(epochs=2, **options))
