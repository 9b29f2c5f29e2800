"""Platonic projections on images, at their smallest: the scripts run, and leave their records."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail.core.evidence import Evidence
from dovetail.core.records import load_record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch):
    """A script in this process, which has torch already."""
    monkeypatch.syspath_prepend(str(ROOT / "reproduce"))

    def ran(script: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(ROOT / script), run_name="__main__")

    return ran


@pytest.mark.parametrize("script", ["platonic_mnist", "platonic_pca"])
def test_a_reproduction_leaves_its_record(tmp_path, run, script):
    output = tmp_path / "found.json"
    where = ["--scale", "tiny", "--kept", str(tmp_path / "kept"), "--output", str(output)]
    run(f"reproduce/{script}.py", *where)
    record = load_record(output)
    assert isinstance(record, Evidence)
    accuracies = [row["test"] for row in record.rows if "test" in row]
    assert len(accuracies) >= 3
    assert all(10 < accuracy <= 100 for accuracy in accuracies)
    if script == "platonic_pca":
        assert not record.holds  # digits are not MNIST


@pytest.mark.parametrize("name", ["platonic_minute", "platonic_patches"])
def test_the_benchmark_leaves_its_record(tmp_path, run, name):
    output = tmp_path / "found.json"
    run(
        f"benchmarks/{name}.py",
        "--scale",
        "tiny",
        "--threads",
        "1",
        "--output",
        str(output),
    )
    record = load_record(output)
    assert isinstance(record, Evidence)
    assert record.rows[0]["test accuracy"] > 0.8


def test_weights_from_sums_are_the_sources_formula(monkeypatch):
    """W = (Z'Z + l I)^-1 Z' T with T formed, and P the components of the rows themselves."""
    monkeypatch.syspath_prepend(str(ROOT / "reproduce"))
    from platonic.components import TARGET_ONLY, WRITTEN, components, projected, sums_of

    draw = torch.Generator().manual_seed(0)
    z = torch.rand(50, 6, generator=draw, dtype=torch.float64)
    y = torch.eye(3, dtype=torch.float64)[torch.arange(50) % 3]
    sums = sums_of(z, y)
    rows = np.hstack([np.ones((50, 1)), z.numpy()])
    for reading, inside in ((WRITTEN, 7.0), (TARGET_ONLY, 1.0)):
        matrix = np.hstack([rows, inside * y.numpy()])
        turned = np.linalg.svd(matrix - matrix.mean(0))[2][:4].T
        projection = components(sums, reading, 7.0, 4)
        aligned = projection.numpy() * np.sign((projection.numpy() * turned).sum(0))
        np.testing.assert_allclose(aligned, turned, atol=1e-8)
        target = np.hstack([rows, 7.0 * y.numpy()]) @ projection.numpy()
        expected = np.linalg.solve(rows.T @ rows + 0.5 * np.eye(7), rows.T @ target)
        np.testing.assert_allclose(
            projected(sums, projection, 7.0, 0.5).numpy(), expected, atol=1e-9
        )
