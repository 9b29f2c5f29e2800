"""The spectrum of a Hessian, against the Hessian written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, hessian

import dovetail as dt
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens import hessian_spectrum


def net(seed=0):
    torch.manual_seed(seed)
    layers = nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 3)
    made = nn.Sequential(*layers).double()
    made[2].running_mean.normal_()
    return made


def conv(seed=0):
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    return nn.Sequential(*layers).double()


def data(shape=(4,), n=24):
    draw = torch.Generator().manual_seed(1)
    return torch.randn(n, *shape, generator=draw, dtype=torch.float64), torch.arange(n) % 3


def dense(module, x, y, names=None, loss=F.cross_entropy):
    """The second derivative of every weight by every other, one block after the other."""
    module = module.eval()
    theta = {n: p.detach() for n, p in module.named_parameters() if names is None or n in names}
    blocks = hessian(lambda t: loss(functional_call(module, t, (x,)), y))(theta)
    rows = [
        torch.cat([blocks[a][b].reshape(theta[a].numel(), -1) for b in theta], dim=1) for a in theta
    ]
    return torch.cat(rows).detach()


@pytest.mark.parametrize(("make", "shape"), [(net, (4,)), (conv, (1, 6, 6))], ids=["mlp", "conv"])
@pytest.mark.parametrize("batches", [1, 3])
def test_eigenvalues_are_those_of_the_dense_hessian(make, shape, batches):
    module, (x, y) = make(), data(shape)
    truth = torch.linalg.eigvalsh(dense(make(), x, y)).flip(0)
    found = hessian_spectrum(module, (x, y), k=5, batches=batches, tolerance=1e-9)
    torch.testing.assert_close(
        torch.tensor(found.eigenvalues, dtype=torch.float64), truth[:5], rtol=1e-6, atol=1e-8
    )
    assert max(found.residuals) < 1e-6
    assert module.training


@pytest.mark.parametrize("name", ["0", "3"])
def test_a_named_modules_are_those_of_its_block(name):
    x, y = data()
    truth = torch.linalg.eigvalsh(dense(net(), x, y, [f"{name}.weight", f"{name}.bias"])).flip(0)
    found = hessian_spectrum(net(), (x, y), k=100, module=name)
    torch.testing.assert_close(
        torch.tensor(found.eigenvalues, dtype=torch.float64), truth, rtol=0, atol=1e-9
    )
    assert found.trace == pytest.approx(float(truth.detach().sum()))
    assert found.weights == len(truth)


def test_the_trace_is_within_three_of_its_own_errors():
    x, y = data()
    truth = float(dense(net(), x, y).trace())
    for seed in range(5):
        found = hessian_spectrum(net(), (x, y), k=3, draws=40, seed=seed)
        assert found.trace_error > 0
        assert abs(found.trace - truth) <= 3 * found.trace_error


def test_density_has_the_mean_of_the_spectrum():
    x, y = data()
    matrix = dense(net(), x, y)
    found = hessian_spectrum(net(), (x, y), k=1, density=30).density
    assert sum(found.weights) == pytest.approx(1)
    mean = sum(n * w for n, w in zip(found.nodes, found.weights, strict=True))
    assert mean == pytest.approx(float(matrix.trace()) / len(matrix), rel=0.4)
    assert min(found.nodes) >= float(torch.linalg.eigvalsh(matrix)[0]) - 1e-9


def test_errors_are_those_of_the_batches_means():
    x, y = data()
    found = hessian_spectrum(net(), (x, y), k=2, batches=4, tolerance=1e-9)
    matrices = [dense(net(), a, b) for a, b in zip(x.chunk(4), y.chunk(4), strict=True)]
    _, vectors = torch.linalg.eigh(sum(matrices) / 4)
    for i in range(2):
        v = vectors[:, -1 - i]
        curved = torch.stack([v @ m @ v for m in matrices])
        assert found.errors[i] == pytest.approx(float(curved.std() / 2), rel=1e-6)


def test_graphs_that_do_not_fit_are_made_anew(monkeypatch):
    x, y = data()
    kept = hessian_spectrum(net(), (x, y), k=2, batches=3)
    monkeypatch.setattr("dovetail.lens.curvature.MEMORY", 0)
    anew = hessian_spectrum(net(), (x, y), k=2, batches=3)
    assert anew.eigenvalues == pytest.approx(kept.eigenvalues, rel=1e-9)


def test_a_part_on_a_task(tmp_path):
    task = dt.load_task("digits")
    part = dt.build("lenet5", channels=1, size=8, classes=10)
    found = hessian_spectrum(part, task, k=2, module="head", limit=50, draws=4, density=1)
    assert found.settings["task"] == "digits"
    assert load_record(found.save(tmp_path / "h.json")) == found


def test_a_constant_layer_has_no_curvature():
    module = net()
    with torch.no_grad():
        module[3].weight.zero_()
    found = hessian_spectrum(module, data(), k=1, module="0")
    assert found.eigenvalues[0] == pytest.approx(0, abs=1e-12)


def test_mistakes_are_told():
    x, y = data()
    with pytest.raises(SettingsError, match="no module is called '4'"):
        hessian_spectrum(net(), (x, y), module="4")
    with pytest.raises(SettingsError, match="has no weights"):
        hessian_spectrum(net(), (x, y), module="1")
    with pytest.raises(SettingsError, match="batches"):
        hessian_spectrum(net(), (x, y), batches=25)
    with pytest.raises(TaskError, match="NaN"):
        hessian_spectrum(net(), (x * torch.nan, y))
    with pytest.raises(TaskError, match="do not suit the loss"):
        hessian_spectrum(net(), (x, y + 7))
    with pytest.raises(TaskError, match="as many rows"):
        hessian_spectrum(net(), (x, y[:3]))
    one_class = hessian_spectrum(net(), (x, torch.zeros_like(y)), k=1)
    truth = torch.linalg.eigvalsh(dense(net(), x, torch.zeros_like(y)))[-1]
    assert one_class.eigenvalues[0] == pytest.approx(float(truth), rel=1e-4)
