"""The reproductions of platonic projections: their data, the source's recipe, and smoke tests."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path

import pytest
import torch

from dovetail.core.evidence import Evidence
from dovetail.core.records import load_record

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "reproduce"))

from platonic.literal import Recipe, followed  # noqa: E402
from platonic.toys import accuracy, checkerboard, sinusoid, spirals  # noqa: E402


def test_spirals_have_radius_and_angle_alike_and_two_arms():
    x, y = spirals(3, 400)
    t = 10 * x.norm(dim=1)
    angle = torch.atan2(x[:, 1], x[:, 0]) - math.pi * (y[:, 0] < 0).double()
    away = (angle - t) / (2 * math.pi)
    torch.testing.assert_close(away, away.round(), atol=1e-9, rtol=0)
    assert t.max() <= 3 * math.pi
    assert y.sum() == 0
    # The square of the radius is uniform: as many points within half of it as beyond.
    assert 0.4 < float((t.square() < (3 * math.pi) ** 2 / 2).double().mean()) < 0.6


def test_neighbouring_squares_of_the_board_differ():
    x, y = checkerboard(0, 2000)
    assert float(x.abs().max()) <= 0.5
    for (across, up), colour in zip(x.tolist(), y[:, 0].tolist(), strict=True):
        column, row = int((across + 0.5) // 0.125), int((up + 0.5) // 0.125)
        assert colour == (1 if column % 2 == row % 2 else -1)


def test_the_sinusoid_has_two_periods():
    x, y = sinusoid(999)
    crossings = int((y[1:].sign() * y[:-1].sign() <= 0).sum())
    assert float(x.abs().max()) < 1
    assert crossings in (3, 4)  # three inside; the one in the middle may be a sample
    assert float(y.square().mean()) == pytest.approx(0.5, abs=1e-2)


def test_the_recipe_is_the_listing_of_the_source():
    x, y = sinusoid(60)
    fit = followed(x, y, (5, 4), torch.nn.functional.celu, Recipe(alpha=0.7, beta=3.0), 1)
    from dovetail.core.seeds import generator

    draw = generator(1, "literal")
    z = x
    for width in (5, 4):
        z = torch.cat([torch.ones(60, 1), z], 1)
        p = torch.randn(z.shape[1] + 1, width, generator=draw, dtype=torch.float64)
        target = 0.7 * torch.cat([z, 3 * y], 1) @ p
        z = torch.nn.functional.celu(z @ torch.linalg.lstsq(z, target, driver="gelsd").solution)
    z = torch.cat([torch.ones(60, 1), z], 1)
    said = z @ torch.linalg.lstsq(z, y, driver="gelsd").solution
    torch.testing.assert_close(fit.outputs, said, atol=1e-7, rtol=0)
    assert fit.distances[-1] == pytest.approx(float((said - y).square().mean()), abs=1e-9)
    assert not fit.failed


@pytest.mark.parametrize("solver", ["pinv", "lstsq", "solve"])
def test_the_solvers_agree_where_nothing_is_ill_conditioned(solver):
    x, y = spirals(0, 200)
    plain = followed(x, y, (4,), torch.tanh, Recipe(), 0)
    other = followed(x, y, (4,), torch.tanh, Recipe(solver=solver, ridge=1e-12), 0)
    torch.testing.assert_close(other.outputs, plain.outputs, atol=1e-5, rtol=0)


def test_of_several_tries_the_nearest_is_kept():
    x, y = spirals(0, 200)
    one, many = (
        followed(x, y, (6,), torch.tanh, Recipe(tries=tries), 0).distances[0] for tries in (1, 20)
    )
    assert many < one


def test_numbers_that_leave_their_range_are_a_failure_and_no_error():
    x, y = spirals(0, 100)
    fit = followed(x, y, (4,) * 80, torch.relu, Recipe(alpha=1e6, bits=32), 0)
    assert fit.failed
    assert 0 < len(fit.distances) < 80


def test_accuracy_counts_sides_of_zero():
    said, y = torch.tensor([[0.2], [-3.0], [0.0], [1.0]]), torch.tensor([[1.0], [-1], [-1], [-1]])
    assert accuracy(said, y) == 50


@pytest.mark.parametrize("name", ["spirals", "sinusoid", "checkerboard", "ablation"])
def test_a_script_leaves_its_record(tmp_path, monkeypatch, name):
    output = tmp_path / "found.json"
    where = ["--scale", "tiny", "--kept", str(tmp_path / "kept"), "--output", str(output)]
    script = ROOT / "reproduce" / f"platonic_{name}.py"
    for _ in range(2):  # the second time from what was kept
        monkeypatch.setattr(sys, "argv", [str(script), *where])
        runpy.run_path(str(script), run_name="__main__")
        record = load_record(output)
        assert isinstance(record, Evidence)
        claims = [row for row in record.rows if "claim" in row]
        assert len(claims) >= 4
        assert record.holds == all(row["holds"] for row in claims)
        assert len(record.rows) > 2 * len(claims)
        assert record.settings["scale"] == "tiny"
