"""The Fisher information against one backward pass at a time, and distances that make sense."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.measure.forward import prepare
from dovetail.parts.part import as_part
from dovetail.ranking import task2vec
from dovetail.ranking.task2vec import task_distance, task_embedding
from dovetail.tasks.derive import inverted, only_classes, rotated


def small_task(classes=3, shape=(1, 6, 6), count=30, **settings):
    inputs = torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))
    return dt.Task(inputs, torch.arange(count) % classes, **settings)


def small_probe():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, groups=1), nn.Tanh()
    ).double()  # fmt: skip


def fisher_by_hand(part, task, labels_of):
    """Every example and label: one backward pass, squared, weighted by the model's own chance."""
    inputs, targets = task.subset("train")
    module = part.module.eval()
    x = prepare(inputs, part.contract)
    rows = module(x).detach().flatten(2).mean(2)
    weight, bias = task2vec._logistic_head(rows.double(), targets, len(task.classes))
    layers = [p for p in module.parameters() if p.ndim >= 2]
    total = [torch.zeros_like(p) for p in layers]
    for i in range(len(x)):
        scores = module(x[i : i + 1]).flatten(2).mean(2)[0] @ weight.to(x.dtype) + bias.to(x.dtype)
        probs = scores.softmax(0)
        for label, share in labels_of(i, probs.detach()):
            slopes = torch.autograd.grad(probs[label].log(), layers, retain_graph=True)
            for sums, slope in zip(total, slopes, strict=True):
                sums += share * slope**2 / len(x)
    return torch.cat([sums.flatten(1).mean(1) for sums in total]).double()


def test_the_embedding_is_the_expected_squared_gradient_of_each_filter():
    part, task = as_part(small_probe().float()), small_task()
    by_hand = fisher_by_hand(part, task, lambda i, probs: list(enumerate(probs)))
    found = task_embedding(part, task)
    assert found.shape == (9,)
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-12)


def test_with_many_classes_one_label_is_drawn_for_each_example(monkeypatch):
    part, task = as_part(small_probe().float()), small_task()
    exact = task_embedding(part, task)
    monkeypatch.setattr(task2vec, "EXACT_CLASSES", 2)
    drawn = torch.stack([task_embedding(part, task, seed=seed) for seed in range(60)])
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[1], task_embedding(part, task, seed=1))
    error = drawn.std(0) / 60**0.5
    assert ((drawn.mean(0) - exact).abs() <= 4 * error).all()


def test_blocks_give_what_one_piece_gives(monkeypatch):
    part, task = as_part(small_probe().float()), small_task()
    whole = task_embedding(part, task)
    monkeypatch.setattr(task2vec, "_NUMBERS", 2000)
    torch.testing.assert_close(task_embedding(part, task), whole, rtol=1e-5, atol=0)


def test_the_head_is_the_optimum_of_its_penalised_loss():
    rows = torch.randn(40, 3, dtype=torch.float64)
    rows[:, 2] = 0.3  # constant: no weight, and no division by its spread
    targets = torch.arange(40) % 2
    weight, bias = task2vec._logistic_head(rows, targets, 3)  # the third class is absent
    assert torch.isfinite(weight).all()
    assert torch.isfinite(bias).all()
    assert (weight[2] == 0).all()
    standard = (rows[:, :2] - rows[:, :2].mean(0)) / rows[:, :2].std(0, correction=0)
    error = (rows @ weight + bias).softmax(1) - torch.eye(3, dtype=torch.float64)[targets]
    slope = standard.T @ error + weight[:2] * rows[:, :2].std(0, correction=0)[:, None]
    assert slope.abs().max() < 1e-3


def test_the_probe_is_left_as_it_was():
    probe = small_probe().float().train()
    before = {name: tensor.clone() for name, tensor in probe.state_dict().items()}
    state = torch.get_rng_state()
    task_embedding(probe, small_task())
    assert all(torch.equal(tensor, before[name]) for name, tensor in probe.state_dict().items())
    assert all(layer.training for layer in probe)
    assert all(p.grad is None and p.requires_grad for p in probe.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_names_of_classes_do_not_matter():
    part = as_part(small_probe().float())
    inputs, targets = torch.rand(40, 1, 6, 6), torch.arange(40) % 2
    rows = {"train": range(20), "validation": range(20, 30), "test": range(30, 40)}
    one = task_embedding(part, dt.Task(inputs, targets, split=rows))
    two = task_embedding(part, dt.Task(inputs, 1 - targets, split=rows))
    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-12)


# Distances ----------------------------------------------------------------------------------------


def test_a_distance_is_symmetric_zero_to_itself_and_between_zero_and_one():
    a, b = torch.rand(50).square(), torch.rand(50)
    assert task_distance(a, a) == pytest.approx(0, abs=1e-15)
    assert task_distance(a, b) == task_distance(b, a)
    assert 0 < task_distance(a, b) < 1
    x, y = (a / (a + b)).double(), (b / (a + b)).double()
    assert task_distance(a, b) == pytest.approx(float(1 - x @ y / x.norm() / y.norm()), rel=1e-6)
    apart = task_distance(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    assert apart == 1.0


def test_similar_tasks_are_nearer():
    digits = dt.load_task("digits")
    net = dt.build("lenet5", channels=1, size=8, classes=10)
    trained = dt.train.end_to_end(net, digits, epochs=2).part
    front, _ = dt.cut(trained, at="fc2")
    low, high = only_classes(digits, "01234"), only_classes(digits, "56789")

    def vector(task, seed=0):
        return task_embedding(front, task, limit=150, seed=seed)

    here = vector(low)
    again = task_distance(here, vector(low, seed=1))
    other_digits = task_distance(here, vector(high))
    turned = task_distance(here, vector(rotated(low, 90)))
    negative = task_distance(here, vector(inverted(low)))
    assert again < other_digits < min(turned, negative)


def test_embeddings_of_two_probes_are_not_compared():
    with pytest.raises(SettingsError, match="same one"):
        task_distance(torch.rand(3), torch.rand(4))
    with pytest.raises(SettingsError, match="never negative"):
        task_distance(torch.tensor([1.0, -1.0]), torch.rand(2))
    with pytest.raises(SettingsError, match="zero throughout"):
        task_distance(torch.zeros(2), torch.rand(2))


# Refusals -----------------------------------------------------------------------------------------


def test_what_has_no_embedding_is_refused():
    with pytest.raises(ContractError, match="no filters"):
        task_embedding(nn.Flatten(), small_task())
    numbers = dt.Task(torch.rand(30, 4), torch.rand(30), kind="regression")
    with pytest.raises(TaskError, match="needs classes"):
        task_embedding(nn.Linear(4, 2), numbers)
    with pytest.raises(SettingsError, match="at least 2"):
        task_embedding(small_probe().float(), small_task(), limit=1)
