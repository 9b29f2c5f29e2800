from dataclasses import replace

import numpy as np
import pytest
import torch
from references.least_squares import best_map, explained
from references.stitch import applied, rows_of
from torch import nn

from dovetail.closed_form.stitch import PENALTIES, stitch
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.joining import join
from dovetail.parts.norms import with_batch_statistics
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.tasks.task import Task


@pytest.fixture(scope="module")
def images():
    return torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def halves(at="conv2", seed=0, **args):
    return cut(build("lenet5", size=8, seed=seed, **args), at=at)


def known_rows(front, onto, images, seed=0):
    """What the stitch fits and what it is judged on, drawn as the stitch draws."""
    drawn = torch.randperm(len(images), generator=generator(seed, "stitch"))
    held = max(1, len(images) // 5)
    for rows in (drawn[held:], drawn[:held]):
        x, y = (outputs_of(part, images[rows]).double().numpy() for part in (front, onto))
        yield rows_of(x), rows_of(y)


@pytest.mark.parametrize("at", ["conv2", "fc1"])
@pytest.mark.parametrize("ridge", [0.0, 2.0])
def test_the_stitch_is_the_slow_best_map(images, at, ridge):
    front, _ = halves(at, seed=0)
    onto, head = halves(at, seed=1)
    made = stitch(front, onto, images, ridge=ridge)
    (x, y), others = known_rows(front, onto, images)
    weights, bias = best_map(x, y, ridge)
    state = made.module.state_dict()
    found = state["weight"].flatten(1).numpy()
    assert abs(found - weights.T).max() < 1e-6 * max(1, abs(weights).max())
    assert abs(state["bias"].numpy() - bias).max() < 1e-5 * max(1, abs(weights).max())
    assert abs(made.origin.measured["r2"] - explained(x, y, weights, bias)) < 1e-5
    assert abs(made.origin.measured["held-out r2"] - explained(*others, weights, bias)) < 1e-4
    seen = outputs_of(front, images[:3])
    slow = applied(seen.numpy(), found, state["bias"].numpy())
    np.testing.assert_allclose(made(seen).detach().numpy(), slow, atol=1e-5)
    assert join(front, made, head)(images[:2]).shape == (2, 10)


def test_a_front_that_normalises_by_the_batch_is_never_given_one_image():
    """321 inputs: 64 are held out, and 257 are one more than a pass takes."""
    net = build("mlp", shape=(4,), hidden=(6,), norm="batch")
    (front, _), (onto, _) = (
        cut(net, "hidden1"),
        cut(build("mlp", shape=(4,), hidden=(6,)), "hidden1"),
    )
    gives = tuple(replace(port, shape=None) for port in front.contract.gives)
    by_batch = front.changed(
        module=with_batch_statistics(front.module), contract=replace(front.contract, gives=gives)
    )
    inputs = torch.rand(321, 4, generator=torch.Generator().manual_seed(0))
    assert stitch(by_batch, onto, inputs).origin.settings["held_out"] == 64


def test_what_the_contract_says(images):
    front, _ = halves(seed=0)
    onto, head = halves(seed=1)
    made = stitch(front, onto, images)
    assert made.contract.takes == front.contract.gives
    assert made.contract.gives == head.contract.takes
    assert made.origin.how == "stitch"
    assert made.origin.settings["by"] == "least-squares"
    assert made.origin.parents == (front.digest, onto.digest)
    assert not made.module.training


def test_it_can_be_kept(images, tmp_path):
    front, onto = halves(seed=0)[0], halves(seed=1)[0]
    made = stitch(front, onto, images)
    back = from_pretrained(made.save_pretrained(tmp_path / "stitch"), verify=True)
    assert back.digest == made.digest
    assert (back.contract, back.origin) == (made.contract, made.origin)


def test_a_rotated_space_is_turned_back_exactly():
    front, head = cut(build("mlp", shape=(6,), hidden=(5,), classes=3), at="hidden1")
    turn = nn.Linear(5, 5, bias=False)
    nn.init.orthogonal_(turn.weight)
    port = Port((5,), activation="relu", space="turned")
    turned = Part(nn.Sequential(front.module, turn), Contract(front.contract.takes, (port,)))
    x = torch.rand(200, 6, generator=generator(3))
    back = stitch(turned, front, x)
    assert back.origin.measured["held-out r2"] > 1 - 1e-9
    joined, whole = join(turned, back, head), join(front, head)
    assert (joined(x) - whole(x)).abs().max() < 1e-4


def test_dead_and_doubled_channels_are_no_trouble(images):
    front, onto = halves(seed=0)[0], halves(seed=1)[0]
    with torch.no_grad():
        conv = next(m for m in reversed(list(front.module.modules())) if isinstance(m, nn.Conv2d))
        conv.weight[3], conv.bias[3] = 0.0, -1.0
        conv.weight[5], conv.bias[5] = conv.weight[4], conv.bias[4]
    made = stitch(front, onto, images)
    weight = made.module.state_dict()["weight"]
    assert weight[:, 3].abs().max() < 1e-12
    assert torch.allclose(weight[:, 4], weight[:, 5], atol=1e-6)
    assert made.origin.settings["rank"] <= 14
    assert weight.isfinite().all()


def test_targets_are_never_read(images, monkeypatch):
    front, onto = halves(seed=0)[0], halves(seed=1)[0]
    labels = torch.arange(40) % 2
    one = Task(images, labels)
    other = one.derived("task", targets=labels.flip(0))

    def forbidden(*_):
        raise AssertionError("the targets were read")

    for name in ("targets", "subset", "fingerprint", "pairs"):
        blocked = forbidden if name in ("subset", "pairs") else property(forbidden)
        monkeypatch.setattr(Task, name, blocked, raising=False)
    first, second = stitch(front, onto, one), stitch(front, onto, other)
    assert (first.digest, first.origin) == (second.digest, second.origin)


def test_of_a_task_only_the_split_counts(images):
    front, onto = halves(seed=0)[0], halves(seed=1)[0]
    task = Task(images, torch.arange(40) % 2)
    rows = task.indices("train")
    spoilt = images.clone()
    spoilt[[i for i in range(40) if i not in set(rows.tolist())]] = 7.0
    both = [stitch(front, onto, Task(x, torch.arange(40) % 2)) for x in (images, spoilt)]
    assert both[0].digest == both[1].digest
    assert stitch(front, onto, images[rows]).digest == both[0].digest


def test_limit_and_seed(images):
    front, onto = halves(seed=0)[0], halves(seed=1)[0]
    few = stitch(front, onto, images, limit=10)
    assert (few.origin.settings["images"], few.origin.settings["held_out"]) == (10, 2)
    assert few.digest == stitch(front, onto, images, limit=10).digest
    assert few.digest != stitch(front, onto, images, limit=10, seed=1).digest


def test_nothing_given_is_changed_and_no_draw_is_spent(images):
    front, onto = halves(seed=0)[0], halves(seed=1)[0]
    before = front.digest, onto.digest, torch.get_rng_state()
    front.module.train()
    stitch(front, onto, images)
    assert front.module.training
    assert (front.digest, onto.digest) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_each_front_prepares_the_inputs_in_its_own_way(images):
    from dataclasses import replace

    from dovetail.parts.contract import Preprocess

    front, onto = halves(seed=0)[0], halves(seed=1)[0]
    how = Preprocess(mean=(0.5,), std=(0.25,))
    moved = front.changed(contract=replace(front.contract, preprocess=how))
    by_hand = stitch(front, onto.changed(module=nn.Sequential(_Undo(), onto.module)), _done(images))
    assert torch.allclose(
        stitch(moved, onto, images).module.state_dict()["weight"],
        by_hand.module.state_dict()["weight"],
        atol=1e-3,
    )


class _Undo(nn.Module):
    def forward(self, x):
        return x * 0.25 + 0.5


def _done(images):
    return (images - 0.5) / 0.25


def test_shapes_that_nobody_said_are_seen(images):
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3))
    front, _ = cut(net, at="1")
    assert front.contract.gives[0].shape is None
    onto, _ = cut(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), at="1")
    made = stitch(front, onto, images)
    assert made.contract.takes[0].shape == (3, 6, 6)
    assert made.contract.gives[0].shape == (4, 6, 6)


