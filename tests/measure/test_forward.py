"""Standardisation against NumPy, and resizing against the triangle filter written as loops."""

import math

import numpy as np
import pytest
import torch

from dovetail.core.errors import ContractError
from dovetail.measure import forward as module
from dovetail.measure.forward import outputs_of, prepare, preprocess_for
from dovetail.parts.contract import Contract, Port, Preprocess
from dovetail.parts.norms import with_batch_statistics
from dovetail.parts.part import Part
from dovetail.tasks.task import Task


def task_of(inputs):
    return Task(inputs, [0, 1] * (len(inputs) // 2))


def images(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def resized_by_loops(image, size):
    """Each output pixel is a mean of input pixels weighted by a triangle about its centre."""
    rows = [triangle(image.shape[0], size[0], i) for i in range(size[0])]
    columns = [triangle(image.shape[1], size[1], j) for j in range(size[1])]
    result = np.zeros(size)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            for y, wy in row.items():
                for x, wx in column.items():
                    result[i, j] += wy * wx * image[y, x]
    return result


def triangle(length, wanted, place):
    scale = length / wanted
    reach = max(scale, 1.0)
    centre = (place + 0.5) * scale
    raw = {k: max(0.0, 1 - abs((k + 0.5 - centre) / reach)) for k in range(length)}
    total = math.fsum(raw.values())
    return {k: weight / total for k, weight in raw.items() if weight > 0}


@pytest.mark.parametrize("kind", ["float", "uint8"])
@pytest.mark.parametrize("block", [1 << 20, 400], ids=["one block", "many blocks"])
def test_mean_and_deviation_are_numpys_on_the_training_split(kind, block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_NUMBERS", block)
    x = images(60, 3, 5, 4) * torch.tensor([1.0, 0.5, 0.1])[:, None, None]
    if kind == "uint8":
        x = (x * 255).to(torch.uint8)
    task = task_of(x)
    raw = task.subset("train")[0].numpy().astype(np.float64)
    if kind == "uint8":
        raw = raw / 255
    found = preprocess_for(task)
    assert (found.size, found.channels, found.scale) == ((5, 4), 3, 1.0)
    np.testing.assert_allclose(found.mean, raw.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(found.std, raw.std((0, 2, 3)), rtol=1e-6)


def test_vectors_have_a_mean_for_each_feature():
    x = images(40, 6) * 100 + torch.arange(6)
    task = task_of(x)
    found = preprocess_for(task)
    raw = task.subset("train")[0].double().numpy()
    assert found.size is None
    assert found.channels is None
    np.testing.assert_allclose(found.mean, raw.mean(0), rtol=1e-9)
    np.testing.assert_allclose(found.std, raw.std(0), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0, 1234.567, 1e7])
def test_a_constant_feature_becomes_zero(value):
    x = images(40, 2)
    x[:, 1] = value
    how = preprocess_for(task_of(x))
    assert how.std[1] == 1.0
    ready = prepare(x, Contract(preprocess=how))
    torch.testing.assert_close(ready[:, 1], torch.zeros(40), atol=abs(value) * 1e-6, rtol=0)
    assert ready[:, 0].std() > 0.5


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e6])
def test_a_large_mean_costs_no_digits(mean):
    x = (images(400, 1) * 8).round() + mean
    how = preprocess_for(task_of(x))
    ready = prepare(x, Contract(preprocess=how)).double()
    rounded = float(torch.tensor(how.mean[0]))  # as float32 holds it
    torch.testing.assert_close(ready, (x.double() - rounded) / how.std[0], rtol=1e-6, atol=1e-6)
    assert how.std[0] == pytest.approx(
        float(task_of(x).subset("train")[0].double().std(correction=0)), rel=1e-9
    )


def test_small_numbers_are_standardised_too():
    x = images(60, 1) * 1e-9
    how = preprocess_for(task_of(x))
    assert how.std[0] < 1e-9
    assert prepare(x, Contract(preprocess=how)).std() == pytest.approx(1.0, abs=0.2)


def test_training_inputs_come_out_with_mean_0_and_deviation_1():
    task = task_of((images(80, 2, 6, 6) * 255).to(torch.uint8))
    ready = prepare(task.subset("train")[0], Contract(preprocess=preprocess_for(task)))
    torch.testing.assert_close(ready.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(ready.std((0, 2, 3), correction=0), torch.ones(2))


@pytest.mark.parametrize("size", [(4, 4), (3, 5), (8, 6), (13, 16)])
def test_resizing_is_the_triangle_filter(size):
    x = images(2, 1, 8, 6)
    ready = prepare(x, Contract(preprocess=Preprocess(size=size)))
    for image, result in zip(x, ready, strict=True):
        expected = resized_by_loops(image[0].double().numpy(), size)
        np.testing.assert_allclose(result[0], expected, atol=1e-5)


def test_every_step_together():
    """Colour to grey to three channels of another size, then (255 x - mean) / std."""
    how = Preprocess(size=(4, 4), channels=1, scale=255.0, mean=(100.0,), std=(50.0,))
    x = images(3, 3, 8, 8)
    ready = prepare(x, Contract(preprocess=how))
    for image, result in zip(x.double().numpy(), ready, strict=True):
        grey = sum(resized_by_loops(channel, (4, 4)) for channel in image) / 3
        np.testing.assert_allclose(result[0], (255 * grey - 100) / 50, atol=1e-4)


def test_grey_is_repeated_for_a_part_that_wants_colours():
    how = Preprocess(channels=3, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))
    x = images(2, 1, 3, 3)
    ready = prepare(x, Contract(preprocess=how))
    for c, (mean, std) in enumerate(zip(how.mean, how.std, strict=True)):
        torch.testing.assert_close(ready[:, c], (x[:, 0] - mean) / std)


def test_bytes_are_shares_of_255():
    x = torch.arange(256, dtype=torch.uint8).reshape(4, 1, 8, 8)
    how = Contract(preprocess=Preprocess(mean=(0.5,), std=(0.25,)))
    assert torch.equal(prepare(x, how), prepare(x.float() / 255, how))


def test_what_is_given_is_left_alone():
    x = images(2, 1, 4, 4)
    before = x.clone()
    prepare(x, Contract(preprocess=Preprocess(mean=(0.5,), std=(0.1,))))
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("contract", "inputs", "words"),
    [
        (Contract(takes=(Port((1, 8, 8)),)), torch.zeros(2, 1, 8, 7), "takes 1×8×8, .* are 1×8×7"),
        (Contract(takes=(Port((4,)),)), torch.zeros(2, 1, 4), "takes 4, .* are 1×4"),
        (Contract(takes=(Port((None, 4)),)), torch.zeros(2, 3, 5), r"takes \?×4, .* are 3×5"),
        (Contract(), torch.zeros(2, 4, dtype=torch.float64), "takes float32, .* are float64"),
        (
            Contract(preprocess=Preprocess(mean=(0.1, 0.2), std=(1.0, 1.0))),
            torch.zeros(2, 3, 4, 4),
            "for 2 channels, the inputs are 3×4×4",
        ),
        (Contract(preprocess=Preprocess()), torch.zeros(4), "for 1 channels, .* a number"),
    ],
)
def test_inputs_that_cannot_become_what_the_part_takes(contract, inputs, words):
    with pytest.raises(ContractError, match=words):
        prepare(inputs, contract)


def test_an_axis_of_any_length_takes_any_length():
    contract = Contract(takes=(Port((1, None, None)),))
    assert prepare(torch.zeros(2, 1, 5, 9), contract).shape == (2, 1, 5, 9)


class Watched(torch.nn.Module):
    """Counts the rows of each batch."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.norm = torch.nn.BatchNorm2d(3)

    def forward(self, x):
        self.seen.append(len(x))
        return self.norm(x).flatten(2).mean(2)


@pytest.mark.parametrize(("side", "batches"), [(8, [10]), (128, [8, 2]), (512, [1] * 10)])
def test_large_images_come_in_small_batches(side, batches):
    watched = Watched().eval()
    x = images(10, 3, 1, 1).expand(-1, -1, side, side)
    outputs = outputs_of(Part(watched), x)
    assert watched.seen == batches
    torch.testing.assert_close(outputs, watched(x))


def test_images_that_become_large_count_as_large():
    watched = Watched().eval()
    how = Contract((Port((3, 128, 128)),), preprocess=Preprocess(size=(128, 128)))
    outputs_of(Part(watched, how), images(16, 3, 4, 4))
    assert watched.seen == [8, 8]


def test_a_batch_whose_statistics_count_stays_as_asked_for():
    watched = Watched()
    whole = torch.nn.Sequential(torch.nn.Identity(), watched)
    x = images(20, 3, 1, 1).expand(-1, -1, 256, 256)
    outputs = outputs_of(Part(with_batch_statistics(whole)), x, batch_size=10)
    torch.testing.assert_close(outputs[:10].mean(0), torch.zeros(3), atol=1e-5, rtol=0)


def test_vectors_come_as_many_at_once_as_asked_for():
    seen = []
    layer = torch.nn.Linear(100_000, 1)
    layer.register_forward_hook(lambda _layer, inputs, _output: seen.append(len(inputs[0])))
    outputs_of(Part(layer), images(1, 100_000).expand(30, -1))
    assert seen == [30]
