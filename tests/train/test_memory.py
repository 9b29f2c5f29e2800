"""Bytes of a step: by hand, by two means, with and without values."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dovetail.parts.part import build
from dovetail.train.checkpointing import Checkpointed, a_block_at_a_time, links_of
from dovetail.train.memory import Work, peak_by_hooks, peak_by_operations
from dovetail.train.options import Options

MEANS = [peak_by_operations, peak_by_hooks]


def step_with(network):
    return lambda batch: F.cross_entropy(network(batch[0]), batch[1])


def in_blocks(module):
    return step_with(Checkpointed(module, a_block_at_a_time(links_of(module))))


def images(n, size=16):
    return torch.zeros(n, 3, size, size), torch.zeros(n, dtype=torch.long)


def sums(module):
    return lambda x: module(x).sum()


@pytest.mark.parametrize("measure", MEANS)
@pytest.mark.parametrize("fake", [True, False])
def test_two_linear_layers_by_hand(measure, fake):
    n, d, h = 256, 8, 32
    net = nn.Sequential(nn.Linear(d, h, bias=False), nn.ReLU(), nn.Linear(h, 1, bias=False))
    peak = measure(Work(net, sums, torch.zeros(n, d), Options(optimiser="sgd")), fake=fake)
    weights = 4 * (d * h + h)
    assert peak.parameters == peak.optimiser == peak.gradients == weights
    assert peak.batch == 4 * n * d
    # On the way back through the ReLU: its output, the gradients behind and before it, and the
    # gradient of the last layer's weights.
    hidden, behind = 4 * n * h, 4 * h
    assert peak.activations == pytest.approx(3 * hidden + behind, abs=16 + 4 * n)
    assert peak.where == "1"


@pytest.mark.parametrize("measure", MEANS)
def test_what_an_optimiser_remembers(measure):
    net = nn.Linear(50, 20, bias=False)
    state = {
        name: measure(Work(net, sums, torch.zeros(4, 50), options)).optimiser
        for name, options in {
            "plain": Options(momentum=0.0),
            "momentum": Options(),
            "adam": Options(optimiser="adam", lr=0.01),
        }.items()
    }
    assert state["plain"] == 0
    assert state["momentum"] == 4000
    assert state["adam"] == 8000 + 4  # two moments, and a count


@pytest.mark.parametrize("measure", MEANS)
def test_a_batch_that_is_a_view_of_the_data_set_counts_as_itself(measure):
    everything = torch.zeros(100_000, 8)
    peak = measure(Work(nn.Linear(8, 1), sums, everything[:16]), fake=False)
    assert peak.batch == 4 * 16 * 8
    assert peak.bytes < 4000


@pytest.mark.parametrize("name", ["resnet8", "vgg13", "mobilenetv2", "wideresnet16"])
@pytest.mark.parametrize("step_of", [step_with, in_blocks])
def test_both_means_agree(name, step_of):
    width = 0.25 if name == "mobilenetv2" else 8 if name == "vgg13" else 4
    args = {} if name == "wideresnet16" else {"width": width}
    module = build(name, size=16, **args).module
    work = Work(module, step_of, images(32))
    means = [measure(work) for measure in MEANS]
    assert means[0].bytes == pytest.approx(means[1].bytes, rel=0.05)


@pytest.mark.parametrize("measure", MEANS)
@pytest.mark.parametrize("step_of", [step_with, in_blocks])
def test_fake_tensors_have_the_bytes_of_real_ones(measure, step_of):
    work = Work(build("resnet8", size=16, width=4).module, step_of, images(8))
    assert measure(work) == measure(work, fake=False)


def test_torchs_own_tracker_agrees():
    from torch.distributed._tools.mem_tracker import MemTracker

    module = build("resnet8", size=16, width=4).module.train()
    batch = images(32)
    ours = peak_by_operations(Work(module, step_with, batch, Options(momentum=0.0)))
    tracker = MemTracker()
    tracker.track_external(module, *batch)
    with tracker:
        step_with(module)(batch).backward()
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    module.zero_grad()
    assert ours.bytes == pytest.approx(theirs, rel=0.05)


@pytest.mark.parametrize("measure", MEANS)
def test_a_loss_that_needs_values_is_measured_on_a_copy(measure):
    def step_of(module):
        return lambda x: module(x).sum() * (2.0 if x.sum().item() > 0 else 1.0)

    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.get_rng_state()
    assert measure(Work(net, step_of, torch.ones(16, 8))).bytes > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert net[0].weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)
