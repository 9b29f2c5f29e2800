"""The checks pass what is right, ours above all, and each of them can fail."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dovetail as dt
from dovetail.core.errors import DovetailError, SettingsError
from dovetail.parts.builders import _OURS, builder
from dovetail.parts.contract import Contract, Port
from dovetail.testing import CheckFailed, check_objective, check_part, check_score

ZOO = {
    "mlp": {"shape": [4], "hidden": [6, 5], "norm": "batch"},
    "patch-mlp": {"shape": [1, 8, 8], "filters": 3, "patch": 3, "pool": 2, "hidden": [6, 5]},
    "decision-block": {"shape": (4, 8, 8), "classes": 3, "convs": 2, "channels": 4},
    "boosted-trees": {"inputs": 4, "outputs": 3, "trees": 6, "nodes": 5, "depth": 2},
    "lenet5": {"size": 8},
    "resnet8": {"size": 8, "width": 4},
    "resnet20": {"size": 8, "width": 2},
    "resnet56": {"size": 8, "width": 2},
    "wideresnet16": {"size": 8, "widen": 1},
    "vgg13": {"size": 8, "width": 4},
    "mobilenetv2": {"size": 8, "width": 0.25},
    "efficientnet-lite0": {"size": 32, "classes": 3},
    "efficientnet-lite1": {"size": 32, "classes": 3},
    "efficientnet-lite2": {"size": 32, "classes": 3},
}
DEEP = {name for name in ZOO if name.startswith(("resnet20", "resnet56", "mobile", "efficient"))}


def test_the_whole_zoo_is_checked():
    assert set(ZOO) == set(_OURS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in DEEP else name for name in ZOO]
)
def test_our_own_parts_pass(name):
    state = torch.get_rng_state()
    assert check_part(name, args=ZOO[name]) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_parts_of_every_making_pass():
    part = dt.build("resnet8", size=8, width=4)
    front, back = dt.cut(part, at="layer2")
    check_part(part)
    check_part(front)
    check_part(back)
    check_part(dt.join(front, back))
    check_part(dt.join(front, back, norms="batch"))  # rows depend on each other, and may


# Broken builders, one for each check --------------------------------------------------------------


class Net(nn.Module):
    """An honest network to be spoilt."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Noisy(Net):
    def forward(self, x):
        return super().forward(x) + torch.rand(1)


class Wasteful(Net):
    def forward(self, x):
        torch.rand(1)
        return super().forward(x)


class Shuffled(Net):
    def forward(self, x):
        random.random()
        return super().forward(x)


class OneMode(Net):
    def forward(self, x):
        if self.training:
            raise ValueError("evaluation only")
        return super().forward(x)


class OtherShape(Net):
    def forward(self, x):
        return self.a(x) if self.training else super().forward(x)


class Detached(Net):
    def forward(self, x):
        return super().forward(x).detach()


class Idle(Net):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))


class Locked(Net):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Shared(Net):
    def __deepcopy__(self, memo):
        return self


class Centred(Net):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class Squeezed(Net):
    def forward(self, x):
        return super().forward(x.squeeze(0))


class Moody(Net):
    """Under trace, gradients are on; in evaluation they are off."""

    def forward(self, x):
        y = torch.tanh(self.a(x))
        return self.b(y if torch.is_grad_enabled() else y * 2)


class Forgetful(Net):
    def __init__(self):
        super().__init__()
        self.shift = FORGOTTEN.pop() if FORGOTTEN else 0.0

    def forward(self, x):
        return super().forward(x) + self.shift


class Words(Net):
    def forward(self, x):
        return {"logits": super().forward(x)}


FORGOTTEN: list[float] = []
TAKES = {"takes": lambda: (4,)}


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Noisy, "two answers to one input"),
        (Wasteful, "draws from a global random generator"),
        (Shuffled, "draws from a global random generator"),
        (OneMode, r"does not run in training \(evaluation only\)"),
        (OtherShape, "other shapes in training"),
        (Detached, "cannot be differentiated"),
        (Idle, "no gradient reaches unused"),
        (Locked, "cannot be copied"),
        (Shared, "shares tensors with the original"),
        (Centred, "depends on the rest of the batch"),
        (Squeezed, "depends on the rest of the batch"),
        (Moody, "joined again, .* gives other outputs"),
        (Words, "something other than tensors"),
    ],
)
def test_broken_networks_are_caught(kind, wrong):
    name = f"broken/{kind.__name__}"
    builder(name, **TAKES)(lambda: kind())
    with pytest.raises(CheckFailed, match=wrong) as caught:
        check_part(name)
    assert name in str(caught.value)
    assert str(caught.value).count(". ") >= 1  # what is wrong, and how to mend it


