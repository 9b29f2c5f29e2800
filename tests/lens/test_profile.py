"""A profile is the measures of the features at every point, and reads in a sentence."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail import lens
from dovetail.core.errors import CutError, DovetailError, TaskError
from dovetail.core.records import load_record
from dovetail.lens.profile_record import MEASURES
from dovetail.measure.features import features, features_along
from dovetail.parts.cutting import cut
from dovetail.train.callbacks import Snapshots


@pytest.fixture(scope="module")
def digits():
    return dt.load_task("digits")


@pytest.fixture(scope="module")
def trained(digits):
    kept = Snapshots(every=2)
    net = dt.build("lenet5", channels=1, size=8, classes=10, norm="batch")
    return net, dt.train.end_to_end(net, digits, epochs=4, callbacks=(kept,)), kept


def test_every_point_has_the_measures_of_its_features(digits, trained):
    _, fit, _ = trained
    found = lens.profile(fit.part, digits, limit=None, split="validation")
    front, _ = cut(fit.part, at="conv2")
    taken = features(front, digits, split="validation")
    at, labels = found["conv2"], taken.targets
    assert at.width == taken.values.shape[1]
    assert at.least_squares_distance == pytest.approx(
        lens.least_squares_distance(taken.values, labels), abs=1e-6
    )
    assert at.k_redundancy == pytest.approx(lens.k_redundancy(taken.values, labels), abs=0.01)
    assert at.pure_entropy == pytest.approx(lens.pure_entropy(taken.values, labels), rel=0.02)
    assert at.selection_entropy == pytest.approx(
        float(lens.selection_entropy(taken.values, labels).nanmean()), abs=1e-6
    )
    assert at.class_scatter == pytest.approx(lens.class_scatter(taken.values, labels), abs=1e-5)
    weight = fit.part.module.state_dict()["conv2.conv.weight"]
    assert at.stable_rank == pytest.approx(lens.stable_rank(weight))
    assert {w.name for w in found.weights} == {
        name for name, p in fit.part.module.named_parameters() if p.ndim > 1
    }
    assert [p.at for p in found.points][-1] == "output"
    assert found["output"].width == 10


def test_training_separates_classes_and_the_sentence_says_so(digits, trained):
    start, fit, kept = trained
    found = lens.profile_over({"start": start, **kept.parts(fit.part)}, digits, limit=400)
    assert found.names == ("start", "epoch 2", "epoch 4")
    rising = found.curve("fc2", "k_redundancy")
    assert rising[-1] > rising[0] + 0.2
    assert found.along == found.names  # the start has no epoch
    assert lens.profile_over(kept.parts(fit.part), digits, limit=100).along == (2, 4)
    last = found["epoch 4"]
    assert last.answer.startswith("The layers separate the classes")
    assert "Most is gained between" in last.answer
    assert last.points[-1].least_squares_distance < last.nothing / 2
    assert found.answer.startswith("From start to epoch 4 most changed at")


def test_it_reads_back_and_shows_every_measure(digits, trained, tmp_path):
    _, fit, kept = trained
    one = lens.profile(fit.part, digits, limit=200)
    several = lens.profile_over(kept.parts(fit.part), digits, limit=100)
    for name, record in (("one", one), ("several", several)):
        assert load_record(record.save(tmp_path / f"{name}.json")) == record
    titles = {block.title for block in several.view()[1:]}
    assert titles == set(MEASURES.values())
    with pytest.raises(DovetailError, match="did you mean conv1"):
        one["conv11"]
    with pytest.raises(DovetailError, match="no network"):
        several["epoch 99"]


def test_a_fit_that_any_labels_would_have_is_not_quoted():
    """Labels drawn beside noise: as many features as examples fit them, and that is no merit."""
    generator = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(100, 60, generator=generator), torch.arange(100) % 4
    task = dt.Task(rows, labels)
    net = nn.Sequential(nn.Linear(60, 200), nn.ReLU(), nn.Linear(200, 20))
    wide = lens.profile(net, task, at="1", limit=None)
    n = wide.n
    assert wide["1"].least_squares_distance < 1e-6
    only = replace(wide, points=(wide["1"],))
    assert "would fit any labels" in only.answer
    assert "a linear map leaves" not in only.answer
    both = replace(wide, points=(wide["output"], wide["1"]))
    assert f"({wide['output'].by_chance:.3f} by chance)" in both.answer
    assert "at 1 it would fit any labels" in both.answer
    assert wide["output"].by_chance == pytest.approx(wide.nothing * (1 - 20 / (n - 1)))


def test_one_pass_and_nothing_is_changed(digits):
    net = dt.build("resnet8", channels=1, size=8, classes=10)
    net.module.train()
    before = {name: tensor.clone() for name, tensor in net.module.state_dict().items()}
    calls = []
    net.module.stem.register_forward_hook(lambda _, x, __: calls.append(len(x[0])))
    lens.profile(net, digits, limit=64, batch_size=64)
    assert calls.count(64) == 1  # beside looks at a shape
    assert net.module.training
    after = net.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_vectors_begin_with_the_input_and_images_only_flattened():
    net = dt.build("mlp", shape=(4,), hidden=(8,), classes=2)
    task = dt.Task(torch.rand(60, 4), [0, 1] * 30)
    assert lens.profile(net, task).points[0].at == "input"
    images, net = dt.Task(torch.rand(60, 1, 8, 8), [0, 1] * 30), dt.build("lenet5", size=8)
    assert lens.profile(net, images).points[0].at == "conv1"
    flat = lens.profile(net, images, pooling="flatten")
    assert flat.points[0].at == "input"
    assert flat.points[0].width == 64
    along = features_along(net, ["conv1"], images, pooling="flatten")
    assert flat["conv1"].width == along["conv1"].values.shape[1]
    assert "read the least-squares distance beside its chance" in flat.cautions[0]


def test_a_constant_layer_says_that_nothing_is_told(digits):
    net = dt.build("mlp", shape=(4,), hidden=(8, 8), classes=2)
    with torch.no_grad():
        net.module.hidden2.linear.weight.zero_()
    found = lens.profile(net, dt.Task(torch.rand(60, 4), [0, 1] * 30), limit=None)
    dead = found["hidden2"]
    assert dead.dead == 1
    assert dead.k_redundancy == 0
    assert dead.pure_entropy is None
    assert dead.coincide == found.n
    assert dead.least_squares_distance == pytest.approx(found.nothing)
    assert found["hidden2.linear"].stable_rank == 0
    assert "no map there is pure" in found.cautions[-1]
    assert found.view()


def test_one_class_has_nothing_to_separate():
    both = dt.Task(torch.rand(60, 4), [0, 1] * 30)
    task = both.derived("one", indices={"train": torch.arange(0, 60, 2)})
    found = lens.profile(dt.build("mlp", shape=(4,), hidden=(8,), classes=2), task)
    assert found.answer.startswith("All examples are of one class")
    assert {p.k_redundancy for p in found.points} == {1.0}
    assert {p.pure_entropy for p in found.points} == {0.0}


def test_a_plain_module_and_chosen_points():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    task = dt.Task(torch.rand(60, 4), [0, 1] * 30)
    assert [p.at for p in lens.profile(net, task, at="1").points] == ["input", "1", "output"]
    assert [p.at for p in lens.profile(nn.Linear(4, 2), task).points] == ["input", "output"]
    with pytest.raises(CutError):
        lens.profile(net, task, at="nowhere")


def test_mistakes_are_told_in_a_sentence():
    net = dt.build("mlp", shape=(4,), hidden=(8,), classes=2)
    task = dt.Task(torch.rand(60, 4), [0, 1] * 30)
    with pytest.raises(TaskError, match="fewer than k=50"):
        lens.profile(net, task, k=50, limit=40)
    with pytest.raises(TaskError, match="kind regression"):
        lens.profile(net, dt.Task(torch.rand(60, 4), torch.rand(60), kind="regression"))
    with torch.no_grad():
        net.module.hidden1.linear.bias.fill_(torch.nan)
    with pytest.raises(TaskError, match=r"at hidden1\.linear: row 0 of the features holds nan"):
        lens.profile(net, task)
