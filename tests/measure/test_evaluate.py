import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.measure.evaluate import Evaluation, evaluate
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Contract, Port
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.norms import with_batch_statistics
from dovetail.parts.part import Part, build
from dovetail.tasks.derive import only_classes
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.task import Task

NAMES = ("ant", "bee", "cat", "dog")


@pytest.fixture
def task():
    x = torch.rand(120, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return Task(x, [NAMES[i % 4] for i in range(120)], name="animals")


@pytest.fixture
def part():
    net = build("mlp", shape=(1, 4, 4), hidden=(8,), classes=4)
    return net.changed(contract=replace(net.contract, classes=NAMES))


def with_head_of(part, names):
    """The same network with its outputs in another order, some names new (and unlikely)."""
    module = nn.Sequential(*list(part.module)[:-1])
    old = part.module[-1]
    head = nn.Linear(old.in_features, len(names))
    with torch.no_grad():
        for row, name in enumerate(names):
            if name in NAMES:
                head.weight[row] = old.weight[NAMES.index(name)]
                head.bias[row] = old.bias[NAMES.index(name)]
    contract = replace(part.contract, gives=(Port((len(names),)),), classes=tuple(names))
    return Part(nn.Sequential(*module, head), contract)


def accuracy_by_names(part, task, split="test", among=None):
    """For each image, the name of the largest output (among some), compared with its own name."""
    inputs, targets = task.subset(split)
    known, right = part.contract.classes, 0
    for x, target in zip(inputs, targets, strict=True):
        outputs = dict(zip(known, part(x[None])[0].tolist(), strict=True))
        said = max(among or known, key=outputs.__getitem__)
        right += said == task.classes[target]
    return right / len(inputs)


def test_accuracy_is_the_loop_over_names(part, task):
    found = evaluate(part, task)
    assert found.n == 24
    assert found.accuracy == pytest.approx(accuracy_by_names(part, task))
    assert found.chance == 0.25
    assert "masked accuracy" not in found.measures


@pytest.mark.parametrize("order", [NAMES[::-1], ("cat", "ant", "dog", "bee")])
def test_the_order_of_the_heads_classes_does_not_matter(part, task, order):
    plain, permuted = evaluate(part, task), evaluate(with_head_of(part, order), task)
    assert permuted.measures == pytest.approx(plain.measures)
    assert permuted.confusion == plain.confusion
    assert permuted.classes == plain.classes == NAMES


def test_a_head_that_knows_more_classes_is_measured_twice(part, task):
    wide = with_head_of(part, ("eel", "dog", "cat", "fox", "bee", "ant"))
    with torch.no_grad():
        wide.module[-1].bias[0] = 0.2  # so that a foreign class is sometimes the largest
    found = evaluate(wide, task)
    free = accuracy_by_names(wide, task)
    masked = accuracy_by_names(wide, task, among=NAMES)
    assert found.accuracy == pytest.approx(free)
    assert found.measures["masked accuracy"] == pytest.approx(masked)
    assert free != masked
    assert found.chance == pytest.approx(1 / 6)
    assert sum(map(sum, found.confusion)) == found.n


def test_a_task_of_some_of_the_classes(part, task):
    few = only_classes(task, ["dog", "bee"])
    found = evaluate(part, few)
    assert found.measures["masked accuracy"] == pytest.approx(
        accuracy_by_names(part, few, among=few.classes)
    )
    diagonal = sum(found.confusion[i][i] for i in range(2))
    assert found.measures["masked accuracy"] == pytest.approx(diagonal / found.n)


def test_a_class_the_head_does_not_know_is_an_error(part, task):
    stranger = with_head_of(part, ("ant", "bee", "cat", "emu"))
    with pytest.raises(TaskError, match="does not know the class 'dog' of 'animals'"):
        evaluate(stranger, task)


def test_a_network_without_names_is_taken_in_the_tasks_order(part, task):
    nameless = part.changed(contract=replace(part.contract, classes=None))
    assert evaluate(nameless, task).measures == evaluate(part, task).measures
    assert evaluate(part.module, task).accuracy == evaluate(part, task).accuracy


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_each_split_is_measured_on_its_own(part, task, split):
    found = evaluate(part, task, split=split)
    assert found.n == task.size(split)
    assert found.accuracy == pytest.approx(accuracy_by_names(part, task, split))


def test_the_size_of_the_batches_does_not_matter(part, task):
    one, many = evaluate(part, task, batch_size=1), evaluate(part, task, batch_size=512)
    assert one.measures == pytest.approx(many.measures)
    with pytest.raises(SettingsError, match="batch_size must be at least 1, got 0"):
        evaluate(part, task, batch_size=0)


def test_regression():
    x = torch.rand(50, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    task = Task(x, y, kind="regression")
    line = nn.Linear(3, 1)
    with torch.no_grad():
        line.weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
        line.bias.fill_(0.1)
    found = evaluate(line, task)
    assert found.measures["rmse"] == pytest.approx(0.1, rel=1e-4)
    truth = task.subset("test")[1]
    assert found.measures["r2"] == pytest.approx(
        1 - 0.01 / float(truth.var(correction=0)), rel=1e-4
    )
    assert found.chance is None
    with pytest.raises(TaskError, match="no classification"):
        _ = found.accuracy
    with pytest.raises(TaskError, match=r"gives outputs of shape \(2,\), but 'task' needs 1"):
        evaluate(nn.Linear(3, 2), task)


def test_labels_are_matched_by_name_too():
    x = torch.rand(40, 3)
    y = (x > 0.5).int()
    task = Task(x, y, kind="multilabel", classes=("red", "green", "blue"))

    def net(order):
        line = nn.Linear(3, len(order))
        with torch.no_grad():
            line.weight.zero_()
            line.bias.fill_(-0.5)
            for row, name in enumerate(order):
                if name in task.classes:
                    line.weight[row, task.classes.index(name)] = 1.0
        return adopt(line, example=x[:1], classes=tuple(order))

    assert evaluate(net(task.classes), task).accuracy == 1.0
    assert evaluate(net(("blue", "red", "green")), task).measures["exact"] == 1.0
    assert evaluate(net(("blue", "grey", "red", "green")), task).measures["exact"] == 1.0
    with pytest.raises(TaskError, match="does not know the class 'green'"):
        evaluate(net(("blue", "red", "grey")), task)
    with pytest.raises(TaskError, match="needs 3 numbers"):
        evaluate(nn.Linear(3, 4), task)


def test_an_empty_split_is_an_error(part, task):
    x, y = task.inputs[:8], [NAMES[i % 4] for i in range(8)]
    empty = Task(x, y, split={"train": range(8), "test": [], "validation": []})
    with pytest.raises(TaskError, match="no examples in its test split"):
        evaluate(part, empty)
    with pytest.raises(TaskError, match="unknown split 'tset'; did you mean test"):
        evaluate(part, task, split="tset")


def test_pairs_are_nothing_to_evaluate_against(part):
    x = torch.rand(6, 1, 4, 4)
    ends = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 4])
    pairs = Pairs(*ends, torch.tensor([True, False, True, False]))
    task = Task(
        x, kind="pairs", pairs=pairs, split={"train": range(5), "validation": [], "test": [5]}
    )
    with pytest.raises(TaskError, match="pair labels only"):
        evaluate(part, task)


