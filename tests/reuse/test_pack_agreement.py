"""Points that are expected to be lost: as the formula says, right where the part is, and graded."""

from __future__ import annotations

import pytest
import torch
from references.packing_points import expected_points
from torch import nn

from dovetail.core.errors import TaskError
from dovetail.measure.calibration import fit_temperature
from dovetail.parts.part import Part
from dovetail.reuse.pack_agreement import PROBED, Disagreement, ExpectedPoints
from dovetail.tasks.task import Task


def drawn(n, classes=4, width=8, seed=0):
    """A linear part, and a task whose labels are drawn from its probabilities: it is calibrated."""
    draw = torch.Generator().manual_seed(seed)
    module = nn.Linear(width, classes).requires_grad_(False)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw))
    inputs = torch.randn(n, width, generator=draw)
    labels = torch.multinomial(module(inputs).softmax(1), 1, generator=draw)[:, 0]
    indices = {"train": torch.arange(4), "validation": torch.arange(n), "test": torch.arange(4)}
    names = [str(each) for each in range(classes)]
    task = Task(inputs, labels, name="drawn", classes=names)
    return Part(module), task.derived("drawn", indices=indices)


def moved(part, by, seed=1):
    draw = torch.Generator().manual_seed(seed)
    state = part.module.state_dict()
    return {k: w + by * torch.randn(w.shape, generator=draw) for k, w in state.items()}


@pytest.mark.parametrize("by", [0.01, 0.1, 1.0])
def test_it_is_the_sum_over_examples_and_changes(by):
    part, task = drawn(40)
    points = ExpectedPoints(part, task)
    before, state = points(part.module.state_dict()), moved(part, by)
    after = points(state)
    inputs, labels = task.subset("validation")
    given = part(inputs).double()
    changed = nn.functional.linear(inputs, state["weight"], state["bias"]).double()
    wanted = expected_points(given.tolist(), changed.tolist(), fit_temperature(given, labels))
    assert sorted((after - before).tolist()) == pytest.approx(sorted(wanted), abs=1e-3)
    mistaken = 100 * float((changed.argmax(1) != labels).double().mean())
    assert float(points.mistakes.mean()) == pytest.approx(mistaken)


@pytest.mark.parametrize("by", [0.02, 0.1, 0.4])
def test_a_calibrated_part_loses_what_is_expected(by):
    """Over all labels that might have been drawn, the loss is ``p_a - p_c``, and no coins."""
    part, task = drawn(2000)
    points = ExpectedPoints(part, task)
    before = points(part.module.state_dict())
    inputs, _ = task.subset("validation")
    chances = part(inputs).softmax(1)
    expected, lost = 0.0, 0.0
    for seed in range(30):  # a single change of these few weights is its own kind of luck
        state = moved(part, by, seed)
        expected += float((points(state) - before).mean())
        answers = nn.functional.linear(inputs, state["weight"], state["bias"]).argmax(1)
        lost += 100 * float(
            (chances.max(1).values - chances.gather(1, answers[:, None])[:, 0]).mean()
        )
    assert expected == pytest.approx(lost, rel=0.25)


def test_few_examples_expect_about_what_many_do():
    part, task = drawn(4000)
    few = task.derived(
        "few",
        indices={
            **{s: task.indices(s) for s in ("train", "test")},
            "validation": torch.arange(200),
        },
    )
    state = moved(part, 0.1)
    found = []
    for each in (task, few):
        points = ExpectedPoints(part, each)
        found.append(float((points(state) - points(part.module.state_dict())).mean()))
    assert 0.5 * found[0] < found[1] < 2 * found[0]


def test_nothing_changed_loses_nothing_and_anything_loses_something():
    part, task = drawn(20)
    points = ExpectedPoints(part, task)
    before = points(part.module.state_dict())
    assert torch.equal(points(part.module.state_dict()), before)
    tiny = float((points(moved(part, 1e-3)) - before).mean())
    small = float((points(moved(part, 1e-2)) - before).mean())
    assert 0 < tiny < small


def test_what_is_not_finite_is_over_every_budget():
    part, task = drawn(20)
    broken = {name: weight * torch.nan for name, weight in part.module.state_dict().items()}
    assert ExpectedPoints(part, task)(broken).isinf().all()
    part.module.load_state_dict(broken)
    with pytest.raises(TaskError, match="not finite"):
        ExpectedPoints(part, task)


def test_disagreement_grows_with_the_square_of_what_changed():
    part, task = drawn(200)
    apart = Disagreement(part, task)
    near, far = apart(moved(part, 0.001)).mean(), apart(moved(part, 0.002)).mean()
    assert len(apart(part.module.state_dict())) == PROBED
    assert float(far / near) == pytest.approx(4, rel=0.05)


def test_disagreement_in_numbers_is_their_distance():
    inputs = torch.rand(30, 8)
    part, task = Part(nn.Linear(8, 2)), Task(inputs, torch.rand(30, 2), kind="regression")
    state = part.module.state_dict()
    shifted = {**state, "bias": state["bias"] + 0.5}
    assert Disagreement(part, task)(shifted).tolist() == pytest.approx(
        [0.25] * task.size("validation")
    )