def test_the_network_they_are_made_of_is_right():
    builder("honest/net", **TAKES)(lambda: Net())
    check_part("honest/net")
    builder("honest/net-without-takes")(lambda: Net())
    check_part("honest/net-without-takes", example=torch.rand(2, 4))


def test_what_cannot_be_rebuilt_is_caught():
    builder("broken/forgetful", **TAKES)(lambda: Forgetful())
    FORGOTTEN[:] = [0.5, 0.5]  # for the two that are compared; the one that is loaded gets none
    with pytest.raises(CheckFailed, match=r"cannot be saved .*no longer gives the output"):
        check_part("broken/forgetful")


def test_a_plain_module_is_told_how_to_be_saved():
    with pytest.raises(CheckFailed, match="Put @dt"):
        check_part(dt.adopt(nn.Linear(4, 2), example=torch.zeros(1, 4)))


def test_seeds_and_arguments_are_checked():
    @builder("broken/unseeded", takes=lambda: (4,))
    def unseeded() -> nn.Module:
        net = Net()
        with torch.no_grad():
            net.a.bias.fill_(np.random.default_rng().normal())
        return net

    with pytest.raises(CheckFailed, match="built again with the same seed"):
        check_part("broken/unseeded")
    with pytest.raises(CheckFailed, match="are no JSON"):
        check_part("mlp", args={"shape": {1, 2}})
    with pytest.raises(CheckFailed, match="cannot be built from"):
        check_part("mlp", args={"classes": "three"})
    with pytest.raises(SettingsError, match="args belong to a builder's name"):
        check_part(dt.build("mlp"), args={})


def test_contracts_are_checked():
    part = dt.build("mlp", shape=(4,), classes=3)
    takes = part.contract.takes
    with pytest.raises(CheckFailed, match="nobody knows what"):
        check_part(part.changed(contract=Contract()))
    with pytest.raises(CheckFailed, match="does not take a batch"):
        check_part(part.changed(contract=Contract((Port((9,)),), part.contract.gives)))
    with pytest.raises(CheckFailed, match="does not give what its contract says: shape 7 -> 3"):
        check_part(part.changed(contract=Contract(takes, (Port((7,)),))))
    with pytest.raises(CheckFailed, match="other tensors"):
        check_part(part.changed(contract=Contract(takes, part.contract.gives * 2)))


def test_a_failure_is_an_assertion_and_ours():
    assert issubclass(CheckFailed, AssertionError)
    assert issubclass(CheckFailed, DovetailError)
    assert dt.testing.CheckFailed is CheckFailed


# Objectives ---------------------------------------------------------------------------------------


def within(features, labels):
    """Mean squared distance to the class's centre: lower is better."""
    same = (labels[:, None] == labels[None, :]).to(features.dtype)
    centres = same @ features / same.sum(1, keepdim=True)
    return (features - centres).square().sum(1).mean()


class Contrastive(nn.Module):
    """Supervised contrast with a temperature: lower is better, one class is refused."""

    def __init__(self):
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, features, labels):
        if len(labels.unique()) < 2:
            raise ValueError("a contrast needs two classes")
        u = F.normalize(features, dim=1)
        likeness = u @ u.T * self.log_temperature.exp()
        others = ~torch.eye(len(u), dtype=torch.bool)
        logs = likeness - (likeness.exp() * others).sum(1, keepdim=True).log()
        same = (labels[:, None] == labels[None, :]) & others
        return -(logs * same).sum() / same.sum()


def test_honest_objectives_pass():
    assert check_objective(within) is None
    check_objective(Contrastive())
    check_objective(lambda f, y: -within(f, y), higher_is_better=True)


class NotTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def in_place(features, labels):
    value = within(features, labels)
    features.detach().mul_(0)
    return value


def first_row(features, labels):
    return within(features, labels) * features[0].sum()


def infinite_for_one_class(features, labels):
    return within(features, labels) / (1.0 * (labels.max() > labels.min()))


def crash_for_one_class(features, labels):
    return within(features, labels) + 0 * [0, 1][len(labels.unique()) - 2 :][0] + _two(labels)


def _two(labels):
    return 0.0 if len(labels.unique()) > 1 else {}["two"]


def silent_for_one_class(features, labels):
    if len(labels.unique()) < 2:
        raise ValueError
    return within(features, labels)


