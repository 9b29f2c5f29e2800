import pytest
import torch
from torch import nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.measure.recombine import recombine
from dovetail.parts.contract import Contract, Port, Preprocess
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part, build
from dovetail.tasks.derive import only_classes, resized
from dovetail.tasks.task import Task


def test_no_common_class_names_both_vocabularies(fronts, heads, tasks, renamed):
    strange = renamed(heads["abcd"], "wxyz")
    with pytest.raises(TaskError, match=r"'abcd' \(a, b, c, d\).*'strange' \(w, x, y, z\)"):
        recombine(fronts["abcd"], {"strange": strange}, tasks["abcd"])


def test_one_common_class_is_no_choice(fronts, heads, tasks, renamed):
    nearly = renamed(heads["abcd"], "axyz")
    with pytest.raises(TaskError, match="only the class 'a' is common"):
        recombine(fronts["abcd"], {"nearly": nearly}, tasks["abcd"])


def test_beside_pairs_that_can_be_measured_the_others_say_why_not(fronts, heads, tasks, renamed):
    deeper = cut(build("lenet5", size=8, classes=4), at="conv1")[1]
    met = {
        "strange": renamed(heads["abcd"], "wxyz"),
        "good": heads["abcd"],
        "deeper": renamed(deeper, "abcd"),
    }
    found = recombine(fronts["abcd"], met, tasks["abcd"], norms=("batch", "recalibrated"))
    strange, good, other = found.pairs
    assert (strange.accuracy, other.accuracy) == ({}, {})
    assert "no class is common" in strange.obstacle
    assert other.obstacle.startswith("shape 16×2×2 -> 6×")
    assert good.obstacle is None
    assert set(good.accuracy) == {"batch", "recalibrated"}
    (row,) = found.accuracy.values()
    assert [row["strange"], row["deeper"]] == [None, None]
    assert found.mean_off_diagonal == row["good"]
    assert "2 pairs could not be measured" in found.summary


def test_tensors_that_flow_nowhere(fronts, tasks, renamed):
    deeper = renamed(cut(build("lenet5", size=8, classes=4), at="conv1")[1], "abcd")
    with pytest.raises(ContractError, match="shape 16×2×2 -> 6×"):
        recombine(fronts["abcd"], deeper, tasks["abcd"])


def test_shapes_that_nobody_knew_are_found_out(fronts, heads, tasks):
    anonymous = Part(nn.Sequential(nn.Flatten(), nn.Linear(7, 4)))
    met = {"anonymous": anonymous, "good": heads["abcd"]}
    found = recombine({"x": fronts["abcd"]}, met, tasks["abcd"])
    assert found.accuracy["x"]["anonymous"] is None
    assert "cannot be multiplied" in found.pairs[0].obstacle
    with pytest.raises(ContractError, match="cannot be multiplied"):
        recombine(fronts["abcd"], anonymous, tasks["abcd"])


def test_a_head_without_names_takes_those_of_a_task_of_its_width(fronts, heads, tasks, renamed):
    nameless = renamed(heads["abcd"], None)
    found = recombine(fronts["abcd"], {"with": heads["abcd"], "without": nameless}, tasks["abcd"])
    assert found.pairs[0].accuracy == found.pairs[1].accuracy
    with pytest.raises(ContractError, match="4 outputs and no names, the task has 2 classes"):
        recombine(fronts["abcd"], nameless, only_classes(tasks["abcd"], ["a", "b"]))


def test_a_head_whose_names_are_not_its_outputs(fronts, heads, tasks, renamed):
    with pytest.raises(ContractError, match="4 outputs and names 3 classes"):
        recombine(fronts["abcd"], renamed(heads["abcd"], "abc"), tasks["abcd"])


@pytest.mark.parametrize("module", [nn.Identity(), nn.Threshold(0.0, 1.0)])
def test_a_head_that_gives_maps(fronts, tasks, module):
    with pytest.raises(ContractError, match="no row of numbers"):
        recombine(fronts["abcd"], Part(module), tasks["abcd"])


def test_a_head_that_gives_nan_is_not_measured(fronts, heads, tasks):
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    nn.init.constant_(broken[1].bias, torch.nan)
    met = {"broken": Part(broken), "good": heads["abcd"]}
    found = recombine({"x": fronts["abcd"]}, met, tasks["abcd"], norms=("stored", "batch"))
    assert found.accuracy["x"]["broken"] is None
    assert found.pairs[0].obstacle == (
        "gives NaN for 32 of 32 images with stored norms; "
        "gives NaN for 32 of 32 images with batch norms"
    )
    with pytest.raises(ContractError, match="gives NaN"):
        recombine(fronts["abcd"], Part(broken), tasks["abcd"])


def test_each_front_prepares_the_images_its_own_way(fronts, heads, tasks):
    larger = resized(tasks["abcd"], 16)
    colour = larger.derived("colour", inputs=larger.inputs.expand(-1, 3, -1, -1))
    plain = recombine({"x": fronts["abcd"]}, {"x": heads["abcd"]}, tasks["abcd"])
    found = recombine({"x": fronts["abcd"]}, {"x": heads["abcd"]}, colour)
    assert abs(found.accuracy["x"]["x"] - plain.accuracy["x"]["x"]) < 0.25  # resized, not refused
    assert found.accuracy["x"]["x"] > 0.5


