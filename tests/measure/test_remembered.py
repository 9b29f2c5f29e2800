import pytest
import torch
from torch import nn

from dovetail.adapt.networks import front_of
from dovetail.measure.features import feature_rows, features
from dovetail.measure.remembered import RememberedRows, at_hand, remembering
from dovetail.parts.cutting import cut
from dovetail.parts.norms import with_batch_statistics
from dovetail.parts.part import Part, build
from dovetail.tasks.task import Task


class Counted:
    """Runs rows through and says how many there were."""

    def __init__(self):
        self.asked = []

    def __call__(self, x):
        self.asked.append(len(x))
        return x.double().flatten(1).cumsum(1)


@pytest.fixture
def part():
    return build("mlp", shape=(3,), hidden=(4,))


@pytest.fixture
def inputs():
    return torch.rand(6, 3, generator=torch.Generator().manual_seed(0))


def test_rows_are_those_that_would_be_computed_in_any_order_and_with_repeats(part, inputs):
    run = Counted()
    wanted = inputs[[5, 0, 0, 2, 4]]
    with remembering(RememberedRows()):
        at_hand().of(part, "sum", inputs[:3], run)
        rows = at_hand().of(part, "sum", wanted, run)
        again = at_hand().of(part, "sum", wanted, run)
    assert run.asked == [3, 2]  # only the fifth and the last were new, and then none
    assert torch.equal(rows, Counted()(wanted))
    assert torch.equal(again, rows)


def test_other_weights_ways_types_and_shapes_are_other_rows(part, inputs):
    run, remembered = Counted(), RememberedRows()
    other = build("mlp", shape=(3,), hidden=(4,), seed=1)
    with remembering(remembered):
        for one, how, x in (
            (part, "sum", inputs),
            (other, "sum", inputs),
            (part, "mean", inputs),
            (part, "sum", inputs.double()),
            (part, "sum", inputs[:, None]),
        ):
            at_hand().of(one, how, x, run)
    assert run.asked == [6] * 5


def test_what_depends_on_the_batch_or_has_no_recipe_is_not_remembered(inputs):
    run, net = Counted(), build("mlp", shape=(3,), hidden=(4,), norm="batch")
    beside = net.changed(module=with_batch_statistics(net.module))
    with remembering(RememberedRows()):
        for part in (beside, Part(nn.Linear(3, 2))):
            for _ in range(2):
                at_hand().of(part, "sum", inputs, run)
    assert run.asked == [6] * 4


def test_one_that_has_stopped_learning_takes_nothing_in(part, inputs):
    run, remembered = Counted(), RememberedRows()
    with remembering(remembered):
        at_hand().of(part, "sum", inputs[:2], run)
        remembered.learning = False
        at_hand().of(part, "sum", inputs, run)
        at_hand().of(part, "sum", inputs, run)
    assert run.asked == [2, 4, 4]


def test_rows_come_back_from_a_file_and_a_damaged_one_holds_none(part, inputs, tmp_path):
    run, remembered = Counted(), RememberedRows()
    with remembering(remembered):
        rows = at_hand().of(part, "sum", inputs[[0, 1, 1, 2]], run)
    remembered.save(tmp_path / "rows.safetensors")
    with remembering(RememberedRows.load(tmp_path / "rows.safetensors")):
        assert torch.equal(at_hand().of(part, "sum", inputs[[0, 1, 1, 2]], run), rows)
    assert run.asked == [4]
    (tmp_path / "rows.safetensors").write_bytes(b"no tensors")
    with remembering(RememberedRows.load(tmp_path / "rows.safetensors")):
        at_hand().of(part, "sum", inputs, run)
    assert run.asked == [4, 6]


def test_ranking_and_a_probe_ask_for_the_same_rows(monkeypatch):
    net = build("lenet5", size=8)
    task = Task(torch.rand(30, 1, 8, 8), [0, 1, 2] * 10)
    front, _ = cut(net, at="fc2")  # as a ranking cuts it
    with remembering(RememberedRows()):
        taken = features(front, task).values
        monkeypatch.setattr("dovetail.measure.features.outputs_of", pytest.fail)
        assert torch.equal(front_of(net).rows(task.subset("train")[0]), taken.double())
    monkeypatch.undo()
    assert torch.equal(feature_rows(front, task.subset("train")[0]), taken)
