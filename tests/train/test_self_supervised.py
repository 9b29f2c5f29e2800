"""Training without labels: it learns, it never looks at a label, and it survives interruption."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dovetail.core.errors import (
    ContractError,
    CutError,
    DovetailError,
    SettingsError,
    TaskError,
    TrainingError,
)
from dovetail.core.records import load_record
from dovetail.objectives import Jigsaw, Rotation, Views
from dovetail.parts.cutting import cut
from dovetail.parts.joining import join
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task
from dovetail.train import end_to_end, self_supervised

FEW = {"epochs": 2, "batch_size": 16}
AT = "hidden1"


class PowerCut(Exception):
    """What stands for a power cut."""


def state(part):
    return {name: tensor.clone() for name, tensor in part.module.state_dict().items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def bytes_of(fit):
    """Everything that a training decides, but for its time."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in fit.record.rows]
    return [part.digest for part in (*fit.parts, fit.whole)], rows


@pytest.fixture(scope="module")
def deep():
    return build("mlp", shape=(1, 4, 4), hidden=(16, 8), classes=3, seed=1)


def unlike(task, **fields):
    return task.derived(task.name, **fields)


@pytest.mark.parametrize(
    ("pretext", "times"), [("rotation", 2.5), ("jigsaw", 5), (Views(flip=False), 10)]
)
def test_it_learns_to_answer(pretext, times):
    net = build("mlp", shape=(1, 8, 8), hidden=(64, 32))
    fit = self_supervised(net, load_task("digits"), by=pretext, at=AT, epochs=4)
    assert fit.record.final["validation solved"] > times * fit.record.chance
    assert fit.record.rows[-1]["validation loss"] < fit.record.rows[0]["validation loss"]


@pytest.mark.parametrize("pretext", ["rotation", "jigsaw", "views"])
def test_the_labels_make_no_difference(task, deep, pretext):
    expected = bytes_of(self_supervised(deep, task, by=pretext, at=AT, **FEW))
    mixed = task.targets[torch.randperm(len(task.targets))]
    numbers = torch.rand(len(task.targets))
    others = [
        unlike(task, targets=mixed),
        unlike(task, targets=torch.zeros_like(task.targets), classes=("all",)),
        unlike(task, targets=numbers, kind="regression", classes=()),
    ]
    for other in others:
        assert bytes_of(self_supervised(deep, other, by=pretext, at=AT, **FEW)) == expected


class Sealed(Task):
    """A task whose labels nobody may see."""

    @property
    def targets(self):
        raise AssertionError("somebody looked at the labels")

    def subset(self, split):
        raise AssertionError("somebody took the labels along")

    @property
    def fingerprint(self):
        raise AssertionError("somebody hashed the labels")


def test_nobody_looks_at_the_labels(task, deep):
    rows = {split: task.indices(split) for split in ("train", "validation", "test")}
    sealed = Sealed(task.inputs, task.targets, split=rows, name=task.name)
    expected = bytes_of(self_supervised(deep, task, at=AT, **FEW))
    assert bytes_of(self_supervised(deep, sealed, at=AT, **FEW)) == expected


def test_a_task_of_pairs_has_images_too(of_pairs, task, deep):
    found = bytes_of(self_supervised(deep, of_pairs, at=AT, **FEW))
    assert found == bytes_of(self_supervised(deep, task, at=AT, **FEW))


def test_images_of_the_test_split_are_not_learnt_from(task, deep):
    inputs = task.inputs.clone()
    inputs[task.indices("test")] = 0.5
    changed = unlike(task, inputs=inputs)
    found = bytes_of(self_supervised(deep, changed, at=AT, **FEW))
    assert found == bytes_of(self_supervised(deep, task, at=AT, **FEW))


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_plain_images_will_do(deep, kind):
    images = (255 * torch.rand(40, 1, 4, 4)).to(kind)
    fit = self_supervised(deep, images, at=AT, **FEW)
    assert fit.record.task == "images"
    assert "validation solved" in fit.record.final  # on a tenth of them


def test_one_image_is_enough_for_rotation(deep):
    fit = self_supervised(deep, torch.rand(1, 1, 4, 4), at=AT, **FEW)
    assert "validation loss" not in fit.record.final


