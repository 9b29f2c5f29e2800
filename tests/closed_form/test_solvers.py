"""Every solver against numpy: well conditioned, deficient, penalised, weighted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.platonic import cross_validated, distance, left_out, ridge, with_ones

from dovetail.closed_form.solvers import (
    PENALTIES,
    Cholesky,
    Direct,
    Spectral,
    least_distances,
    unexplained,
)
from dovetail.core.errors import SettingsError
from dovetail.linalg.moments import Moments


def rows(n=60, d=5, k=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=draw, dtype=torch.float64) + 3
    y = torch.randn(n, k, generator=draw, dtype=torch.float64) + z[:, :1]
    return z, y


def solvers(z, y, weights=None, penalty=0.0):
    moments = Moments(z.shape[1], y.shape[1]).update(z, y, weights)
    return {
        "cholesky": Cholesky(moments, penalty),
        "eigen": Spectral.of_moments(moments, penalty),
        "pinv": Spectral.of_rows(z, y, weights, penalty),
        "lstsq": Direct(z, y, weights, penalty),
    }


def assert_close(found, wanted, tolerance=1e-8):
    wanted = torch.as_tensor(wanted)
    assert found.shape == wanted.shape
    assert not found.numel() or float((found - wanted).abs().max()) <= tolerance * max(
        1.0, float(wanted.abs().max())
    )


@pytest.mark.parametrize("penalty", [0.0, 0.3, 40.0])
def test_all_agree_with_the_dense_solution(penalty):
    z, y = rows()
    projection = torch.randn(5, 3, dtype=torch.float64)
    for name, solved in solvers(z, y, penalty=penalty).items():
        wanted = ridge(z.numpy(), y.numpy(), penalty)[1:]
        carried = ridge(z.numpy(), (z @ projection).numpy(), penalty)[1:]
        assert solved.penalty == penalty, name
        assert_close(solved.labels, wanted, 1e-10)
        assert_close(solved.carry(projection), carried, 1e-10)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_weights_are_copies(penalty):
    z, y = rows(12, 3)
    counts = torch.tensor([1, 2, 3, 0] * 3)
    copied = solvers(z.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0), None, penalty)
    projection = torch.randn(3, 2, dtype=torch.float64)
    for name, solved in solvers(z, y, counts.double(), penalty).items():
        assert_close(solved.labels, copied[name].labels, 1e-11)
        assert_close(solved.carry(projection), copied[name].carry(projection), 1e-11)
    weighed = Spectral.of_rows(z, y, counts.double())
    assert weighed.penalty == pytest.approx(
        Spectral.of_rows(z.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0)).penalty
    )


DEFICIENT = {
    "a constant column": lambda z: torch.cat([z, torch.full((len(z), 1), 7.0).double()], 1),
    "a column twice": lambda z: torch.cat([z, z[:, :1]], 1),
    "more columns than rows": lambda z: torch.cat([z[:4], z[:4].square()], 1),
    "one row": lambda z: z[:1],
    "rows all alike": lambda z: z[:1].expand(6, -1),
    "no column": lambda z: z[:, :0],
}


@pytest.mark.parametrize("case", DEFICIENT)
def test_deficient_rows_give_the_smallest_solution(case):
    z, y = rows()
    z = DEFICIENT[case](z)
    y = y[: len(z)]
    centred = (z - z.mean(0)).numpy()
    rcond = max(z.shape) * np.finfo(float).eps
    pseudo = np.linalg.pinv(centred, rcond) if z.shape[1] else np.zeros((0, len(z)))
    if case in ("one row", "rows all alike"):
        pseudo = np.zeros_like(centred.T)  # a mean rounds: what is left of it is no direction
    projection = torch.randn(z.shape[1], 3, dtype=torch.float64)
    # Twice the digits for those that see the rows; Cholesky adds to the diagonal what it must, so
    # its weights are near the smallest in its own scale, and its fit is the best one's.
    for name, solved in solvers(z, y).items():
        tolerance = {"pinv": 1e-10, "lstsq": 1e-10, "eigen": 1e-6, "cholesky": 1e-6}[name]
        wanted = pseudo @ (y - y.mean(0)).numpy()
        assert_close(torch.as_tensor(centred) @ solved.labels, centred @ wanted, tolerance)
        if name == "cholesky":
            assert float(solved.labels.norm()) <= 4 * np.linalg.norm(wanted) + 1e-9
        else:
            assert_close(solved.labels, wanted, tolerance)
        fitted = torch.as_tensor(centred) @ solved.carry(projection)
        assert_close(fitted, torch.as_tensor(centred) @ projection, tolerance)
        assert np.isfinite(solved.condition)
        assert solved.condition >= 1 - 1e-12


@pytest.mark.parametrize("d", [1, 2, 10, 80])
@pytest.mark.parametrize("worst", [1.0, 1e-4])
def test_conditions_are_numpys(d, worst):
    draw = torch.Generator().manual_seed(d)
    z = torch.randn(400, d, generator=draw, dtype=torch.float64)
    turned = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q
    z = z * torch.logspace(0, np.log10(worst), d) @ turned
    moments = Moments(d, 1).update(z, z[:, :1])
    s = moments.features.numpy()
    sizes = np.sqrt(np.diag(s))
    scaled = np.linalg.cond(s / sizes / sizes[:, None])
    found = solvers(z, z[:, :1])
    assert scaled / 2 <= found["cholesky"].condition <= 1.0001 * scaled
    for name in ("eigen", "pinv", "lstsq"):
        assert found[name].condition == pytest.approx(np.linalg.cond(s), rel=1e-4)
    for name in ("eigen", "pinv", "lstsq"):
        wanted = np.linalg.cond(s + 5.0 * np.eye(d))
        assert solvers(z, z[:, :1], None, 5.0)[name].condition == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("k", [1, 3])
def test_the_penalty_has_the_least_generalised_error(k):
    draw = torch.Generator().manual_seed(k)
    z = torch.randn(40, 25, generator=draw, dtype=torch.float64)
    y = z[:, :k] + 2 * torch.randn(40, k, generator=draw, dtype=torch.float64)
    moments = Moments(25, k).update(z, y)
    scale = float(moments.features.trace()) / 25
    penalties = [scale * step for step in PENALTIES]
    scores = [cross_validated(z.numpy(), y.numpy(), penalty) for penalty in penalties]
    best = penalties[int(np.argmin(scores))]
    assert 0 < best < penalties[-1]  # noisy, so neither end: the choice is a real one
    for solved in (Spectral.of_rows(z, y), Spectral.of_moments(moments)):
        assert solved.penalty == pytest.approx(best, rel=1e-9)
        assert_close(solved.labels, ridge(z.numpy(), y.numpy(), best)[1:])


def test_where_all_rows_weigh_alike_the_generalised_error_is_leave_one_out():
    # Whole periods of cosines and sines: every row has the same leverage.
    turn = torch.arange(15, dtype=torch.float64)[:, None] * torch.arange(1, 4) * 2 * np.pi / 15
    z = torch.cat([turn.cos(), turn.sin()], 1)
    y = torch.randn(15, 1, dtype=torch.float64)
    several = [0.5, 3.0, 20.0]
    alone = [left_out(z.numpy(), y.numpy(), penalty) for penalty in several]
    assert alone == pytest.approx(
        [cross_validated(z.numpy(), y.numpy(), penalty) for penalty in several], rel=0.2
    )
    found = Spectral.of_rows(z, y, penalty=several)
    assert found.penalty == several[int(np.argmin(alone))]


def test_too_few_rows_for_the_parameters_choose_a_penalty_that_can_be_judged():
    z, y = torch.randn(6, 30).double(), torch.randn(6, 1).double()
    found = Spectral.of_rows(z, y)
    assert found.penalty > 0
    assert bool(found.labels.isfinite().all())


def test_unexplained_is_the_distance():
    z, y = rows(30, 4, 3)
    moments = Moments(4, 3).update(z, y)
    for solved in solvers(z, y).values():
        assert unexplained(moments, solved.labels) == pytest.approx(distance(z.numpy(), y.numpy()))
    weights = torch.randn(4, 3, dtype=torch.float64)
    bias = (y - z @ weights).mean(0)
    wanted = float((y - z @ weights - bias).square().sum()) / 30
    assert unexplained(moments, weights) == pytest.approx(wanted)
    assert unexplained(moments, torch.zeros(4, 3).double()) > unexplained(moments, solved.labels)


def test_distances_of_several_at_once_are_those_of_each():
    z, y = rows(40, 5, 2)
    kinds = {
        "plain": z,
        "a column twice": torch.cat([z[:, :4], z[:, :1]], 1),
        "a column that never changes": torch.cat([z[:, :4], torch.full((40, 1), 1e6)], 1),
        "unequal sizes": z * torch.logspace(-3, 3, 5).double(),
        "nothing at all": torch.zeros_like(z),
        "the targets among them": torch.cat([z[:, :3], y], 1),
    }
    several = [Moments(5, 2).update(each, y) for each in kinds.values()]
    found = least_distances(several)
    for name, each, moments, told in zip(kinds, kinds.values(), several, found, strict=True):
        assert told == pytest.approx(distance(each.numpy(), y.numpy()), abs=1e-10), name
        assert told == pytest.approx(unexplained(moments, Cholesky(moments).labels), abs=1e-12)
    assert least_distances([]) == []


def test_columns_of_unequal_size_cost_cholesky_no_digits():
    z, y = rows(200, 6, 1)
    sizes = torch.logspace(-9, 9, 6, dtype=torch.float64)
    solved = Cholesky(Moments(6, 1).update(z * sizes, y))
    wanted = ridge(z.numpy(), y.numpy(), 0.0)[1:]
    assert_close(solved.labels * sizes[:, None], wanted, 1e-11)
    assert solved.condition < 100


def test_rows_have_twice_the_digits_of_their_moments():
    z, y = rows(200, 4, 1)
    z[:, 1] = z[:, 0] + 1e-7 * z[:, 1]
    wide = with_ones(z.numpy())
    wanted = np.linalg.lstsq(wide, y.numpy(), rcond=None)[0][1:]
    far = {name: abs(each.labels.numpy() - wanted).max() for name, each in solvers(z, y).items()}
    size = abs(wanted).max()
    assert far["pinv"] < 1e-6 * size
    assert far["lstsq"] < 1e-6 * size
    assert far["eigen"] > 1e-5 * size


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_refused(bad):
    z, y = rows(5, 2, 1)
    z[0, 0] = bad
    with pytest.raises(SettingsError, match="target_scale"):
        Cholesky(Moments(2, 1).update(z, y))