def test_what_cannot_be_stitched_says_why(images):
    front, _ = halves("conv2")
    with pytest.raises(ContractError, match=r"maps of 2×2 meet maps of 8×8|position by position"):
        stitch(front, halves("conv1", seed=1)[0], images)
    with pytest.raises(ContractError, match="one is a vector"):
        stitch(front, halves("fc1", seed=1)[0], images)
    with pytest.raises(ContractError, match="has none"):
        stitch(front, nn.Sequential(nn.Conv2d(1, 16, 3, 3)), images)
    odd = torch.full_like(images, float("nan"))
    with pytest.raises(TaskError, match="not finite"):
        stitch(front, halves(seed=1)[0], odd)
    with pytest.raises(ContractError, match="takes"):
        stitch(front, halves(seed=1)[0], torch.rand(10, 1, 9, 9))
    wide, _ = halves(seed=1, channels=3)
    with pytest.raises(ContractError, match="takes"):
        stitch(front, wide, images)


@pytest.mark.parametrize("inputs", [torch.zeros(0, 1, 8, 8), torch.zeros(1, 1, 8, 8)])
def test_too_few_inputs_are_refused(inputs):
    with pytest.raises(TaskError, match="at least two inputs"):
        stitch(halves()[0], halves(seed=1)[0], inputs)


