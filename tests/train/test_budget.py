"""Stages within a budget: measured by both means, or an error that names the floor."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dovetail.core.amounts import amount
from dovetail.core.errors import TrainingError
from dovetail.parts.part import build
from dovetail.tasks.task import Task
from dovetail.train.budget import bytes_of, stage_peak, stage_within
from dovetail.train.end_to_end import end_to_end
from dovetail.train.layerwise import layerwise
from dovetail.train.memory import Work, peak_by_hooks, peak_by_operations
from dovetail.train.memory_plan import BEST, FULL, LAYERS, MemoryPlan, PlannedWay, plan
from dovetail.train.options import Options
from dovetail.train.stage_plan import stages_of

BATCH = torch.zeros(64, 3, 16, 16), torch.zeros(64, dtype=torch.long)


def padded(task, side):
    """The same images in the corner of larger ones."""
    more = side - task.inputs.shape[-1]
    return Task(F.pad(task.inputs, (0, more, 0, more)), task.targets, name=task.name)


def full_peak(part):
    def step_of(module):
        return lambda batch: F.cross_entropy(module(batch[0]), batch[1])

    return peak_by_operations(Work(part.module, step_of, BATCH)).bytes


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_every_stage_is_within_what_was_asked_by_both_means(norm):
    part = build("vgg13", size=16, width=8, norm=norm)
    budget = bytes_of(0.4, full_peak(part))
    changed = []
    for stage in islice(stages_of(part, 10), 4):
        within, peak = stage_within(stage, budget, BATCH, F.cross_entropy, Options())
        books = stage_peak(within, BATCH, F.cross_entropy, Options(), by=peak_by_hooks)
        assert peak.bytes <= budget
        assert books.bytes == pytest.approx(peak.bytes, rel=0.05)
        assert peak == stage_peak(within, BATCH, F.cross_entropy, Options())
        if within != stage:
            changed.append(within)
    assert changed  # or the budget asks for nothing


def test_with_room_a_stage_stays_as_it_is():
    part = build("resnet8", size=16, width=4)
    for stage in stages_of(part, 10):
        assert stage_within(stage, 10**10, BATCH, F.cross_entropy, Options())[0] == stage


def test_a_budget_that_no_stage_can_keep_names_the_floor_and_the_stage():
    stage = next(iter(stages_of(build("lenet5", size=16, channels=3), 10)))
    with pytest.raises(TrainingError, match=r"stage 'layer1' .* within 1000 B.* still takes .*B"):
        stage_within(stage, 1000, BATCH, F.cross_entropy, Options())


def test_pieces_without_batch_norm_have_the_gradients_of_the_whole_batch():
    stage = next(iter(stages_of(build("lenet5", size=8, channels=3, norm="none"), 10)))
    x, targets = torch.rand(12, 3, 8, 8), torch.arange(12) % 10
    gradients = []
    for pieces, again in [(1, False), (3, False), (1, True), (5, True)]:
        network = replace(stage, micro=pieces, checkpoint=again).build()
        network.eval()  # the decision block has a batch norm of its own
        network.zero_grad()
        replace(stage, micro=pieces, checkpoint=again).loss(
            network, x, targets, F.cross_entropy
        ).backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    for others in gradients[1:]:
        for a, b in zip(gradients[0], others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_running_again_inside_a_stage_counts_a_batch_once():
    stage = next(iter(stages_of(build("resnet8", size=16, width=4), 10)))
    network = replace(stage, checkpoint=True).build().train()
    stage.loss(network, *BATCH, F.cross_entropy).backward()
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    counts = [norm.num_batches_tracked.item() for norm in norms]
    assert counts
    assert set(counts) == {1}


def test_a_plan_says_what_the_training_then_takes(task):
    task = padded(task, 8)
    net = build("vgg13", channels=1, size=8, width=4, classes=3)
    made = plan(net, task, memory_budget=0.9, batch_size=32)
    by_name = {way.name: way for way in made.ways}
    assert made.budget == int(0.9 * by_name[FULL].bytes)
    assert by_name[BEST].bytes <= made.budget
    assert by_name[LAYERS].bytes == max(stage.bytes for stage in made.stages)
    trained = layerwise(net, task, epochs=1, batch_size=32, memory_budget=0.9).record
    assert [(s.name, s.bytes) for s in made.stages] == [
        (s.name, s.peak_bytes) for s in trained.stages
    ]
    assert made.take is not None
    assert made.take.bytes <= made.budget
    told = end_to_end(net, task, epochs=1, batch_size=32, memory_budget=0.9).record.settings
    assert told["full_bytes"] == by_name[FULL].bytes
    assert told["peak_bytes"] <= made.budget


def test_which_way_a_plan_takes():
    full, best = PlannedWay(FULL, 900, 1.0), PlannedWay(BEST, 500, 1.4)
    layers = PlannedWay(LAYERS, 300, 1.2)
    about = {"part": "net", "task": "digits", "batch": 8, "ways": (full, best, layers)}
    assert MemoryPlan(**about).take == full
    assert MemoryPlan(**about, budget=600).take == best
    assert MemoryPlan(**about, budget=400).take == layers
    none = MemoryPlan(**about, budget=200)
    assert none.take is None
    assert "takes least, 300 B" in none.verdict


def test_where_no_stage_fits_plan_and_trainer_name_the_same_floor(task):
    net = build("mlp", shape=(1, 4, 4), hidden=(16, 32, 16), classes=3)
    made = plan(net, task, memory_budget=0.05)
    with pytest.raises(TrainingError) as error:
        layerwise(net, task, epochs=1, memory_budget=0.05)
    assert made.take is None
    largest = max(made.stages, key=lambda stage: stage.bytes)
    assert f"stage {largest.name!r} cannot be trained" in str(error.value)
    assert f"{amount(largest.bytes)}, which {largest.where!r} sets" in str(error.value)
    assert f"{amount(largest.bytes)}, which {largest.where!r} sets" in made.verdict


def test_a_plan_takes_the_loss_by_name_and_one_way_if_it_is_asked_for(task):
    net = build("lenet5", channels=1, size=8, classes=3)
    made = plan(net, padded(task, 8), loss="sparse-cross-entropy", by_layers=True, segment=2)
    assert made.settings["loss"] == "sparse-cross-entropy"
    assert [stage.name for stage in made.stages] == ["layers1-2", "layers3-4"]
    assert made.take is not None
    assert made.take.name == LAYERS