@pytest.mark.parametrize(
    ("shape", "words"), [((1, 5, 5), "takes 1×4×4, the inputs are 1×5×5"), ((16,), "are 16")]
)
def test_inputs_of_the_wrong_shape(part, shape, words):
    task = Task(torch.rand(16, *shape), list(NAMES) * 4)
    with pytest.raises(ContractError, match=words):
        evaluate(part, task)


def test_a_foreign_network_that_fails_says_why():
    task = Task(torch.rand(16, 5), [0, 1] * 8)
    with pytest.raises(ContractError, match=r"'Linear' does not take inputs of shape \(3, 5\)"):
        evaluate(nn.Linear(4, 2), task)
    assert evaluate(nn.Linear(5, 2).double(), task).n == 3  # inputs follow the weights' type

    class Silent(nn.Module):
        def forward(self, x):
            raise ValueError

    with pytest.raises(ContractError, match="ValueError"):
        evaluate(Silent(), task)


def test_a_part_of_another_dtype_is_an_error():
    double = adopt(nn.Linear(5, 2).double(), example=torch.zeros(1, 5, dtype=torch.float64))
    with pytest.raises(ContractError, match="takes float64, the inputs are float32"):
        evaluate(double, Task(torch.rand(16, 5), [0, 1] * 8))


