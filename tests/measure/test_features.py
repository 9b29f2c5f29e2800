from dataclasses import replace

import pytest
import torch
from torch import nn

from dovetail.core.errors import ContractError, FormatError, SettingsError, TaskError
from dovetail.measure import features as module
from dovetail.measure.features import features
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part, build
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task


@pytest.fixture
def task():
    x = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    return Task(x, [0, 1, 2] * 20)


@pytest.fixture
def front():
    return cut(build("lenet5", size=8, classes=3), at="conv2")[0]


def rows_by_hand(part, task, pooling, split="train"):
    rows = []
    for x in task.subset(split)[0]:
        output = part(x[None])[0].detach()
        if pooling == "average":
            rows.append([float(channel.double().mean()) for channel in output])
        else:
            rows.append(output.reshape(-1).tolist())
    return torch.tensor(rows)


@pytest.mark.parametrize(("pooling", "width"), [("average", 16), ("flatten", 64)])
@pytest.mark.parametrize("split", ["train", "test"])
def test_rows_are_pooled_maps(front, task, pooling, width, split):
    found = features(front, task, pooling=pooling, split=split, batch_size=7)
    assert found.values.shape == (task.size(split), width)
    torch.testing.assert_close(found.values, rows_by_hand(front, task, pooling, split))
    assert torch.equal(found.targets, task.subset(split)[1])
    assert found.settings == {"split": split, "pooling": pooling, "batch_size": 7}


def test_vectors_stay_as_they_are(task):
    net = build("mlp", hidden=(5,), classes=3)
    for pooling in ("average", "flatten"):
        found = features(net, task, pooling=pooling)
        torch.testing.assert_close(found.values, rows_by_hand(net, task, "flatten"))


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_computed_is_not_computed_again(front, task, tmp_path, monkeypatch):
    first = features(front, task, cache=tmp_path)
    assert len(files(tmp_path)) == 1

    def never(*_args, **_kwargs):
        raise AssertionError("computed again")

    monkeypatch.setattr(module, "outputs_of", never)
    again = features(front, task, cache=tmp_path)
    assert torch.equal(again.values, first.values)
    assert torch.equal(again.targets, first.targets)
    assert again.settings == first.settings
    with pytest.raises(AssertionError, match="computed again"):
        features(front, task)


def changed_weights(front):
    part = cut(build("lenet5", size=8, classes=3), at="conv2")[0]
    with torch.no_grad():
        next(part.module.parameters())[0, 0, 0, 0] += 1e-3
    return part


def changed_activation(front):
    part = cut(build("lenet5", size=8, classes=3), at="conv2")[0]
    part.module.conv2.act = nn.Tanh()
    return part


@pytest.mark.parametrize(
    "change",
    [
        changed_weights,
        changed_activation,
        lambda front: cut(build("lenet5", size=8, classes=3, activation="tanh"), at="conv2")[0],
        lambda front: front.changed(
            contract=replace(front.contract, preprocess=Preprocess(mean=(0.3,)))
        ),
    ],
    ids=["weights", "activation", "recipe", "preprocess"],
)
def test_another_part_has_other_features(front, task, tmp_path, change):
    kept = features(front, task, cache=tmp_path).values
    other = features(change(front), task, cache=tmp_path).values
    assert len(files(tmp_path)) == 2
    assert not torch.allclose(kept, other)


def test_another_question_has_another_answer(front, task, tmp_path):
    shifted = Task(task.inputs + 0.1, task.targets)
    for asked in (
        {},
        {"split": "test"},
        {"pooling": "flatten"},
        {"task": shifted},
        {"task": only_classes(task, ["0", "1"])},
    ):
        chosen = {"part": front, "task": task, **asked}
        kept = features(**chosen, cache=tmp_path)
        assert torch.equal(features(**chosen).values, kept.values)
        assert torch.equal(features(**chosen, cache=tmp_path).values, kept.values)
    assert len(files(tmp_path)) == 5


@pytest.mark.parametrize("damage", ["cut short", "garbage", "empty", "other rows", "other names"])
def test_a_damaged_file_is_computed_anew(front, task, tmp_path, damage):
    from safetensors.torch import save

    first = features(front, task, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(
        {
            "cut short": whole[: len(whole) // 2],
            "garbage": b"\x80\x04not a tensor",
            "empty": b"",
            "other rows": save({"features": torch.zeros(3, 16)}),
            "other names": save({"values": first.values}),
        }[damage]
    )
    assert torch.equal(features(front, task, cache=tmp_path).values, first.values)
    assert file.read_bytes() == whole


def test_a_part_without_a_recipe_is_never_cached(task, tmp_path):
    features(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), task, cache=tmp_path)
    assert files(tmp_path) == []


def test_a_failure_leaves_no_file(front, task, tmp_path, monkeypatch):
    wrong = Task(torch.rand(30, 1, 9, 9), [0, 1, 2] * 10)
    with pytest.raises(ContractError):
        features(front, wrong, cache=tmp_path / "cache")
    assert files(tmp_path) == []

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dovetail.core.files.os.replace", full)
    with pytest.raises(FormatError, match="No space left"):
        features(front, task, cache=tmp_path)
    assert files(tmp_path) == []


def test_the_cache_may_not_be_a_file(front, task, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(FormatError, match="cannot write"):
        features(front, task, cache=tmp_path / "cache")


def test_questions_that_are_refused(front, task):
    with pytest.raises(SettingsError, match="'average' or 'flatten', got 'max'"):
        features(front, task, pooling="max")
    with pytest.raises(SettingsError, match="batch_size must be at least 1"):
        features(front, task, batch_size=-1)
    rows = {"train": range(60), "validation": [], "test": []}
    empty = Task(task.inputs, task.targets, split=rows)
    with pytest.raises(TaskError, match="no inputs"):
        features(front, empty, split="test")
    with pytest.raises(ContractError, match="expected a Part"):
        features("lenet", task)


def test_features_do_not_change_the_part(task):
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5)).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    first, second = features(Part(net), task), features(Part(net), task)
    assert torch.equal(first.values, second.values)
    assert not first.values.requires_grad
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