@pytest.mark.parametrize(
    ("objective", "wrong"),
    [
        (lambda f, y: within(f), "fails on ordinary data"),
        (lambda f, y: f.sum(1), "no scalar tensor"),
        (lambda f, y: float(within(f, y).detach()), "no scalar tensor"),
        (lambda f, y: within(f, y) / 0, "the objective is inf on ordinary data"),
        (lambda f, y: within(f, y).detach(), "not attached to its features"),
        (in_place, "changes its inputs in place"),
        (lambda f, y: within(f, y) + torch.rand(()), "two values for the same data"),
        (first_row, "order of the rows changes"),
        (lambda f, y: within(f, y) * (1 + y.max()), "naming of the classes changes"),
        (lambda f, y: F.nll_loss(f.log_softmax(1), y), "naming of the classes changes"),
        (lambda f, y: within(f.half(), y).to(f.dtype), "float32 gives|gradient is not that"),
        (lambda f, y: within(f, y) + 1e6 - 1e6 * (f.dtype == torch.float64), "float64"),
        (lambda f, y: within(NotTheGradient.apply(f), y), "gradient is not that of the value"),
        (lambda f, y: -within(f, y), "Mind the sign"),
        (infinite_for_one_class, "inf for a batch of one class"),
        (crash_for_one_class, "one class in KeyError"),
        (silent_for_one_class, "one class says nothing"),
    ],
)
def test_broken_objectives_are_caught(objective, wrong):
    with pytest.raises(CheckFailed, match=wrong):
        check_objective(objective)


# Scores -------------------------------------------------------------------------------------------


def nearest_centre(features, labels):
    """Accuracy of the nearest class centre."""
    features, labels = np.asarray(features), np.asarray(labels)
    names = np.unique(labels)
    centres = np.stack([features[labels == name].mean(0) for name in names])
    distances = ((features[:, None] - centres) ** 2).sum(2)
    return float((names[distances.argmin(1)] == labels).mean())


def negative_variance(features, labels):
    rows = [features[labels == name] - features[labels == name].mean(0) for name in set(labels)]
    return -float(np.mean(np.concatenate(rows) ** 2))


def refuses_constants(features, labels):
    if np.ptp(features) == 0:
        raise ValueError("constant features say nothing about classes")
    return nearest_centre(features, labels)


def test_honest_scores_pass():
    assert check_score(nearest_centre) is None
    check_score(nearest_centre, tensors=True)
    check_score(negative_variance)
    check_score(refuses_constants)


def centring_in_place(features, labels):
    features -= features.mean(0)
    return nearest_centre(features, labels)


def only_when(holds, value=float("nan")):
    """An honest score, except where ``holds`` is true of the data."""
    return lambda f, y: value if holds(f, y) else nearest_centre(f, y)


def silent(features, labels):
    if np.ptp(features) == 0:
        raise ValueError
    return nearest_centre(features, labels)


def divides(features, labels):
    return nearest_centre(features, labels) + 0 * (1 // int(np.ptp(features) * 1e6))


@pytest.mark.parametrize(
    ("score", "wrong"),
    [
        (lambda f, y: nearest_centre(f), "fails on ordinary data"),
        (lambda f, y: np.float64(nearest_centre(f, y)), "is a float64 on ordinary data"),
        (lambda f, y: torch.tensor(nearest_centre(f, y)), "is a Tensor"),
        (lambda f, y: float("inf"), "the score is inf on ordinary data"),
        (centring_in_place, "changes its inputs in place"),
        (lambda f, y: nearest_centre(f, y) + random.random(), "two values for the same data"),
        (lambda f, y: nearest_centre(f, y) + float(f[0, 0]), "order of the rows"),
        (lambda f, y: nearest_centre(f, y) * float(y.max()), "naming of the classes"),
        (lambda f, y: nearest_centre(f, np.eye(3)[y].argmax(1)), r"fails with labels \[3, 7, 11\]"),
        (lambda f, y: -nearest_centre(f, y), "Higher must be better"),
        (only_when(lambda f, y: len(f) < f.shape[1]), "with fewer rows than features"),
        (only_when(lambda f, y: set(y) == {3, 7}), "with labels 3 and 7"),
        (only_when(lambda f, y: len(np.unique(f, axis=0)) * 3 == len(f)), "with repeated rows"),
        (only_when(lambda f, y: np.ptp(f) == 0), "nan with constant features"),
        (silent, "says nothing"),
        (divides, "in ZeroDivisionError"),
    ],
)
def test_broken_scores_are_caught(score, wrong):
    with pytest.raises(CheckFailed, match=wrong):
        check_score(score)