def test_parts_with_several_tensors_are_not_run():
    class Twice(nn.Module):
        def forward(self, x):
            return x, x

    task = Task(torch.rand(16, 5), [0, 1] * 8)
    with pytest.raises(ContractError, match="gives 2 tensors, not one"):
        evaluate(Twice(), task)
    two = Part(nn.Bilinear(5, 5, 2), Contract(takes=(Port((5,)), Port((5,)))))
    with pytest.raises(ContractError, match="takes 2 tensors, not one"):
        evaluate(two, task)


def test_names_that_are_not_as_many_as_outputs_are_an_error(part, task):
    lying = part.changed(contract=replace(part.contract, classes=("eel", *NAMES)))
    with pytest.raises(ContractError, match="has 5 classes but gives outputs of shape"):
        evaluate(lying, task)


def test_too_few_outputs_are_an_error(task):
    with pytest.raises(TaskError, match="needs 4 numbers an example"):
        evaluate(build("mlp", shape=(1, 4, 4), hidden=(8,), classes=3), task)


def test_evaluation_changes_nothing(task):
    net = build("mlp", shape=(1, 4, 4), hidden=(8,), classes=4, norm="batch").module
    net.append(nn.Dropout(0.5))
    net.train()
    net[1].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    flags = [child.training for child in net.modules()]
    state = torch.get_rng_state()
    first, second = evaluate(net, task), evaluate(net, task)
    assert first.measures == second.measures
    assert [child.training for child in net.modules()] == flags
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_mode_comes_back_after_a_failure(task):
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 4)).train()
    with pytest.raises(ContractError):
        evaluate(net, task)
    assert net.training


def test_the_record_survives_its_file(part, task, tmp_path):
    found = evaluate(part, task)
    assert load_record(found.save(tmp_path / "e.json")) == found
    assert found.settings["part_digest"] == part.digest
    assert found.settings["task_fingerprint"] == task.fingerprint


def test_the_view_shows_shares_of_each_true_class():
    record = Evaluation(
        part="p",
        task="t",
        split="test",
        n=5,
        measures={"accuracy": 0.6},
        chance=0.5,
        classes=("a", "b"),
        confusion=((2, 1), (0, 0)),
    )
    heatmap = record.view()[-1]
    assert heatmap.values == ((2 / 3, 1 / 3), (0.0, 0.0))
    assert math.isclose(record.accuracy, 0.6)


def test_vectors_of_other_meaning_are_refused():
    x, y = torch.rand(20, 2), [0, 1] * 10
    part = build("mlp", shape=(2,), hidden=(), classes=2)
    part = part.changed(contract=replace(part.contract, inputs=("age", "town=Bonn")))
    evaluate(part, Task(x, y, input_names=("age", "town=Bonn")))
    evaluate(part, Task(x, y))  # nobody has said what they are
    with pytest.raises(ContractError, match="the part takes age, town=Bonn; 'task' has town=Bonn"):
        evaluate(part, Task(x, y, input_names=("town=Bonn", "age")))


def test_no_example_is_left_to_itself_where_the_batch_decides(task):
    """A batch of one has no statistics; 24 in batches of at most 23 are two of 12."""
    net = build("mlp", shape=(1, 4, 4), hidden=(8,), classes=4, norm="batch")
    by_batch = net.changed(module=with_batch_statistics(net.module))
    inputs = task.inputs[:24]
    found = outputs_of(by_batch, inputs, batch_size=23)
    with torch.no_grad():
        assert torch.equal(found, torch.cat([by_batch(inputs[:12]), by_batch(inputs[12:])]))


def test_batch_statistics_do_not_see_one_class_at_a_time():
    """A network that subtracts the batch's mean knows nothing of a batch of one class."""
    classes = torch.arange(4).repeat_interleave(64)
    inputs = torch.nn.functional.one_hot(classes).float()
    split = {
        "train": range(0, 256, 64),
        "validation": [],
        "test": [i for i in range(256) if i % 64],
    }
    task = Task(inputs, classes, split=split)
    norm = with_batch_statistics(torch.nn.Sequential(torch.nn.BatchNorm1d(4)))
    part = Part(norm, Contract(takes=(Port((4,)),), gives=(Port((4,)),)))
    assert evaluate(part, task, batch_size=63).accuracy == 1.0
    assert evaluate(part, task, batch_size=63).settings["order"] == "random"