@pytest.mark.parametrize("at", [None, "hidden1", "hidden1.norm"])
def test_only_a_copy_of_the_front_is_trained(task, deep, at):
    before = state(deep)
    fit = self_supervised(deep, task, at=at, **FEW)
    assert same(state(deep), before)
    place = fit.record.settings["at"]
    (front, back), (new_front, new_back) = cut(deep, place), cut(fit.part, place)
    assert not same(state(front), state(new_front))
    assert same(state(back), state(new_back))
    assert same(state(fit.parts[0]), state(new_front))
    assert not any(module.training for module in fit.part.module.modules())
    assert all(p.grad is None for part in fit.parts for p in part.module.parameters())


def test_the_parts_fit_each_other_and_nothing_else(task, deep):
    one, two = (self_supervised(deep, task, at=AT, seed=seed, **FEW) for seed in (0, 1))
    (front, head), (other, _) = one.parts, two.parts
    assert front.contract.mismatches(head.contract) == []
    x = torch.rand(2, 1, 4, 4)
    assert join(front, head)(x).shape == (2, 4)
    # the model's own back goes with the front as before
    torch.testing.assert_close(join(front, cut(one.part, AT)[1])(x), one.part(x))
    with pytest.raises(ContractError, match="space"):
        join(other, head)
    with pytest.raises(ContractError, match="space"):
        join(cut(deep, AT)[0], head)


def test_the_contract_of_the_whole_is_the_models(task, deep):
    trained = end_to_end(deep, task, epochs=1).part
    fit = self_supervised(trained, torch.rand(20, 1, 4, 4), at=AT, **FEW)
    assert fit.part.contract == trained.contract
    assert fit.parts[1].contract.classes == ("0", "90", "180", "270")
    assert fit.part.origin.parents == (trained.digest,)


def test_it_is_a_start_for_training_with_labels(task, deep):
    fit = self_supervised(deep, task, at=AT, **FEW)
    after = end_to_end(fit.part, task, epochs=4, batch_size=16)
    assert after.record.final["validation accuracy"] > 0.8
    assert after.part.contract.classes == task.classes


def test_a_head_that_is_given_is_continued(task, deep):
    first = self_supervised(deep, task, at=AT, **FEW)
    before = state(first.parts[1])
    again = self_supervised(first.part, task, at=AT, head=first.parts[1], **FEW)
    assert same(state(first.parts[1]), before)
    assert again.record.rows[0]["loss"] < first.record.rows[0]["loss"]
    assert again.parts[1].origin.parents == (first.parts[1].digest,)
    assert first.parts[1].origin.parents == ()


def test_a_frozen_head_stays_as_it_is(task, deep):
    head = self_supervised(deep, task, at=AT, **FEW).parts[1]
    head.module.requires_grad_(False)
    fit = self_supervised(deep, task, at=AT, head=head, **FEW)
    assert same(state(fit.parts[1]), state(head))
    assert not same(state(fit.parts[0]), state(cut(deep, AT)[0]))


def test_plain_modules_with_maps(task):
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    fit = self_supervised(net, task, at="2", **FEW)
    assert fit.parts[0].contract.gives[0].shape == (4, 4, 4)
    assert join(*fit.parts)(torch.rand(2, 1, 4, 4)).shape == (2, 4)


def test_parts_and_record_go_to_disk_and_back(task, deep, tmp_path):
    fit = self_supervised(deep, task, at=AT, by="jigsaw", **FEW)
    back = [
        from_pretrained(part.save_pretrained(tmp_path / str(number)), verify=True)
        for number, part in enumerate(fit.parts)
    ]
    assert [part.digest for part in back] == [part.digest for part in fit.parts]
    assert [part.contract for part in back] == [part.contract for part in fit.parts]
    record = load_record(fit.record.save(tmp_path / "record.json"))
    assert record.to_plain() == fit.record.to_plain()
    assert any("guessing gives 4.2%" in getattr(block, "text", "") for block in record.view())


