"""Which inputs are like those that a part was made on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.measure.familiar import familiar_with, fit_familiar
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.familiar import seen_by
from dovetail.parts.part import Part, build
from dovetail.tasks.task import Task


def rows(n, d=6, seed=0, at=0.0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + at


def distance_read_aloud(made, z):
    """The formula, one row and one class after the other, with the covariance written out."""
    norm = math.sqrt(sum(float(a) ** 2 for a in z))
    u = z.double() / norm - made.mean.double()
    U = made.basis.double()
    rest = float(made.rest) ** 2
    covariance = U @ torch.diag(made.spread.double() ** 2) @ U.T
    covariance += rest * (torch.eye(len(z), dtype=torch.float64) - U @ U.T)
    found = []
    for centre in made.centres.double():
        gap = u - U @ centre
        found.append(float(gap @ torch.linalg.solve(covariance, gap)))
    return min(found), abs(math.log(norm) - float(made.length))


def test_the_distance_is_that_of_a_gaussian_of_low_rank_about_each_class():
    labels = torch.arange(200) % 3
    z = rows(200, at=1.0) + nn.functional.one_hot(labels, 6)
    made = fit_familiar(z, labels, rows(60, seed=1, at=1.0), rank=2)
    new = rows(9, seed=2, at=1.0)
    expected = torch.tensor([distance_read_aloud(made, each) for each in new])
    torch.testing.assert_close(made.distances(new), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        made.scores(new), (expected / made.scale).amax(1), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("d", [6, 80], ids=["more rows", "more features"])
def test_a_full_rank_is_the_covariance_within_classes(d):
    labels = torch.arange(60) % 2
    z = rows(60, d, at=1.0)
    made = fit_familiar(z, labels, rows(30, d, seed=1), rank=5)
    u = z.double() / z.double().norm(dim=1, keepdim=True)
    for label in (0, 1):
        u[labels == label] -= u[labels == label].mean(0)
    values = torch.linalg.eigvalsh(u.T @ u / 58).flip(0)
    torch.testing.assert_close(made.spread.double() ** 2, values[:5], rtol=1e-4, atol=1e-8)
    rest = values[5:].clamp(min=0).sum() / (d - 5)
    torch.testing.assert_close(made.rest.double() ** 2, rest, rtol=1e-4, atol=1e-8)
    identity = torch.eye(5)
    torch.testing.assert_close(made.basis.T @ made.basis, identity, rtol=0, atol=1e-5)


def test_the_promised_share_of_like_rows_is_flagged():
    shares = [
        float(
            (
                fit_familiar(
                    rows(500, seed=3 * i), None, rows(400, seed=3 * i + 1), share=0.1
                ).scores(rows(2000, seed=3 * i + 2))
                > 1
            )
            .double()
            .mean()
        )
        for i in range(10)
    ]
    # Of 400 rows, a threshold's share has a deviation of sqrt(0.1 * 0.9 / 400) = 0.015.
    assert abs(sum(shares) / 10 - 0.1) < 4 * 0.015 / math.sqrt(10)


def test_few_rows_held_out_keep_the_promise_too():
    shares = []
    for seed in range(0, 600, 3):
        made = fit_familiar(rows(60, 3, seed), None, rows(19, 3, seed + 1))
        shares.append(float((made.scores(rows(100, 3, seed + 2)) > 1).double().mean()))
    # Each has a deviation of about 0.05, like the largest of 19; two thresholds would give 0.1.
    assert abs(sum(shares) / len(shares) - 0.05) < 4 * 0.05 / math.sqrt(len(shares)) + 0.01


@pytest.mark.parametrize(("m", "share", "above"), [(99, 0.05, 5), (100, 0.05, 5), (1000, 0.01, 10)])
def test_the_threshold_has_the_correction_for_a_small_sample(m, share, above):
    made = fit_familiar(rows(100), None, rows(m, seed=1), share=share)
    assert int((made.scores(rows(m, seed=1)) >= 1 - 1e-6).sum()) <= above
    assert made.share == share


def test_too_few_rows_promise_what_they_can():
    made = fit_familiar(rows(100), None, rows(9, seed=1))
    assert made.share == 1 / 10
    assert made.scores(rows(9, seed=1)).max() <= 1 + 1e-5


def test_what_is_far_is_flagged_by_direction_or_by_length():
    made = fit_familiar(rows(300, at=2.0), None, rows(300, seed=1, at=2.0))
    like = rows(50, seed=2, at=2.0)
    assert (made.scores(-like) > 1).all()
    assert (made.scores(30 * like) > 1).all()
    assert (made.scores(like / 30) > 1).all()
    assert (made.scores(torch.zeros(1, 6)) > 1).all()
    assert made.scores(torch.full((1, 6), math.nan)).isinf().all()


def test_likeness_is_the_share_of_rows_held_out_that_are_as_unlike():
    made = fit_familiar(rows(100), None, rows(19, seed=1))
    scores = made.scores(rows(19, seed=1)).sort().values
    torch.testing.assert_close(
        made.likeness(torch.tensor([0.0, 1e9])), torch.tensor([1.0, 1 / 20]).double()
    )
    middle = (scores[9] + scores[10]) / 2
    assert float(made.likeness(middle[None])) == pytest.approx(10 / 20)


def test_features_that_never_vary_break_nothing():
    made = fit_familiar(torch.ones(40, 3), None, torch.ones(20, 3))
    assert made.scores(torch.ones(2, 3)).isfinite().all()
    assert (made.scores(torch.tensor([[1.0, -1.0, 1.0]])) > 1).all()


@pytest.fixture(scope="module")
def images():
    x = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Task(x, [0, 1] * 100)


def test_the_features_are_what_the_last_layer_takes(images):
    part = build("lenet5", size=8, classes=2)
    made = familiar_with(part, images)
    front, _ = cut(part, at="fc2")
    with seen_by(part.module, made.at) as seen:
        part(images.inputs[:5])
    torch.testing.assert_close(seen[0], front(images.inputs[:5]).detach())
    assert made.source == "what 'head' takes"
    assert len(made.mean) == 84


def test_a_front_is_known_by_what_it_gives_averaged_over_positions(images):
    front, _head = cut(build("lenet5", size=8, classes=2), at="conv2")
    made = familiar_with(front, images)
    assert made.at is None
    assert len(made.mean) == 16


def test_a_single_layer_is_known_by_its_inputs():
    task = Task(rows(200, 4), [0, 1] * 100)
    made = familiar_with(build("mlp", shape=(4,), hidden=(), classes=2), task)
    assert made.at is not None
    assert len(made.mean) == 4


def test_a_layer_that_runs_twice_is_not_asked():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))

    part = Part(Twice(), Contract((Port((4,)),), (Port((4,)),), classes=tuple("abcd")))
    assert familiar_with(part, Task(rows(100, 4), [0, 1] * 50)).at is None


def test_regression_needs_no_classes():
    x = rows(200, 4)
    part = build("mlp", shape=(4,), hidden=(8,), classes=1)
    part = part.changed(contract=replace(part.contract, kind="regression"))
    made = familiar_with(part, Task(x, x.sum(1, keepdim=True), kind="regression"))
    assert made.centres.shape[0] == 1
    assert not made.centres.any()


def test_only_so_many_rows_and_scores_are_kept(monkeypatch):
    monkeypatch.setattr("dovetail.measure.familiar._KEPT", 10)
    made = fit_familiar(rows(100), None, rows(1000, seed=1))
    assert len(made.calibration) == 10
    assert float((made.scores(rows(4000, seed=2)) > 1).double().mean()) == pytest.approx(
        0.05, abs=0.03
    )


def test_mistakes_are_told(images):
    part = build("lenet5", size=8, classes=2)
    with pytest.raises(SettingsError, match="share"):
        familiar_with(part, images, share=0)
    with pytest.raises(ContractError, match="too many"):
        fit_familiar(torch.rand(3, 140_000), None, torch.rand(2, 140_000))
    made = familiar_with(part, images)
    with pytest.raises(ContractError, match="84"):
        made.scores(torch.zeros(1, 7))
    none = images.derived(
        "none",
        indices={
            **{s: images.indices(s) for s in ("train", "test")},
            "validation": torch.tensor([], dtype=torch.long),
        },
    )
    with pytest.raises(TaskError, match="validation"):
        familiar_with(part, none)
