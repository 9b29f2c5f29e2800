"""Our loop and a bare PyTorch loop give the same bits."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from train.bare_loop import rate, train_barely

from dovetail.core.errors import SettingsError
from dovetail.parts.part import Part
from dovetail.train.end_to_end import end_to_end
from dovetail.train.options import SCHEDULES, Schedule

OPTIMISERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": partial(torch.optim.Adam, lr=0.01, weight_decay=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=1e-3),
}
RATES = {"sgd": 0.05, "adam": 0.01, "adamw": 0.01}


def assert_same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert list(a) == list(b)
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name


def options(**changed):
    return {"epochs": 3, "batch_size": 16, "weight_decay": 1e-3, "seed": 7, **changed}


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "constant"])
@pytest.mark.parametrize("optimiser", list(OPTIMISERS))
def test_same_bits_as_a_bare_loop(net, task, optimiser, schedule):
    chosen = options(optimiser=optimiser, lr=RATES[optimiser], schedule=schedule)
    fit = end_to_end(net, task, **chosen)
    expected, losses = train_barely(
        net, task, OPTIMISERS[optimiser], epochs=3, batch_size=16, seed=7, schedule=schedule
    )
    assert_same_weights(fit.part.module, expected)
    assert [row["loss"] for row in fit.record.rows] == pytest.approx(losses, rel=1e-12)
    assert not torch.equal(next(net.module.parameters()), next(fit.part.module.parameters()))


def test_same_bits_with_clipped_gradients(net, task):
    fit = end_to_end(net, task, **options(lr=0.05, schedule="constant", clip=0.1))
    expected, _ = train_barely(
        net, task, OPTIMISERS["sgd"], epochs=3, batch_size=16, seed=7, clip=0.1
    )
    assert_same_weights(fit.part.module, expected)
    free = end_to_end(net, task, **options(lr=0.05, schedule="constant"))
    assert not torch.equal(fit.part.module.head.weight, free.part.module.head.weight)
    for clip in (0, -1.0, "1"):
        with pytest.raises(SettingsError, match="clip must be"):
            end_to_end(net, task, **options(clip=clip))


@pytest.mark.parametrize("kind", ["batch norm", "dropout"])
def test_same_bits_with_layers_that_train_differently(task, kind):
    inner = nn.BatchNorm1d(8) if kind == "batch norm" else nn.Dropout(0.4)
    net = Part(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), inner, nn.Linear(8, 3)))
    fit = end_to_end(net, task, **options(lr=0.05, schedule="constant"))
    expected, _ = train_barely(
        net, task, OPTIMISERS["sgd"], epochs=3, batch_size=16, seed=7, schedule="constant"
    )
    assert_same_weights(fit.part.module, expected)


@pytest.mark.parametrize(
    "choice",
    [
        torch.optim.AdamW,
        OPTIMISERS["adamw"],
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=1e-3),
        torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.01, weight_decay=1e-3),
    ],
    ids=["class", "partial", "factory", "instance"],
)
def test_an_optimiser_in_any_form(net, task, choice):
    fit = end_to_end(net, task, **options(optimiser=choice, lr=0.01, schedule="constant"))
    expected, _ = train_barely(
        net, task, OPTIMISERS["adamw"], epochs=3, batch_size=16, seed=7, schedule="constant"
    )
    assert_same_weights(fit.part.module, expected)


@pytest.mark.parametrize("name", ["SGD", "Adam", "NAdam", "RMSprop", "Rprop", "Adagrad", "Adamax"])
def test_any_torch_optimiser_as_class_and_as_instance(net, task, name):
    kind = getattr(torch.optim, name)
    instance = kind([nn.Parameter(torch.zeros(1))], lr=0.01)
    for choice in (kind, instance):
        fit = end_to_end(
            net, task, **options(optimiser=choice, lr=0.01, schedule="constant", weight_decay=0.0)
        )
        make = partial(kind, lr=0.01)
        expected, _ = train_barely(
            net, task, make, epochs=3, batch_size=16, seed=7, schedule="constant"
        )
        assert_same_weights(fit.part.module, expected)


def test_the_instance_given_is_not_stepped(net, task):
    own = nn.Parameter(torch.ones(2))
    optimiser = torch.optim.SGD([own], lr=0.1)
    end_to_end(net, task, **options(optimiser=optimiser))
    assert torch.equal(own, torch.ones(2))
    assert optimiser.state_dict()["state"] == {}


def test_a_schedule_as_a_function(net, task):
    ours = end_to_end(net, task, **options(lr=0.1, schedule=lambda done: 1 - done))
    steps, seen = 3 * 4, iter(range(100))

    def manual(parameters):
        optimiser = torch.optim.SGD(
            parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3
        )
        step = optimiser.step

        def with_rate():
            optimiser.param_groups[0]["lr"] = 0.1 * (1 - next(seen) / steps)
            return step()

        optimiser.step = with_rate
        return optimiser

    expected, _ = train_barely(net, task, manual, epochs=3, batch_size=16, seed=7)
    assert next(seen) == steps
    assert_same_weights(ours.part.module, expected)
    assert ours.record.rows[-1]["lr"] == pytest.approx(0.1 * (1 - 11 / 12))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5), [0.1, 0.05, 0.025]),
        (partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[2]), [0.1, 0.1, 0.01]),
        (partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9), [0.1, 0.09, 0.081]),
    ],
    ids=["step", "milestones", "exponential"],
)
def test_a_torch_scheduler_is_stepped_once_an_epoch(net, task, schedule, rates):
    fit = end_to_end(net, task, **options(lr=0.1, schedule=schedule))
    assert [row["lr"] for row in fit.record.rows] == pytest.approx(rates)


def test_a_scheduler_that_waits_for_a_plateau_is_told_the_validation_loss(net, task):
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5)
    fit = end_to_end(net, task, **options(lr=3.0, momentum=0.0, schedule=plateau, epochs=6))
    lr, best, expected = 3.0, math.inf, []
    for row in fit.record.rows:
        expected.append(lr)
        if row["validation loss"] < best * (1 - 1e-4):
            best = row["validation loss"]
        else:
            lr *= 0.5
    assert [row["lr"] for row in fit.record.rows] == pytest.approx(expected)
    assert lr < 3.0  # it did wait for something


@pytest.mark.parametrize("name", list(SCHEDULES))
@pytest.mark.parametrize("steps", [1, 10, 77])
def test_the_rates_are_the_published_ones(name, steps):
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    schedule = Schedule(name, optimiser, steps=steps)
    for step in range(steps):
        schedule.before_step(step)
        assert optimiser.param_groups[0]["lr"] == pytest.approx(0.2 * rate(name, step, steps))


def test_one_cycle_is_torchs():
    """torch spreads its cycle over one step less, so with many steps the two are close."""
    steps = 5000
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=1.0, total_steps=steps, cycle_momentum=False
    )
    for step in range(steps):
        assert SCHEDULES["one-cycle"](step / steps) == pytest.approx(
            theirs.get_last_lr()[0], abs=2e-3
        )
        optimiser.step()
        if step < steps - 1:
            theirs.step()


def test_each_group_of_parameters_keeps_its_own_rate():
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.1)]
    optimiser = torch.optim.SGD(groups, lr=9.0)
    Schedule("cosine", optimiser, steps=4).before_step(2)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.5, 0.05])


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"optimiser": "adma"}, "unknown optimiser 'adma'; did you mean"),
        ({"schedule": "one-cicle"}, "unknown schedule 'one-cicle'; did you mean one-cycle"),
        ({"schedule": 3}, "a schedule is a name"),
        ({"schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 1)}, "functools.partial of it"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 2.5}, "epochs must be a whole number of at least 1, got 2.5"),
        ({"epochs": None}, "epochs must be a whole number of at least 1, got None"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"lr": float("nan")}, "lr must be a number of at least 0"),
        ({"lr": float("inf")}, "lr must be"),
        ({"lr": "0.1"}, "lr must be"),
        ({"momentum": -1}, "momentum must be"),
        ({"weight_decay": -1e-4}, "weight_decay must be"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds must be"),
        ({"augment": "flop"}, "unknown augmentation 'flop'; did you mean flip"),
        ({"device": "abacus"}, "cannot compute on device 'abacus'"),
    ],
)
def test_options_that_are_refused(net, task, chosen, words):
    with pytest.raises(SettingsError, match=words):
        end_to_end(net, task, **{"epochs": 1, **chosen})