def test_without_validation_images_nothing_is_said_of_them(task, deep):
    rows = {"train": range(60), "validation": [], "test": range(60, 90)}
    fit = self_supervised(deep, Task(task.inputs, task.targets, split=rows), at=AT, **FEW)
    assert not any("validation" in name for name in fit.record.final)
    assert fit.record.view()
    assert "chance 0.25" in repr(fit.record)


def test_chance_of_views_counts_the_rivals(task, deep):
    assert task.size("validation") == 9
    for batch_size, chance in [(5, (5 / 9 + 4 / 7) / 9), (4, 1 / 5)]:  # nobody is left alone
        fit = self_supervised(deep, task, by="views", at=AT, epochs=1, batch_size=batch_size)
        assert fit.record.chance == pytest.approx(chance)


@pytest.mark.parametrize("pretext", ["jigsaw", "views"])
def test_every_epoch_is_judged_by_the_same_views(task, pretext):
    rows = self_supervised(mlp(nn.ReLU()), task, by=pretext, at="2", lr=0.0, **FEW).record.rows
    assert rows[0]["loss"] != rows[1]["loss"]
    for name in ("validation loss", "validation solved"):
        assert rows[0][name] == rows[1][name]


class Brightness:
    """A pretext of one's own, also for vectors: was the input made darker?"""

    name, outputs, answers, chance = "brightness", 2, ("as it was", "darker"), 0.5

    def check(self, shape):
        pass

    def views(self, inputs, draw=None):
        answers = torch.randint(2, (len(inputs),), generator=draw)
        factors = 1 - 0.8 * answers.to(inputs).reshape(-1, *[1] * (inputs.ndim - 1))
        return inputs * factors, answers

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs, targets)

    def solved(self, outputs, targets):
        return float((outputs.argmax(1) == targets).double().mean())

    def described(self):
        return {"name": self.name}


def test_a_pretext_of_ones_own_for_vectors():
    inputs = torch.randn(120, 12, generator=torch.Generator().manual_seed(0))
    vectors = Task(inputs, torch.rand(120), kind="regression")
    net = build("mlp", shape=(12,), hidden=(32, 16), classes=1)
    fit = self_supervised(net, vectors, by=Brightness(), at=AT, epochs=10, batch_size=16)
    assert fit.record.final["validation solved"] > 0.8
    assert fit.parts[1].contract.classes == ("as it was", "darker")


def mlp(*inner):
    layers = nn.Flatten(), nn.Linear(16, 8), *inner, nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
    return Part(nn.Sequential(*layers))


class Fails:
    """The loss of a pretext that fails at one of its calls; validation calls it too."""

    def __init__(self, pretext, fails_at=None):
        self.pretext, self.fails_at, self.calls = pretext, fails_at, 0

    def __getattr__(self, name):
        return getattr(self.pretext, name)

    def loss(self, outputs, targets):
        if self.calls == self.fails_at:
            raise PowerCut
        self.calls += 1
        return self.pretext.loss(outputs, targets)


TRAININGS = {
    "rotation": (mlp(nn.ReLU()), Rotation(), {}),
    "jigsaw, dropout": (mlp(nn.ReLU(), nn.Dropout(0.4)), Jigsaw(), {}),
    "views, batch norm": (mlp(nn.BatchNorm1d(8), nn.ReLU()), Views(outputs=4), {"patience": 2}),
    "augmentation": (mlp(nn.ReLU()), Rotation(), {"augment": "flip,shift:1", "optimiser": "adam"}),
}


@pytest.mark.parametrize("which", list(TRAININGS))
def test_interrupted_anywhere_it_ends_with_the_same_bytes(which, task, tmp_path):
    model, pretext, more = TRAININGS[which]
    given = {"epochs": 3, "batch_size": 16, "at": "2", "lr": 0.02, "seed": 2, **more}
    whole = Fails(pretext)
    expected = bytes_of(self_supervised(model, task, by=whole, **given))
    assert whole.calls > 12
    for moment in range(0, whole.calls, 2):
        safe = {"checkpoint": tmp_path / f"{moment}.safetensors", "checkpoint_seconds": 0}
        with pytest.raises(PowerCut):
            self_supervised(model, task, by=Fails(pretext, moment), **given, **safe)
        rest = Fails(pretext)
        assert bytes_of(self_supervised(model, task, by=rest, **given, **safe)) == expected
        assert rest.calls <= whole.calls - moment