def test_inputs_that_cannot_become_the_fronts(fronts, heads, tasks):
    front = fronts["abcd"]
    bare = front.changed(contract=Contract(front.contract.takes, front.contract.gives))
    with pytest.raises(ContractError, match="the part takes 1×8×8, the inputs are 1×16×16"):
        recombine(bare, heads["abcd"], resized(tasks["abcd"], 16))
    vague = Contract((Port(),), front.contract.gives, Preprocess(channels=3))
    with pytest.raises(ContractError, match="the front 'x' does not take the inputs of 'abcd'"):
        recombine({"x": front.changed(contract=vague)}, heads["abcd"], tasks["abcd"])
    two = Contract((Port(), Port()), front.contract.gives)
    with pytest.raises(ContractError, match="takes 2 tensors"):
        recombine(front.changed(contract=two), heads["abcd"], tasks["abcd"])


def test_two_tensors_cross_inside_a_residual_block(tasks):
    net = build("resnet8", classes=4, channels=1)
    front, back = cut(net, at="layer2.0.conv1", example=torch.zeros(2, 1, 8, 8))
    assert len(front.contract.gives) == 2
    found = recombine({"x": front}, {"x": back}, tasks["abcd"], norms=("batch", "recalibrated"))
    assert set(found.pairs[0].accuracy) == {"batch", "recalibrated"}
    assert found.pairs[0].fits
    one = cut(net, at="layer2", example=torch.zeros(2, 1, 8, 8))[1]
    found = recombine({"x": front}, {"x": back, "y": one}, tasks["abcd"])
    assert found.pairs[1].obstacle == "gives 2 tensors, but 1 are taken"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"norms": "batched"},
            "norms must be one of auto, stored, batch, recalibrated; got 'batched'",
        ),
        ({"norms": ()}, "at least one policy"),
        ({"norms": ("batch", "batch")}, "each once"),
        ({"batch_size": 1}, "at least 2, got 1; a batch of one has no variance"),
        ({"batch_size": 0, "norms": "stored"}, "at least 1, got 0"),
        ({"calibration": 1}, "calibration must be at least 2"),
    ],
)
def test_settings_out_of_range(fronts, heads, tasks, options, words):
    with pytest.raises(SettingsError, match=words):
        recombine(fronts, heads, tasks, **options)


def test_a_task_for_each_front(fronts, heads, tasks):
    with pytest.raises(SettingsError, match="no task for the front 'cdeb'"):
        recombine(fronts, heads, {"abcd": tasks["abcd"]})
    with pytest.raises(SettingsError, match="1 tasks for 2 fronts"):
        recombine(fronts, heads, [tasks["abcd"]])
    with pytest.raises(SettingsError, match="expected a Task, got str"):
        recombine(fronts, heads, ["abcd", "cdeb"])
    with pytest.raises(SettingsError, match="no fronts"):
        recombine({}, heads, tasks)
    with pytest.raises(SettingsError, match="no heads"):
        recombine(fronts, [], tasks)


def test_only_classes_recombine(fronts, heads, tasks):
    numbers = Task(torch.rand(20, 1, 8, 8), torch.rand(20), kind="regression")
    with pytest.raises(TaskError, match="kind 'regression'"):
        recombine(fronts["abcd"], heads["abcd"], numbers)
    regressor = Part(nn.Flatten(), Contract(kind="regression"))
    with pytest.raises(ContractError, match="for regression"):
        recombine(fronts["abcd"], regressor, tasks["abcd"])


def test_a_split_without_images(fronts, heads, tasks):
    task = tasks["abcd"]
    rows = {split: task.indices(split) for split in ("train", "validation", "test")}
    bare = task.derived("bare", indices=rows | {"test": torch.tensor([], dtype=torch.int64)})
    with pytest.raises(TaskError, match="no examples in its test split"):
        recombine(fronts["abcd"], heads["abcd"], bare)
    bare = task.derived("bare", indices=rows | {"train": torch.tensor([0])})
    with pytest.raises(TaskError, match="no two training images"):
        recombine(fronts["abcd"], heads["abcd"], bare, norms="recalibrated")
    only_a = task.derived("only a", indices=rows | {"test": torch.arange(5)})
    with pytest.raises(TaskError, match="no test images of b, c"):
        recombine(fronts["abcd"], heads["cdeb"], only_a.derived("x", classes=("z", "b", "c", "y")))


def test_one_image_has_statistics_only_of_its_positions(fronts, heads, tasks):
    task = tasks["abcd"]
    rows = {split: task.indices(split) for split in ("train", "validation")}
    single = task.derived("one", indices=rows | {"test": task.indices("test")[:1]})
    found = recombine(fronts["abcd"], heads["abcd"], single, norms="stored")
    assert found.pairs[0].n == 1
    with pytest.raises(ContractError, match="do not take a batch of 1"):
        recombine(fronts["abcd"], heads["abcd"], single, norms="batch")


def test_whole_networks_are_told_to_be_cut_first(tasks):
    nets = [build("lenet5", size=8, classes=4, seed=seed) for seed in (0, 1)]
    with pytest.raises(
        ContractError, match=r"These are whole networks: 'lenet5'. Cut first: front"
    ):
        recombine(nets[:1], nets[1:], tasks["abcd"])
    _, head = cut(nets[0], at="conv2")
    with pytest.raises(ContractError, match=r"This is a whole network.*dovetail cut NAME --at"):
        recombine(nets[1], head, tasks["abcd"])