def test_settings_that_are_none_are_refused(images):
    front, onto = halves()[0], halves(seed=1)[0]
    for limit in (1, 0, 2.5):
        with pytest.raises(SettingsError, match="limit"):
            stitch(front, onto, images, limit=limit)
    with pytest.raises(SettingsError, match="ridge"):
        stitch(front, onto, images, ridge=-1)
    with pytest.raises(SettingsError, match="a Task or a tensor"):
        stitch(front, onto, [1, 2])
    assert stitch(front, onto, images[:2]).origin.settings["held_out"] == 1


def few_and_wide(seed=3):
    """A wide space, and another that is a noisy turn of it; far fewer inputs than channels."""
    wide = build("mlp", shape=(8,), hidden=(60,), seed=0)
    front, _ = cut(wide, at="hidden1")
    onto, _ = cut(build("mlp", shape=(8,), hidden=(60,), seed=1), at="hidden1")
    draw = generator(seed)
    front, onto = (
        part.changed(module=nn.Sequential(part.module, Noise(seed + place)))
        for place, part in enumerate((front, onto))
    )
    return front, onto, torch.rand(75, 8, generator=draw)


class Noise(nn.Module):
    """Adds what no other front could know: the same for the same input."""

    def __init__(self, seed):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(60, 60, generator=generator(seed)))

    def forward(self, x):
        return x + 0.3 * torch.sin(40 * x @ self.weight)


def test_with_fewer_images_than_channels_a_penalty_is_chosen():
    front, onto, x = few_and_wide()
    plain, auto = stitch(front, onto, x, ridge=0.0), stitch(front, onto, x)
    assert plain.origin.measured["r2"] > 0.99
    assert auto.origin.settings["ridge"] > 0
    assert auto.origin.settings["ridge_by"] == "held-out r2"
    assert auto.origin.measured["held-out r2"] > plain.origin.measured["held-out r2"] + 0.1
    others = torch.rand(500, 8, generator=generator(9))
    wanted = outputs_of(onto, others)
    errors = [(made(outputs_of(front, others)) - wanted).square().mean() for made in (plain, auto)]
    assert errors[1] < 0.8 * errors[0]


def test_the_chosen_penalty_is_the_best_of_those_tried_one_by_one():
    front, onto, x = few_and_wide()
    auto = stitch(front, onto, x)
    (rows, _), _ = known_rows(front, onto, x)
    unit = ((rows - rows.mean(0)) ** 2).sum() / rows.shape[1]
    by_hand = {
        share: stitch(front, onto, x, ridge=share * unit).origin.measured["held-out r2"]
        for share in (0.0, *PENALTIES)
    }
    best = max(by_hand, key=by_hand.__getitem__)
    assert auto.origin.settings["ridge"] == pytest.approx(best * unit, rel=1e-6)
    assert auto.origin.measured["held-out r2"] == pytest.approx(by_hand[best], abs=1e-6)