def test_a_checkpoint_of_another_pretext_or_head_is_refused(task, deep, tmp_path):
    head = self_supervised(deep, task, at=AT, **FEW).parts[1]
    safe = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0, **FEW}
    with pytest.raises(PowerCut):
        self_supervised(deep, task, by=Fails(Rotation(), 6), at=AT, **safe)
    with pytest.raises(SettingsError, match="pretext was"):
        self_supervised(deep, task, by="jigsaw", at=AT, **safe)
    with pytest.raises(SettingsError, match="head_digest was"):
        self_supervised(deep, task, head=head, at=AT, **safe)


def test_the_global_generator_is_left_alone(task, deep):
    state = torch.get_rng_state()
    self_supervised(deep, task, by="views", at=AT, **FEW)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("pretext", ["rotation", "jigsaw", "views"])
@pytest.mark.parametrize(
    ("images", "error", "words"),
    [
        (torch.rand(20, 16), TaskError, "needs images"),
        (torch.full((20, 1, 4, 4), float("nan")), TaskError, "input"),
        (torch.rand(0, 1, 4, 4), TaskError, "no samples"),
        (torch.tensor(1.0), SettingsError, "a Task or a tensor of images"),
        ("digits", SettingsError, "a Task or a tensor of images"),
        (torch.rand(20, 1, 5, 5), ContractError, "takes 1×4×4"),
    ],
)
def test_what_are_no_images_is_refused(deep, pretext, images, error, words):
    given = images
    net = deep
    if isinstance(images, torch.Tensor) and images.ndim == 2:
        net = build("mlp", shape=(16,), hidden=(8,))
    with pytest.raises(error, match=words):
        self_supervised(net, given, by=pretext, **FEW)


def test_images_that_are_not_square_cannot_be_turned():
    net, images = build("mlp", shape=(1, 4, 6), hidden=(8, 8)), torch.rand(20, 1, 4, 6)
    with pytest.raises(TaskError, match="change their shape when turned"):
        self_supervised(net, images, **FEW)
    self_supervised(net, images, by="jigsaw", **FEW)


@pytest.mark.parametrize(("count", "batch_size"), [(1, 8), (20, 1)])
def test_views_need_rivals(deep, count, batch_size):
    with pytest.raises(TaskError, match="nothing to be told from"):
        self_supervised(
            deep, torch.rand(count, 1, 4, 4), by="views", epochs=1, batch_size=batch_size
        )


def test_heads_that_do_not_go_with_it_are_refused(task, deep):
    rotating = self_supervised(deep, task, at=AT, **FEW).parts[1]
    with pytest.raises(ContractError, match="answers 0, 90, 180, 270, jigsaw asks for 0123"):
        self_supervised(deep, task, by="jigsaw", at=AT, head=rotating, **FEW)
    with pytest.raises(ContractError, match="shape 8 -> 16"):
        self_supervised(deep, task, at="hidden2", head=rotating, **FEW)
    embedding = self_supervised(deep, task, by=Views(outputs=4), at=AT, **FEW).parts[1]
    with pytest.raises(ContractError, match="an embedding"):
        self_supervised(deep, task, at=AT, head=embedding, **FEW)
    with pytest.raises(ContractError, match="views needs 5"):
        self_supervised(deep, task, by=Views(outputs=5), at=AT, head=embedding, **FEW)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"by": "rotate"}, SettingsError),
        ({"by": None}, SettingsError),
        ({"at": "nowhere"}, CutError),
        ({"epochs": 0}, SettingsError),
        ({"augment": "flop"}, DovetailError),
    ],
)
def test_mistakes(task, deep, wrong, error):
    with pytest.raises(error):
        self_supervised(deep, task, **{**FEW, **wrong})


def test_a_loss_that_explodes_is_said(task, deep):
    with pytest.raises(TrainingError, match="lower the learning rate"):
        self_supervised(deep, 1e30 * torch.rand(40, 1, 4, 4), by=Explodes(), at=AT, **FEW)


class Explodes(Rotation):
    """A pretext whose loss is beyond all numbers."""

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) * float("inf")
