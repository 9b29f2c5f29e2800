"""The record of weights over training, against what is computed by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.measure.weights import stable_rank, weight_entropy
from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress
from dovetail.report import print_view
from dovetail.train.callbacks import WeightHistory, WeightsOverTraining


@pytest.fixture(scope="module")
def trained():
    """A record over four epochs, and the networks of these epochs."""
    history = WeightHistory(probe_bits=5, sample=0.5, packing={"extra_bits": 3})
    nets = []
    dt.train.end_to_end(
        dt.build("mlp", hidden=(40,)),
        dt.load_task("digits"),
        epochs=4,
        callbacks=(history, lambda moment: nets.append(copy.deepcopy(moment.module))),
    )
    return history.record(), nets


def test_each_number_is_what_it_says(trained):
    record, nets = trained
    assert record.layers == ("hidden1.linear.weight", "head.weight")
    assert [row["epoch"] for row in record.rows] == [1, 1, 2, 2, 3, 3, 4, 4]
    for row in record.rows:
        weight = dict(nets[row["epoch"] - 1].named_parameters())[row["layer"]].detach()
        data = compress({row["layer"]: weight}, extra_bits=3)
        lost = weight - decompress(data)[row["layer"]]
        assert row["entropy"] == weight_entropy(weight, 5, 0.5)
        assert row["stable rank"] == stable_rank(weight)
        assert row["bits a weight"] == 8 * len(data) / weight.numel()
        assert row["relative error"] == pytest.approx(float(lost.norm() / weight.norm()), rel=1e-5)
        assert row["rms gradient"] > 0


def test_the_correlation_is_pearsons(trained):
    record, _ = trained
    for layer in record.layers:
        gradient, entropy = (np.array(record.curve(layer, n)) for n in ("rms gradient", "entropy"))
        expected = np.corrcoef(np.log2(gradient + 1), entropy)[0, 1]
        assert record.correlation(layer) == pytest.approx(expected, abs=1e-9)


def test_a_training_that_diverged_is_read_and_drawn(tmp_path):
    row = {"epoch": 1, "layer": "a", "entropy": 3.0, "rms gradient": float("nan")}
    file = WeightsOverTraining(rows=(row,)).save(tmp_path / "history.json")
    found = dt.load_record(file)
    assert np.isnan(found.curve("a", "rms gradient")).all()
    print_view(found.view())


def test_the_gradient_of_a_loss_of_ones_own():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    x = torch.randn(5, 3)
    history = WeightHistory(loss=lambda module: module(x).square().mean())
    history.look(net, 1)
    first, second = history.record().rows
    net(x).square().mean().backward()
    expected = float(net[1].weight.grad.square().mean().sqrt())
    assert first["rms gradient"] is None
    assert second["rms gradient"] == pytest.approx(expected, rel=1e-6)


def test_the_record_is_kept_and_shown(trained, tmp_path):
    record, _ = trained
    again = dt.load_record(record.save(tmp_path / "weights.json"))
    assert again == record
    titles = [getattr(block, "title", "") for block in record.view()]
    assert titles[1:] == [
        *("Entropy", "Stable rank", "Bits a weight", "Relative error", "Rms gradient")
    ]


def test_nothing_to_show_and_nothing_to_correlate():
    assert WeightsOverTraining(rows=()).view()
    rows = tuple({"epoch": e, "layer": "a", "entropy": 3.0, "rms gradient": 1.0} for e in range(3))
    assert WeightsOverTraining(rows=rows).correlation("a") is None
    assert WeightsOverTraining(rows=rows[:2]).correlation("a") is None


def test_without_packing_neither_bits_nor_error():
    history = WeightHistory(packing=None)
    history.look(nn.Linear(3, 3), 1)
    (row,) = history.record().rows
    assert "bits a weight" not in row
    assert history.record().view()
